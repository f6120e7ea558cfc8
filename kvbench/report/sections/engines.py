"""Engines: each engine's own code, as shipped and at its best, beside the best backend of the same run."""

from collections.abc import Sequence
from typing import Final

import pandas as pd

from kvbench.analysis.compare import Comparison, compare_visits
from kvbench.analysis.margins import BETWEEN_RUNS, IN_TURN
from kvbench.report.model import DataTable, Finding, Part, Section
from kvbench.report.numbers import count, figure, size
from kvbench.report.tables import UNCLEAR, Row, a_stream, measured_table, rows_of, unsure
from kvbench.report.view import View
from kvbench.results.frame import unqueued
from kvbench.text import counted, ends
from kvbench.tune.exports import ENGINE_BACKENDS, ENGINES, Engine
from kvbench.tune.fit import choice_of, one_workload

_SHAPE: Final = ("blocks", "block_bytes")
_INCLUDES: Final = (
    "Medians in us per swap: wall_us on an idle stream, gpu_us on a busy one. As shipped: with the engine's own SM "
    "count, thresholds and fallbacks. Best: the fastest backend of no engine. x: time of the engine's fastest way as "
    f"shipped / time of the best. {UNCLEAR}"
)


def make(view: View) -> Part | str:
    measured = one_workload(unqueued(view.measured))
    own = measured[measured["backend"].isin(ENGINE_BACKENDS)]
    if own.empty:
        return "it needs cells of an engine's own code, such as backend=vllm_batch"
    tables, told = [], []
    for engine in ENGINES.values():
        cells = own[own["backend"].isin(engine.backends)]
        for (way, state), _ in cells.groupby(["direction", "stream_state"]):
            shown = measured[(measured["direction"] == way) & (measured["stream_state"] == state)]
            tables.append(_table(view, engine, shown))
        told += [Finding(text, 0.5) for text in _same_api(view, engine, measured)]
    return Part(tables=tables, told=told)


SECTION = Section("engines", "Engines: their own code, and the best backend of the run", make)


def _table(view: View, engine: Engine, cells: pd.DataFrame) -> DataTable:
    one = cells.iloc[0]
    names = [name for name in engine.backends if (cells["backend"] == name).any()]
    rows, compared = [], 0
    for (blocks, _), shape in cells.groupby(list(_SHAPE)):
        own, others = _split(shape)
        own = own[own["backend"].isin(names)]
        if own.empty:
            continue
        shipped = {name: _fastest(own[(own["backend"] == name) & own["sms"].isna()]) for name in names}
        best, alternative = _fastest(own), _fastest(others)
        ratio = _ratio(view, [row for row in shipped.values() if row is not None], alternative)
        compared += ratio != "-"
        texts = ["-" if row is None else figure(row["swap_us_median"]) for row in shipped.values()]
        size_text = size(shape.iloc[0]["block_size"])
        rows.append([count(int(str(blocks))), size_text, *texts, *_named(best), *_named(alternative), ratio])
    title = f"{engine.title}, {one['direction']}, {one['stream_state']} stream"
    heads = [f"{name} as shipped" for name in names]
    header = ("Blocks", "Block size", *heads, "Its own best", "us", "Best", "us", "x")
    return measured_table(view, cells, title, header, rows, _INCLUDES, compared=compared)


def _split(shape: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the cells of engines' own code, and the others."""
    is_own = shape["backend"].isin(ENGINE_BACKENDS)
    return shape[is_own], shape[~is_own]


def _fastest(cells: pd.DataFrame) -> Row | None:
    return min(rows_of(cells), key=lambda row: float(row["swap_us_median"]), default=None)


def _named(row: Row | None) -> tuple[str, str]:
    return ("-", "-") if row is None else (str(choice_of(row)), figure(row["swap_us_median"]))


def _ratio(view: View, shipped: Sequence[Row], best: Row | None) -> str:
    if best is None or not shipped:
        return "-"
    fastest = min(shipped, key=lambda row: float(row["swap_us_median"]))
    found = _compared(view, best["cell_id"], fastest["cell_id"])
    return f"{unsure(found)}{figure(found.ratio)}"


def _compared(view: View, base: str, other: str) -> Comparison:
    return compare_visits(view.visits.get(base, {}), view.visits.get(other, {}), IN_TURN)


def _same_api(view: View, engine: Engine, cells: pd.DataFrame) -> list[str]:
    """Return in how many cells the engine's call of the driver agrees with kvbench's call of the same function."""
    keys = [*_SHAPE, "direction", "stream_state", "order"]
    ours, theirs = (cells[cells["backend"] == name] for name in ("batched", engine.same_as))
    pairs = rows_of(ours.merge(theirs, on=keys, suffixes=("", "_own")))
    if not pairs:
        return []
    ratios = [_compared(view, row["cell_id"], row["cell_id_own"]).ratio for row in pairs]
    limit = 1 + BETWEEN_RUNS.fraction
    close = sum(1 / limit <= ratio <= limit for ratio in ratios)
    states = " and ".join(dict.fromkeys(a_stream(row["stream_state"]) for row in pairs))
    spread = ends(ratios, figure)
    return [
        f"{engine.same_as} takes {spread} times as long as batched, within {BETWEEN_RUNS.fraction:.0%} of it in "
        f"{close} of {counted(len(ratios), 'cell')} ({states})."
    ]
