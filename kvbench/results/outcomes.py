"""What a run knows of each of its cells: whether it was measured, by which visits, and what they took."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, Literal

from kvbench.analysis.intervals import median_interval
from kvbench.cells.axes import Role
from kvbench.cells.blocks import TRACE
from kvbench.cells.cell import AXES, Cell, axes_of
from kvbench.cells.units import gigabytes_per_second
from kvbench.results.columns import NO_FIGURE, TIMES
from kvbench.results.schema import CellRecord, EffectivePath, Failure, Record, Skip, Visit

Status = Literal["ok", "no figure", "failed", "skipped"]

# Separates the texts of several visits; the most frequent path comes first.
BETWEEN: Final = "; "
_SORTED_BY: Final = tuple(
    AXES[name] for role in (Role.SERIES, Role.SHAPE, Role.SIDE, Role.QUEUE, Role.BESIDE) for name in axes_of(role)
)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A cell of a run.

    `visits` are those that count, in journal order, of `made` with the repeated ones. `medians` has the median of every
    visit in microseconds, for each of `TIMES`: time -> round -> median; it is empty for a failed or skipped cell.
    """

    cell: Cell
    status: Status
    reason: str = ""
    visits: Sequence[Visit] = ()
    failures: Sequence[Failure] = ()
    made: int = 0
    medians: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def us(self, time: str = "swap_us") -> float:
        """Return the median of the visits' medians of a time in microseconds, NaN without one."""
        return median(known) if (known := self.medians.get(time, {}).values()) else math.nan

    def times(self, time: str = "swap_us") -> Mapping[int, float]:
        """Return round -> median of a time, as `kvbench.analysis.compare` takes them; empty where it is mostly 0."""
        return {number: us for number, us in self.medians.get(time, {}).items() if us > 0} if self.us(time) > 0 else {}

    @property
    def interval_us(self) -> tuple[float, float]:
        """The 95% interval of the time of the swap, from the visits; NaN where they are too few."""
        return known_interval([*self.medians.get("swap_us", {}).values()])

    @property
    def path(self) -> str | None:
        """The effective paths of the visits, the most frequent first."""
        return joined(path for path, _ in Counter(visit.path for visit in self.visits).most_common())

    @property
    def has_rate(self) -> bool:
        """Whether there are GB/s: by events only, and not of swaps that differ in size or of an empty launch."""
        whole = self.cell.sequence != TRACE and self.path != EffectivePath.NOTHING
        return whole and self.cell.swap_clock == "event_us"

    @property
    def gbps(self) -> float:
        """GB/s at the median of the time of the swap, NaN without one."""
        return gigabytes_per_second(self.cell.swap_bytes, us) if self.has_rate and (us := self.us()) > 0 else math.nan


def outcomes_of(records: Sequence[Record], counting: Iterable[Visit]) -> dict[Cell, Outcome]:
    """Return the outcome of every cell of a run, sorted by its axes; `counting` are the visits that count."""
    of_cells: dict[Cell, list[CellRecord]] = {}
    for record in (*counting, *(record for record in records if isinstance(record, Failure | Skip))):
        of_cells.setdefault(record.cell, []).append(record)
    made = Counter(record.cell for record in records if isinstance(record, Visit))
    return {cell: _outcome(cell, of_cells[cell], made[cell]) for cell in sorted(of_cells, key=_axis_values)}


def _outcome(cell: Cell, records: Sequence[CellRecord], made: int) -> Outcome:
    visits = [record for record in records if isinstance(record, Visit)]
    failures = [record for record in records if isinstance(record, Failure)]
    if failures:
        reason = joined(f"{failure.kind}: {failure.message}" for failure in failures)
        return Outcome(cell, "failed", reason or "", visits, failures, made)
    if not any(len(visit.samples) for visit in visits):
        skips = [record.reason for record in records if isinstance(record, Skip)]
        # Only a journal not written by kvbench has visits without samples.
        status: Status = "skipped" if skips else "failed"
        return Outcome(cell, status, joined(skips) or "no reason recorded", visits, made=made)
    medians: dict[str, dict[int, float]] = {time: {} for time in TIMES}
    for visit in visits:
        for time, of_time in medians.items():
            if (us := _median_of(visit, time)) is not None:
                of_time[visit.round] = us
    # A queue measures the submission, whose time every sample has.
    figure = bool(cell.queued or medians["swap_us"])
    return Outcome(cell, "ok" if figure else "no figure", "" if figure else NO_FIGURE, visits, (), made, medians)


def _median_of(visit: Visit, time: str) -> float | None:
    values = visit.swap_times_us if time == "swap_us" else getattr(visit.samples, time)
    return median(values) if values else None


def _axis_values(cell: Cell) -> list[tuple[bool, Any]]:
    """Return a key that sorts cells by their axes, a value before its absence."""
    texts = cell.spelled_out()
    values = (getattr(cell, axis.field) if axis.number else texts.get(axis.name) for axis in _SORTED_BY)
    return [(value is None, value) for value in values]


def known_interval(medians: Sequence[float]) -> tuple[float, float]:
    """Return the interval of the median of some visits, NaN where they are too few for one."""
    low, high = median_interval(medians) if len(medians) else (-math.inf, math.inf)
    return (low, high) if math.isfinite(low) else (math.nan, math.nan)


def joined(texts: Iterable[str]) -> str | None:
    return BETWEEN.join(dict.fromkeys(texts)) or None
