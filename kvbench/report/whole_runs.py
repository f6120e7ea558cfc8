"""What a report says of whole runs: the machine, how steady they were, how they ended, what failed and was left out."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import median
from typing import Any, Final

import numpy as np

from kvbench.analysis.compare import MIN_PAIRS, Verdict, Visits, known_interval
from kvbench.analysis.margins import WIDE
from kvbench.cells.axes import Direction
from kvbench.cells.units import two_digits
from kvbench.ground.text import short
from kvbench.report.model import Code, DataTable, Span, Strong, Text
from kvbench.report.numbers import ABSENT, SIGNS, count, figure, is_wide, noun
from kvbench.report.view import View
from kvbench.results import Note, Run
from kvbench.results.columns import NO_FIGURE
from kvbench.results.outcomes import BETWEEN, Outcome, Status
from kvbench.tune.evidence import origin_of, trace_text

HOST_COPIES: Final = "Host copies on a CPU device: no GPU was involved."
MOVED: Final = "other work probably disturbed the results"
# The first page names the worst, and keeps room for the answer.
_MOST_FIRST: Final = 2
_MOST_LETTERS: Final = 200
_COUNTED: Final[tuple[Status, ...]] = ("ok", "failed", "skipped")
# A sweep that fails throughout has thousands of both; summary.csv and the journal have them all.
_MOST_FAILURES: Final = 50
_MOST_NOTES: Final = 20
_MANY_OUTLIERS: Final = 0.1
_NUMBER: Final = re.compile(r"[0-9]{1,12}")
# By the column of the summary that tells which cells.
_DOUBTS: Final = {
    "state_held": "samples whose stream was not in the requested state",
    "outliers": f"outliers among more than {_MANY_OUTLIERS:.0%} of the samples, marked and kept",
}


def host_note(views: Sequence[View]) -> Text:
    """Name the runs of the device cpu; "" without any."""
    on_host = [view.label for view in views if view.on_host]
    which = "" if len(on_host) == len(views) else f" ({', '.join(on_host)})"
    return (Strong(HOST_COPIES), which) if on_host else ""


def headline(views: Sequence[View]) -> list[Text]:
    """What the runs of one machine measured, by `Origin.lines`."""
    runs = [view.run for view in views]
    versions = ", ".join(dict.fromkeys(short(view.run.info.kvbench, 80) for view in views))
    commits = len({view.run.info.commit for view in views})
    which = f"{versions} ({commits} commits)" if commits > 1 else versions + views[0].commit
    if not any(view.measured for view in views):
        return []
    return [*origin_of(runs).lines, *_hosts(views), f"kvbench {which}"]


def _hosts(views: Sequence[View]) -> list[Text]:
    """The host of most runs, and which runs are of another."""
    hosts = Counter(view.host for view in views if view.host)
    if not hosts:
        return []
    [(most_common, _)] = hosts.most_common(1)
    others = ", ".join(view.label for view in views if view.host not in ("", most_common))
    return [f"Host: {most_common}" + (f" (not {others})" if others else "")]


def steadiness(views: Sequence[View]) -> list[Text]:
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
    shares = {view.label: _disturbed_share(view.measured) for view in views}
    label, most = max(shares.items(), key=lambda labelled: labelled[1], default=("", 0.0))
    if not most:
        return ""
    share = _disturbed_share(outcomes)
    which = f" ({label}: {most:.0%})" if len(views) > 1 else ""
    calls, swaps = (when_disturbed(outcomes, time) for time in ("caller_us", "swap_us"))
    slower = f": calls {_change_text(calls)}, swaps {_change_text(swaps)}" if calls and swaps else ""
    return f"{share:.0%} of visits disturbed{which}{slower}"


def _disturbed_share(outcomes: Sequence[Outcome]) -> float:
    """The share of the visits behind the figures that something disturbed, repeats included."""
    visits = sum(len(outcome.attempts) for outcome in outcomes)
    return sum(len(outcome.disturbed) for outcome in outcomes) / visits if visits else 0.0


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


def first_warnings(views: Sequence[View], unread: int) -> list[Text]:
    """The faults of whole runs in at most five lines."""
    lines = worst_faults({view.label: view.run for view in views})
    lines += [f"{noun(unread, 'run')} could not be read: details.md says why"] if unread else []
    return [(Strong("Warning"), f": {text}") for text in lines]


def plug_ins(views: Sequence[View]) -> list[Text]:
    """Explain the mark of plug-ins' backends, with their packages; nothing without any."""
    packages_by_name = dict(chain.from_iterable(view.run.plug_ins.items() for view in views))
    packages = ", ".join(f"{name} of {short(package, 80)}" for name, package in sorted(packages_by_name.items()))
    meaning = f"a backend of another package, whose figures are only as true as that package's code: {packages}"
    return [(Strong("Plug-in"), f": {meaning}")] if packages else []


def run_table(views: Sequence[View]) -> DataTable:
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
        rows.append((name, question_text, view.date, *counts, ceilings_text(view.run.ceilings_gbps)))
    header = ("Run", "Question", "Date", "Measured", "Failed", "Skipped", "Ceiling h2d / d2h GB/s")
    machines = dict.fromkeys(", ".join(view.machine) for view in views)
    return DataTable("", header, rows, caption="; ".join(machines), left=3)


def ceilings_text(ceilings_gbps: Mapping[Direction, float]) -> str:
    rates = (ceilings_gbps.get(direction, 0.0) for direction in Direction)
    return " / ".join(figure(rate) if rate else ABSENT for rate in rates)


def all_warnings(views: Sequence[View]) -> list[Text]:
    """Warnings about the runs and their samples, and their notes."""
    texts: list[Text] = []
    for view in views:
        texts += [f"{view.label}: {short(text)}" for text in warnings_of(view.run)]
    for view in views:
        texts += [(f"{view.label}: ", *doubt) for doubt in _doubts(view.measured)]
    for view in views:
        if without := sum(outcome.status == "no figure" for outcome in view.outcomes):
            texts.append(f"{view.label}: {noun(without, 'cell')} on a busy stream without a figure: {NO_FIGURE}")
    notes: list[str] = []
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


def skipped(views: Sequence[View]) -> list[Text]:
    """Count the skipped cells of each backend by reason."""
    lines: list[Text] = []
    for view in views:
        reasons = Counter(
            (outcome.backend_name, outcome.reason) for outcome in view.outcomes if outcome.status == "skipped"
        )
        for (backend, why), number in sorted(reasons.items()):
            lines.append(f"{view.label}: {backend}, {noun(number, 'cell')}: {short(why)}")
    return lines


def failed(views: Sequence[View]) -> DataTable | None:
    rows: list[tuple[Text, ...]] = []
    for view in views:
        failed = [outcome for outcome in view.outcomes if outcome.status == "failed"]
        rows += [(view.label, short(outcome.reason), Code(short(outcome.command, 2000))) for outcome in failed]
    more = f"And {len(rows) - _MOST_FAILURES} more in summary.csv." if len(rows) > _MOST_FAILURES else ""
    header = ("Run", "Reason", "Reproduced by")
    return DataTable("", header, rows[:_MOST_FAILURES], caption=more, left=3) if rows else None


def spread_of_runs(views: Sequence[View]) -> list[float]:
    """The longest time over the shortest of each cell that several sweeps of a machine measured; of a sweep of several
    devices, the first counts.
    """
    times: dict[tuple[object, ...], dict[tuple[str, ...], float]] = {}
    for view in views:
        # The runs of one sweep began at one time by one command.
        sweep = (view.run.info.created, *view.run.info.command)
        for outcome in (outcome for outcome in view.measured if outcome.times()):
            times.setdefault((view.machine, outcome.cell), {}).setdefault(sweep, outcome.us())
    several = [[*by_sweep.values()] for by_sweep in times.values() if len(by_sweep) > 1]
    return [max(times_us) / min(times_us) for times_us in several]


# A median of fewer visits of a cell is one of them.
_LEAST_VISITS: Final = 2


def when_disturbed(outcomes: Iterable[Outcome], time: str) -> list[float]:
    """How many times as long the disturbed visits take as the others, for each cell that has both."""
    ratios = []
    for outcome in outcomes:
        times = outcome.times(time)
        disturbed = [us for number, us in times.items() if number in outcome.disturbed]
        quiet = [us for number, us in times.items() if number not in outcome.disturbed]
        if min(len(disturbed), len(quiet)) >= _LEAST_VISITS:
            ratios.append(median(disturbed) / median(quiet))
    return ratios


def cell_warnings(measured: Iterable[Outcome]) -> list[str]:
    """The warnings of cells; those that differ in their numbers alone make one line, with the largest."""
    by_text: dict[str, list[tuple[Outcome, str]]] = {}
    for outcome in measured:
        for text in BETWEEN.join(outcome.warnings).split(BETWEEN) if outcome.warnings else ():
            by_text.setdefault(_NUMBER.sub("", text), []).append((outcome, text))
    lines = []
    for same_words in by_text.values():
        cells, different = {outcome for outcome, _ in same_words}, {text for _, text in same_words}
        worst = max(sorted(different), key=lambda text: [int(number) for number in _NUMBER.findall(text)])
        at_worst = ", at worst" if len(different) > 1 else ""
        lines.append((len(cells), f"{noun(len(cells), 'cell')}{at_worst}: {short(worst)}"))
    return [line for _, line in sorted(lines, key=lambda line: -line[0])]


def warnings_of(run: Run) -> list[str]:
    """The warnings of a run, a line each that does not name it."""
    return [*faults_of(run), *(f"{text}: {MOVED}" for text in low_ceilings(run)), *_drifts(run)]


def _drifts(run: Run) -> list[str]:
    correlation = correlation_of_successive(run.visit_times().values())
    if correlation is None or correlation < CORRELATED:
        return []
    return [
        f"successive visits of a cell are correlated ({correlation:.2f} on average): the machine or a process "
        "drifted, so intervals within this run are too narrow"
    ]


def faults_of(run: Run) -> list[str]:
    info = run.info
    running = "not finished: it still runs, was killed, or its disk is full"
    ended = {"running": running, "interrupted": "interrupted", "stopped": "stopped early"}
    faults = [*run.warnings, *_gpu_errors(info.observed)]
    if info.status in ended:
        faults.append(": ".join(filter(None, (ended[info.status], short(info.status_reason or "")))))
    if failed := sum(bool(outcome.failures) for outcome in run.outcomes.values()):
        faults.append(f"{noun(failed, 'failed cell')}, without figures")
    if not any(outcome.visits_made for outcome in run.outcomes.values()):
        faults.append("no measured cell")
    return faults


def _gpu_errors(looks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which errors the GPU reported between the first observation and the last, in one line."""
    before, after = (_error_counts(look) for look in (looks[0], looks[-1])) if looks else ({}, {})
    # A counter that was not read at the start says nothing of this run.
    more = {name: number - before.get(name, number) for name, number in after.items()}
    errors = [f"{number} {name}" for name, number in more.items() if number > 0]
    xids: dict[str, None] = {}
    for look in looks:
        codes = look.get("xids")
        xids |= dict.fromkeys(map(str, codes)) if isinstance(codes, list) else {}
    errors += [f"Xid {', '.join(xids)}"] if xids else []
    return [f"the GPU reported errors while it was measured: {', '.join(errors)}"] if errors else []


def _error_counts(look: Mapping[str, Any]) -> dict[str, int]:
    counts, ecc = {"PCIe replays": look.get("pcie_replays")}, look.get("ecc_errors")
    counts |= {f"{kind} ECC errors": count for kind, count in ecc.items()} if isinstance(ecc, dict) else {}
    return {name: count for name, count in counts.items() if isinstance(count, int)}


def low_ceilings(run: Run) -> list[str]:
    """On how many rounds of each direction figures rest though the ceiling was low in them."""
    rounds: dict[str, set[int]] = {}
    for cell, outcome in run.outcomes.items():
        rounds.setdefault(cell.direction, set()).update(outcome.attempts)
    lines = []
    for direction, low in run.low_rounds.items():
        number = f"{len(low)} of {len(rounds.get(direction, ()))} {direction} rounds"
        lines.append(f"the ceiling of {number} lay up to {max(low.values()):.0%} below the best")
    return lines


def unsteady(runs: Mapping[str, Run]) -> str:
    """That figures of runs, by their labels, rest on rounds with a low ceiling, in a line; "" if none do."""
    worst: dict[str, float] = {}
    for label, run in runs.items():
        if run.low_rounds:
            worst[label] = max(max(low.values()) for low in run.low_rounds.values())
    if not worst:
        return ""
    lowest = f"up to {max(worst.values()):.0%} below the best ({', '.join(worst)})"
    return f"figures rest on rounds whose ceiling lay {lowest}: {MOVED}"


def worst_faults(runs: Mapping[str, Run]) -> list[str]:
    """The first faults of runs, by their labels, in a few short lines."""
    faults: list[str] = []
    for label, run in runs.items():
        faults += [f"{label}: {short(text, _MOST_LETTERS)}" for text in faults_of(run)]
    more = [f"and {len(faults) - _MOST_FIRST} more, under Warnings"] if len(faults) > _MOST_FIRST else []
    return [*faults[:_MOST_FIRST], *more]


def remarks_on(runs: Sequence[Run]) -> tuple[str, list[str]]:
    """What stands around an answer: that no GPU was involved, and the faults of whole runs."""
    on_host = any(run.info.device.get("kind") == "cpu" for run in runs)
    labelled = {run.path.absolute().name: run for run in runs}
    return HOST_COPIES if on_host else "", [*filter(None, [unsteady(labelled)]), *worst_faults(labelled)]


# From this mean correlation of successive visits on, intervals within a run are clearly too narrow. It is below 0.2 in
# every committed run.
CORRELATED: Final = 0.3
# Fewer cells say little about a correlation.
_LEAST_CELLS: Final = 20


def correlation_of_successive(cells: Iterable[Visits]) -> float | None:
    """The mean correlation of successive visits, over cells with six or more; None with too few cells.

    It is 0 if visits are independent: the bias of few visits is taken off. A drift of the machine or of a process makes
    it positive.
    """
    correlations = []
    for visits in cells:
        logs = np.log([visits[number] for number in sorted(visits)])
        deviations = logs - logs.mean()
        total = float(deviations @ deviations)
        if len(logs) >= MIN_PAIRS and total > 0:
            # Deviations from a mean of so few are correlated by -1 / n, also where the visits are independent.
            correlations.append(float(deviations[1:] @ deviations[:-1]) / total + 1 / len(logs))
    return float(np.mean(correlations)) if len(correlations) >= _LEAST_CELLS else None
