"""The policy that an answer makes: a table for each stream state, and one for each situation beside a step."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from kvbench.cells.axes import Direction, Situation
from kvbench.cells.cell import SwapKind
from kvbench.cells.policy import Choice, Policy, Table
from kvbench.errors import UsageError
from kvbench.text import MAX_LINE
from kvbench.tune.advice import Advice
from kvbench.tune.rule import RulePart

# The number of blocks of a table whose choices do not depend on it.
_ANY_BLOCKS: Final = 1024


def policy_of(advice: Advice) -> Policy:
    """The policy of an answer with its origin; raises UsageError without a choice."""
    origin = advice.origin
    device, driver = origin.machine
    newest = max(origin.runs, key=lambda run: run.created)
    tables = (*(_by_state(kind, parts) for kind, parts in advice.alone.rule.parts.items()), *_beside(advice))
    if not tables:
        raise UsageError("--policy: there is nothing to write: no situation that was asked for has an answer")
    choices = chain.from_iterable(chain.from_iterable(table.choices for table in tables))
    paced = any(Choice.parse(text).share for text in choices if text)
    return Policy(
        device=device,
        driver=driver,
        identity_hash=newest.identity_hash[:MAX_LINE],
        made=newest.created[:MAX_LINE],
        workload=origin.workload,
        ceiling_gbps={direction: round(gbps, 2) for direction, gbps in origin.ceilings_gbps.items()} if paced else {},
        runs=tuple(" ".join(run.command)[:MAX_LINE] for run in origin.runs),
        tables=tables,
    )


def _by_state(kind: SwapKind, parts: Sequence[RulePart]) -> Table:
    """The table of a kind: a row for each size where a part ends or begins, a column for each such number."""
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
    """Yield a table for each direction and step that swaps were measured beside, with a row for each block size that
    was measured there and has a choice, the sizes ascending.
    """
    by_situation: dict[tuple[Direction, Situation], dict[int, Choice]] = {}
    for size, answers in advice.by_size.items():
        for answer in answers:
            if answer.use and answer.situation is not Situation.ALONE and answer.block_bytes == size:
                by_situation.setdefault((answer.direction, answer.situation), {})[size] = answer.use.choice
    for (direction, situation), choices in by_situation.items():
        yield Table(
            direction=direction,
            beside=situation,
            block_bytes=tuple(choices),
            blocks=(_ANY_BLOCKS,),
            choices=tuple((str(choice),) for choice in choices.values()),
        )
