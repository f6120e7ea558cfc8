"""The tables of a report: access order (T2), the cliff (T3), the SM ladder (T5)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from kvbench.report import markdown as md
from kvbench.report.curves import MIN_SIZES, Curve, Curves
from kvbench.report.selection import Pinned, pin
from kvbench.report.view import View
from kvbench.stats import MIN_PAIRS, paired_ratio
from kvbench.units import format_size

Row = dict[str, Any]

INCLUDES: Final = {
    "idle": "GB/s from wall_us on an idle stream: the host clock from just before the submission to completion, "
    "descriptor upload, submission and execution included, preparation not",
    "busy": "GB/s from gpu_us on a busy stream: between the events around the submission, descriptor upload included; "
    "submission only as far as it is not hidden behind the work that was pending, preparation not",
    "gpu_us": "GPU time between the events around the submission: descriptor upload included, on an idle stream also "
    "the gap between the start event's retirement and the call",
    "submit_us": "Host time inside the submission call or calls, preparation not included",
}
_RACE: Final = (
    "† ANY on d2h lets the driver read the source before earlier work on the stream has finished: "
    "right only where nothing still writes it"
)
_DELTA: Final = (
    "Delta: median over rounds of ANY / STREAM - 1, each from the medians of a round's two visits, with its 95% "
    "interval; ≈ where the interval contains 0: no difference beyond the noise of this run"
)


@dataclass(frozen=True, slots=True)
class Table:
    """A table in Markdown: every string is ready to print."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    caption: str

    def markdown(self) -> str:
        notes = f"\n\n{md.bullets(self.notes)}" if self.notes else ""
        return f"**{self.title}**\n\n{md.table(self.header, self.rows)}{notes}\n\n{self.caption}"


def order_tables(view: View) -> list[Table] | str:
    """Return T2: STREAM against ANY, for GPU time and for host submission; or why there is none."""
    pinned = pin(view.measured[view.measured["order"].notna()], shown=("order",))
    keys = ["backend", "stream_state", "direction", "blocks", "block_bytes", "block_size"]
    arms = {order: pinned.cells[pinned.cells["order"] == order] for order in ("stream", "any")}
    pairs = arms["stream"].merge(arms["any"], on=keys, suffixes=("_stream", "_any"))
    if pairs.empty:
        return "it needs cells measured with order stream and with order any that are equal in all else"
    samples = view.samples({*pairs["cell_id_stream"], *pairs["cell_id_any"]})
    tables = []
    for (backend, state), group in pairs.groupby(["backend", "stream_state"], sort=False):
        ordered = group.sort_values(["direction", "block_bytes", "blocks"], ascending=[False, True, True])
        cells = pd.concat([arm.merge(group[keys], on=keys) for arm in arms.values()])
        head = f"{md.escape(backend)}, {state} stream"
        for time, unit, what in (("gpu_us", "ms", "GPU time"), ("submit_us", "us", "host submission")):
            header = ("Dir", "Blocks", "BlkSize", f"STREAM med {unit}", f"ANY med {unit}", "Delta [95%]")
            rows = [_order_row(samples, pair, time, 1e-3 if unit == "ms" else 1.0) for pair in rows_of(ordered)]
            notes = [_DELTA, *([_RACE] if any("†" in row[-1] for row in rows) else [])]
            caption = view.caption(cells, f"{INCLUDES[time]}. {settings(pinned, cells)}")
            tables.append(Table(f"STREAM against ANY: {what} ({head})", header, rows, notes, caption))
    return tables


def cliff_tables(view: View, curves: Curves) -> list[Table]:
    """Return T3: GB/s and share of the ceiling, block size against N, a table per direction, backend and state."""
    tables = []
    for direction, backend, state in _series(curves):
        rows = curves.cells[
            (curves.cells["direction"] == direction)
            & (curves.cells["backend"] == backend)
            & (curves.cells["stream_state"] == state)
        ]
        notes = Footnotes()
        counts = sorted({int(blocks) for blocks in rows["blocks"]})
        grid = {(int(row["block_bytes"]), int(row["blocks"])): row for row in rows_of(rows)}
        body = [
            [
                md.size(format_size(size)),
                *(shown(grid.get((size, blocks)), notes, _rate_and_share) for blocks in counts),
            ]
            for size in sorted({int(size) for size in rows["block_bytes"]})
        ]
        cliffs = {
            curve.panel: cliff_words(curve) or ("none" if len(curve.x) >= MIN_SIZES else "")
            for curve in _of(curves, direction, backend, state)
        }
        body.append(["cliff", *(cliffs.get(blocks, "") for blocks in counts)])
        title = f"{direction}, {md.escape(backend)}, {state} stream: GB/s (share of the ceiling{_ceiling(rows)})"
        header = ("Block size", *(f"N = {md.count(blocks)}" for blocks in counts))
        measured = rows[rows["status"] == "ok"]
        caption = view.caption(measured, f"{INCLUDES[state]}. {settings(curves.pinned, measured)}")
        tables.append(Table(title, header, body, notes.lines, caption))
    return tables


def ladder_tables(view: View, curves: Curves) -> list[Table]:
    """Return T5: GB/s against the SM count, a table per backend and state, the knee in bold."""
    tables = []
    for backend, state in dict.fromkeys((backend, state) for _, backend, state in _series(curves)):
        rows = curves.cells[(curves.cells["backend"] == backend) & (curves.cells["stream_state"] == state)]
        notes = Footnotes()
        columns = [curve for curve in curves.curves if (curve.backend, curve.state) == (backend, state)]
        grid = {(row["direction"], int(row["block_bytes"]), int(row["sms"])): row for row in rows_of(rows)}
        body = []
        for count in sorted({int(count) for count in rows["sms"]}):
            cells = [(c, shown(grid.get((c.direction, c.panel, count)), notes, rate)) for c in columns]
            body.append([str(count), *(f"**{text}**" if count == curve.knee else text for curve, text in cells)])
        body.append(["knee", *(f"{curve.knee}" for curve in columns)])
        title = f"{md.escape(backend)}, {state} stream, N = {md.count(curves.main)}: GB/s against the SM count"
        header = ("SMs", *(f"{curve.direction} {md.size(format_size(curve.panel))}" for curve in columns))
        lines = ["**Bold**: the knee, the first SM count within 5% of the best of its column", *notes.lines]
        measured = rows[rows["status"] == "ok"]
        caption = view.caption(measured, f"{INCLUDES[state]}. {settings(curves.pinned, measured)}")
        tables.append(Table(title, header, body, lines, caption))
    return tables


def cliff_words(curve: Curve) -> str | None:
    """Return where a curve's cliff is and how high: "x3.1, 24 KiB to 28 KiB"; None where it has none."""
    cliff = curve.cliff
    if cliff is None:
        return None
    sign = md.TIMES if cliff.rises else "÷"
    sizes = f"{md.size(format_size(cliff.below_bytes))} → {md.size(format_size(cliff.above_bytes))}"
    return f"{sign}{md.figure(cliff.height)} at {sizes}"


class Footnotes:
    """Reasons under a table, each once, numbered as they come."""

    def __init__(self) -> None:
        self._reasons: dict[str, int] = {}

    def mark(self, status: str, reason: str) -> str:
        text = f"{status}: {md.escape(reason)}"
        return md.superscript(self._reasons.setdefault(text, len(self._reasons) + 1))

    @property
    def lines(self) -> list[str]:
        return [f"{md.superscript(number)} {text}" for text, number in self._reasons.items()]


def rows_of(cells: pd.DataFrame) -> list[Row]:
    return [{str(name): value for name, value in row.items()} for row in cells.to_dict("records")]


def shown(row: Row | None, notes: Footnotes, show: Callable[[Row], str]) -> str:
    """Return a cell of a table: its figure, a footnote's mark where it has none, blank where the run never asked."""
    if row is None:
        return ""
    if row["status"] != "ok":
        return f"{md.ABSENT}{notes.mark(row['status'], row['reason'])}"
    return show(row)


def rate(row: Row) -> str:
    return md.figure(row["gbps"])


def _rate_and_share(row: Row) -> str:
    return f"{rate(row)} ({row['ceiling_share']:.0%})" if math.isfinite(row["ceiling_share"]) else rate(row)


def _order_row(samples: Mapping[str, pd.DataFrame], pair: Row, time: str, scale: float) -> list[str]:
    stream, other = (samples[pair[f"cell_id_{arm}"]] for arm in ("stream", "any"))
    mark = "†" if pair["direction"] == "d2h" else ""
    return [
        pair["direction"],
        md.count(pair["blocks"]),
        md.size(pair["block_size"]),
        md.figure(float(stream[time].median()) * scale),
        md.figure(float(other[time].median()) * scale),
        delta_words(stream.groupby("round")[time].median(), other.groupby("round")[time].median()) + mark,
    ]


def delta_words(a: "pd.Series[float]", b: "pd.Series[float]") -> str:
    """Return the change from a to b in percent, marked "≈" inside the noise, or that it is undecided.

    Both hold a median for each round, by its number; rounds that only one of them has do not count.
    """
    rounds = a.index.intersection(b.index)
    first, second = (np.asarray(arm[rounds], dtype=np.float64) for arm in (a, b))
    if len(rounds) < MIN_PAIRS:
        return f"undecided: {len(rounds)} rounds of {MIN_PAIRS}"
    if min(first.min(), second.min()) <= 0:
        return "undecided: times of 0"
    change = paired_ratio(first, second)
    low, value, high = ((end - 1) * 100 for end in (change.low, change.value, change.high))
    return f"{'' if change.decided else '≈ '}{value:+.1f}% [{low:+.1f}, {high:+.1f}]"


def _series(curves: Curves) -> list[tuple[str, str, str]]:
    return list(dict.fromkeys((curve.direction, curve.backend, curve.state) for curve in curves.curves))


def _of(curves: Curves, direction: str, backend: str, state: str) -> list[Curve]:
    wanted = (direction, backend, state)
    return [curve for curve in curves.curves if (curve.direction, curve.backend, curve.state) == wanted]


def _ceiling(rows: pd.DataFrame) -> str:
    known = rows["ceiling_gbps"].dropna()
    return " not measured" if known.empty else f", {known.iloc[0]:.1f} GB/s"


def settings(pinned: Pinned, cells: pd.DataFrame) -> str:
    words = pinned.words(cells)
    return md.escape(words[:1].upper() + words[1:]) if words else "No other axes"
