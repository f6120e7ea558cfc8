"""A run as a report looks at it: its table and samples read once, its text short enough to show."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, product
from pathlib import Path
from statistics import median
from typing import Any, Final

import pandas as pd

from kvbench.analysis.compare import MIN_PAIRS, Comparison, Visits, compare_visits
from kvbench.analysis.margins import CONTROL, IN_TURN
from kvbench.cells.backend_facts import BATCHED
from kvbench.report.numbers import noun
from kvbench.report.select import DIRECTIONS, STATES, Pinned, pin, spelled_out, where
from kvbench.results import Ceiling, Failure, Run, Visit
from kvbench.text import short

HOST_COPIES: Final = "Host copies on a CPU device: no GPU was involved."
MOVED: Final = "other work on the link or the host's memory probably affected figures"


@dataclass(frozen=True)
class View:
    """A run, the label, unique in the report, that its files and paragraphs go by, and the runs before it."""

    run: Run
    label: str
    earlier: "Sequence[View]" = ()

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row per cell, with the default of an axis written out where the run has swept that axis.

        Text is of the type object here, and whole numbers that every cell has are int64: pandas keeps all columns of
        such a type in one block, and copies rows of a few blocks several times as fast as rows of a hundred.
        """
        frame = spelled_out(self.run.frame())
        kinds = frame.dtypes
        texts = frame[kinds.index[kinds == "str"]].astype(object)
        wholes = frame[kinds.index[kinds == "Int64"]].dropna(axis="columns").astype("int64")
        rest = frame.drop(columns=[*texts, *wholes])
        return pd.concat([texts, wholes, rest], axis="columns")[list(frame)].copy()

    @cached_property
    def measured_ids(self) -> frozenset[str]:
        return frozenset(self.measured["cell_id"])

    @cached_property
    def measured(self) -> pd.DataFrame:
        return self.frame[self.frame["status"] == "ok"]

    @cached_property
    def base(self) -> "View | None":
        """The earlier run that shares most measured cells with this one, None where none shares any."""
        shared = [len(self.measured_ids & base.measured_ids) for base in self.earlier]
        return self.earlier[shared.index(max(shared))] if any(shared) else None

    @cached_property
    def pinned(self) -> Pinned:
        """The cells of a table that shows no side axis."""
        return pin(self.frame, shown=())

    @cached_property
    def visits(self) -> Mapping[str, Visits]:
        """What is compared: the median of swap_us in every visit, by cell id."""
        return self.run.visit_times()

    def compare(self, base: str, other: str) -> Comparison:
        """Compare the times of a swap of two cells of this run, which stand there by their ids."""
        return compare_visits(self.visits.get(base, {}), self.visits.get(other, {}), IN_TURN)

    @cached_property
    def contests(self) -> Mapping[tuple[str, str], Mapping[str, pd.DataFrame]]:
        """Batched copies against the other backends, where both were measured, by direction and stream state.

        Cells by backend, batched first; failed and skipped ones too.
        """
        contests: dict[tuple[str, str], Mapping[str, pd.DataFrame]] = {}
        backends = set(self.measured["backend"])
        if BATCHED not in backends or len(backends) == 1:
            return contests
        for direction, state in product(DIRECTIONS, STATES):
            cells = where(self.pinned.cells, direction=direction, stream_state=state)
            others = set(cells[cells["cell_id"].isin(self.visits)]["backend"])
            if BATCHED in others and len(others) > 1:
                ordered = (BATCHED, *sorted(others - {BATCHED}))
                contests[direction, state] = {backend: where(cells, backend=backend) for backend in ordered}
        return contests

    @cached_property
    def weight(self) -> tuple[float, int]:
        """How much a run has to say: the visits of a cell, as far as a verdict needs them, then the cells."""
        visits = self.measured["rounds"].median() if len(self.measured) else 0.0
        return min(float(visits), float(MIN_PAIRS)), len(self.measured)

    @property
    def block_sizes(self) -> int:
        return int(self.measured["block_bytes"].nunique())

    @property
    def on_host(self) -> bool:
        return self.run.info.device.get("kind") == "cpu"

    @property
    def title(self) -> str:
        device = self.run.info.device
        return short(str(device.get("title") or device.get("name") or "device unknown"), 80)

    @property
    def driver(self) -> str:
        version = self.run.info.identity.get("driver_version")
        if version is None:
            return "no GPU driver" if self.on_host else "driver unknown"
        return f"driver {short(str(version), 40)}"

    @property
    def of_machine(self) -> "list[View]":
        """The runs of this machine, up to this one."""
        return [view for view in (*self.earlier, self) if (view.title, view.driver) == (self.title, self.driver)]

    @property
    def date(self) -> str:
        return self.run.info.created[:10]

    @property
    def heading(self) -> str:
        return f"{self.title} · {self.driver} · {self.date}"

    @property
    def command(self) -> str:
        return short(shlex.join(self.run.info.command), 2000)


def views_of(runs: Sequence[Run]) -> list[View]:
    """Return the runs with labels made from their folders' names."""
    views: list[View] = []
    for run in runs:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(run.path).absolute().name).strip("-") or "run"
        taken = {view.label for view in views}
        label = next(label for number in count(1) if (label := f"{name}-{number}" if number > 1 else name) not in taken)
        views.append(View(run, label, tuple(views)))
    return views


def warnings_of(run: Run) -> list[str]:
    """Return what a reader of this run has to know, a line each that does not name the run."""
    ceilings = [
        f"the {direction} ceiling moved between {low:.1f} and {high:.1f} GB/s from round to round: {MOVED}"
        for direction, (low, high) in moved_ceilings(run).items()
    ]
    return [*faults_of(run), *ceilings]


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
        if isinstance(record, Ceiling) and record.gpu_us and (copy_us := median(record.gpu_us)) > 0:
            rates.setdefault(record.direction, []).append(record.swap_bytes / copy_us / 1e3)
    ends = {direction: (min(seen), max(seen)) for direction, seen in rates.items()}
    return {direction: (low, high) for direction, (low, high) in ends.items() if high > (1 + CONTROL.fraction) * low}


def ceiling_of(cells: pd.DataFrame) -> float | None:
    """Return the ceiling in GB/s of cells of one direction, None where it was not measured."""
    known = cells["ceiling_gbps"].dropna()
    return None if known.empty else float(known.iloc[0])


def sample_text(samples: "pd.Series[int]") -> str:
    """Return how many samples stand behind each of some cells: "30 samples per cell"."""
    least, most = int(samples.min()), int(samples.max())
    return f"{least} samples per cell" if least == most else f"{least} to {most} samples per cell"
