"""The record of an answer, made from runs once: all that text, JSON and a report say; and the policy that it makes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import mean
from typing import Any, Final, NamedTuple

import msgspec

from kvbench.cells.axes import Direction, Situation
from kvbench.cells.cell import SwapKind
from kvbench.cells.installed import serves_all
from kvbench.cells.policy import Choice, Policy, Table
from kvbench.ground.errors import UsageError
from kvbench.ground.text import MAX_LINE
from kvbench.results import Run
from kvbench.tune.answer import Alone, answer_alone
from kvbench.tune.evidence import Origin, evidence_of
from kvbench.tune.planner import ModelAnswers, answer_models
from kvbench.tune.rule import RulePart
from kvbench.tune.situations import USUAL, Answer, Question, answer_situations, not_measured


class Advice(NamedTuple):
    """What to use on one machine: the answers to a question, those for every block size that was measured beside steps,
    and what is known of swaps alone and of those of models.
    """

    origin: Origin
    question: Question
    alone: Alone
    answers: Sequence[Answer]
    by_size: Mapping[int, Sequence[Answer]]
    models: ModelAnswers

    def policy(self) -> Policy:
        """The policy of an answer with its origin; raises UsageError without a choice."""
        origin = self.origin
        device, driver = origin.machine
        newest = max(origin.runs, key=lambda run: run.created)
        tables = (*(_by_state(kind, parts) for kind, parts in self.alone.rule.parts.items()), *_beside(self.by_size))
        if not tables:
            raise UsageError("--policy: there is nothing to write: no situation that was asked for has an answer")
        choices = chain.from_iterable(chain.from_iterable(table.choices for table in tables))
        paced = any(Choice.parse(text).share for text in choices if text)
        ceilings = origin.ceilings_gbps if paced else {}
        return Policy(
            device=device,
            driver=driver,
            identity_hash=newest.identity_hash[:MAX_LINE],
            made=newest.created[:MAX_LINE],
            workload=origin.workload,
            ceiling_gbps={direction: round(gbps, 2) for direction, gbps in ceilings.items()},
            runs=tuple(" ".join(run.command)[:MAX_LINE] for run in origin.runs),
            tables=tables,
        )

    def to_plain(self, *, costs: bool = False) -> dict[str, Any]:
        origin, alone, info = self.origin, self.alone, self.origin.runs[0]
        losses, in_runs = alone.losses if costs else {}, alone.merged_in_runs
        loss = {"mean": round(mean(losses.values()), 4), "worst": round(max(losses.values()), 4)} if losses else None
        return {
            "kvbench": info.kvbench,
            "device": info.device.get("title"),
            "driver": info.identity.get("driver_version"),
            "created": info.created,
            "link": info.link,
            "ceiling_gbps": {direction.value: round(gbps, 3) for direction, gbps in origin.ceilings_gbps.items()},
            "runs": [{"created": run.created, "command": run.command} for run in origin.runs],
            "workload": {"words": origin.workload_text, **origin.workload},
            "situations": [answer.to_plain() for answer in self.answers],
            "rule": alone.rule.to_plain(),
            "loss": loss,
            "gains": [gain.to_plain() for gain in alone.gains],
            "merged_in_runs": {direction.value: length.to_plain() for direction, length in in_runs.items()},
            "answers": [answer.to_plain(alone.rule, losses) for answer in alone.shapes],
            "models": [load.to_plain() for load in self.models.loads],
            "token_lines": msgspec.to_builtins(self.models.lines),
        }


class Reply(NamedTuple):
    """What runs reply to a question: the advice, that no GPU was involved, and the faults of whole runs; or why there
    is `none`, and the findings of a report in its place.
    """

    advice: Advice | None
    host_note: str
    warnings: Sequence[str]
    none: str = ""
    findings: Sequence[str] = ()

    def to_plain(self, *, costs: bool = False) -> dict[str, Any]:
        """The reply as JSON-compatible data; with `costs` what the rule loses, which takes as long as all else."""
        found = {"findings": self.findings} if self.advice is None else self.advice.to_plain(costs=costs)
        return {"host_note": self.host_note, "warnings": self.warnings, **found}


def advise(runs: Sequence[Run], question: Question = USUAL, keep: Callable[[Choice], bool] = serves_all) -> Advice:
    """Answer by the methods that `keep` accepts; raises UsageError where there is nothing to choose from at all, and
    for runs of several machines.
    """
    evidence = evidence_of(runs, keep, by_pause=bool(question.swaps))
    alone, no_rule = answer_alone(evidence), not_measured(Situation.ALONE)
    if evidence.no_shapes and question.block_bytes in evidence.sizes_alone:
        # Runs with another question, such as how deep a queue is, swap by one method too, but blocks of other sizes.
        no_rule = evidence.no_shapes.partition(";")[0]
    answers = answer_situations(question, evidence, alone.rule, no_rule)
    sizes = sorted({*chain.from_iterable(evidence.beside.values())})
    by_size = {
        size: answer_situations(replace(question, block_bytes=size), evidence, alone.rule, no_rule) for size in sizes
    }
    models = answer_models(question, alone, answers)
    return Advice(evidence.origin, question, alone, answers, by_size, models)


# The number of blocks of a table whose choices do not depend on it.
_ANY_BLOCKS: Final = 1024


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


def _beside(by_size: Mapping[int, Sequence[Answer]]) -> Iterator[Table]:
    """Yield a table for each direction and step that swaps were measured beside, with a row for each block size that
    was measured there and has a choice, the sizes ascending.
    """
    by_situation: dict[tuple[Direction, Situation], dict[int, Choice]] = {}
    for size, answers in by_size.items():
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
