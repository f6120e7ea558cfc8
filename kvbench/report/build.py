"""From runs to a report: its content as data, and its files: report.md, report.html, charts and their CSV."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pandas as pd

from kvbench.errors import UsageError
from kvbench.files import or_usage_error, write_whole
from kvbench.report import preamble
from kvbench.report.document import PAGE_FILE, render_markdown
from kvbench.report.model import Chapter, Code, Part, PartOrReason, Report, Section, Text, plain, spans
from kvbench.report.page import html_page
from kvbench.report.sections import (
    cliff,
    comparison,
    contrast,
    fragments,
    gathers,
    kernels,
    layers,
    machines,
    models,
    neighbour,
    placement,
    replay,
    submission,
)
from kvbench.report.tables import is_footnote
from kvbench.report.view import View, views_of
from kvbench.results import Run
from kvbench.results.frame import as_csv
from kvbench.sweep.installed import ENGINES_SECTION
from kvbench.tune.text import machine_text

if TYPE_CHECKING:
    from kvbench.report.charts.figure import Drawing

# In a report of more runs, a section does not name the others that could fill it: to know takes as long as its tables.
_MOST_NAMED: Final = 20


def _contrast(*contrasts: contrast.Contrast) -> Callable[[View], PartOrReason]:
    """Return what makes a section of these contrasts."""
    return partial(contrast.make, contrasts)


def _engines(view: View) -> PartOrReason:
    """Make the section of a guest, imported only now: the core imports no guest."""
    module, _, name = ENGINES_SECTION.partition(":")
    part: PartOrReason = getattr(import_module(module), name)(view)
    return part


_sizes: Final = attrgetter("block_sizes")
SECTIONS: Final = (
    Section("machines", "Machines: side by side", machines.make, of_all=True),
    Section("cliff", "Cliff: throughput against block size", cliff.make, weight=_sizes),
    Section("stream-states", "Stream states: idle, opened, gated, busy", _contrast(*submission.STREAM_STATES)),
    Section(
        "threshold", "Threshold: batched copies against the other backends", _contrast(kernels.THRESHOLD), weight=_sizes
    ),
    Section(
        "crossover-map", "Crossover map: time of batched copies over time of a kernel", kernels.make_map, weight=_sizes
    ),
    Section("sm-ladder", "SM ladder: throughput against SM count", _contrast(kernels.SM_LADDER)),
    Section("locality", "Locality: fresh, scattered blocks against hot, dense ones", _contrast(placement.LOCALITY)),
    Section("extents", "Adjacent blocks: throughput against their number", _contrast(placement.RUNS)),
    Section("fragments", "Fragments: throughput against their size", _contrast(fragments.FRAGMENTS)),
    Section("gathers", "Gathers: rows by ids on the GPU, in a CUDA graph", _contrast(gathers.GATHERS)),
    Section("models", "Models: copy by copy against batched", models.make),
    Section("replay", "Replay: the swaps of a trace", replay.make, of_all=True),
    Section("engines", "Engines: their own code, and the best backend of the run", _engines, of_all=True),
    Section("call", "An engine's call: the thread's time, tight and after a step", _contrast(submission.CALL)),
    Section("neighbour", "Neighbours: slowdown of work beside swaps", neighbour.make),
    Section("layers", "Layers: loads that a step waits for, layer by layer", layers.make, of_all=True),
    Section("devices", "Devices: swaps on all of them at once", _contrast(placement.DEVICES), of_all=True),
    Section("access-order", "Access order: STREAM against ANY", _contrast(*submission.ACCESS_ORDER)),
    Section("queue-depth", "Queue depth: submission time against queued swaps", _contrast(submission.QUEUE_DEPTH)),
)
COMPARISON: Final = Section(
    "comparison", "Comparison: runs against each other", comparison.make, weight=comparison.shared_cells
)

# Called with what is made next, its number, and the number of all.
Progress = Callable[[str, int, int], None]


def silent(_what: str, _number: int, _total: int) -> None:
    """Show no progress."""


def report_of(runs: Sequence[Run], unread: Sequence[str] = (), progress: Progress = silent) -> Report:
    """Return the report of `runs` as data; `unread` says of other runs why they could not be read."""
    views = views_of(runs)
    sections = _sections_of(views)
    chapters: list[Chapter] = []
    missing: list[Text] = []
    for number, section in enumerate(sections, start=1):
        progress("section", number, len(sections))
        chapter, reasons = _chapter(section, views)
        chapters += [chapter] if chapter else []
        missing += [f"{section.short_title}: {'; '.join(reasons)}"] if reasons else []
    return Report(
        views=views,
        host_note=preamble.host_note(views),
        headline=_headline(views, chapters),
        first_warnings=[*preamble.first_warnings(views, len(unread)), *preamble.plug_ins(views)],
        runs=preamble.run_table(views),
        commands=[(f"{view.label}: ", Code(view.command)) for view in views],
        warnings=preamble.warnings(views),
        chapters=chapters,
        missing=[*(f"A run: {why}" for why in unread), *missing],
        skipped=preamble.skipped(views),
        failed=preamble.failed(views),
        definitions=preamble.definitions(),
    )


def _headline(views: Sequence[View], chapters: Sequence[Chapter]) -> list[Text]:
    if views[0].card:
        return machines.headline(chapters[0].part.tables[0])
    try:
        return preamble.answer(views)
    except UsageError as none:
        reason = [] if any(finding.weight for chapter in chapters for finding in chapter.part.findings) else [str(none)]
        return [machine_text(views[0].run), *reason]


def _sections_of(views: Sequence[View]) -> Sequence[Section]:
    """Return the sections of a report on these runs.

    After the machines, the comparison comes first where it has all runs and driver or build differ, otherwise last.
    """
    pairs = [(view, base) for view in views if (base := view.base)]
    apart = any(view.run.info.identity_hash != base.run.info.identity_hash for view, base in pairs)
    has_all = len({view.run.path for pair in pairs for view in pair}) == len(views)
    return (SECTIONS[0], COMPARISON, *SECTIONS[1:]) if apart and has_all else (*SECTIONS, COMPARISON)


def _chapter(section: Section, views: Sequence[View]) -> tuple[Chapter | None, dict[str, None]]:
    """Return the chapter of the run with most to say in a section, or why no run fills it."""

    def weight(view: View) -> tuple[float | str, ...]:
        visits, cells = view.weight
        return (len(view.earlier),) if section.of_all else (visits, section.weight(view), cells)

    filled: list[tuple[View, Callable[[], Part]]] = []
    reasons: dict[int, str] = {}  # by the number of earlier runs, as all orders here
    for view in sorted(views, key=weight, reverse=True):
        made = section.make(view)
        if isinstance(made, str):
            reasons[len(view.earlier)] = made
        else:
            filled.append((view, made))
            if section.of_all or len(views) > _MOST_NAMED:
                break
    if not filled:
        return None, dict.fromkeys(reasons[number] for number in sorted(reasons) if reasons[number])
    others = sorted((view for view, _ in filled[1:]), key=lambda view: len(view.earlier))
    shown, make_part = filled[0]
    part = _shortened(make_part())
    if shown.card:
        named = [replace(one, text=(f"{shown.card}: ", *spans(one.text))) for one in part.findings]
        part = replace(part, findings=named)
    return Chapter(section, shown, part, others if section.of_all or len(views) <= _MOST_NAMED else None), {}


REPORT_FILE: Final = "report.md"


def _shortened(part: Part) -> Part:
    """Leave out charts of one point, and of a table what an earlier one of its section has noted; footnotes stay."""
    noted: set[Text] = set()
    tables = []
    for table in part.tables:
        tables.append(replace(table, notes=[note for note in table.notes if is_footnote(note) or note not in noted]))
        noted |= set() if table.stem else set(table.notes)
    return replace(part, tables=tables, charts=[chart for chart in part.charts if chart.plot.most_points > 1])


def write_files(files: Mapping[str, bytes], out: Path) -> list[Path]:
    """Write files into the folder `out` and return them.

    Raises UsageError when `out` cannot be written, StorageError when there is no room.
    """
    with or_usage_error(f"cannot write the report to {out}"):
        out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            write_whole(out / name, data, wait=False)
    return [out / name for name in files]


def report_files(runs: Sequence[Run], unread: Sequence[str] = (), progress: Progress = silent) -> dict[str, bytes]:
    """Return the report of `runs` as file name -> content, report.md first; the same runs give the same bytes.

    `unread` says why other runs could not be read; `progress` is called before each section and each chart. What a run
    does not hold is named in the report, not an error.
    """
    # matplotlib takes a third of a second to import, which a report without files does not need
    from kvbench.report.charts.panels import draw

    report = report_of(runs, unread, progress)
    drawn: dict[str, Drawing] = {}
    for number, chart in enumerate(report.charts, start=1):
        progress("chart", number, len(report.charts))
        drawn[chart.stem] = draw(chart.plot, chart.text)
    page = html_page(render_markdown(report, whole=True), {stem: one.svg for stem, one in drawn.items()}, report.views)
    files = {REPORT_FILE: render_markdown(report).encode(), PAGE_FILE: page.encode()}
    for chart in report.charts:
        files |= {f"{chart.stem}.{suffix}": data for suffix, data in drawn[chart.stem].files.items()}
        files[f"{chart.stem}.csv"] = as_csv(chart.points)
    for name, table in report.files.items():
        rows = [[plain(cell) for cell in row] for row in table.rows]
        files[name] = as_csv(pd.DataFrame(rows, columns=[plain(head) for head in table.header]))
    return files | {name: data for part in report.parts for name, data in part.files.items()}
