"""Engines: every method of each engine's own code, beside the best backend of the same run."""

from collections.abc import Sequence
from statistics import median
from typing import Final

from kvbench.analysis.compare import Verdict, compare_visits
from kvbench.analysis.margins import BETWEEN_RUNS, IN_TURN
from kvbench.cells.policy import Choice
from kvbench.errors import UsageError
from kvbench.report.model import DataTable, Finding, Part, PartOrReason
from kvbench.report.numbers import ABSENT, bytes_size, count, figure
from kvbench.report.tables import UNCLEAR, comma_separated, measured_table, unclear_mark
from kvbench.report.view import View, where
from kvbench.results.frame import unqueued
from kvbench.results.replays import trace_of
from kvbench.sweep.installed import Engine, engines, of_engine
from kvbench.text import counted, ends
from kvbench.tune.answer import Answer, answers_of, by_kind
from kvbench.tune.exports import shipped_choice
from kvbench.tune.fit import sms_of, workload_axes

_WEIGHT: Final = 0.3  # that two calls of one function agree is a check, not an effect
_INCLUDES: Final = (
    "Medians in us per swap by CUDA events; in parentheses the time of the thread that makes the swap. A column for "
    "each method of the engine: as shipped, or its kernel alone with a chosen SM count (sms). Takes: the method that "
    "the engine picks with its thresholds and SM count. Best: the fastest other backend. x: time of Takes / time of "
    f"Best. {UNCLEAR}"
)


def make(view: View) -> PartOrReason:
    if isinstance(reason := _answers(view), str):
        return reason
    runs = [(run, answers) for run in view.of_machine if not isinstance(answers := _answers(run), str)]
    tables = [
        _table(run, f"{run.label}: " if len(runs) > 1 else "", engine, measured)
        for run, answers in runs
        for engine in engines().values()
        if _fullest(runs, engine) is run
        if not engine.pages or str(workload_axes([run.run])["host_pattern"]).startswith("page-first")
        for group in by_kind(answers).values()
        if (measured := [answer for answer in group if answer.best_of(*engine.backends)])
    ]
    if not tables:
        return "the engine's code copies blocks in pages on the host (host_pattern=page-first-TxC)"
    every = [answer for _, answers in runs for answer in answers]
    findings = [Finding(text, _WEIGHT) for engine in engines().values() if (text := _same_api(engine, every))]
    return lambda: Part(findings, tables=tables)


def _fullest(runs: Sequence[tuple[View, list[Answer]]], engine: Engine) -> View:
    """Return the run that has most answers of an engine's code."""

    def measured(run: tuple[View, list[Answer]]) -> int:
        return sum(bool(answer.best_of(*engine.backends)) for answer in run[1])

    return max(runs, key=measured)[0]


def _answers(view: View) -> list[Answer] | str:
    if view.measured.empty or not any(map(of_engine, view.measured["backend"].unique())):
        return "it needs cells of an engine's own code"
    if trace_of(view.run):
        return "it needs swaps of equal blocks; the section on the replay has those of a trace"
    try:
        return answers_of([view.run], lambda _: True)
    except UsageError as error:
        return str(error)


def _table(view: View, before: str, engine: Engine, answers: Sequence[Answer]) -> DataTable:
    first = answers[0]
    methods = {choice for answer in answers for choice in answer.arms if choice.backend in engine.backends}
    ordered = sorted(methods, key=lambda choice: (choice.backend, sms_of(choice), str(choice)))
    rows = [_row(view, engine, ordered, answer) for answer in answers]
    cells = where(unqueued(view.measured), direction=first.direction.value, stream_state=first.state.value)
    used = {choice.backend for choice in methods}
    packages = [facts.package.partition(" ")[0] for facts in view.run.info.backends if facts.name in used]
    title = (
        f"{before}{comma_separated(*dict.fromkeys(packages)) or engine.name}, {first.direction}, {first.state} stream"
    )
    header = ("Blocks", "Block size", *(choice.label for choice in ordered), "Takes", "Best", "us", "x")
    return measured_table(view, cells, _INCLUDES, title, header, rows, compared=len(rows))


def _row(view: View, engine: Engine, methods: Sequence[Choice], answer: Answer) -> list[str]:
    shipped = shipped_choice(engine, answer, view.run)
    best = answer.best_of(*(choice.backend for choice in answer.arms if not of_engine(choice.backend)))
    ratio = ABSENT
    if shipped and best:
        compared = compare_visits(answer.arms[best], answer.arms[shipped], IN_TURN)
        ratio = f"{unclear_mark(compared)}{figure(compared.ratio)}"
    times = {choice: f"{figure(answer.time_of(choice))} ({figure(answer.caller_us[choice])})" for choice in answer.arms}
    *columns, best_us = (times.get(choice, "") if choice else "" for choice in (*methods, best))
    names = [choice.label if choice else ABSENT for choice in (shipped, best)]
    return [count(answer.blocks), bytes_size(answer.block_bytes), *columns, *names, best_us, ratio]


def _same_api(engine: Engine, answers: Sequence[Answer]) -> str:
    pairs = [
        (compare_visits(answer.visits_of(batched), answer.visits_of(call), BETWEEN_RUNS), answer, batched, call)
        for answer in answers
        if (batched := answer.best_of("batched")) and (call := answer.best_of(engine.same_as))
    ]
    decided = [pair for pair in pairs if pair[0].verdict is not Verdict.UNDECIDED]
    if not decided:
        return ""
    close = sum(compared.verdict is Verdict.SAME for compared, *_ in decided)
    longer_us = median(answer.caller_us[call] - answer.caller_us[batched] for _, answer, batched, call in decided)
    unclear = f" ({len(pairs) - len(decided)} undecided)" if len(decided) < len(pairs) else ""
    return (
        f"{engine.same_as} takes {ends([pair[0].ratio for pair in decided], figure)} times as long as batched, within "
        f"{BETWEEN_RUNS.fraction:.0%} of it in {close} of {counted(len(decided), 'cell')}{unclear}. Its call, through "
        f"torch, changes the time of the calling thread by {longer_us:+.0f} us in the median."
    )
