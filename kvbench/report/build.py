"""From runs to a report: its content as data, and its files: report.md, report.html and charts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Final

from kvbench.analysis.compare import MIN_PAIRS
from kvbench.analysis.margins import IN_TURN, WIDE
from kvbench.cells.installed import ENGINES_SECTION
from kvbench.report import document, model, whole_runs
from kvbench.report.model import Chapter, Code, Part, PartOrReason, Report, Section, Text
from kvbench.report.page import html_page
from kvbench.report.sections import (
    answer,
    beside,
    cliff,
    comparison,
    contrast,
    gathers,
    layers,
    models,
    placement,
    replay,
    sm_ladder,
    streams,
    threshold,
)
from kvbench.report.tables import both_directions, words_in
from kvbench.report.view import View, views_of
from kvbench.results import Run

if TYPE_CHECKING:
    from kvbench.report.drawing import Drawing


def _contrast(*contrasts: contrast.Contrast) -> Callable[[View], PartOrReason]:
    return partial(contrast.make, contrasts)


def _engines(view: View) -> PartOrReason:
    """Make the section of a guest, imported only now: the core imports no guest."""
    module, _, name = ENGINES_SECTION.partition(":")
    part: PartOrReason = getattr(import_module(module), name)(view)
    return part


# The tables of the questions come first, each with the config that measures it; then the details.
SECTIONS: Final = (
    Section(document.ANSWER, "Answer", answer.make, covers_earlier=True, config="quick"),
    Section("order", "Access order: STREAM against ANY", _contrast(streams.ORDER), config="order"),
    Section("models", "Models: copy by copy against batched", models.make, config="models"),
    Section("cliff", "Cliff: GB/s against block size", cliff.make, config="cliff"),
    Section(
        "threshold",
        "Threshold: batched copies against copy kernels",
        _contrast(threshold.THRESHOLD),
        config="threshold",
    ),
    Section("sm-ladder", "SM ladder: GB/s against SM count", sm_ladder.make, covers_earlier=True, config="sm-ladder"),
    Section(
        "queue",
        "Queue depth: a submission behind queued swaps",
        _contrast(streams.QUEUE_DEPTH, streams.QUEUE_STREAMS),
        config="queue",
    ),
    Section("beside", "Beside a step: what swaps cost it", beside.make, covers_earlier=True, config="beside"),
    Section("opposite", "Both directions at once: GB/s of each", _contrast(placement.OPPOSITE)),
    Section("priority", "Priority: the stream of the swaps", _contrast(streams.PRIORITY)),
    Section("machines", "Machines: side by side", answer.make_machines, covers_earlier=True),
    Section("streams", "Stream states: idle, opened, gated, busy", _contrast(*streams.STREAM_STATES)),
    Section("locality", "Locality: fresh, scattered blocks against hot, dense ones", _contrast(placement.LOCALITY)),
    Section(
        "limits",
        "Address translation: scattered small blocks a second",
        placement.make_limits,
        covers_earlier=True,
        leads=True,
    ),
    Section("runs", "Adjacent blocks: GB/s against their number", _contrast(placement.RUNS)),
    Section("fragments", "Fragments: GB/s against their size", _contrast(placement.FRAGMENTS)),
    Section("gather", "Gathers: rows by ids on the GPU, in a CUDA graph", _contrast(gathers.GATHERS)),
    Section("registrations", "Registrations: us a descriptor by their number", _contrast(placement.REGISTRATIONS)),
    Section("trace", "Replay: the swaps of a trace", replay.make, covers_earlier=True),
    Section("engines", "Engines: their own code, and the best backend of the run", _engines, covers_earlier=True),
    Section("call", "An engine's call: the thread's time, tight and after a step", _contrast(streams.CALL)),
    Section("layers", "Layers: loads that a step waits for, layer by layer", layers.make),
    Section("devices", "Devices: swaps on all of them at once", placement.make_devices, True),
)
COMPARISON: Final = Section("comparison", "Comparison: two runs", comparison.make, covers_earlier=True, leads=True)
# What a report shows of a run that fills no section.
CELLS: Final = Section("cells", "Cells: all that the run measured", answer.make_cells)

# Called with what is made next, its number, and the number of all.
Progress = Callable[[str, int, int], None]


def silent(_what: str, _number: int, _total: int) -> None:
    """Show no progress."""


def report_of(runs: Sequence[Run], unread: Sequence[str] = (), progress: Progress = silent) -> Report:
    """The report of `runs` as data; `unread` says of other runs why they could not be read."""
    views = views_of(runs)
    chapters, missing = _chapters(views, progress)
    return Report(
        views=views,
        unsteady=whole_runs.unsteady({view.label: view.run for view in views}),
        host_note=whole_runs.host_note(views),
        headline=_headline(views, chapters),
        first_warnings=[*whole_runs.first_warnings(views, len(unread)), *whole_runs.plug_ins(views)],
        runs=whole_runs.run_table(views),
        commands=[(f"{view.label}: ", Code(view.command), view.commit) for view in views],
        warnings=whole_runs.all_warnings(views),
        chapters=chapters,
        missing=missing,
        unread=list(unread),
        skipped=whole_runs.skipped(views),
        failed=whole_runs.failed(views),
        definitions=_definitions(chapters),
    )


def plain_findings(runs: Sequence[Run], *, headline: bool = True) -> list[str]:
    """What the sections of a report found, as plain text; with `headline` behind what the runs measured."""
    views = views_of(runs)
    chapters, _ = _chapters(views)
    texts = [*(_headline(views, chapters) if headline else ())]
    return [*map(model.plain, chain(texts, *(chapter.part.findings for chapter in chapters)))]


def _headline(views: Sequence[View], chapters: Sequence[Chapter]) -> list[Text]:
    """What the runs were measured on, and how steady they were."""
    return [*(model.short_of("machines", chapters) or whole_runs.headline(views)), *whole_runs.steadiness(views)]


def _chapters(views: Sequence[View], progress: Progress = silent) -> tuple[list[Chapter], dict[Section, Text]]:
    """The sections that runs fill, and why others of the first page are missing."""
    chapters: list[Chapter] = []
    missing: dict[Section, Text] = {}
    sections = (*SECTIONS, COMPARISON) if len(views) == 2 else SECTIONS
    for number, section in enumerate(sections, start=1):
        progress("section", number, len(sections))
        chapter, reasons = chapter_of(section, views)
        chapters += [chapter] if chapter else []
        if section.config and reasons:
            command = Code(f"kvbench sweep {section.config}")
            missing[section] = (f"{section.short_title}: ", command, f" ({'; '.join(reasons)})")
    if not chapters:
        chapters = [chapter for chapter, _ in [chapter_of(CELLS, views)] if chapter]
    return chapters, missing


def chapter_of(section: Section, views: Sequence[View]) -> tuple[Chapter | None, dict[str, None]]:
    """The chapter of the run with most to say in a section, or why no run fills it."""

    def weight(view: View) -> tuple[float, ...]:
        visits, *size = view.weight
        is_asked = view.run.info.spec.get("name") == section.measured_by
        return (len(view.earlier),) if section.covers_earlier else (visits, is_asked, *size)

    filled: list[tuple[View, Callable[[], Part]]] = []
    reasons: dict[int, str] = {}  # by the number of earlier runs, as all orders here
    for view in sorted(views, key=weight, reverse=True):
        part_or_reason = section.make(view)
        if isinstance(part_or_reason, str):
            reasons[len(view.earlier)] = part_or_reason
        else:
            filled.append((view, part_or_reason))
            if section.covers_earlier:
                # The last run's part covers the runs before it: theirs would say the same again.
                break
    if not filled:
        return None, dict.fromkeys(reasons[number] for number in sorted(reasons) if reasons[number])
    others = sorted((view for view, _ in filled[1:]), key=lambda view: len(view.earlier))
    fullest, make_part = filled[0]
    part = make_part()
    findings = [
        (f"{fullest.card}: ", *model.spans(text)) if fullest.card else text for text in both_directions(part.findings)
    ]
    charts = [chart for chart in part.charts if chart.plot.most_points > 1]  # a single point is no line
    part = replace(part, findings=findings, charts=charts)
    return Chapter(section, fullest, part, [] if section.covers_earlier else others), {}


def report_files(runs: Sequence[Run], unread: Sequence[str] = (), progress: Progress = silent) -> dict[str, bytes]:
    """The report of `runs` as file name -> content, report.md first; the same runs give the same bytes.

    `unread` says why other runs could not be read; `progress` is called before each section and each chart. What a run
    does not hold is named in the report, not an error.
    """
    report = report_of(runs, unread, progress)
    drawn: dict[str, Drawing] = {}
    for number, chart in enumerate(report.charts, start=1):
        from kvbench.report.drawing import draw  # matplotlib takes most of a second to import

        progress("chart", number, len(report.charts))
        drawn[chart.stem] = draw(chart.plot, chart.text)
    page = html_page(document.render_page(report), {stem: drawing.svg for stem, drawing in drawn.items()}, report.views)
    texts = {
        document.REPORT_FILE: document.render_report(report),
        document.DETAILS_FILE: document.render_details(report),
        document.PAGE_FILE: page,
    }
    files = {name: text.encode() for name, text in texts.items()}
    for chart in report.charts:
        files |= {f"{chart.stem}.{suffix}": data for suffix, data in drawn[chart.stem]._asdict().items()}
    return files


def _definitions(chapters: Sequence[Chapter]) -> list[Text]:
    first_page = [chapter.part.tables[:1] for chapter in chapters if chapter.section.config]
    words = words_in(chain.from_iterable((table.header, *table.rows) for table in chain.from_iterable(first_page)))
    events = " and ".join(sorted({"Host" if chapter.view.on_host else "CUDA" for chapter in chapters}))
    return [
        f"GB/s: 10^9 bytes a second; (a to b): 95% interval, where half of it is above {WIDE.fraction:.0%}",
        f"=: the same within {IN_TURN.fraction:.0%} by the interval of the ratio; ?: undecided, or fewer than "
        f"{MIN_PAIRS} visits",
        f"{events} events: idle with the call, busy without; sustained: what one more swap adds",
        *([words] if words else []),
    ]
