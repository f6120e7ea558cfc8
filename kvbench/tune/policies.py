"""The policy that an answer makes: a table for each stream state, and one for each situation beside a step."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from kvbench.cells.cell import SwapKind
from kvbench.cells.policy import Choice, Policy, Table
from kvbench.errors import UsageError
from kvbench.text import MAX_LINE
from kvbench.tune.candidates import ceilings_of, machine_of, workload_axes
from kvbench.tune.rule import RulePart
from kvbench.tune.situations import Advice, measured_choices

# The number of blocks of a table whose choices do not depend on it.
_ANY_BLOCKS: Final = 1024


def policy_of(advice: Advice) -> Policy:
    """Return the policy of an answer with its origin; raises UsageError for runs of several devices, and without a
    choice.
    """
    runs = advice.runs
    device, driver = machine_of(runs)
    newest = max(runs, key=lambda run: run.info.created)
    parts = advice.rule.parts if advice.rule else {}
    tables = (*(_by_state(kind, of_kind) for kind, of_kind in parts.items()), *_beside(advice))
    if not tables:
        raise UsageError("--policy: there is nothing to write: no situation that was asked for has an answer")
    choices = chain.from_iterable(chain.from_iterable(table.choices for table in tables))
    paced = any(Choice.parse(text).share for text in choices if text)
    return Policy(
        device=device,
        driver=driver,
        identity_hash=newest.info.identity_hash[:MAX_LINE],
        made=newest.info.created[:MAX_LINE],
        workload=workload_axes(runs),
        ceiling_gbps={way: round(gbps, 2) for way, gbps in ceilings_of(runs).items()} if paced else {},
        runs=tuple(" ".join(run.info.command)[:MAX_LINE] for run in runs),
        tables=tables,
    )


def _by_state(kind: SwapKind, parts: Sequence[RulePart]) -> Table:
    """Return the table of a kind: a row for each size where a part ends or begins, a column for each such number."""
    sizes = sorted({end for part in parts for end in part.sizes if end}) or [parts[0].shapes[0].shape.block_bytes]
    counts = sorted({end for part in parts for end in part.blocks if end}) or [_ANY_BLOCKS]

    def choice_at(block_bytes: int, blocks: int) -> str:
        return str(next(part.choice for part in parts if part.serves(block_bytes, blocks)))

    return Table(
        direction=kind.direction,
        stream_state=kind.stream_state,
        block_bytes=tuple(sizes),
        blocks=tuple(counts),
        choices=tuple(tuple(choice_at(size, count) for count in counts) for size in sizes),
    )


def _beside(advice: Advice) -> Iterator[Table]:
    """Yield a table for each direction and step that swaps were measured beside, with a row for each block size."""
    for (direction, situation), choices in measured_choices(advice).items():
        yield Table(
            direction=direction,
            beside=situation,
            block_bytes=tuple(choices),
            blocks=(_ANY_BLOCKS,),
            choices=tuple((str(choice),) for choice in choices.values()),
        )
