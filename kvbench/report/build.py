"""From runs to a report: its content as data, and its files: report.md, report.html and charts."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

import numpy as np

from kvbench.analysis.compare import MIN_PAIRS, Verdict, known_interval
from kvbench.analysis.margins import IN_TURN, WIDE
from kvbench.cells.facts import plug_ins_of
from kvbench.cells.installed import ENGINES_SECTION
from kvbench.cells.units import two_digits
from kvbench.ground.files import or_usage_error, write_whole
from kvbench.ground.text import short
from kvbench.report import document, model
from kvbench.report.faults import HOST_COPIES, unsteady, warnings_of, worst_faults
from kvbench.report.model import Chapter, Code, DataTable, Part, PartOrReason, Report, Section, Span, Strong, Text
from kvbench.report.numbers import count, is_wide, noun
from kvbench.report.page import html_page
from kvbench.report.sections import (
    answer,
    beside,
    cliff,
    comparison,
    contrast,
    gathers,
    layers,
    limits,
    machines,
    models,
    placement,
    replay,
    sm_ladder,
    streams,
    threshold,
)
from kvbench.report.tables import SIGNS, both_directions, name_of, words_in
from kvbench.report.view import View, ceilings_text, cell_warnings, spread_of_runs, views_of, when_disturbed
from kvbench.results import Note, Run
from kvbench.results.columns import NO_FIGURE
from kvbench.results.outcomes import Outcome, Status, grouped
from kvbench.tune.candidates import origin_of
from kvbench.tune.text import origin_lines, trace_text

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
    Section(document.ANSWER, "Answer", answer.make, of_all=True, config="quick"),
    Section("order", "Access order: STREAM against ANY", _contrast(streams.ORDER), config="order"),
    Section("models", "Models: copy by copy against batched", models.make, config="models"),
    Section("cliff", "Cliff: GB/s against block size", cliff.make, config="cliff"),
    Section(
        "threshold",
        "Threshold: batched copies against copy kernels",
        _contrast(threshold.THRESHOLD),
        config="threshold",
    ),
    Section("sm-ladder", "SM ladder: GB/s against SM count", sm_ladder.make, of_all=True, config="sm-ladder"),
    Section(
        "queue",
        "Queue depth: a submission behind queued swaps",
        _contrast(streams.QUEUE_DEPTH, streams.QUEUE_STREAMS),
        config="queue",
    ),
    Section("beside", "Beside a step: what swaps cost it", beside.make, of_all=True, config="beside"),
    Section("opposite", "Both directions at once: GB/s of each", _contrast(placement.OPPOSITE)),
    Section("priority", "Priority: the stream of the swaps", _contrast(streams.PRIORITY)),
    Section("machines", "Machines: side by side", machines.make, of_all=True),
    Section("streams", "Stream states: idle, opened, gated, busy", _contrast(*streams.STREAM_STATES)),
    Section("locality", "Locality: fresh, scattered blocks against hot, dense ones", _contrast(placement.LOCALITY)),
    Section("limits", "Address translation: scattered small blocks a second", limits.make, of_all=True, leads=True),
    Section("runs", "Adjacent blocks: GB/s against their number", _contrast(placement.RUNS)),
    Section("fragments", "Fragments: GB/s against their size", _contrast(placement.FRAGMENTS)),
    Section("gather", "Gathers: rows by ids on the GPU, in a CUDA graph", _contrast(gathers.GATHERS)),
    Section("registrations", "Registrations: us a descriptor by their number", _contrast(placement.REGISTRATIONS)),
    Section("trace", "Replay: the swaps of a trace", replay.make, of_all=True),
    Section("engines", "Engines: their own code, and the best backend of the run", _engines, of_all=True),
    Section("call", "An engine's call: the thread's time, tight and after a step", _contrast(streams.CALL)),
    Section("layers", "Layers: loads that a step waits for, layer by layer", layers.make),
    Section("devices", "Devices: swaps on all of them at once", placement.make_devices, True),
)
COMPARISON: Final = Section("comparison", "Comparison: two runs", comparison.make, of_all=True, leads=True)
# What a report shows of a run that fills no section.
CELLS: Final = Section("cells", "Cells: all that the run measured", answer.make_cells)

# Called with what is made next, its number, and the number of all.
Progress = Callable[[str, int, int], None]


def silent(_what: str, _number: int, _total: int) -> None:
    """Show no progress."""


def report_of(runs: Sequence[Run], unread: Sequence[str] = (), progress: Progress = silent) -> Report:
    """The report of `runs` as data; `unread` says of other runs why they could not be read."""
    views = views_of(runs)
    chapters: list[Chapter] = []
    missing: dict[Section, Text] = {}
    sections = (*SECTIONS, COMPARISON) if len(views) == 2 else SECTIONS
    for number, section in enumerate(sections, start=1):
        progress("section", number, len(sections))
        chapter, reasons = _chapter(section, views)
        chapters += [chapter] if chapter else []
        if section.config and reasons:
            command = Code(f"kvbench sweep {section.config}")
            missing[section] = (f"{section.short_title}: ", command, f" ({'; '.join(reasons)})")
    if not chapters:
        chapters = [chapter for chapter, _ in [_chapter(CELLS, views)] if chapter]
    return Report(
        views=views,
        unsteady=unsteady({view.label: view.run for view in views}),
        host_note=_host_note(views),
        headline=[*(model.short_of("machines", chapters) or _headline(views)), *_steadiness(views)],
        first_warnings=[*_first_warnings(views, len(unread)), *_plug_ins(views)],
        runs=_run_table(views),
        commands=[(f"{view.label}: ", Code(view.command), view.commit) for view in views],
        warnings=_warnings(views),
        chapters=chapters,
        missing=missing,
        unread=list(unread),
        skipped=_skipped(views),
        failed=_failed(views),
        definitions=_definitions(chapters),
    )


def _chapter(section: Section, views: Sequence[View]) -> tuple[Chapter | None, dict[str, None]]:
    """The chapter of the run with most to say in a section, or why no run fills it."""

    def weight(view: View) -> tuple[float, ...]:
        visits, *size = view.weight
        is_asked = view.run.info.spec.get("name") == section.measured_by
        return (len(view.earlier),) if section.of_all else (visits, is_asked, *size)

    filled: list[tuple[View, Callable[[], Part]]] = []
    reasons: dict[int, str] = {}  # by the number of earlier runs, as all orders here
    for view in sorted(views, key=weight, reverse=True):
        part_or_reason = section.make(view)
        if isinstance(part_or_reason, str):
            reasons[len(view.earlier)] = part_or_reason
        else:
            filled.append((view, part_or_reason))
            if section.of_all:
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
    return Chapter(section, fullest, part, [] if section.of_all else others), {}


def make_folder(out: Path) -> None:
    """Make the folder `out` of a report that is not drawn yet; raises UsageError where no file can be written to it."""
    with or_usage_error(f"cannot write the report to {out}"):
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()  # a folder can exist and take no files: a minute of drawing would be lost


def write_files(files: Mapping[str, bytes], out: Path) -> list[Path]:
    """Write files into the folder `out` and return them.

    Raises UsageError when `out` cannot be written, StorageError when there is no room.
    """
    make_folder(out)
    with or_usage_error(f"cannot write the report to {out}"):
        for name, data in files.items():
            write_whole(out / name, data, wait=False)
    return [out / name for name in files]


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


_COUNTED: Final[tuple[Status, ...]] = ("ok", "failed", "skipped")
# A sweep that fails throughout has thousands of both; summary.csv and the journal have them all.
_MOST_FAILURES: Final = 50
_MOST_NOTES: Final = 20
_MANY_OUTLIERS: Final = 0.1
# By the column of the summary that tells which cells.
_DOUBTS: Final = {
    "state_held": "samples whose stream was not in the requested state",
    "outliers": f"outliers among more than {_MANY_OUTLIERS:.0%} of the samples, marked and kept",
}


def _host_note(views: Sequence[View]) -> Text:
    """Name the runs of the device cpu; "" without any."""
    on_host = [view.label for view in views if view.on_host]
    which = "" if len(on_host) == len(views) else f" ({', '.join(on_host)})"
    return (Strong(HOST_COPIES), which) if on_host else ""


def _headline(views: Sequence[View]) -> list[Text]:
    """What the runs of one machine measured, by `origin_lines`."""
    runs = [view.run for view in views]
    versions = ", ".join(dict.fromkeys(short(view.run.info.kvbench, 80) for view in views))
    commits = len({view.run.info.commit for view in views})
    which = f"{versions} ({commits} commits)" if commits > 1 else versions + views[0].commit
    if not any(view.measured for view in views):
        return []
    return [*origin_lines(origin_of(runs)), *_hosts(views), f"kvbench {which}"]


def _hosts(views: Sequence[View]) -> list[Text]:
    """The host of most runs, and which runs are of another."""
    hosts = grouped((view for view in views if view.host), lambda view: view.host)
    if not hosts:
        return []
    most_common = max(hosts, key=lambda host: len(hosts[host]))
    others = ", ".join(view.label for view in views if view.host not in ("", most_common))
    return [f"Host: {most_common}" + (f" (not {others})" if others else "")]


def _steadiness(views: Sequence[View]) -> list[Text]:
    """What a reader must know of the spread behind all figures: between runs, by disturbances, between visits."""
    outcomes = [*chain.from_iterable(view.measured for view in views)]
    return [*filter(None, (_starts_text(views), _disturbed_text(views, outcomes), _visits_text(outcomes)))]


def _starts_text(views: Sequence[View]) -> str:
    """How far runs of one machine differ on the same cells; "" without such cells."""
    ratios = spread_of_runs(views)
    if not ratios:
        return ""
    tenth, worst = (two_digits(ratio) for ratio in (float(np.quantile(ratios, 0.9)), max(ratios)))
    cells = noun(len(ratios), "cell")
    return f"Starts differ: a tenth of {cells} in several runs by {tenth}x or more, at worst {worst}x"


def _disturbed_text(views: Sequence[View], outcomes: Sequence[Outcome]) -> str:
    """How many of the visits that count were disturbed, and how much longer these took; "" if none were."""
    label, most = max(((view.label, view.disturbed) for view in views), key=lambda share: share[1], default=("", 0.0))
    if not most:
        return ""
    share = sum(len(outcome.disturbed) for outcome in outcomes) / sum(len(outcome.attempts) for outcome in outcomes)
    which = f" ({label}: {most:.0%})" if len(views) > 1 else ""
    calls, swaps = (when_disturbed(outcomes, time) for time in ("caller_us", "swap_us"))
    slower = f": calls {_change_text(calls)}, swaps {_change_text(swaps)}" if calls and swaps else ""
    return f"{share:.0%} of the visits were disturbed{which}{slower}"


def _change_text(ratios: Sequence[float]) -> str:
    """The change in the median of the cells, with a sign where their interval does not tell that there is one."""
    low, high = known_interval(ratios)
    is_decided = low > 1 or high < 1
    return f"{'' if is_decided else SIGNS[Verdict.UNDECIDED]}{median(ratios) - 1:+.0%}"


def _visits_text(outcomes: Sequence[Outcome]) -> str:
    """How many intervals are wide because visits differ, which more samples a visit would not mend; "" if none are."""
    wide = [outcome for outcome in outcomes if is_wide(outcome.us(), *outcome.interval())]
    # Where the samples of a visit agree as closely as a narrow interval, the visits themselves differ.
    visits_differ = sum(outcome.spread.within_visits <= WIDE.fraction for outcome in wide)
    if not visits_differ:
        return ""
    return f"{count(visits_differ)} of {noun(len(wide), 'wide interval')}: visits differ, samples agree"


def _first_warnings(views: Sequence[View], unread: int) -> list[Text]:
    """The faults of whole runs in at most five lines."""
    lines = worst_faults({view.label: view.run for view in views})
    lines += [f"{noun(unread, 'run')} could not be read: details.md says why"] if unread else []
    return [(Strong("Warning"), f": {text}") for text in lines]


def _plug_ins(views: Sequence[View]) -> list[Text]:
    """Explain the mark of plug-ins' backends, with their packages; nothing without any."""
    plug_ins = plug_ins_of(chain.from_iterable(view.run.info.backends for view in views))
    packages = ", ".join(f"{name} of {short(package, 80)}" for name, package in sorted(plug_ins.items()))
    meaning = f"a backend of another package, whose figures are only as true as that package's code: {packages}"
    return [(Strong("Plug-in"), f": {meaning}")] if packages else []


def _run_table(views: Sequence[View]) -> DataTable:
    """The question of each run, and how much it measured, with its status if it is not complete."""
    rows = []
    first_asked_by: dict[str, str] = {}
    for view in views:
        statuses = Counter(outcome.status for outcome in view.outcomes)
        numbers = (statuses[status] for status in _COUNTED)
        counts = (count(number) if number else "" for number in numbers)
        status = view.run.info.status
        name = view.label if status == "complete" else f"{view.label} ({status})"
        question = short(str(view.run.info.spec.get("question") or ""))
        question += f" ({trace_text(view.run.trace)})" if question and view.run.trace else ""
        first = first_asked_by.setdefault(question, view.label)
        question_text = question if first == view.label or not question else f"as {first}"
        rows.append((name, question_text, view.date, *counts, ceilings_text([view])))
    header = ("Run", "Question", "Date", "Measured", "Failed", "Skipped", "Ceiling h2d / d2h GB/s")
    machines = dict.fromkeys(", ".join(view.machine) for view in views)
    return DataTable("", header, rows, caption="; ".join(machines), left=3)


def _warnings(views: Sequence[View]) -> list[Text]:
    """Warnings about the runs and their samples, and their notes."""
    texts: list[Text] = []
    notes: list[str] = []
    for view in views:
        texts += [f"{view.label}: {short(text)}" for text in warnings_of(view.run)]
    for view in views:
        texts += [(f"{view.label}: ", *doubt) for doubt in _doubts(view.measured)]
    for view in views:
        if without := sum(outcome.status == "no figure" for outcome in view.outcomes):
            texts.append(f"{view.label}: {noun(without, 'cell')} on a busy stream without a figure: {NO_FIGURE}")
    for view in views:
        notes += [f"{view.label}: {short(note.text)}" for note in view.run.others if isinstance(note, Note)]
    notes = [*dict.fromkeys(notes)]
    more = [f"and {len(notes) - _MOST_NOTES} more notes in the journal"] if len(notes) > _MOST_NOTES else []
    return [*texts, *notes[:_MOST_NOTES], *more]


def _doubts(measured: Sequence[Outcome]) -> list[tuple[Span, ...]]:
    numbers = {
        "state_held": sum(outcome.state_held < 1 for outcome in measured),
        "outliers": sum(outcome.spread.outliers > _MANY_OUTLIERS * outcome.samples for outcome in measured),
    }
    doubts: list[tuple[Span, ...]] = []
    for column, number in numbers.items():
        have = "has" if number == 1 else "have"
        doubts += [(f"{noun(number, 'cell')} {have} {_DOUBTS[column]} (", Code(column), ")")] if number else []
    return doubts + [(text,) for text in cell_warnings(measured)[:_MOST_NOTES]]


def _skipped(views: Sequence[View]) -> list[Text]:
    """Count the skipped cells of each backend by reason."""
    lines: list[Text] = []
    for view in views:
        skipped = [outcome for outcome in view.outcomes if outcome.status == "skipped"]
        by_reason = grouped(skipped, lambda outcome: (name_of(outcome), outcome.reason))
        for (backend, why), cells in sorted(by_reason.items(), key=lambda group: group[0]):
            lines.append(f"{view.label}: {backend}, {noun(len(cells), 'cell')}: {short(why)}")
    return lines


def _failed(views: Sequence[View]) -> DataTable | None:
    rows: list[tuple[Text, ...]] = []
    for view in views:
        failed = [outcome for outcome in view.outcomes if outcome.status == "failed"]
        rows += [(view.label, short(outcome.reason), Code(short(outcome.command, 2000))) for outcome in failed]
    more = f"And {len(rows) - _MOST_FAILURES} more in summary.csv." if len(rows) > _MOST_FAILURES else ""
    header = ("Run", "Reason", "Reproduced by")
    return DataTable("", header, rows[:_MOST_FAILURES], caption=more, left=3) if rows else None


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
