"""The record of an answer, made from runs once: all that text, JSON and a report say; and the policy that it makes.

For swaps alone it has their rule, the choice at each shape, and the gains over the code of engines.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from statistics import mean, median
from typing import Any, Final, NamedTuple

import msgspec

from kvbench.analysis.compare import MIN_PAIRS, Comparison, Verdict
from kvbench.analysis.margins import TIED
from kvbench.cells.axes import Direction, Situation, StreamState
from kvbench.cells.cell import SwapKind
from kvbench.cells.facts import BATCHED, MERGED
from kvbench.cells.installed import Engine, engines, serves_all
from kvbench.cells.policy import Choice, Policy, Table
from kvbench.ground.errors import UsageError
from kvbench.ground.text import MAX_LINE
from kvbench.results import Run
from kvbench.tune.candidates import Measured, Pick, compare_methods, could_gain, may_take_sms, pick
from kvbench.tune.evidence import Evidence, Origin, evidence_of
from kvbench.tune.planner import ModelAnswers, answer_models
from kvbench.tune.rule import Rule, RulePart, costs_of, rule_of
from kvbench.tune.situations import USUAL, Answer, Question, answer_situations, not_measured

_MOSTLY: Final = 2 / 3
# The number of blocks of a table whose choices do not depend on it.
_ANY_BLOCKS: Final = 1024


@dataclass(frozen=True, slots=True, eq=False)
class ShapeAnswer:
    """The choice for swaps of one shape, and the methods that could replace it, with their times over its own."""

    measured: Measured
    pick: Pick
    others: Mapping[Choice, Comparison]

    @property
    def choice(self) -> Choice:
        return self.pick.choice

    @property
    def open(self) -> Mapping[Choice, Comparison]:
        """What could be faster than the choice, by more than `TIED`, in another run."""
        return {other: compared for other, compared in self.others.items() if could_gain(compared)}

    @property
    def decided(self) -> bool:
        """Whether no other method could be faster by more than `TIED`, and no other SM count was.

        Which counts are not told apart is part of an answer: `open` names those that could gain.
        """
        doubtful = any(
            other.without_sms != self.choice.without_sms or compared.ratio < 1 / (1 + TIED.fraction)
            for other, compared in self.open.items()
        )
        return len(self.measured.visits_of(self.choice)) >= MIN_PAIRS and not doubtful

    def to_plain(self, rule: Rule, losses: Mapping[Measured, float]) -> dict[str, Any]:
        measured, loss = self.measured, losses.get(self.measured)
        return {
            **measured.shape._asdict(),
            "quantity": measured.shape.stream_state.quantity,
            **_candidate_record(measured, self.choice),
            "gbps": round(measured.gbps_of(self.choice), 3),
            "decided": self.decided,
            "tied": [_alternative_record(*other) for other in self.others.items() if not could_gain(other[1])],
            "open": [_alternative_record(*other) for other in self.open.items()],
            "candidates": [_candidate_record(measured, choice) for choice in measured.methods],
            "rule": {"choice": str(rule.choices[measured]), "loss": None if loss is None else round(loss, 4)},
        }


def _candidate_record(measured: Measured, choice: Choice) -> dict[str, Any]:
    interval, caller_us = measured.interval_of(choice), measured.caller_us.get(choice, math.nan)
    return {
        "choice": str(choice),
        "us": round(measured.us_of(choice), 3),
        "interval_us": interval and [round(end, 3) for end in interval],
        "caller_us": round(caller_us, 3) if math.isfinite(caller_us) else None,
        "sms": choice.sms,
    }


def _alternative_record(choice: Choice, compared: Comparison) -> dict[str, Any]:
    """A choice that another run could make, with its time over that of this one; too few visits have no interval."""
    has_interval = math.isfinite(compared.high)
    return {
        "choice": str(choice),
        "ratio": round(compared.ratio, 4),
        "low": round(compared.low, 4) if has_interval else None,
        "high": round(compared.high, 4) if has_interval else None,
    }


def answers_of(shapes: Sequence[Measured]) -> list[ShapeAnswer]:
    return [_answer(measured) for measured in sorted(shapes, key=lambda measured: measured.shape)]


def _answer(measured: Measured) -> ShapeAnswer:
    shape = measured.kept_arms
    chosen = pick([shape])
    replacements = (other for other in measured.arms if other != chosen.choice)
    compared = {other: compare_methods([shape], chosen.choice, other) for other in replacements}
    others = {other: result for other, result in compared.items() if result and result.verdict is not Verdict.SLOWER}
    return ShapeAnswer(measured, chosen, others)


class Gain(NamedTuple):
    """How many times as fast as `over`, batched copies or an engine's own method, the choices of a rule are, at each
    of the shapes of a kind that one run measured both at.
    """

    over: str
    kind: SwapKind
    ratios: Sequence[float]

    def to_plain(self) -> dict[str, Any]:
        times = {"median": median(self.ratios), "low": min(self.ratios), "high": max(self.ratios)}
        return {
            "over": self.over,
            **self.kind._asdict(),
            "shapes": len(self.ratios),
            "times_as_fast": {name: round(ratio, 3) for name, ratio in times.items()},
        }


def gains_of(rule: Rule, settings: Mapping[str, int]) -> list[Gain]:
    """The gains over batched copies, and over what each engine takes there with its recorded settings.

    A shape counts where one run measured both, the choice by itself or with the next smaller SM count.
    """
    ratios: dict[tuple[str, SwapKind], list[float]] = {}
    for measured, choice in rule.choices.items():
        methods = {BATCHED: measured.best_of(BATCHED)} | {
            engine.name: shipped_choice(engine, measured, settings) for engine in engines().values() if not engine.pages
        }
        for over, method in methods.items():
            if method is None or method == choice:
                continue
            # Figures of two starts of kvbench differ by more than many gains.
            together = measured.in_rounds_of(method)
            measured_choice = together.standing_for(choice)
            arms = replace(together, arms=together.methods).kept_arms
            compared = compare_methods([arms], measured_choice, method) if measured_choice else None
            if compared:
                ratios.setdefault((over, measured.shape.kind), []).append(compared.ratio)
    return [Gain(over, kind, gains) for (over, kind), gains in ratios.items()]


def shipped_choice(engine: Engine, measured: Measured, settings: Mapping[str, int]) -> Choice | None:
    """The engine's choice with its recorded settings, or None if it was not measured."""
    as_shipped = [Choice(name) for name in engine.backends]
    if engine.takes and settings.keys() >= set(engine.settings):
        choice = taken(engine, measured, tuple(settings[name] for name in engine.settings))
        as_shipped = [Choice(choice.backend), choice] if choice.backend == engine.kernel else [choice]
    choices = (engine.default_choice(measured.shape.direction), *as_shipped)
    return next((choice for choice in choices if choice in measured.methods), None)


def taken(engine: Engine, measured: Measured, values: tuple[int, ...]) -> Choice:
    """The engine's choice for swaps of a shape with some values of its settings, in the form in which it was
    measured.
    """
    assert engine.takes is not None
    shape = measured.shape
    choice = engine.takes(shape.direction, shape.block_bytes, shape.blocks, values)
    return choice if choice.axes else measured.best_of(choice.backend) or choice


# By engine and direction: what of its code was measured in place of what it does by default, "" for that itself.
StandIns = Mapping[tuple[str, Direction], str]


def _stand_in(engine: Engine, direction: Direction, rule: Rule) -> str:
    of_direction = (measured for measured in rule.shapes if measured.shape.direction == direction)
    has_default = any(engine.default_choice(direction) in measured.methods for measured in of_direction)
    return "" if has_default else engine.measured.get(direction, "")


class RunLength(NamedTuple):
    """Runs of `blocks` blocks, the GB/s of merged copies at the shapes where they are the fastest, and whether the
    driver may make these copies with SMs.
    """

    blocks: int
    gbps: Sequence[float]
    may_take_sms: bool

    def to_plain(self) -> dict[str, Any]:
        return {"from_blocks": self.blocks, "gbps": [round(min(self.gbps), 3), round(max(self.gbps), 3)]}


def _merged_in_runs(
    rule: Rule, shapes_by_length: Mapping[int, Sequence[Measured]], *, with_sms: bool
) -> dict[Direction, RunLength]:
    """The shortest runs of blocks in which merged copies would replace a choice for shuffled blocks.

    There, they are faster than all else in two thirds of the measured shapes on an idle stream.
    """
    idle = {kind: parts for kind, parts in rule.parts.items() if kind.stream_state is StreamState.IDLE}
    replaced = [kind for kind, parts in idle.items() if any(part.choice.backend != MERGED for part in parts)]
    shortest: dict[Direction, RunLength] = {}
    for (length, shapes), kind in product(shapes_by_length.items(), replaced):
        methods = {measured: measured.best_of(MERGED) for measured in shapes if measured.shape.kind == kind}
        merged = {measured: method for measured, method in methods.items() if method}
        won = [measured for measured in merged if pick([measured.kept_arms]).alike[0].backend == MERGED]
        if kind.direction not in shortest and won and len(won) >= _MOSTLY * len(merged):
            rates = [measured.gbps_of(merged[measured]) for measured in won]
            shortest[kind.direction] = RunLength(length, rates, with_sms)
    return shortest


@dataclass(frozen=True)
class Alone:
    """What to use for swaps with nothing beside them: the rule, and the rules after pauses; the answer for each shape
    taken alone, what the rule gains over batched copies and over engines with the `settings` that they had, what would
    change if blocks lay in runs, and the backends of the rule whose copies the driver may make with SMs.
    """

    rule: Rule
    after_pauses: Mapping[str, Rule]
    shapes: Sequence[ShapeAnswer]
    settings: Mapping[str, int]
    gains: Sequence[Gain]
    stand_ins: StandIns
    merged_in_runs: Mapping[Direction, RunLength]
    may_take_sms: Sequence[str]

    @cached_property
    def losses(self) -> Mapping[Measured, float]:
        """What the rule loses at each shape, as `costs_of` judges it, which takes as long as all else."""
        return costs_of(self.rule)


def answer_alone(evidence: Evidence) -> Alone:
    """Answer for swaps alone by the shapes that were measured, if any."""
    rule, settings, cuda = rule_of(evidence.shapes), evidence.origin.settings, evidence.origin.runs[0].cuda
    choices = {part.choice for parts in rule.parts.values() for part in parts}
    return Alone(
        rule,
        {pause: rule_of(shapes) for pause, shapes in evidence.by_pause.items()},
        answers_of(rule.shapes),
        settings,
        gains_of(rule, settings),
        {(engine.name, side): _stand_in(engine, side, rule) for engine, side in product(engines().values(), Direction)},
        _merged_in_runs(rule, evidence.in_runs, with_sms=may_take_sms(Choice(MERGED), cuda)),
        sorted({choice.backend for choice in choices if may_take_sms(choice, cuda)}),
    )


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
    models = answer_models(question.swaps, question.prefill_tokens_per_s, alone.rule, alone.after_pauses)
    return Advice(evidence.origin, question, alone, answers, by_size, models)


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
