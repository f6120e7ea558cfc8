"""Copy by copy against batched, model by model, and the other backends on the same swaps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, product
from typing import Any, Final

import pandas as pd

from kvbench.analysis.compare import Comparison
from kvbench.cells.axes import StreamState
from kvbench.cells.facts import BATCHED, PER_BLOCK
from kvbench.cells.units import two_digits
from kvbench.ground.errors import UsageError
from kvbench.ground.text import short
from kvbench.models.geometry import ModelSwap, models_of, swaps_from_plain
from kvbench.models.presets import USUAL_TOKENS, notes_of
from kvbench.report.cells import cells_of, grid_of, measured, outcomes_in, rows_with
from kvbench.report.model import DataTable, Part, PartOrReason, Text
from kvbench.report.numbers import TIMES, bytes_size, count
from kvbench.report.tables import (
    INCLUDES,
    fastest_marked,
    format_cell,
    label_of,
    main_path,
    measured_table,
    milliseconds,
    rate,
    ratio_text,
)
from kvbench.report.view import AS_ENGINES, DIRECTIONS, Pinned, View, compare
from kvbench.results.outcomes import Outcome, is_measured

_SHAPE: Final = ("blocks", "block_bytes", "pattern", "host_pattern")
Shape = tuple[int, int, str, str]


@dataclass(frozen=True)
class ModelSide:
    """The cells of a run's models in one direction, failed and skipped ones too."""

    view: View
    direction: str
    swaps: Sequence[ModelSwap]
    cells: pd.DataFrame
    pinned: Pinned

    @cached_property
    def _grid(self) -> Mapping[tuple[str, str], Mapping[Shape, Outcome | None]]:
        """Stream state and backend -> shape of a model's swap -> its cell."""
        grid: dict[Any, Any] = grid_of(self.cells, _SHAPE, ["stream_state", "backend"]).to_dict()
        return grid

    def outcome(self, swap: ModelSwap, backend: str, state: str) -> Outcome | None:
        return self._grid.get((state, backend), {}).get(_shape(swap))

    def measured(self, state: str) -> pd.DataFrame:
        return rows_with(measured(self.cells), stream_state=state)

    def backends(self, state: str) -> set[str]:
        return set(self.measured(state)["backend"])

    def speed_up(self, swap: ModelSwap, state: str) -> Comparison | None:
        """The time of single copies over that of batched ones; None without both."""
        single, batched = (self.outcome(swap, backend, state) for backend in (PER_BLOCK, BATCHED))
        if single and batched and is_measured(single) and is_measured(batched):
            return compare(batched, single)
        return None


def make(view: View) -> PartOrReason:
    sides = _sides(view)
    return sides if isinstance(sides, str) else partial(_part, sides)


def _part(sides: Sequence[ModelSide]) -> Part:
    by_state = product(AS_ENGINES, sides)
    batched = [(side, state) for state, side in by_state if BATCHED in side.backends(state)]
    compared = [(side, state) for side, state in batched if PER_BLOCK in side.backends(state)]
    tables = [_pairs(side, state) for side, state in compared]
    tables += [_all(side, state) for side, state in batched if side.backends(state) - {PER_BLOCK, BATCHED}]
    # Findings speak of one state of the stream alone, the first that was measured.
    first_state = next((state for _, state in compared), "")
    return Part(_findings([side for side, state in compared if state == first_state], first_state), tables=tables)


def _sides(view: View) -> list[ModelSide] | str:
    try:
        swaps = swaps_from_plain(view.run.info.spec.get("models", []))
    except UsageError as error:
        return f"its run.json describes models that cannot be: {short(str(error))}"
    if not swaps:
        return "it needs a sweep of models, or --model"
    pinned = _pin_each(view, swaps)
    sides = []
    for direction in DIRECTIONS:
        cells = rows_with(pinned.cells, direction=direction)
        if any(map(is_measured, outcomes_in(cells))):
            sides.append(ModelSide(view, direction, swaps, cells, pinned))
    return sides or "none of the models of a run has a measured cell"


def _pin_each(view: View, swaps: Sequence[ModelSwap]) -> Pinned:
    """Keep one value of every side axis for each swap by itself: a backend may take other SMs for other sizes."""
    pins = []
    for blocks, size, device, host in dict.fromkeys(map(_shape, swaps)):
        same = rows_with(view.cells, blocks=blocks, block_bytes=size, pattern=device, host_pattern=host)
        pins.append(view.pin(same, free=("pattern", "host_pattern")))
    return Pinned(cells_of(chain.from_iterable(outcomes_in(pinned.cells) for pinned in pins)), pins[0].hidden)


def _shape(swap: ModelSwap) -> Shape:
    return swap.blocks, swap.block_bytes, swap.pattern, swap.host_pattern


def _findings(sides: Sequence[ModelSide], state: str) -> list[Text]:
    """Say in one line, for each direction, by how much batching the copies gains or loses, from model to model."""
    speeds = [*filter(None, (_speed_text(side, state) for side in sides))]
    return [f"Speed of {BATCHED} over {PER_BLOCK} ({state}): {'; '.join(speeds)}."] if speeds else []


def _speed_text(side: ModelSide, state: str) -> str:
    speed_ups = {_name(swap): side.speed_up(swap, state) for swap in side.swaps}
    compared = {name: speed_up for name, speed_up in speed_ups.items() if speed_up}
    ordered = sorted((speed_up.ratio, name) for name, speed_up in compared.items() if speed_up.significant)
    if not ordered:
        return ""
    (least, slowest), (most, fastest) = ordered[0], ordered[-1]
    first, last = f"{two_digits(least)}x", f"{two_digits(most)}x"
    speed = first if first == last else f"{first} ({slowest}) to {last} ({fastest})"
    undecided = len(compared) - len(ordered)
    unclear = f", {undecided} of {len(compared)} undecided" if undecided else ""
    return f"{side.direction} {speed}{unclear}"


def _pairs(side: ModelSide, state: str) -> DataTable:
    # What an idle stream has stands beside: there the CPU makes small copies, and batching may gain nothing.
    idle = state != StreamState.IDLE and PER_BLOCK in side.backends(StreamState.IDLE)
    body = [_pair(side, swap, state, idle=idle) for swap in side.swaps]
    header = [
        "Model", f"KV heads {TIMES} size", "Tensors", "N", "Block", f"{PER_BLOCK} ms", f"{BATCHED} ms", "Speed-up",
        "GB/s", "Path",
    ]  # fmt: skip
    header += ["Speed-up, idle (path)"] if idle else []
    title = f"{side.direction}, {state} stream: {PER_BLOCK} against {BATCHED}, {_lengths(side.swaps)}"
    cells = side.measured(state)
    cells = cells[cells["backend"].isin((PER_BLOCK, BATCHED))]
    several = [model for model in models_of(side.swaps) if len(model.groups) > 1 or model.groups[0].left_out]
    notes = [*(f"{model.name}: {model.text}" for model in several), *notes_of(side.swaps)]
    compared = len(rows_with(cells, backend=PER_BLOCK))
    return measured_table(
        side.view,
        outcomes_in(cells),
        INCLUDES[state],
        title,
        header,
        body,
        notes,
        pinned=side.pinned,
        compared=compared,
    )


def _pair(side: ModelSide, swap: ModelSwap, state: str, *, idle: bool) -> list[Text]:
    """The line of a model: its geometry, its times, and by how much batched copies are faster."""
    single, batched = (side.outcome(swap, backend, state) for backend in (PER_BLOCK, BATCHED))
    geometry = swap.geometry
    heads = "MLA" if geometry.is_latent else count(geometry.rank_kv_heads(swap.tp))
    line: list[Text] = [
        _name(swap),
        f"{heads} {TIMES} {count(geometry.head_dim)}",
        " + ".join(count(kind.count) for kind in swap.tensors),
        count(swap.blocks),
        bytes_size(swap.block_bytes),
        *(format_cell(outcome, milliseconds) for outcome in (single, batched)),
        _speed_up_text(side, swap, state),
        format_cell(batched, rate),
        format_cell(batched, main_path),
    ]
    if idle:
        on_idle = side.outcome(swap, BATCHED, StreamState.IDLE)
        path = f" ({main_path(on_idle)})" if on_idle and is_measured(on_idle) else ""
        line.append(f"{_speed_up_text(side, swap, StreamState.IDLE)}{path}")
    return line


def _speed_up_text(side: ModelSide, swap: ModelSwap, state: str) -> str:
    faster = side.speed_up(swap, state)
    return ratio_text(faster) if faster else ""


def _all(side: ModelSide, state: str) -> DataTable:
    cells, body = side.measured(state), []
    backends = sorted(set(cells["backend"]))
    for swap in side.swaps:
        outcomes = {backend: side.outcome(swap, backend, state) for backend in backends}
        arms = {backend: outcome for backend, outcome in outcomes.items() if outcome}
        names = [_name(swap), count(swap.blocks), bytes_size(swap.block_bytes)]
        body.append([*names, *fastest_marked(arms, backends, milliseconds)])
    title = f"{side.direction}, {state} stream: ms per swap, by model and backend, {_lengths(side.swaps)}"
    labels = (label_of(outcomes_in(rows_with(cells, backend=name))) for name in backends)
    compared = len(cells) - len(cells.drop_duplicates(["blocks", "block_bytes", "pattern"]))
    return measured_table(
        side.view,
        outcomes_in(cells),
        INCLUDES[state],
        title,
        ["Model", "N", "Block", *labels],
        body,
        pinned=side.pinned,
        compared=compared,
    )


def _name(swap: ModelSwap) -> str:
    return swap.title if swap.tokens == USUAL_TOKENS else f"{swap.title}, {count(swap.tokens)} tokens"


def _lengths(swaps: Sequence[ModelSwap]) -> str:
    lengths = dict.fromkeys((swap.tokens, swap.block_tokens) for swap in swaps)
    return " and ".join(f"{count(tokens)} tokens in blocks of {count(block)}" for tokens, block in lengths)
