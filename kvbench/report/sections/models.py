"""Copy by copy against batched, model by model, and the other backends on the same swaps."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from kvbench.errors import UsageError
from kvbench.models.geometry import KvDtype, KvLayout, ModelSwap, swaps_from_plain
from kvbench.report.captions import INCLUDES, a_stream, caption, settings
from kvbench.report.contests import BATCHED, TimeRatio, time_ratio
from kvbench.report.model import DataTable, Part, Section, Strong, Text
from kvbench.report.numbers import bytes_size, count
from kvbench.report.select import DIRECTIONS, STATES, Pinned, pin
from kvbench.report.tables import Footnotes, Row, mark_fastest, milliseconds, rate, rows_of, shown, swap_quartiles
from kvbench.report.view import View
from kvbench.text import short

SINGLE: Final = "per_block"
_SPEED_UP: Final = "Speed-up"
_GEOMETRY: Final = ("Model", "Layers", "KV heads", "Head dim", "Tensors", "Block", "Ids", "N")
_WORDS: Final = (
    "KV heads and tensors are those of one rank. Tensors: K and V of every layer apart, one a layer for MLA, one for "
    "all layers where they lie cross-layer; block: bytes of one descriptor; ids: blocks swapped in every tensor, the "
    "same in all; N: descriptors of the swap, tensors times ids. Models with the same numbers are the same swap, "
    "measured once"
)
_RATIO: Final = f"Speed-up: median time of {SINGLE} over that of {BATCHED}; ≈ where their quartiles overlap"
_MARKS: Final = (Strong("Bold"), ": the fastest; ≈: not told apart from it, quartiles overlap")
_KEY: Final = ("backend", "stream_state", "blocks", "block_bytes", "pattern")


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
        """Return the row of a model's cell, None where it was not asked for."""
        return self.found.get((backend, state, swap.blocks, swap.block_bytes, swap.pattern))

    def caption(self, backends: Sequence[str], states: Sequence[str], includes: str) -> Text:
        measured = self.cells[
            (self.cells["status"] == "ok")
            & self.cells["backend"].isin(list(backends))
            & self.cells["stream_state"].isin(list(states))
        ]
        return caption(self.view, measured, f"{includes}. {settings(self.pinned, measured)}")


def make(view: View) -> Part | str:
    found = _model_rows(view)
    if isinstance(found, str):
        return found
    tables = [table for rows in found for table in _tables(rows)]
    return Part(tables=tables, told=[text for rows in found for text in _findings(rows)])


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
    found = [
        ModelRows(view, way, swaps, cells, _by_key(cells), pinned)
        for way in DIRECTIONS
        if (cells := pinned.cells[pinned.cells["direction"] == way])["status"].eq("ok").any()
    ]
    return found or "none of the run's models has a measured cell"


def _by_key(cells: pd.DataFrame) -> dict[tuple[Any, ...], Row]:
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows_of(cells):
        found.setdefault(tuple(row[name] for name in _KEY), row)
    return found


def _pin_each(frame: pd.DataFrame, swaps: Sequence[ModelSwap]) -> Pinned:
    """Keep one value of every side axis for each swap by itself: a backend may take other SMs for other sizes."""
    shapes = dict.fromkeys((swap.blocks, swap.block_bytes, swap.pattern) for swap in swaps)
    pins = [pin(_cells_of(frame, blocks, size, pattern), shown=("pattern",)) for blocks, size, pattern in shapes]
    cells = pd.concat([part.cells for part in pins], ignore_index=True)
    hidden = {
        axis: set[str]().union(*(part.hidden[axis] for part in pins)) - set(cells[axis].dropna().astype(str))
        for axis in pins[0].hidden
    }
    return Pinned(cells, hidden)


def _tables(rows: ModelRows) -> list[DataTable]:
    """Return single against batched copies, then all backends for each stream state in which there are others."""
    measured = rows.cells[rows.cells["status"] == "ok"]
    tables = []
    if any({SINGLE, BATCHED} <= _backends(measured, state) for state in STATES):
        tables.append(
            _pairs(rows, {state: found for state in STATES if BATCHED in (found := _backends(measured, state))})
        )
    return tables + [_all(rows, state) for state in STATES if _backends(measured, state) - {SINGLE, BATCHED}]


def _speed_up(single: Row | None, batched: Row | None) -> TimeRatio | None:
    """Return the time of single copies over that of batched ones; None without both."""
    if single is None or batched is None or single["status"] != "ok" or batched["status"] != "ok":
        return None
    return time_ratio(swap_quartiles(single), swap_quartiles(batched))


def _findings(rows: ModelRows) -> list[str]:
    """Return in a sentence for each stream state how much faster batched copies are, over the models."""
    return [_finding(rows, state, found) for state in STATES if (found := _speed_ups(rows, state))]


def _speed_ups(rows: ModelRows, state: str) -> dict[str, TimeRatio]:
    ratios = {
        _name(swap): _speed_up(rows.row(swap, SINGLE, state), rows.row(swap, BATCHED, state)) for swap in rows.swaps
    }
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def _finding(rows: ModelRows, state: str, found: Mapping[str, TimeRatio]) -> str:
    ordered = sorted(found, key=lambda name: found[name].value)
    ends = " to ".join(f"{found[name]} ({name})" for name in dict.fromkeys((ordered[0], ordered[-1])))
    return f"By model, {BATCHED} {rows.direction} on {a_stream(state)} is {ends} as fast as {SINGLE}."


def _pairs(rows: ModelRows, states: Mapping[str, Set[str]]) -> DataTable:
    """Return the table of single against batched copies; `states` says what was measured in each stream state.

    Where single copies were measured on an idle stream alone, the busy one has batched copies and no speed-up.
    """
    notes = Footnotes()
    body = []
    for swap in rows.swaps:
        line = list(_geometry(swap))
        for state in states:
            single, batched = (rows.row(swap, backend, state) for backend in (SINGLE, BATCHED))
            ratio = _speed_up(single, batched)
            texts = {
                SINGLE: shown(single, notes, milliseconds),
                BATCHED: shown(batched, notes, milliseconds),
                _SPEED_UP: "" if ratio is None else str(ratio),
            }
            line += [texts[name] for name in _columns(states[state])] + [shown(batched, notes, rate)]
        body.append(line)
    header = list(_GEOMETRY)
    for state, measured in states.items():
        heads = {SINGLE: f"{SINGLE} ms", BATCHED: f"{BATCHED} ms", _SPEED_UP: _SPEED_UP}
        header += [f"{heads[name]}, {state}" for name in _columns(measured)] + [f"{BATCHED} GB/s, {state}"]
    includes = ". ".join(INCLUDES[state].replace("GB/s", "ms and GB/s", 1) for state in states)
    title = f"{rows.direction}: {SINGLE} against {BATCHED}, by model, {_lengths(rows.swaps)}"
    caption = rows.caption((SINGLE, BATCHED), tuple(states), includes)
    return DataTable(title, header, body, [_WORDS, _RATIO, *notes.lines], caption)


def _columns(measured: Set[str]) -> tuple[str, ...]:
    return (SINGLE, BATCHED, _SPEED_UP) if SINGLE in measured else (BATCHED,)


def _all(rows: ModelRows, state: str) -> DataTable:
    backends = sorted(_backends(rows.cells[rows.cells["status"] == "ok"], state))
    notes = Footnotes()
    body = []
    for swap in rows.swaps:
        found = {backend: rows.row(swap, backend, state) for backend in backends}
        times = {
            backend: swap_quartiles(row) for backend, row in found.items() if row is not None and row["status"] == "ok"
        }
        texts = mark_fastest({backend: shown(row, notes, milliseconds) for backend, row in found.items()}, times)
        body.append([_name(swap), count(swap.blocks), bytes_size(swap.block_bytes), *texts.values()])
    title = f"{rows.direction}, {state} stream: ms a swap, by model and backend, {_lengths(rows.swaps)}"
    header = ("Model", "N", "Block", *backends)
    caption = rows.caption(backends, (state,), INCLUDES[state].replace("GB/s", "ms", 1))
    return DataTable(title, header, body, [_MARKS, *notes.lines], caption)


def _geometry(swap: ModelSwap) -> Sequence[str]:
    geometry, kinds = swap.geometry, swap.tensors
    return (
        _name(swap),
        count(geometry.layers),
        "MLA" if geometry.kv_parts == 1 else count(swap.rank_kv_heads),
        count(geometry.head_dim),
        " + ".join(count(kind.count) for kind in kinds),
        bytes_size(swap.block_bytes),
        " + ".join(count(kind.ids) for kind in kinds),
        count(swap.blocks),
    )


def _name(swap: ModelSwap) -> str:
    remarks = (
        f"TP {swap.tp}" if swap.tp > 1 else "",
        swap.layout.value if swap.layout is KvLayout.CROSS_LAYER else "",
        swap.geometry.dtype.value if swap.geometry.dtype is not KvDtype.BF16 else "",
    )
    return ", ".join(filter(None, (swap.geometry.name, *remarks)))


def _lengths(swaps: Sequence[ModelSwap]) -> str:
    lengths = dict.fromkeys((swap.tokens, swap.block_tokens) for swap in swaps)
    return " and ".join(f"{count(tokens)} tokens in blocks of {count(block)}" for tokens, block in lengths)


def _cells_of(cells: pd.DataFrame, blocks: int, block_bytes: int, pattern: str) -> pd.DataFrame:
    return cells[(cells["blocks"] == blocks) & (cells["block_bytes"] == block_bytes) & (cells["pattern"] == pattern)]


def _backends(measured: pd.DataFrame, state: str) -> set[str]:
    return set(measured.loc[measured["stream_state"] == state, "backend"])
