"""Engines: each engine's own code, as shipped and at its best, beside the best backend of the same run."""

from collections.abc import Sequence
from statistics import median
from typing import Final

from kvbench.analysis.compare import Verdict, compare_visits
from kvbench.analysis.margins import BETWEEN_RUNS, IN_TURN
from kvbench.errors import UsageError
from kvbench.policy import Choice
from kvbench.report.model import DataTable, Finding, Part, Section
from kvbench.report.numbers import count, figure, size
from kvbench.report.select import where
from kvbench.report.tables import UNCLEAR, measured_table, unsure
from kvbench.report.view import View
from kvbench.results.frame import unqueued
from kvbench.results.replays import trace_of
from kvbench.text import counted, ends
from kvbench.tune.answer import Answer, answers_of, by_kind
from kvbench.tune.exports import ENGINE_BACKENDS, ENGINES, Engine, shipped_choice
from kvbench.units import format_size

_WEIGHT: Final = 0.3  # that two calls of one function agree is a check, not an effect
_INCLUDES: Final = (
    "Medians in us per swap: wall_us on an idle stream, gpu_us on a busy one. As shipped: what the engine takes with "
    "its own thresholds and SM count. Its best: the fastest of its own ways. Best: the fastest backend of no engine. "
    f"x: time as shipped / time of the best. {UNCLEAR}"
)
_HEADER: Final = ("Blocks", "Block size", "As shipped", "us", "Its best", "us", "Best", "us", "x")


def make(view: View) -> Part | str:
    if view.measured.empty or not view.measured["backend"].isin(ENGINE_BACKENDS).any():
        return "it needs cells of an engine's own code, such as backend=vllm_batch"
    if trace_of(view.run):
        return "it needs swaps of equal blocks; the section on the replay has those of a trace"
    try:
        answers = answers_of([view.run], lambda _: True)
    except UsageError as error:
        return str(error)
    tables = [
        _table(view, engine, own)
        for engine in ENGINES.values()
        for every in by_kind(answers).values()
        if (own := [answer for answer in every if _ways(answer, engine.backends)])
    ]
    told = [Finding(text, _WEIGHT) for engine in ENGINES.values() if (text := _same_api(engine, answers))]
    return Part(tables=tables, told=told)


SECTION = Section("engines", "Engines: their own code, and the best backend of the run", make)


def _ways(answer: Answer, backends: Sequence[str]) -> list[Choice]:
    """Return the candidates of these backends, the fastest first."""
    return sorted((choice for choice in answer.arms if choice.backend in backends), key=answer.time_of)


def _table(view: View, engine: Engine, answers: Sequence[Answer]) -> DataTable:
    one = answers[0]
    rows = [_row(view, engine, answer) for answer in answers]
    cells = where(unqueued(view.measured), direction=one.direction.value, stream_state=one.state.value)
    title = f"{engine.title}, {one.direction}, {one.state} stream"
    return measured_table(view, cells, title, _HEADER, rows, _INCLUDES, compared=len(rows))


def _row(view: View, engine: Engine, answer: Answer) -> list[str]:
    shipped = shipped_choice(engine, answer, view.run)
    best = next(iter(_ways(answer, [one.backend for one in answer.arms if one.backend not in ENGINE_BACKENDS])), None)
    ratio = "-"
    if shipped and best:
        found = compare_visits(answer.arms[best], answer.arms[shipped], IN_TURN)
        ratio = f"{unsure(found)}{figure(found.ratio)}"
    ways = (shipped, _ways(answer, engine.backends)[0], best)
    texts = [text for way in ways for text in (("-", "-") if way is None else (str(way), figure(answer.time_of(way))))]
    return [count(answer.blocks), size(format_size(answer.block_bytes)), *texts, ratio]


def _same_api(engine: Engine, answers: Sequence[Answer]) -> str:
    """Return how the engine's call of the driver compares with kvbench's call of the same function."""
    found = [(answer, answer.best_of("batched"), answer.best_of(engine.same_as)) for answer in answers]
    pairs = [
        (compare_visits(answer.visits_of(usual), answer.visits_of(own), BETWEEN_RUNS), answer, usual, own)
        for answer, usual, own in found
        if usual and own
    ]
    decided = [pair for pair in pairs if pair[0].verdict is not Verdict.UNDECIDED]
    if not decided:
        return ""
    close = sum(compared.verdict is Verdict.SAME for compared, *_ in decided)
    longer_us = median(answer.caller_us[own] - answer.caller_us[usual] for _, answer, usual, own in decided)
    unclear = f" ({len(pairs) - len(decided)} undecided)" if len(decided) < len(pairs) else ""
    return (
        f"{engine.same_as} takes {ends([pair[0].ratio for pair in decided], figure)} times as long as batched, within "
        f"{BETWEEN_RUNS.fraction:.0%} of it in {close} of {counted(len(decided), 'cell')}{unclear}. Its call, through "
        f"torch, changes the time of the calling thread by {longer_us:+.0f} us in the median."
    )
