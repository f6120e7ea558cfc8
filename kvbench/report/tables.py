"""What every table of a report has in common, and those of the cliff (T3) and of the SM ladder (T5)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from kvbench.analysis.curves import leaders
from kvbench.analysis.intervals import Quartiles
from kvbench.report import markdown as md
from kvbench.report.curves import MIN_SIZES, Curve, Curves
from kvbench.report.select import Pinned
from kvbench.report.view import View, ceiling_of

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


@dataclass(frozen=True, slots=True)
class Table:
    """A table in Markdown: every string is ready to print; the first `left` columns are words, the others numbers."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    caption: str
    left: int = 1

    def markdown(self) -> str:
        notes = f"\n\n{md.bullets(self.notes)}" if self.notes else ""
        return f"**{self.title}**\n\n{md.table(self.header, self.rows, self.left)}{notes}\n\n{self.caption}"


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
                md.bytes_size(size),
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
        blanks = _blanks(view) if len(grid) < len(counts) * len({size for size, _ in grid}) else []
        tables.append(Table(title, header, body, [*notes.lines, *blanks], caption))
    return tables


def _blanks(view: View) -> list[str]:
    """Return why a cell of a table may be blank: what the sweep's filters left out was never measured."""
    filters = view.run.info.spec.get("filters")
    texts = [text for text in filters if isinstance(text, str)] if isinstance(filters, list) else []
    return [f"Blank: left out by the sweep, which kept {md.code(', '.join(texts))} alone"] if texts else []


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
        header = ("SMs", *(f"{curve.direction} {md.bytes_size(curve.panel)}" for curve in columns))
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
    sizes = f"{md.bytes_size(cliff.below_bytes)} → {md.bytes_size(cliff.above_bytes)}"
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
    """Return what DataFrame.to_dict("records") does, which takes ten times as long on as many columns as a run has."""
    names = [str(name) for name in cells]
    return [dict(zip(names, row, strict=True)) for row in zip(*(cells[name].tolist() for name in names), strict=True)]


def swap_quartiles(row: Row, suffix: str = "") -> Quartiles:
    """Return the quartiles of a cell's swap_us; `suffix` is that of its columns in a table of pairs."""
    return Quartiles(*(float(row[f"swap_us_{part}{suffix}"]) for part in ("q1", "median", "q3")))


def shown(row: Row | None, notes: Footnotes, show: Callable[[Row], str]) -> str:
    """Return a cell of a table: its figure, a footnote's mark where it has none, blank where the run never asked."""
    if row is None:
        return ""
    if row["status"] != "ok":
        return f"{md.ABSENT}{notes.mark(row['status'], row['reason'])}"
    return show(row)


def mark_fastest(texts: Mapping[str, str], times: Mapping[str, Quartiles]) -> dict[str, str]:
    """Return `texts` with the fastest of `times` in bold, or "≈" before all that it is not told apart from."""
    first = leaders(times) if len(times) > 1 else []
    marked = {name: f"**{texts[name]}**" if len(first) == 1 else f"≈ {texts[name]}" for name in first}
    return {**texts, **marked}


def rate(row: Row) -> str:
    return md.figure(row["gbps"])


def _rate_and_share(row: Row) -> str:
    return f"{rate(row)} ({row['ceiling_share']:.0%})" if math.isfinite(row["ceiling_share"]) else rate(row)


def _series(curves: Curves) -> list[tuple[str, str, str]]:
    return list(dict.fromkeys((curve.direction, curve.backend, curve.state) for curve in curves.curves))


def _of(curves: Curves, direction: str, backend: str, state: str) -> list[Curve]:
    wanted = (direction, backend, state)
    return [curve for curve in curves.curves if (curve.direction, curve.backend, curve.state) == wanted]


def _ceiling(rows: pd.DataFrame) -> str:
    gbps = ceiling_of(rows)
    return " not measured" if gbps is None else f", {gbps:.1f} GB/s"


def settings(pinned: Pinned, cells: pd.DataFrame) -> str:
    words = pinned.words(cells)
    return md.escape(words[:1].upper() + words[1:]) if words else "No other axes"
