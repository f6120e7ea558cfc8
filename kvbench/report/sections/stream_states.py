"""Stream states: the same swap on an idle stream, behind a gate that is open or closed, and behind a delay."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from kvbench.analysis.compare import Comparison
from kvbench.cells.axes import StreamState
from kvbench.cells.backend_facts import BATCHED, method_label
from kvbench.report.captions import includes_of
from kvbench.report.model import Chart, DataTable, Finding, Part, PartOrReason
from kvbench.report.numbers import bytes_size, count, figure, size
from kvbench.report.rate_curves import cliff_curves, curve_chart
from kvbench.report.select import Pinned, grouped, pin, where
from kvbench.report.table_rows import UNCLEAR, Row, main_path, measured_table, ratio_text, rows_of, sms_of
from kvbench.report.view import View
from kvbench.units import two_digits

_STATES: Final = (StreamState.IDLE, StreamState.OPENED, StreamState.GATED, StreamState.BUSY)
_COMPARED: Final = (StreamState.GATED, StreamState.OPENED)
_KEY: Final = ("backend", "direction", "blocks", "block_bytes")
_NOTE: Final = f"Open / closed: time with an open gate over time from the opening of a closed one. {UNCLEAR}"

_Swap = Mapping[StreamState, Row]


def make(view: View) -> PartOrReason:
    pinned = pin(view.measured, shown=())
    alike = grouped(rows_of(pinned.cells), lambda row: tuple(row[name] for name in _KEY))
    swaps = [{StreamState(row["stream_state"]): row for row in rows} for _, rows in sorted(alike.items())]
    both = [swap for swap in swaps if swap.keys() >= {*_COMPARED}]
    if not both:
        return "it needs cells measured with stream_state=gated and with stream_state=opened that are otherwise equal"
    gates = [(swap, view.compare(*(swap[state]["cell_id"] for state in _COMPARED))) for swap in both]
    sides = sorted(grouped(gates, lambda gate: str(gate[0][StreamState.GATED]["direction"])).items(), reverse=True)
    known = [gate for _, side in sides for gate in side if math.isfinite(gate[1].high)]
    backends = grouped(known, lambda gate: tuple(gate[0][StreamState.GATED][name] for name in ("direction", "backend")))
    return lambda: Part(
        charts=_charts(view, pinned),
        tables=[_table(view, pinned, *side) for side in sides],
        highlights=[*map(_finding, backends.values())],
    )


def _charts(view: View, pinned: Pinned) -> list[Chart]:
    curves = cliff_curves(replace(pinned, cells=where(pinned.cells, backend=BATCHED)))
    if isinstance(curves, str):
        return []
    title = f"GB/s of batched copies by stream state, N = {count(curves.main)} blocks"
    return [curve_chart(view, "stream-states", curves, {curves.main: ""}, title)]


def _table(view: View, pinned: Pinned, direction: str, swaps: Sequence[tuple[_Swap, Comparison]]) -> DataTable:
    states = [state for state in _STATES if any(state in swap for swap, _ in swaps)]
    body = []
    for swap, gate in swaps:
        row = swap[StreamState.GATED]
        name = method_label(str(row["backend"]), sms_of(row))
        times = [figure(swap[state]["swap_us_median"]) if state in swap else "" for state in states]
        callers = [figure(swap[state]["caller_us_median"]) for state in (StreamState.OPENED, StreamState.GATED)]
        paths = f"{main_path(swap[StreamState.OPENED]['path'])} / {main_path(row['path'])}"
        body.append([name, count(row["blocks"]), size(row["block_size"]), *times, ratio_text(gate), *callers, paths])
    header = (
        *("Backend", "Blocks", "Block size"),
        *(f"{str(state).capitalize()} us" for state in states),
        *("Open / closed", "Caller us, opened", "Caller us, gated", "Path, opened / gated"),
    )
    ids = {row["cell_id"] for swap, _ in swaps for row in swap.values()}
    cells = pinned.cells[pinned.cells["cell_id"].isin(ids)]
    title = f"{direction}: us per swap by stream state"
    included = includes_of("swap_us")
    return measured_table(view, cells, title, header, body, included, pinned, [_NOTE], compared=len(swaps))


def _finding(swaps: Sequence[tuple[_Swap, Comparison]]) -> Finding:
    """Return how much the gate changes the time of a backend: where it changes most."""
    swap, gate = max(swaps, key=lambda pair: abs(math.log(pair[1].ratio)) if pair[1].told_apart else 0.0)
    row, opened = swap[StreamState.GATED], swap[StreamState.OPENED]
    head = f"{row['backend']} {row['direction']}"
    if not gate.told_apart:
        return Finding(f"{head}: no clear difference between an open and a closed gate.", 0.0)
    ratio = gate.ratio if gate.ratio >= 1 else 1 / gate.ratio
    slow, fast = ("an open", "a closed") if gate.ratio >= 1 else ("a closed", "an open")
    times = f"{figure(opened['swap_us_median'])} us open, {figure(row['swap_us_median'])} us from the opening"
    shape = f"N = {count(row['blocks'])} of {bytes_size(row['block_bytes'])}"
    text = (
        f"{head}: behind {slow} gate a swap takes up to {two_digits(ratio)} times as long as behind {fast} one "
        f"({shape}: {times}; path: {main_path(opened['path'])} open, {main_path(row['path'])} closed)."
    )
    return Finding(text, math.log(ratio))
