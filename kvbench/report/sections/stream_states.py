"""Stream states: the same swap on an idle stream, behind a gate that is open or closed, and behind a delay."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from kvbench.analysis.compare import Comparison
from kvbench.cells.axes import StreamState
from kvbench.cells.backend_facts import BATCHED
from kvbench.report.captions import includes_of
from kvbench.report.model import Chart, DataTable, Finding, Part, Section
from kvbench.report.numbers import bytes_size, count, figure, size
from kvbench.report.rate_curves import cliff_curves, curve_chart
from kvbench.report.select import DIRECTIONS, Pinned, pin, where
from kvbench.report.table_rows import UNCLEAR, Row, measured_table, ratio_text, rows_of, sms_text
from kvbench.report.view import View
from kvbench.results.frame import BETWEEN
from kvbench.text import short
from kvbench.units import two_digits

_STATES: Final = (StreamState.IDLE, StreamState.OPENED, StreamState.GATED, StreamState.BUSY)
_KEY: Final = ("backend", "direction", "blocks", "block_bytes")
_NOTE: Final = (
    f"Open / closed: time of the swap whose gate is open over the time that it takes from the opening. {UNCLEAR}"
)

_Swap = Mapping[StreamState, Row]


def make(view: View) -> Part | str:
    pinned = pin(view.measured, shown=())
    swaps: dict[tuple[object, ...], dict[StreamState, Row]] = {}
    for row in rows_of(pinned.cells):
        swaps.setdefault(tuple(row[name] for name in _KEY), {})[StreamState(row["stream_state"])] = row
    both = {key: swap for key, swap in sorted(swaps.items()) if {StreamState.GATED, StreamState.OPENED} <= swap.keys()}
    if not both:
        return "it needs cells measured with stream_state=gated and with stream_state=opened that are otherwise equal"
    gates = {key: _gate(view, swap) for key, swap in both.items()}
    tables: list[DataTable] = []
    highlights: list[Finding] = []
    for direction in DIRECTIONS:
        keys = [key for key in both if key[1] == direction]
        if keys:
            tables.append(_table(view, pinned, direction, [(both[key], gates[key]) for key in keys]))
        known = [key for key in keys if math.isfinite(gates[key].high)]
        backends = dict.fromkeys(key[0] for key in known)
        highlights += [
            _finding([(both[key], gates[key]) for key in known if key[0] == backend]) for backend in backends
        ]
    return Part(charts=_charts(view, pinned), tables=tables, highlights=highlights)


SECTION = Section("stream-states", "Stream states: idle, opened, gated, busy", make)


def _charts(view: View, pinned: Pinned) -> list[Chart]:
    """Return the chart of batched copies in every state, at the main number of blocks."""
    curves = cliff_curves(replace(pinned, cells=where(pinned.cells, backend=BATCHED)))
    if isinstance(curves, str):
        return []
    title = f"GB/s of batched copies by stream state, N = {count(curves.main)} blocks"
    return [curve_chart(view, "stream-states", curves, {curves.main: ""}, title)]


def _gate(view: View, swap: _Swap) -> Comparison:
    """Compare the swap behind an open gate with the one behind a closed gate."""
    return view.compare(str(swap[StreamState.GATED]["cell_id"]), str(swap[StreamState.OPENED]["cell_id"]))


def _table(view: View, pinned: Pinned, direction: str, swaps: Sequence[tuple[_Swap, Comparison]]) -> DataTable:
    states = [state for state in _STATES if any(state in swap for swap, _ in swaps)]
    body = []
    for swap, gate in swaps:
        row = swap[StreamState.GATED]
        name = " ".join(filter(None, (str(row["backend"]), sms_text(row))))
        times = [figure(swap[state]["swap_us_median"]) if state in swap else "" for state in states]
        callers = [figure(swap[state]["caller_us_median"]) for state in (StreamState.OPENED, StreamState.GATED)]
        paths = f"{_path(swap[StreamState.OPENED])} / {_path(row)}"
        body.append([name, count(row["blocks"]), size(row["block_size"]), *times, ratio_text(gate), *callers, paths])
    header = (
        *("Backend", "Blocks", "Block size"),
        *(f"{str(state).capitalize()} us" for state in states),
        *("Open / closed", "Caller us, opened", "Caller us, gated", "Path, opened / gated"),
    )
    ids = {row["cell_id"] for swap, _ in swaps for row in swap.values()}
    cells = pinned.cells[pinned.cells["cell_id"].isin(ids)]
    title = f"{direction}: us per swap by stream state"
    included = includes_of(view, "swap_us")
    return measured_table(view, cells, title, header, body, included, pinned, [_NOTE], compared=len(swaps))


def _finding(swaps: Sequence[tuple[_Swap, Comparison]]) -> Finding:
    """Return how much the gate changes the time of a backend: where it changes most."""
    (swap, gate), *_ = sorted(swaps, key=lambda one: -abs(math.log(one[1].ratio)) if one[1].told_apart else 0.0)
    row, opened = swap[StreamState.GATED], swap[StreamState.OPENED]
    head = f"{row['backend']} {row['direction']}"
    if not gate.told_apart:
        return Finding(f"{head}: no clear difference between an open and a closed gate.", 0.0)
    ratio = gate.ratio if gate.ratio >= 1 else 1 / gate.ratio
    slow, fast = ("an open", "a closed") if gate.ratio >= 1 else ("a closed", "an open")
    times = f"{figure(opened['swap_us_median'])} us open, {figure(row['swap_us_median'])} us from the opening"
    where_ = f"N = {count(row['blocks'])} of {bytes_size(row['block_bytes'])}"
    text = (
        f"{head}: behind {slow} gate a swap takes up to {two_digits(ratio)} times as long as behind {fast} one "
        f"({where_}: {times}; path: {_path(opened)} open, {_path(row)} closed)."
    )
    return Finding(text, math.log(ratio))


def _path(row: Row) -> str:
    return short(str(row["path"]).partition(BETWEEN)[0])
