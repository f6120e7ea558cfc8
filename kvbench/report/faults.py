"""What a reader must know of whole runs: how they ended, what failed and what moved."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from kvbench.analysis.compare import MIN_PAIRS, Visits
from kvbench.ground.text import short
from kvbench.report.numbers import noun
from kvbench.results import Run

HOST_COPIES: Final = "Host copies on a CPU device: no GPU was involved."
MOVED: Final = "other work probably disturbed the results"
# The first page names the worst, and keeps room for the answer.
_MOST_FIRST: Final = 2
_MOST_LETTERS: Final = 200


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
