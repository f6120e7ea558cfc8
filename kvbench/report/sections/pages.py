"""Pages: swaps between blocks that lie apart on the device and pages on the host, directly or through a buffer."""

from collections import Counter
from typing import Final

import pandas as pd

from kvbench.analysis.compare import Visits, winners
from kvbench.analysis.margins import IN_TURN
from kvbench.cells.backend_facts import STAGED
from kvbench.report.captions import includes_of
from kvbench.report.model import DataTable, Finding, Part, PartOrReason, Text
from kvbench.report.numbers import TIMES, bytes_size, count, figure
from kvbench.report.select import Pinned, by_direction, grouped, pin, where
from kvbench.report.table_rows import MARKS, Row, fastest_marked, label_of, measured_table, rate, rows_of
from kvbench.report.view import View
from kvbench.text import ends
from kvbench.units import MIB

_WEIGHT: Final = 0.5
_NOTE: Final = (
    "staged: a kernel gathers blocks in a buffer on the device and the copy engine copies the buffer, or the reverse. "
    "caller: time of the thread that submits. SM: time of the kernels, times their SMs. buffer: device memory"
)
_COSTS: Final = {"caller, us": ("caller_us_median", 1), "SM, us": ("sm_us", 1), "buffer, MiB": ("staging_bytes", MIB)}


def make(view: View) -> PartOrReason:
    frame = view.frame
    paged = frame[frame["host_pattern"].astype(object).fillna("").str.startswith("page-first").astype(bool)]
    pinned = pin(where(paged, stream_state="idle"), shown=("host_pattern",))
    measured = where(pinned.cells, status="ok")
    if measured["backend"].nunique() < 2:
        return "it needs two backends on pages of the host (host_pattern=page-first-T) when idle"
    sides = by_direction(measured).items()
    highlights = [Finding(text, _WEIGHT) for side in sides if (text := _finding(view, *side))]
    said = [one.text for one in highlights]
    return lambda: Part(said, (), [_table(view, pinned, *side) for side in sides], highlights)


def _swaps(cells: pd.DataFrame) -> dict[tuple[str, int, int], list[Row]]:
    rows = sorted(rows_of(cells), key=lambda row: (str(row["host_pattern"]), row["block_bytes"], row["blocks"]))
    return grouped(rows, lambda row: (str(row["host_pattern"]), int(row["block_bytes"]), int(row["blocks"])))


def _finding(view: View, direction: str, cells: pd.DataFrame) -> str:
    swaps = list(_swaps(cells).values())
    arms: dict[str, dict[int, Visits]] = {}
    for number, rows in enumerate(swaps):
        for row in rows:
            arms.setdefault(str(row["backend"]), {})[number] = view.visits.get(row["cell_id"], {})
    fastest = winners(arms, IN_TURN)
    first = Counter(name for name in fastest.values() if name is not None)
    if not first:
        return ""
    ((best, times),) = first.most_common(1)
    text = f"{direction}, pages on the host: {best} is the fastest in {times} of {count(len(swaps))} swaps"
    won = [rows for number, rows in enumerate(swaps) if fastest.get(number) == best]
    rates = [{str(row["backend"]): row["gbps"] for row in rows} for rows in won]
    if best != STAGED and (shares := [one[STAGED] / one[best] for one in rates if STAGED in one]):
        text += f"; staged reaches {ends(shares, lambda share: f'{share:.0%}')} of its throughput"
    return f"{text}."


def _table(view: View, pinned: Pinned, direction: str, cells: pd.DataFrame) -> DataTable:
    backends = sorted({str(name) for name in cells["backend"]})
    costs = _COSTS if STAGED in backends else {}
    body: list[list[Text]] = []
    for (layout, size, blocks), rows in _swaps(cells).items():
        of_staged = next((row for row in rows if row["backend"] == STAGED), None)
        swap = f"{count(blocks)} {TIMES} {bytes_size(size)}"
        spent = ["" if of_staged is None else figure(of_staged[name] / unit) for name, unit in costs.values()]
        body.append([layout, swap, *fastest_marked(rows, backends, rate, view.visits), *spent])
    title = f"{direction}, idle stream: GB/s of swaps with pages on the host"
    heads = [label_of(backend, where(cells, backend=backend)) for backend in backends]
    header = ("Host", "Swap", *heads, *(f"staged: {name}" for name in costs))
    compared, notes = len(cells) - len(body), [*([_NOTE] if costs else []), MARKS]
    return measured_table(view, cells, title, header, body, includes_of("idle"), pinned, notes, compared, left=2)
