"""Copy by copy against batched, model by model, and the other backends on the same swaps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pandas as pd

from kvbench.analysis.compare import Comparison
from kvbench.cells.facts import BATCHED, PER_BLOCK
from kvbench.cells.pattern import AS_PATTERN
from kvbench.cells.units import two_digits
from kvbench.errors import UsageError
from kvbench.models.geometry import ModelSwap, models_of, swaps_from_plain
from kvbench.models.presets import USUAL_TOKENS, notes_of
from kvbench.report.model import DataTable, Part, PartOrReason
from kvbench.report.numbers import TIMES, bytes_size, count
from kvbench.report.tables import (
    INCLUDES,
    fastest_marked,
    format_cell,
    label_of,
    measured_table,
    milliseconds,
    rate,
    ratio_text,
)
from kvbench.report.view import STATES, Pinned, Row, View, by_direction, rows_of, where
from kvbench.text import short

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

    def backends(self, state: str) -> set[str]:
        return set(where(self.measured, stream_state=state)["backend"])

    def speed_up(self, swap: ModelSwap, state: str) -> Comparison | None:
        """Return the time of single copies over that of batched ones; None without both."""
        single, batched = (self.row(swap, backend, state) for backend in (PER_BLOCK, BATCHED))
        if single and batched and single["status"] == batched["status"] == "ok":
            return self.view.compare(batched["cell_id"], single["cell_id"])
        return None


def make(view: View) -> PartOrReason:
    sides = _model_rows(view)
    return sides if isinstance(sides, str) else partial(_part, sides)


def _part(sides: Sequence[ModelRows]) -> Part:
    pairs = [(rows, state) for state in STATES for rows in sides if BATCHED in rows.backends(state)]
    first = [(rows, state) for rows, state in pairs if PER_BLOCK in rows.backends(state)]
    tables = [_pairs(*one) for one in first]
    tables += [_all(*one) for one in pairs if one[0].backends(one[1]) - {PER_BLOCK, BATCHED}]
    shown = [one for one in first if one[1] == first[0][1]]
    findings = [text for one in shown if (text := _finding(*one))]
    return Part(findings, tables=tables)


def _model_rows(view: View) -> list[ModelRows] | str:
    try:
        swaps = swaps_from_plain(view.run.info.spec.get("models", []))
    except UsageError as error:
        return f"its run.json describes models that cannot be: {short(str(error))}"
    if not swaps:
        return "it needs a sweep of models (kvbench sweep models, or --model)"
    pinned = _pin_each(view, swaps)
    sides = []
    for direction, cells in by_direction(pinned.cells).items():
        if (cells["status"] == "ok").any():
            # reversed: of rows with the same key the first counts
            by_key = {tuple(row[name] for name in _KEY): row for row in reversed(rows_of(cells))}
            sides.append(ModelRows(view, direction, swaps, cells, by_key, pinned))
    return sides or "none of the models of a run has a measured cell"


def _pin_each(view: View, swaps: Sequence[ModelSwap]) -> Pinned:
    """Keep one value of every side axis for each swap by itself: a backend may take other SMs for other sizes."""
    frame = view.frame.assign(host_pattern=view.frame["host_pattern"].fillna(AS_PATTERN.kind))
    pins = []
    for blocks, size, device, host in dict.fromkeys(map(_shape, swaps)):
        same = where(frame, blocks=blocks, block_bytes=size, pattern=device, host_pattern=host)
        pins.append(view.pin(same, shown=("pattern", "host_pattern")))
    return Pinned(pd.concat([part.cells for part in pins], ignore_index=True), pins[0].hidden)


def _shape(swap: ModelSwap) -> tuple[int, int, str, str]:
    return swap.blocks, swap.block_bytes, swap.pattern, swap.host_pattern


def _finding(rows: ModelRows, state: str) -> str:
    compared = {_name(swap): speed_up for swap in rows.swaps if (speed_up := rows.speed_up(swap, state))}
    ordered = sorted((speed_up.ratio, name) for name, speed_up in compared.items() if speed_up.told_apart)
    if not ordered:
        return ""
    (least, slowest), (most, fastest) = ordered[0], ordered[-1]
    first, last = f"{two_digits(least)}x", f"{two_digits(most)}x"
    speed = first if first == last else f"{first} ({slowest}) to {last} ({fastest})"
    undecided = len(compared) - len(ordered)
    unclear = f"; no clear difference for {undecided} of {len(compared)}" if undecided else ""
    return f"By model, {BATCHED} {rows.direction} ({state}) has {speed} the speed of {PER_BLOCK}{unclear}."


def _pairs(rows: ModelRows, state: str) -> DataTable:
    body = []
    for swap in rows.swaps:
        single, batched = (rows.row(swap, backend, state) for backend in (PER_BLOCK, BATCHED))
        faster, geometry = rows.speed_up(swap, state), swap.geometry
        heads = "MLA" if geometry.is_latent else count(geometry.rank_kv_heads(swap.tp))
        body.append(
            [
                _name(swap),
                f"{heads} {TIMES} {count(geometry.head_dim)}",
                " + ".join(count(kind.count) for kind in swap.tensors),
                count(swap.blocks),
                bytes_size(swap.block_bytes),
                *(format_cell(row, milliseconds) for row in (single, batched)),
                ratio_text(faster) if faster else "",
                format_cell(batched, rate),
            ]
        )
    header = (
        "Model", f"KV heads {TIMES} size", "Tensors", "N", "Block", f"{PER_BLOCK} ms", f"{BATCHED} ms", "Speed-up",
        "GB/s",
    )  # fmt: skip
    title = f"{rows.direction}, {state} stream: {PER_BLOCK} against {BATCHED}, {_lengths(rows.swaps)}"
    cells = where(rows.measured[rows.measured["backend"].isin((PER_BLOCK, BATCHED))], stream_state=state)
    several = [model for model in models_of(rows.swaps) if len(model.groups) > 1 or model.groups[0].left_out]
    notes = [*(f"{model.name}: {model.text}" for model in several), *notes_of(rows.swaps)]
    compared = len(where(cells, backend=PER_BLOCK))
    return measured_table(
        rows.view, cells, INCLUDES[state], title, header, body, notes, pinned=rows.pinned, compared=compared
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
    compared = len(cells) - len(cells.drop_duplicates(["blocks", "block_bytes", "pattern"]))
    return measured_table(rows.view, cells, INCLUDES[state], title, header, body, pinned=rows.pinned, compared=compared)


def _name(swap: ModelSwap) -> str:
    return swap.title if swap.tokens == USUAL_TOKENS else f"{swap.title}, {count(swap.tokens)} tokens"


def _lengths(swaps: Sequence[ModelSwap]) -> str:
    lengths = dict.fromkeys((swap.tokens, swap.block_tokens) for swap in swaps)
    return " and ".join(f"{count(tokens)} tokens in blocks of {count(block)}" for tokens, block in lengths)
