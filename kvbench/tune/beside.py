"""The fastest way to swap that slows a neighbour by no more than so much, from runs of swaps beside it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import median
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from kvbench.analysis.compare import Verdict, Visits, compare_visits, paired_interval
from kvbench.analysis.intervals import median_interval
from kvbench.analysis.margins import IN_TURN, TIED
from kvbench.cells.axes import Direction
from kvbench.cells.backend_facts import BATCHED, NO_CHOICES, plug_ins_of
from kvbench.cells.policy import Choice
from kvbench.cells.units import size_text, two_digits
from kvbench.errors import UsageError
from kvbench.results import Run
from kvbench.results.cost import Cost, costs_of
from kvbench.results.frame import whole
from kvbench.tune.fit import choice_of, machine_of, one_workload, preference


class Shape(NamedTuple):
    """Swaps that one way is chosen for."""

    direction: Direction
    block_bytes: int
    blocks: int

    def text(self) -> str:
        return f"{self.direction} swaps of {self.blocks} blocks of {size_text(self.block_bytes)}"


@dataclass(frozen=True, slots=True)
class WayBeside:
    """One way to swap beside the neighbour, with 95% intervals, None with too few visits for one.

    `slowdown` (of the mean iteration) and `slowdown_p99` (of the 99th percentile) are ratios. `us_per_gb` is what the
    swaps take, by visit.
    """

    choice: Choice
    gbps: float
    gbps_interval: tuple[float, float] | None
    slowdown: float
    slowdown_interval: tuple[float, float] | None
    slowdown_p99: float
    exposure_us_per_gb: float
    us_per_gb: Visits

    @classmethod
    def of(cls, choice: Choice, costs: Mapping[int, Cost], slowdown_p99: float) -> Self:
        rates = [cost.gbps for cost in costs.values()]
        slowdown, *ends = np.exp(paired_interval(np.log([cost.slowdown for cost in costs.values()]))).tolist()
        exposure, _, _ = paired_interval(np.array([cost.exposure_us_per_gb for cost in costs.values()]))
        rates_interval, slowdown_interval = _known(median_interval(rates)), _known(ends)
        us_per_gb = {number: 1e6 / cost.gbps for number, cost in costs.items()}
        return cls(
            choice, median(rates), rates_interval, slowdown, slowdown_interval, slowdown_p99, exposure, us_per_gb
        )

    def to_plain(self) -> dict[str, Any]:
        intervals = {"gbps_interval": self.gbps_interval, "slowdown_interval": self.slowdown_interval}
        return {
            "choice": str(self.choice),
            "gbps": round(self.gbps, 3),
            "slowdown": round(self.slowdown, 4),
            "slowdown_p99": round(self.slowdown_p99, 4),
            "exposure_us_per_gb": round(self.exposure_us_per_gb, 1),
            **{name: ends and [round(end, 4) for end in ends] for name, ends in intervals.items()},
        }

    def verdict(self, limit: float) -> Verdict:
        """Return whether the whole interval of the slowdown lies above `limit` (SLOWER), or none of it does (SAME)."""
        low, high = self.slowdown_interval or (0.0, inf)
        within = Verdict.SAME if high <= limit else Verdict.UNDECIDED
        return Verdict.SLOWER if low > limit else within

    def text(self) -> str:
        """Return "sm (2 SMs), 29 GB/s, 1.2% slower"."""
        return f"{self.choice.label}, {two_digits(self.gbps)} GB/s, {percent(self.slowdown)} slower"

    def text_with_interval(self) -> str:
        ends = map(percent, self.slowdown_interval or ())
        return f"{self.text()} ({' to '.join(ends) or 'too few visits for an interval'})"


@dataclass(frozen=True, slots=True)
class BesideAnswer:
    """What to use for swaps of one shape beside `neighbour`, which may be slowed by `max_slowdown`, a fraction.

    `ways` are all that were measured, the fastest first; `chosen` is None where each costs more.
    """

    neighbour: str
    max_slowdown: float
    shape: Shape
    ways: Sequence[WayBeside]
    chosen: WayBeside | None

    def sentence(self) -> str:
        said, limit = f"{self.neighbour} beside {self.shape.text()}", 1 + self.max_slowdown
        way = self.chosen or min(self.ways, key=lambda way: (way.slowdown, -way.gbps))
        way_text = f"{way.text()}{' (open)' if way.verdict(limit) is Verdict.UNDECIDED else ''}"
        if self.chosen is None:
            return f"{said}: no way that was measured costs at most {percent(limit)}; the least is {way_text}"
        gain = ""
        batched = [way for way in self.ways if way.choice.backend == BATCHED]
        if batched and way.choice.backend != BATCHED:
            comparison = compare_visits(way.us_per_gb, max(batched, key=lambda one: one.gbps).us_per_gb, IN_TURN)
            said_of = (
                f"{two_digits(comparison.ratio)}x as fast as {BATCHED}"
                if comparison.told_apart
                else f"no clear difference from {BATCHED}"
            )
            gain = f", {said_of}"
        return f"{said}: {way_text}, p99 {percent(way.slowdown_p99)} slower{gain}"

    def open_points(self) -> list[str]:
        """Return what another run could choose otherwise."""
        limit, said = 1 + self.max_slowdown, f"{self.neighbour} beside {self.shape.text()}"
        lines = []
        if self.chosen is not None and self.chosen.verdict(limit) is Verdict.UNDECIDED:
            sure = [way for way in self.ways if way.verdict(limit) is Verdict.SAME]
            then = f"; {sure[0].text_with_interval()} does not" if sure else ""
            lines.append(f"{said}: {self.chosen.text_with_interval()} may cost more than {percent(limit)}{then}")
        slowest = self.chosen.gbps * (1 + TIED.fraction) if self.chosen is not None else 0.0
        lines += [
            f"{said}: {way.text_with_interval()} may cost no more than {percent(limit)}"
            for way in self.ways
            if way.slowdown > limit and way.gbps > slowest and way.verdict(limit) is Verdict.UNDECIDED
        ]
        return lines

    def to_plain(self) -> dict[str, Any]:
        return {
            "neighbour": self.neighbour,
            "max_slowdown": self.max_slowdown,
            **self.shape._asdict(),
            "choice": None if self.chosen is None else str(self.chosen.choice),
            "decided": not self.open_points(),
            "ways": [way.to_plain() for way in self.ways],
            "open": self.open_points(),
        }


def answers_beside(
    runs: Sequence[Run], neighbour: str, max_slowdown: float, keep: Callable[[Choice], bool]
) -> list[BesideAnswer]:
    """Return an answer for every shape that was measured beside `neighbour`, from the ways that `keep` takes.

    They stand by direction, block size and number of blocks. Raises UsageError where there is none, and for runs of
    several devices.
    """
    machine_of(runs)
    by_shape: dict[Shape, dict[Choice, tuple[dict[int, Cost], list[float]]]] = {}
    frames = [_measured(run.frame()) for run in runs]
    every = pd.concat(frames)
    seen = set(every["neighbour"])
    kept = set(one_workload(every[every["neighbour"] == neighbour])["cell_id"])
    first = 0  # the rounds of several runs are numbered consecutively
    for run, frame in zip(runs, frames, strict=True):
        costs = costs_of(run.visits)
        for row in frame[frame["cell_id"].isin(kept)].to_dict("records"):
            shape = Shape(Direction(row["direction"]), int(row["block_bytes"]), int(row["blocks"]))
            choice = choice_of(row, plug_ins_of(run.info.backends))
            if keep(choice):
                by_round, tails = by_shape.setdefault(shape, {}).setdefault(choice, ({}, []))
                by_round |= {first + number: cost for number, cost in costs[row["cell_id"]].items()}
                tails.append(float(row["neighbour_slowdown_p99"]))
        first += 1 + max((number for by_round in costs.values() for number in by_round), default=0)
    if neighbour not in seen:
        beside = f"beside {', '.join(sorted(seen))}" if seen else "without a neighbour"
        raise UsageError(
            f"{neighbour}: these runs measured swaps {beside}; measure with kvbench sweep neighbour -a "
            f"neighbour={neighbour}"
        )
    if not by_shape:
        raise UsageError(f"{neighbour}: none of the swaps beside it were made in a way that is allowed")
    answers = []
    for shape, by_choice in sorted(by_shape.items()):
        ways = [WayBeside.of(choice, by_round, median(tails)) for choice, (by_round, tails) in by_choice.items()]
        ways.sort(key=lambda way: -way.gbps)
        answers.append(BesideAnswer(neighbour, max_slowdown, shape, ways, _chosen(ways, max_slowdown)))
    return answers


def _measured(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of a run that were measured beside a neighbour, without those of `auto`."""
    return frame[
        whole(frame)
        & (frame["neighbour_slowdown"] > 0)
        & (frame["status"] == "ok")
        & ~frame["backend"].isin(NO_CHOICES)
    ]


def percent(slowdown: float) -> str:
    """Return how much slower a ratio is: 1.042 as "4.2%", what is no slower as "0%"."""
    return f"{two_digits((slowdown - 1) * 100)}%" if slowdown >= 1.0005 else "0%"


def _chosen(ways: Sequence[WayBeside], max_slowdown: float) -> WayBeside | None:
    """Return the fastest that costs no more; of those as fast that with the fewest SMs, the simplest, the cheapest."""
    allowed = [way for way in ways if way.slowdown <= 1 + max_slowdown]
    if not allowed:
        return None
    enough = max(way.gbps for way in allowed) / (1 + TIED.fraction)
    tied = [way for way in allowed if way.gbps >= enough]
    return min(tied, key=lambda way: (preference(way.choice), len(way.choice.axes), way.slowdown, str(way.choice)))


def _known(ends: Sequence[float]) -> tuple[float, float] | None:
    return (ends[0], ends[1]) if isfinite(ends[1]) else None
