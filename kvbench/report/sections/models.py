"""Copy by copy against batched, model by model, and the other backends on the same swaps."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from kvbench.analysis.compare import Comparison
from kvbench.cells.backend_facts import BATCHED, PER_BLOCK
from kvbench.cells.pattern import AS_PATTERN
from kvbench.cells.units import two_digits
from kvbench.errors import UsageError
from kvbench.models.geometry import ModelSwap, models_of, swaps_from_plain
from kvbench.models.presets import USUAL_TOKENS
from kvbench.report.model import DataTable, Finding, Part, PartOrReason
from kvbench.report.numbers import bytes_size, count
from kvbench.report.tables import (
    MARKS,
    UNCLEAR,
    fastest_marked,
    format_cell,
    includes,
    label_of,
    measured_table,
    milliseconds,
    rate,
    ratio_text,
)
from kvbench.report.view import STATES, Pinned, Row, View, by_direction, pin, rows_of, where
from kvbench.text import a_stream, short

_COLUMNS: Final = (
    "KV heads and tensors are those of one rank. Tensors: K and V of each layer, one per layer for MLA, one in all for "
    "the cross-layer layout. Block: bytes of one descriptor. Ids: blocks swapped in each tensor. N: descriptors of the "
    "swap, tensors times ids. Models with equal numbers share one measurement"
)
_RATIO: Final = f"Speed-up: time of {PER_BLOCK} over that of {BATCHED}. {UNCLEAR}"
_KEY: Final = ("backend", "stream_state", "blocks", "block_bytes", "pattern", "host_pattern")


@dataclass(frozen=True, slots=True)
class ModelRows:
    """The cells of a run's models in one direction, failed and skipped ones too; `by_key` are their rows by `_KEY`."""

    view: View
    direction: str
    swaps: Sequence[ModelSwap]
    cells: pd.DataFrame
    by_key: Mapping[tuple[Any, ...], Row]
    pinned: Pinned

    def row(self, swap: ModelSwap, backend: str, state: str) -> Row | None:
        return self.by_key.get((backend, state, *_shape(swap)))

    @property
    def measured(self) -> pd.DataFrame:
        return where(self.cells, status="ok")

    def speed_up(self, swap: ModelSwap, state: str) -> Comparison | None:
        """Return the time of single copies over that of batched ones; None without both."""
        single, batched = (self.row(swap, backend, state) for backend in (PER_BLOCK, BATCHED))
        if single and batched and single["status"] == batched["status"] == "ok":
            return self.view.compare(batched["cell_id"], single["cell_id"])
        return None


def make(view: View) -> PartOrReason:
    sides = _model_rows(view)
    if isinstance(sides, str):
        return sides
    tables = [table for rows in sides for table in _tables(rows)]
    findings = [finding for rows in sides for state in STATES for finding in _findings(rows, state)]
    return lambda: Part(findings, tables=tables)


def _model_rows(view: View) -> list[ModelRows] | str:
    try:
        swaps = swaps_from_plain(view.run.info.spec.get("models", []))
    except UsageError as error:
        return f"its run.json describes models that cannot be: {short(str(error))}"
    if not swaps:
        return "it needs a sweep of models (kvbench sweep models, or --model)"
    pinned = _pin_each(view.frame, swaps)
    sides = []
    for direction, cells in by_direction(pinned.cells).items():
        if (cells["status"] == "ok").any():
            # reversed: of rows with the same key the first counts
            by_key = {tuple(row[name] for name in _KEY): row for row in reversed(rows_of(cells))}
            sides.append(ModelRows(view, direction, swaps, cells, by_key, pinned))
    return sides or "none of the models of a run has a measured cell"


def _pin_each(frame: pd.DataFrame, swaps: Sequence[ModelSwap]) -> Pinned:
    """Keep one value of every side axis for each swap by itself: a backend may take other SMs for other sizes."""
    frame = frame.assign(host_pattern=frame["host_pattern"].fillna(AS_PATTERN.kind))
    pins = []
    for blocks, size, device, host in dict.fromkeys(map(_shape, swaps)):
        same = where(frame, blocks=blocks, block_bytes=size, pattern=device, host_pattern=host)
        pins.append(pin(same, shown=("pattern", "host_pattern")))
    cells = pd.concat([part.cells for part in pins], ignore_index=True)
    hidden = {axis: set[str]().union(*(part.hidden[axis] for part in pins)) for axis in pins[0].hidden}
    kept = {axis: set(cells[axis].dropna().astype(str)) for axis in hidden}
    return Pinned(cells, {axis: values - kept[axis] for axis, values in hidden.items()})


def _shape(swap: ModelSwap) -> tuple[int, int, str, str]:
    return swap.blocks, swap.block_bytes, swap.pattern, swap.host_pattern


def _tables(rows: ModelRows) -> list[DataTable]:
    measured = {state: set(where(rows.measured, stream_state=state)["backend"]) for state in STATES}
    pairs = {state: backends for state, backends in measured.items() if BATCHED in backends}
    first = [_pairs(rows, pairs)] if any(PER_BLOCK in backends for backends in pairs.values()) else []
    return first + [_all(rows, state) for state, backends in measured.items() if backends - {PER_BLOCK, BATCHED}]


def _findings(rows: ModelRows, state: str) -> list[Finding]:
    compared = {_name(swap): speed_up for swap in rows.swaps if (speed_up := rows.speed_up(swap, state))}
    ratios = {name: speed_up.ratio for name, speed_up in compared.items() if speed_up.told_apart}
    if not ratios:
        return []
    ordered = sorted(ratios.items(), key=lambda item: item[1])
    (slowest, least), (fastest, most) = ordered[0], ordered[-1]
    first, last = f"{two_digits(least)}x", f"{two_digits(most)}x"
    speed = first if first == last else f"{first} ({slowest}) to {last} ({fastest})"
    undecided = len(compared) - len(ratios)
    unclear = f"; no clear difference for {undecided} of {len(compared)}" if undecided else ""
    swaps = f"{BATCHED} {rows.direction} on {a_stream(state)}"
    text = f"By model, {swaps} has {speed} the speed of {PER_BLOCK}{unclear}."
    return [Finding(text, math.log(most))]


def _pairs(rows: ModelRows, states: Mapping[str, Set[str]]) -> DataTable:
    """Return the table of single against batched copies; `states` are the measured backends of each stream state."""
    body = []
    for swap in rows.swaps:
        line = _geometry(swap)
        for state, measured in states.items():
            single, batched = (rows.row(swap, backend, state) for backend in (PER_BLOCK, BATCHED))
            if PER_BLOCK in measured:
                line[f"{PER_BLOCK} ms, {state}"] = format_cell(single, milliseconds)
            line[f"{BATCHED} ms, {state}"] = format_cell(batched, milliseconds)
            if PER_BLOCK in measured:
                faster = rows.speed_up(swap, state)
                line[f"Speed-up, {state}"] = ratio_text(faster) if faster else ""
            line[f"{BATCHED} GB/s, {state}"] = format_cell(batched, rate)
        body.append(line)
    title = f"{rows.direction}: {PER_BLOCK} against {BATCHED}, by model, {_lengths(rows.swaps)}"
    cells = rows.measured[rows.measured["backend"].isin((PER_BLOCK, BATCHED))]
    cells = cells[cells["stream_state"].isin(states)]
    several = [model for model in models_of(rows.swaps) if len(model.groups) > 1 or model.groups[0].left_out]
    totals = [f"{model.name}: {model.text}" for model in several]
    header, lines, notes = list(body[0]), [list(line.values()) for line in body], [_COLUMNS, _RATIO, *totals]
    included = ". ".join(includes(cells["stream_state"], "ms and GB/s"))
    compared = len(where(cells, backend=PER_BLOCK))
    return measured_table(
        rows.view, cells, included, title, header, lines, notes, pinned=rows.pinned, compared=compared
    )


def _all(rows: ModelRows, state: str) -> DataTable:
    cells, body = where(rows.measured, stream_state=state), []
    backends = sorted(set(cells["backend"]))
    for swap in rows.swaps:
        cells_of_swap = filter(None, (rows.row(swap, backend, state) for backend in backends))
        texts = fastest_marked(cells_of_swap, backends, milliseconds, rows.view.visits)
        body.append([_name(swap), count(swap.blocks), bytes_size(swap.block_bytes), *texts])
    title = f"{rows.direction}, {state} stream: ms per swap, by model and backend, {_lengths(rows.swaps)}"
    header = ["Model", "N", "Block", *(label_of(name, where(cells, backend=name)) for name in backends)]
    shapes = cells.drop_duplicates(["blocks", "block_bytes", "pattern"])
    included, compared = ". ".join(includes([state], "ms")), len(cells) - len(shapes)
    return measured_table(
        rows.view, cells, included, title, header, body, [MARKS], pinned=rows.pinned, compared=compared
    )


def _geometry(swap: ModelSwap) -> dict[str, str]:
    geometry, kinds = swap.geometry, swap.tensors
    return {
        "Model": _name(swap),
        "Layers": count(geometry.layers),
        "KV heads": "MLA" if geometry.is_latent else count(swap.rank_kv_heads),
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
