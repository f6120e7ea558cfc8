"""What a reader must know of whole runs before their figures: how they ended, what failed, what moved."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from kvbench.analysis.between_runs import CORRELATED, correlation_of_successive
from kvbench.analysis.margins import CONTROL
from kvbench.report.numbers import noun
from kvbench.results import Ceiling, Failure, Run, Visit
from kvbench.text import short

HOST_COPIES: Final = "Host copies on a CPU device: no GPU was involved."
MOVED: Final = "other activity on the link or in host memory probably disturbed the results"
_MOST_FIRST: Final = 2
_MOST_LETTERS: Final = 200


def warnings_of(run: Run) -> list[str]:
    """Return what a reader of this run has to know, a line each that does not name the run."""
    moved = [f"{direction} {low:.1f} to {high:.1f} GB/s" for direction, (low, high) in moved_ceilings(run).items()]
    ceilings = [f"the ceiling moved from round to round ({', '.join(moved)}): {MOVED}"] if moved else []
    return [*faults_of(run), *ceilings, *_drifts(run)]


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
    if failed := {record.cell for record in run.records if isinstance(record, Failure)}:
        faults.append(f"{noun(len(failed), 'failed cell')}, without figures")
    if not any(isinstance(record, Visit) for record in run.records):
        faults.append("no measured cell")
    return faults


def _gpu_errors(looks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return in one line which errors the GPU reported between the first observation and the last."""
    before, after = (_error_counts(look) for look in (looks[0], looks[-1])) if looks else ({}, {})
    errors = [f"{more} {name}" for name in after if (more := after[name] - before.get(name, after[name])) > 0]
    lists = (look.get("xids") for look in looks)
    xids = dict.fromkeys(str(xid) for values in lists if isinstance(values, list) for xid in values)
    errors += [f"Xid {', '.join(xids)}"] if xids else []
    return [f"the GPU reported errors while it was measured: {', '.join(errors)}"] if errors else []


def _error_counts(look: Mapping[str, Any]) -> dict[str, int]:
    counts, ecc = {"PCIe replays": look.get("pcie_replays")}, look.get("ecc_errors")
    counts |= {f"{kind} ECC errors": count for kind, count in ecc.items()} if isinstance(ecc, dict) else {}
    return {name: count for name, count in counts.items() if isinstance(count, int)}


def moved_ceilings(run: Run) -> dict[str, tuple[float, float]]:
    """Return the lowest and the highest GB/s of each direction in which the large copies were not steady."""
    rates: dict[str, list[float]] = {}
    for record in run.records:
        if isinstance(record, Ceiling) and record.event_us and (copy_us := median(record.event_us)) > 0:
            rates.setdefault(record.direction, []).append(record.swap_bytes / copy_us / 1e3)
    ranges = {direction: (min(seen), max(seen)) for direction, seen in rates.items()}
    return {direction: (low, high) for direction, (low, high) in ranges.items() if high > (1 + CONTROL.fraction) * low}


def worst_faults(runs: Mapping[str, Run]) -> list[str]:
    """Return the first faults of runs, by their labels, and whether a ceiling moved, in a few short lines."""
    faults = [f"{label}: {short(text, _MOST_LETTERS)}" for label, run in runs.items() for text in faults_of(run)]
    lines = faults[:_MOST_FIRST]
    lines += [f"and {len(faults) - _MOST_FIRST} more, under Warnings"] if len(faults) > _MOST_FIRST else []
    ranges = {label: moved for label, run in runs.items() if (moved := moved_ceilings(run))}
    shares = {label: max(high / low - 1 for low, high in of_run.values()) for label, of_run in ranges.items()}
    where = f"up to {max(shares.values()):.0%} from round to round ({', '.join(shares)})" if shares else ""
    return [*lines, f"the ceiling moved by {where}: {MOVED}"] if shares else lines
