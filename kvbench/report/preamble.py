"""What stands around the sections of a report: the runs, what to know first, what failed, what numbers include."""

from collections.abc import Sequence
from typing import Final

import pandas as pd

from kvbench.analysis.margins import IN_TURN
from kvbench.cells.facts import plug_ins_of
from kvbench.report.faults import HOST_COPIES, warnings_of, worst_faults
from kvbench.report.model import Code, DataTable, Span, Strong, Text
from kvbench.report.numbers import count, noun
from kvbench.report.view import (
    View,
    ceilings_text,
    cell_warnings,
    rows_of,
    where,
)
from kvbench.results import Note
from kvbench.results.columns import NO_FIGURE
from kvbench.text import short
from kvbench.tune.text import origin, trace_text

TITLE: Final = "KV-block swaps between host and GPU"
_MOST_FAILURES: Final = 50
_MOST_NOTES: Final = 20
_MANY_OUTLIERS: Final = 0.1


def host_note(views: Sequence[View]) -> Text:
    """Name the runs of the device cpu; "" without any."""
    on_host = [view.label for view in views if view.on_host]
    which = "" if len(on_host) == len(views) else f" ({', '.join(on_host)})"
    return (Strong(HOST_COPIES), which) if on_host else ""


def headline(views: Sequence[View]) -> list[Text]:
    """What the runs of one machine measured, by `origin`."""
    runs = [view.run for view in views]
    return [*origin(runs)] if any(view.measured_ids for view in views) else []


def first_warnings(views: Sequence[View], unread: int) -> list[Text]:
    """The faults of whole runs in at most five lines."""
    lines = worst_faults({view.label: view.run for view in views})
    lines += [f"{noun(unread, 'run')} could not be read: details.md says why"] if unread else []
    return [(Strong("Warning"), f": {text}") for text in lines]


def plug_ins(views: Sequence[View]) -> list[Text]:
    """Explain the mark of plug-ins' backends, with their packages; nothing without any."""
    known = [facts for view in views for facts in view.run.info.backends]
    packages = ", ".join(f"{name} of {short(package, 80)}" for name, package in sorted(plug_ins_of(known).items()))
    meaning = f"a backend of another package, whose figures are only as true as that package's code: {packages}"
    return [(Strong("Plug-in"), f": {meaning}")] if packages else []


def run_table(views: Sequence[View]) -> DataTable:
    """The question of each run, and how much it measured, with its status if it is not complete."""
    rows = []
    asked: dict[str, str] = {}
    for view in views:
        numbers = (int((view.frame["status"] == status).sum()) for status in ("ok", "failed", "skipped"))
        counts = (count(number) if number else "" for number in numbers)
        status = view.run.info.status
        name = view.label if status == "complete" else f"{view.label} ({status})"
        question = short(str(view.run.info.spec.get("question") or ""))
        question += f" ({trace_text(view.run)})" if question and view.run.trace else ""
        first = asked.setdefault(question, view.label)
        asks = question if first == view.label or not question else f"as {first}"
        rows.append((name, asks, view.date, *counts, ceilings_text([view])))
    header = ("Run", "Question", "Date", "Measured", "Failed", "Skipped", "Ceiling h2d / d2h GB/s")
    machines = dict.fromkeys(", ".join(view.machine) for view in views)
    return DataTable("", header, rows, caption="; ".join(machines), left=3)


def warnings(views: Sequence[View]) -> list[Text]:
    """Warnings about the runs and their samples, and their notes."""
    texts: list[Text] = [f"{view.label}: {short(text)}" for view in views for text in warnings_of(view.run)]
    texts += [(f"{view.label}: ", *doubt) for view in views for doubt in _doubts(view.measured)]
    for view in views:
        if without := int((view.frame["status"] == "no figure").sum()):
            texts.append(f"{view.label}: {noun(without, 'cell')} on a busy stream without a figure: {NO_FIGURE}")
    records = ((view.label, record) for view in views for record in view.run.records)
    notes = [f"{label}: {short(record.text)}" for label, record in records if isinstance(record, Note)]
    more = [f"and {len(notes) - _MOST_NOTES} more notes in the journal"] if len(notes) > _MOST_NOTES else []
    return [*texts, *notes[:_MOST_NOTES], *more]


def _doubts(measured: pd.DataFrame) -> list[tuple[Span, ...]]:
    outliers = f"outliers among more than {_MANY_OUTLIERS:.0%} of the samples, marked and kept"
    doubtful = (
        (measured["state_held"] < 1, "samples whose stream was not in the requested state", "state_held"),
        (measured["outliers"] > _MANY_OUTLIERS * measured["samples"], outliers, "outliers"),
    )
    doubts: list[tuple[Span, ...]] = []
    for cells, text, column in doubtful:
        if number := int(cells.sum()):
            have = "has" if number == 1 else "have"
            doubts.append((f"{noun(number, 'cell')} {have} {text} (", Code(column), ")"))
    return doubts + [(text,) for text in cell_warnings(measured)[:_MOST_NOTES]]


def skipped(views: Sequence[View]) -> list[Text]:
    """Count the skipped cells of each backend by reason."""
    return [
        f"{view.label}: {backend}, {noun(len(cells), 'cell')}: {short(str(why))}"
        for view in views
        for (backend, why), cells in where(view.frame, status="skipped").groupby(["backend", "reason"])
    ]


def failed(views: Sequence[View]) -> DataTable | None:
    cells = [(view.label, row) for view in views for row in rows_of(where(view.frame, status="failed"))]
    rows = [(label, short(str(row["reason"])), Code(short(str(row["command"]), 2000))) for label, row in cells]
    more = f"And {len(rows) - _MOST_FAILURES} more in summary.csv." if len(rows) > _MOST_FAILURES else ""
    header = ("Run", "Reason", "Reproduced by")
    return DataTable("", header, rows[:_MOST_FAILURES], caption=more, left=3) if rows else None


def definitions() -> list[Text]:
    return [
        "GB/s: 10^9 bytes a second within this run, at the median of the visits' medians",
        "Visit: one uninterrupted measurement of a cell",
        f"≈: within {IN_TURN.fraction:.0%} by the 95% interval, or undecided",
        "Ceiling: GB/s of large plain copies",
        "Idle, busy: no work is pending before a swap, or some; sustained: swaps back to back",
    ]


LEFT_OUT: Final = "Left out on purpose: figures of requests (time to first token), ROCm and XPU, disks and networks."
