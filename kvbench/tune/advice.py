"""The record of an answer: all that text, JSON, a policy and a report say of runs, made from the runs once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kvbench.cells.axes import Situation
from kvbench.cells.policy import Choice
from kvbench.errors import UsageError
from kvbench.results import Run
from kvbench.tune.answer import NOTHING_ALONE, Alone, answer_alone
from kvbench.tune.candidates import Origin, origin_of, tried
from kvbench.tune.planner import ModelAnswers, answer_models
from kvbench.tune.situations import Answer, Evidence, Question, measured_beside, not_measured


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
    evidence = Evidence(origin, alone.rule, no_rule, beside, others)
    answers = evidence.answers(question)
    sizes = sorted({arm.cell.block_bytes for arms in beside.values() for arm in arms})
    by_size = {size: evidence.answers(replace(question, block_bytes=size)) for size in sizes}
    return Advice(origin, question, alone, answers, by_size, answer_models(runs, question, keep, alone.rule, answers))
