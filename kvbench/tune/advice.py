"""The record of an answer: all that text, JSON, a policy and a report say of runs, made from the runs once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvbench.cells.axes import Direction, Situation
from kvbench.cells.policy import Choice
from kvbench.errors import UsageError
from kvbench.results import Run, RunInfo
from kvbench.tune.answer import NOTHING_ALONE, Alone, answer_alone
from kvbench.tune.candidates import ceilings_of, machine_of, tried, workload_axes
from kvbench.tune.planner import ModelAnswers, answer_models
from kvbench.tune.situations import Answer, Evidence, Question, measured_beside, not_measured


@dataclass(frozen=True, slots=True)
class Origin:
    """The `machine` (its device and driver) of an answer, the runs that it rests on, and what most of their swaps have
    in common: the `workload` as values of axes, and the `trace` that all of them replay, empty without one.
    """

    machine: tuple[str, str]
    runs: Sequence[RunInfo]
    ceilings_gbps: Mapping[Direction, float]
    workload: Mapping[str, str]
    trace: Mapping[str, Any]

    @property
    def on_host(self) -> bool:
        """Whether the runs are of the device cpu."""
        return self.runs[0].device.get("kind") == "cpu"


def origin_of(runs: Sequence[Run]) -> Origin:
    """Raises UsageError for runs of several machines."""
    trace = runs[0].trace if all(run.trace for run in runs) else {}
    return Origin(machine_of(runs), [run.info for run in runs], ceilings_of(runs), workload_axes(runs), trace)


@dataclass(frozen=True, slots=True)
class Advice:
    """What to use on one machine: the answers to a question, those for every block size that was measured beside steps,
    and what is known of swaps alone and of those of models.
    """

    origin: Origin
    question: Question
    alone: Alone
    answers: Sequence[Answer]
    by_size: Mapping[int, Sequence[Answer]]
    models: ModelAnswers


def advise(runs: Sequence[Run], question: Question, keep: Callable[[Choice], bool]) -> Advice:
    """Answer by the methods that `keep` accepts; raises UsageError where there is nothing to choose from at all, and
    for runs of several machines.
    """
    beside, others = (measured_beside(runs, keep, shuffled=shuffled) for shuffled in (True, False))
    alone, no_rule = NOTHING_ALONE, not_measured(Situation.ALONE)
    try:
        alone = answer_alone(runs, keep)
    except UsageError as none:
        if not beside:
            raise
        if tried(runs):
            no_rule = str(none).partition(";")[0]
    origin = origin_of(runs)
    directions = {cell.direction for run in runs for cell in run.outcomes}
    evidence = Evidence(directions, origin.on_host, alone.rule, no_rule, beside, others, origin.ceilings_gbps)
    answers = evidence.answers(question)
    sizes = sorted({arm.cell.block_bytes for arms in beside.values() for arm in arms})
    by_size = {size: evidence.answers(replace(question, block_bytes=size)) for size in sizes}
    return Advice(origin, question, alone, answers, by_size, answer_models(runs, question, keep, alone.rule, answers))
