"""From runs to a report in a folder: report.md, its charts, and the CSV behind every chart."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pandas as pd

from kvbench.errors import UsageError
from kvbench.report import markdown as md
from kvbench.report.palette import inks
from kvbench.report.sections import SECTIONS, Block, Chart, Section
from kvbench.report.view import HOST_COPIES, View, views_of, warnings_of
from kvbench.results import COLUMNS, Note, Run
from kvbench.results.files import write_whole

REPORT_FILE: Final = "report.md"
_MOST_FAILURES: Final = 50
_MOST_NOTES: Final = 20


def write_report(runs: Sequence[Run], out: Path) -> list[Path]:
    """Write the report of `runs` into the folder `out` and return its files, report.md first.

    What a run does not hold is named in the report, not an error. Raises UsageError when `out` cannot be written,
    StorageError when there is no room.
    """
    files = report_files(runs)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            write_whole(out / name, data)
    except OSError as error:
        raise UsageError(f"cannot write the report to {out}: {str(error.strerror).lower()}; choose with -o") from None
    return [out / name for name in files]


def report_files(runs: Sequence[Run]) -> dict[str, bytes]:
    """Return the report of `runs` as file name -> content, report.md first; the same runs give the same bytes."""
    views = views_of(runs)
    colours = inks(sorted({backend for view in views for backend in view.frame["backend"]}))
    made: dict[Section, list[tuple[View, Block]]] = {section: [] for section in SECTIONS}
    missing: list[str] = []
    for section in SECTIONS:
        reasons: dict[str, list[str]] = {}
        for view in views:
            block = section.make(view, colours)
            if isinstance(block, str):
                reasons.setdefault(block, []).append(view.label)
            else:
                made[section].append((view, block))
        missing += [f"{section.name} ({section.title}): {why} ({', '.join(of)})" for why, of in reasons.items()]
    parts = [_head(views), _warnings(views)]
    parts += [_section(section, blocks, len(views) > 1) for section, blocks in made.items() if blocks]
    parts += [_missing(missing), _skips(views), _failures(views), _definitions()]
    charts = [chart for blocks in made.values() for _, block in blocks for chart in block.charts]
    text = "\n\n".join(part for part in parts if part) + "\n"
    return {REPORT_FILE: text.encode()} | {name: data for chart in charts for name, data in _named(chart).items()}


def _named(chart: Chart) -> Mapping[str, bytes]:
    return {f"{chart.stem}.{suffix}": data for suffix, data in chart.files.items()}


def _head(views: Sequence[View]) -> str:
    header = ("Run", "Device", "Driver", "Date", "Status", "Measured", "Failed", "Skipped", "Ceiling h2d / d2h GB/s")
    rows = [
        (
            view.label,
            md.escape(view.title),
            md.escape(view.driver),
            md.escape(view.date),
            view.run.info.status,
            *(md.count((view.frame["status"] == status).sum()) for status in ("ok", "failed", "skipped")),
            " / ".join(_ceiling(view.frame, way) for way in ("h2d", "d2h")),
        )
        for view in views
    ]
    title = "# KV-block swaps between host and GPU"
    if any(view.on_host for view in views):
        on_host = [view.label for view in views if view.on_host]
        which = "" if len(on_host) == len(views) else f" ({', '.join(on_host)})"
        title += f"\n\n> **{HOST_COPIES}**{which}"
    commands = md.bullets(f"{view.label}: {md.code(view.command)}" for view in views)
    return f"{title}\n\n{md.table(header, rows, left=5)}\n\nMade by\n\n{commands}"


def _ceiling(frame: pd.DataFrame, way: str) -> str:
    known = frame.loc[frame["direction"] == way, "ceiling_gbps"].dropna()
    return md.ABSENT if known.empty else md.figure(float(known.iloc[0]))


def _warnings(views: Sequence[View]) -> str:
    found = [md.escape(f"{view.label}: {text}") for view in views for text in warnings_of(view.run)]
    found += [f"{view.label}: {text}" for view in views for text in _doubts(view.measured)]
    notes = [md.escape(record.text) for view in views for record in view.run.records if isinstance(record, Note)]
    more = [f"and {len(notes) - _MOST_NOTES} more notes in the journal"] if len(notes) > _MOST_NOTES else []
    lines = [*found, *notes[:_MOST_NOTES], *more]
    return f"## To know first\n\n{md.bullets(lines)}" if lines else ""


def _doubts(measured: pd.DataFrame) -> list[str]:
    """Return what the samples themselves say against some cells, in Markdown."""
    found = []
    astray = int((measured["state_held"] < 1).sum())
    if astray:
        subject = "1 cell has" if astray == 1 else f"{md.count(astray)} cells have"
        found.append(f"{subject} samples whose stream was not in the state asked for (`state_held`)")
    for text, cells in measured["warnings"].dropna().value_counts().head(_MOST_NOTES).items():
        found.append(f"{md.count(cells)} cell{'s' * (cells > 1)}: {md.escape(text)}")
    return found


def _section(section: Section, blocks: Sequence[tuple[View, Block]], several_runs: bool) -> str:
    parts = [f"## {section.title}"]
    for view, block in blocks:
        if several_runs:
            parts.append(f"### {view.label}: {md.escape(view.title)}")
        parts += [md.image(chart.alternative, f"{chart.stem}.png") + _links(chart) for chart in block.charts]
        if block.findings:
            parts.append(md.bullets(block.findings))
        parts += [table.markdown() for table in block.tables]
    return "\n\n".join(parts)


def _links(chart: Chart) -> str:
    return f"\n\n[SVG]({chart.stem}.svg), [data]({chart.stem}.csv)"


def _missing(lines: Sequence[str]) -> str:
    return f"## Not in this report\n\n{md.bullets(lines)}" if lines else ""


def _skips(views: Sequence[View]) -> str:
    lines = []
    for view in views:
        skipped = view.frame[view.frame["status"] == "skipped"]
        for _, group in skipped.groupby(["backend", "reason"]):
            backend, why = (md.escape(group[name].iloc[0]) for name in ("backend", "reason"))
            lines.append(f"{view.label}: {backend}, {md.count(len(group))} cell{'s' * (len(group) > 1)}: {why}")
    return f"## Skipped cells\n\n{md.bullets(lines)}" if lines else ""


def _failures(views: Sequence[View]) -> str:
    rows = [
        (view.label, md.escape(row["reason"]), md.code(row["command"]))
        for view in views
        for row in view.frame[view.frame["status"] == "failed"].to_dict("records")
    ]
    if not rows:
        return ""
    more = f"\n\nAnd {len(rows) - _MOST_FAILURES} more in summary.csv." if len(rows) > _MOST_FAILURES else ""
    header = ("Run", "Reason", "Reproduced by")
    return f"## Failed cells\n\nThey have no figures.\n\n{md.table(header, rows[:_MOST_FAILURES], left=3)}{more}"


def _definitions() -> str:
    medians = [name for name in COLUMNS if name.endswith("_us_median")]
    lines = [f"`{name.removesuffix('_median')}`: {COLUMNS[name].partition(': ')[2]}" for name in medians]
    lines.append("GB/s: 10^9 bytes a second, bytes of one swap over the median of `swap_us`; bands are its quartiles")
    lines.append("ceiling: median GB/s of large plain copies in the same run and direction")
    return f"## What the numbers include\n\n{md.bullets(lines)}"
