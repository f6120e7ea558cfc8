"""Copy by copy against batched, model by model, and the other backends on the same swaps."""

import math
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from kvbench.analysis.compare import Comparison
from kvbench.cells.backend_facts import BATCHED, PER_BLOCK
from kvbench.cells.pattern import AS_PATTERN
from kvbench.errors import UsageError
from kvbench.models.geometry import ModelSwap, swaps_from_plain
from kvbench.models.presets import USUAL_TOKENS
from kvbench.report.captions import chart_words, includes
from kvbench.report.charts.plot import LinePlot, PlotAxis, PlotPanel
from kvbench.report.curves import GBPS, POINT_COLUMNS, RATES
from kvbench.report.model import Chart, DataTable, Finding, Part, Section
from kvbench.report.numbers import bytes_size, count
from kvbench.report.select import DIRECTIONS, STATES, Pinned, pin, where
from kvbench.report.tables import (
    MARKS,
    UNCLEAR,
    Row,
    fastest_marked,
    line_of,
    measured_table,
    milliseconds,
    rate,
    ratio_words,
    rows_of,
    shown,
    with_sms,
)
from kvbench.report.view import View, ceiling_of
from kvbench.text import a_stream, short
from kvbench.units import two_digits

_WORDS: Final = (
    "KV heads and tensors are those of one rank. Tensors: K and V of each layer, one per layer for MLA, one in all for "
    "the cross-layer layout. Block: bytes of one descriptor. Ids: blocks swapped in each tensor. N: descriptors of the "
    "swap, tensors times ids. Models with equal numbers share one measurement"
)
_RATIO: Final = f"Speed-up: time of {PER_BLOCK} over that of {BATCHED}. {UNCLEAR}"
_KEY: Final = ("backend", "stream_state", "blocks", "block_bytes", "pattern", "host_pattern")


@dataclass(frozen=True, slots=True)
class ModelRows:
    """The cells of a run's models in one direction, failed and skipped ones too; `found` are their rows by `_KEY`."""

    view: View
    direction: str
    swaps: Sequence[ModelSwap]
    cells: pd.DataFrame
    found: Mapping[tuple[Any, ...], Row]
    pinned: Pinned

    def row(self, swap: ModelSwap, backend: str, state: str) -> Row | None:
        return self.found.get((backend, state, *_shape(swap)))

    def measured(self, state: str) -> set[str]:
        return set(where(self.cells, status="ok", stream_state=state)["backend"])

    def measured_cells(self, backends: Collection[str], states: Collection[str]) -> pd.DataFrame:
        cells = where(self.cells, status="ok")
        return cells[cells["backend"].isin(backends) & cells["stream_state"].isin(states)]

    def speed_up(self, swap: ModelSwap, state: str) -> Comparison | None:
        """Return the time of single copies over that of batched ones; None without both."""
        single, batched = (self.row(swap, backend, state) for backend in (PER_BLOCK, BATCHED))
        if single and batched and single["status"] == batched["status"] == "ok":
            return self.view.compare(batched["cell_id"], single["cell_id"])
        return None


def make(view: View) -> Part | str:
    found = _model_rows(view)
    if isinstance(found, str):
        return found
    tables = [table for rows in found for table in _tables(rows)]
    told = [one for rows in found for state in STATES for one in _findings(rows, state)]
    return Part(charts=[_chart(view, found)], tables=tables, told=told)


SECTION = Section("models", "Models: copy by copy against batched", make)


def _model_rows(view: View) -> list[ModelRows] | str:
    """Return the cells of the run's models, by direction; or why there are none."""
    try:
        swaps = swaps_from_plain(view.run.info.spec.get("models", []))
    except UsageError as error:
        return f"its run.json describes models that cannot be: {short(str(error))}"
    if not swaps:
        return "it needs a sweep of models: kvbench sweep models, or --model"
    pinned = _pin_each(view.frame, swaps)
    found = []
    for way in DIRECTIONS:
        cells = where(pinned.cells, direction=way)
        if (cells["status"] == "ok").any():
            # reversed: of rows with the same key the first counts
            by_key = {tuple(row[name] for name in _KEY): row for row in reversed(rows_of(cells))}
            found.append(ModelRows(view, way, swaps, cells, by_key, pinned))
    return found or "none of the run's models has a measured cell"


def _pin_each(frame: pd.DataFrame, swaps: Sequence[ModelSwap]) -> Pinned:
    """Keep one value of every side axis for each swap by itself: a backend may take other SMs for other sizes."""
    frame = frame.assign(host_pattern=frame["host_pattern"].fillna(AS_PATTERN.kind))
    pins = [
        pin(
            where(frame, blocks=blocks, block_bytes=size, pattern=device, host_pattern=host),
            shown=("pattern", "host_pattern"),
        )
        for blocks, size, device, host in dict.fromkeys(map(_shape, swaps))
    ]
    cells = pd.concat([part.cells for part in pins], ignore_index=True)
    hidden = {
        axis: set[str]().union(*(part.hidden[axis] for part in pins)) - set(cells[axis].dropna().astype(str))
        for axis in pins[0].hidden
    }
    return Pinned(cells, hidden)


def _shape(swap: ModelSwap) -> tuple[int, int, str, str]:
    return swap.blocks, swap.block_bytes, swap.pattern, swap.host_pattern


def _chart(view: View, found: Sequence[ModelRows]) -> Chart:
    """Return GB/s of every backend and stream state, model by model."""
    cells = pd.concat([where(rows.cells, status="ok") for rows in found])
    labels = {
        (str(backend), state): f"{with_sms(str(backend), own['sms'])}, {state} stream"
        for state in STATES
        for backend, own in where(cells, stream_state=state).groupby("backend")
    }
    grid = [[_panel(rows, labels) for rows in found]]
    swaps = found[0].swaps
    x = PlotAxis("model", "name", "linear", [_name(swap) for swap in swaps])
    footer = [*includes(view, cells["stream_state"], "GB/s"), found[0].pinned.words(cells)]
    title = f"GB/s by model, {_lengths(swaps)}"
    words = chart_words(view, title, cells, "medians · band: quartiles", footer)
    points = cells[list(POINT_COLUMNS)].drop_duplicates("cell_id")
    return Chart(f"models-{view.label}", words, LinePlot(x, GBPS, grid), points)


def _panel(rows: ModelRows, labels: Mapping[tuple[str, str], str]) -> PlotPanel:
    lines = []
    for (backend, state), label in labels.items():
        found = {place: rows.row(swap, backend, state) for place, swap in enumerate(rows.swaps)}
        own = {place: row for place, row in found.items() if row and row["status"] == "ok"}
        if own:
            variant = STATES.index(state)
            lines.append(line_of(rows.view.label, label, list(own), list(own.values()), RATES, variant=variant))
    return PlotPanel(rows.direction, lines, ceiling_of(where(rows.cells, status="ok")))


def _tables(rows: ModelRows) -> list[DataTable]:
    """Return single against batched copies, then all backends for each stream state in which there are others."""
    measured = {state: rows.measured(state) for state in STATES}
    pairs = {state: found for state, found in measured.items() if BATCHED in found}
    first = [_pairs(rows, pairs)] if any(PER_BLOCK in found for found in pairs.values()) else []
    return first + [_all(rows, state) for state, found in measured.items() if found - {PER_BLOCK, BATCHED}]


def _findings(rows: ModelRows, state: str) -> list[Finding]:
    """Return the gain of batched copies on streams of one state, over the models where that is decided."""
    found = {_name(swap): one for swap in rows.swaps if (one := rows.speed_up(swap, state))}
    ratios = {name: one.ratio for name, one in found.items() if one.told_apart}
    if not ratios:
        return []
    ordered = sorted(ratios.items(), key=lambda item: item[1])
    (slowest, least), (fastest, most) = ordered[0], ordered[-1]
    first, last = f"{two_digits(least)}x", f"{two_digits(most)}x"
    ends = first if first == last else f"{first} ({slowest}) to {last} ({fastest})"
    unclear = (
        f"; no clear difference for {len(found) - len(ratios)} of {len(found)}" if len(ratios) < len(found) else ""
    )
    text = f"By model, {BATCHED} {rows.direction} on {a_stream(state)} has {ends} the speed of {PER_BLOCK}{unclear}."
    return [Finding(text, math.log(most))]


def _pairs(rows: ModelRows, states: Mapping[str, Set[str]]) -> DataTable:
    """Return the table of single against batched copies; `states` says what was measured in each stream state.

    Where single copies were measured on an idle stream alone, the busy one has batched copies and no speed-up.
    """
    body = []
    for swap in rows.swaps:
        line = _geometry(swap)
        for state, measured in states.items():
            single, batched = (rows.row(swap, backend, state) for backend in (PER_BLOCK, BATCHED))
            if PER_BLOCK in measured:
                line[f"{PER_BLOCK} ms, {state}"] = shown(single, milliseconds)
            line[f"{BATCHED} ms, {state}"] = shown(batched, milliseconds)
            if PER_BLOCK in measured:
                faster = rows.speed_up(swap, state)
                line[f"Speed-up, {state}"] = ratio_words(faster) if faster else ""
            line[f"{BATCHED} GB/s, {state}"] = shown(batched, rate)
        body.append(line)
    title = f"{rows.direction}: {PER_BLOCK} against {BATCHED}, by model, {_lengths(rows.swaps)}"
    cells = rows.measured_cells((PER_BLOCK, BATCHED), states)
    header, lines, notes = list(body[0]), [list(line.values()) for line in body], [_WORDS, _RATIO]
    said = ". ".join(includes(rows.view, cells["stream_state"], "ms and GB/s"))
    compared = len(where(cells, backend=PER_BLOCK))
    return measured_table(rows.view, cells, title, header, lines, said, rows.pinned, notes, compared)


def _all(rows: ModelRows, state: str) -> DataTable:
    backends = sorted(rows.measured(state))
    body = []
    for swap in rows.swaps:
        own = filter(None, (rows.row(swap, backend, state) for backend in backends))
        texts = fastest_marked(own, backends, milliseconds, rows.view.visits)
        body.append([_name(swap), count(swap.blocks), bytes_size(swap.block_bytes), *texts])
    title = f"{rows.direction}, {state} stream: ms per swap, by model and backend, {_lengths(rows.swaps)}"
    cells = rows.measured_cells(backends, (state,))
    header = ["Model", "N", "Block", *(with_sms(name, where(cells, backend=name)["sms"]) for name in backends)]
    shapes = cells.drop_duplicates(["blocks", "block_bytes", "pattern"])
    said, compared = ". ".join(includes(rows.view, [state], "ms")), len(cells) - len(shapes)
    return measured_table(rows.view, cells, title, header, body, said, rows.pinned, [MARKS], compared)


def _geometry(swap: ModelSwap) -> dict[str, str]:
    geometry, kinds = swap.geometry, swap.tensors
    return {
        "Model": _name(swap),
        "Layers": count(geometry.layers),
        "KV heads": "MLA" if geometry.kv_parts == 1 else count(swap.rank_kv_heads),
        "Head dim": count(geometry.head_dim),
        "Tensors": " + ".join(count(kind.count) for kind in kinds),
        "Block": bytes_size(swap.block_bytes),
        "Ids": " + ".join(count(kind.ids) for kind in kinds),
        "N": count(swap.blocks),
    }


def _name(swap: ModelSwap) -> str:
    return swap.title if swap.tokens == USUAL_TOKENS else f"{swap.title}, {count(swap.tokens)} tokens"


def _lengths(swaps: Sequence[ModelSwap]) -> str:
    lengths = dict.fromkeys((swap.tokens, swap.block_tokens) for swap in swaps)
    return " and ".join(f"{count(tokens)} tokens in blocks of {count(block)}" for tokens, block in lengths)
