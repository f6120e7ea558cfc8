"""Engines: every method of each engine's own code, beside the best backend of the same run."""

import math
from collections.abc import Sequence
from itertools import chain, groupby
from statistics import median
from typing import Final

from kvbench.analysis.compare import Verdict, compare_visits, known_interval
from kvbench.analysis.margins import BETWEEN_RUNS, IN_TURN
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.blocks import is_alone
from kvbench.cells.cell import SwapShape
from kvbench.cells.facts import BATCHED
from kvbench.cells.installed import Engine, engines, of_engine, serves_all
from kvbench.cells.policy import Choice
from kvbench.cells.units import KIB
from kvbench.ground.errors import UsageError
from kvbench.ground.text import counted, range_text
from kvbench.report.model import DataTable, Part, PartOrReason
from kvbench.report.numbers import ABSENT, bytes_size, count, figure, with_interval
from kvbench.report.tables import comma_separated, measured_table, sign_of
from kvbench.report.view import View
from kvbench.tune.advice import shipped_choice
from kvbench.tune.candidates import Measured
from kvbench.tune.evidence import shapes_of, workload_axes

_PUBLISHED: Final = SwapShape(Direction.H2D, StreamState.IDLE, 10_000, 4 * KIB)
_INCLUDES: Final = (
    "Medians in us per swap by CUDA events; behind the slash the time of the thread that makes the swap. A column for "
    "each method of the engine: as shipped, or its kernel alone with a chosen SM count (sms). Takes: the method that "
    "the engine picks with its thresholds and SM count. Best: the fastest other backend. x: time of Takes / time of "
    "Best"
)


def make(view: View) -> PartOrReason:
    if isinstance(reason := _shapes(view), str):
        return reason
    shapes_by_run = [(run, _shapes(run)) for run in view.of_machine]
    runs = [(run, shapes) for run, shapes in shapes_by_run if not isinstance(shapes, str)]
    tables: list[DataTable] = []
    for run, shapes in runs:
        before = f"{run.label}: " if len(runs) > 1 else ""
        for engine in engines().values():
            if _fullest(runs, engine) is run and _fits(run, engine):
                tables += [_table(run, before, engine, of_kind) for of_kind in _by_kind(shapes, engine)]
    if not tables:
        return "the engine's code copies blocks in pages on the host (host_pattern=page-first-TxC)"
    all_shapes = [*chain.from_iterable(shapes for _, shapes in runs)]
    findings = [_same_api(engine, all_shapes) for engine in engines().values()]
    findings += map(_published, all_shapes)
    return lambda: Part([*filter(None, findings)], tables=tables)


def _fits(view: View, engine: Engine) -> bool:
    """Whether a run has the layout that an engine's code copies: pages on the host, for some."""
    return not engine.pages or str(workload_axes([view.run])["host_pattern"]).startswith("page-first")


def _by_kind(shapes: Sequence[Measured], engine: Engine) -> list[list[Measured]]:
    """The shapes that an engine's code was measured at, by direction and stream state."""
    with_engine = [measured for measured in shapes if measured.best_of(*engine.backends)]
    # `shapes_of` sorts by direction and stream state first.
    return [[*same_kind] for _, same_kind in groupby(with_engine, key=lambda measured: measured.shape.kind)]


def _fullest(runs: Sequence[tuple[View, list[Measured]]], engine: Engine) -> View:
    """The run that has most shapes of an engine's code."""
    return max(runs, key=lambda run: sum(bool(measured.best_of(*engine.backends)) for measured in run[1]))[0]


def _shapes(view: View) -> list[Measured] | str:
    if not any(of_engine(backend) for backend in {outcome.cell.backend for outcome in view.measured}):
        return "it needs cells of an engine's own code"
    if view.run.trace:
        return "it needs swaps of equal blocks; the section on the replay has those of a trace"
    try:
        return shapes_of([view.run], lambda _: True)
    except UsageError as error:
        return str(error)


def _table(view: View, before: str, engine: Engine, shapes: Sequence[Measured]) -> DataTable:
    first = shapes[0]
    every_method = chain.from_iterable(measured.methods for measured in shapes)
    methods = {choice for choice in every_method if choice.backend in engine.backends}
    ordered = sorted(methods, key=lambda choice: (choice.backend, choice.sms, str(choice)))
    rows = [_row(view, engine, ordered, measured) for measured in shapes]
    alone = [outcome for outcome in view.measured if is_alone(outcome.cell)]
    outcomes = [outcome for outcome in alone if SwapShape.of_cell(outcome.cell).kind == first.shape.kind]
    used = {choice.backend for choice in methods}
    packages = [facts.package.partition(" ")[0] for facts in view.run.info.backends if facts.name in used]
    title = f"{before}{comma_separated(*dict.fromkeys(packages)) or engine.name}, {', '.join(first.shape.kind)} stream"
    header = ("Blocks", "Block size", *(choice.label for choice in ordered), "Takes", "Best", "us", "x")
    return measured_table(view, outcomes, _INCLUDES, title, header, rows, compared=len(rows))


def _row(view: View, engine: Engine, methods: Sequence[Choice], measured: Measured) -> list[str]:
    shipped = shipped_choice(engine, measured, view.run.info.settings)
    best = measured.best_of(*(choice.backend for choice in measured.methods if serves_all(choice)))
    ratio = ABSENT
    if shipped and best:
        compared = compare_visits(measured.methods[best], measured.methods[shipped], IN_TURN)
        ratio = f"{sign_of(compared)}{figure(measured.us_of(shipped) / measured.us_of(best))}"
    times = {
        choice: f"{_us_text(measured, choice)} / {figure(measured.caller_us[choice])}" for choice in measured.methods
    }
    *columns, best_us = (times.get(choice, "") if choice else "" for choice in (*methods, best))
    names = [choice.label if choice else ABSENT for choice in (shipped, best)]
    return [count(measured.shape.blocks), bytes_size(measured.shape.block_bytes), *columns, *names, best_us, ratio]


def _us_text(measured: Measured, choice: Choice) -> str:
    return with_interval(measured.us_of(choice), *known_interval([*measured.methods[choice].values()]))


def _published(measured: Measured) -> str:
    """The figures of the pull request that brought vLLM's kernel, beside those of this machine."""
    shipped = {
        choice.backend: choice for choice in measured.methods if not choice.axes or choice.backend == "vllm_batch"
    }
    op, kernel = (shipped.get(name) for name in ("vllm_batch", "vllm_triton"))
    if measured.shape != _PUBLISHED or not (op and kernel):
        return ""
    rates = (f"{choice.backend} moves {figure(measured.gbps_of(choice))} GB/s" for choice in (op, kernel))
    return f"{measured.shape.size_text} {measured.shape.kind}: {', '.join(rates)}; in vLLM #42212 3.8, and 18 to 19."


def _same_api(engine: Engine, shapes: Sequence[Measured]) -> str:
    pairs = []
    for measured in shapes:
        batched, call = measured.best_of(BATCHED), measured.best_of(engine.same_as)
        if batched and call:
            compared = compare_visits(measured.visits_of(batched), measured.visits_of(call), BETWEEN_RUNS)
            pairs.append((compared, measured, batched, call))
    decided = [pair for pair in pairs if pair[0].verdict is not Verdict.UNDECIDED]
    if not decided:
        return ""
    close = sum(compared.verdict is Verdict.SAME for compared, *_ in decided)
    longer_us = [shape.caller_us[call] - shape.caller_us[batched] for _, shape, batched, call in decided]
    unclear = f" ({len(pairs) - len(decided)} undecided)" if len(decided) < len(pairs) else ""
    ratios = range_text([pair[0].ratio for pair in decided], figure)
    return (
        f"{engine.same_as} takes {ratios} times as long as batched, within "
        f"{BETWEEN_RUNS.fraction:.0%} of it in {close} of {counted(len(decided), 'cell')}{unclear}. Its call, through "
        f"torch, {_thread_text(longer_us)}."
    )


def _thread_text(longer_us: Sequence[float]) -> str:
    """What a call changes for its thread in the median of the cells, if their interval tells on which side of 0."""
    low_us, high_us = known_interval(longer_us)
    if low_us <= 0 <= high_us:
        return "does not clearly change the time of the calling thread"
    interval = f" ({low_us:+.0f} to {high_us:+.0f})" if math.isfinite(low_us) else ""
    return f"changes the time of the calling thread by {median(longer_us):+.0f} us in the median{interval}"
