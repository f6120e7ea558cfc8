"""What the swaps of a trace look like: sizes, rates, runs, what merging leaves."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvbench.report.numbers import count, figure
from kvbench.sweep.spec import RUNS_BY, RUNS_OF, SIDES
from kvbench.sweep.swap_file import Swap

QUANTILES: Final = (10, 50, 90, 99)


def _run_lengths(breaks: npt.NDArray[np.bool_]) -> list[int]:
    """The lengths of the runs of a swap: `breaks[i]` says that block i + 1 does not continue block i."""
    ends = np.append(np.flatnonzero(breaks), len(breaks))
    lengths: list[int] = np.diff(ends, prepend=-1).tolist()
    return lengths


class DirectionStatistics:
    """What the swaps of one direction look like; add them one by one, in order.

    `sizes` counts swaps by their blocks, `runs` by side (on "both", blocks adjacent on both) the runs by their length.
    """

    def __init__(self) -> None:
        self.sizes: Counter[int] = Counter()
        self.runs: dict[str, Counter[int]] = {ids: Counter() for ids in RUNS_OF}

    def add(self, swap: Swap) -> None:
        host, gpu = np.asarray(swap.host), np.asarray(swap.gpu)
        self.sizes[len(host)] += 1
        self.runs["host"].update(_run_lengths(np.diff(np.sort(host)) != 1))
        self.runs["gpu"].update(_run_lengths(np.diff(np.sort(gpu)) != 1))
        order = np.argsort(host)
        self.runs["both"].update(_run_lengths((np.diff(host[order]) != 1) | (np.diff(gpu[order]) != 1)))

    def summary(self, span_s: float, block_bytes: int) -> dict[str, Any]:
        swaps, blocks = self.sizes.total(), sum(size * times for size, times in self.sizes.items())
        rate = 1 / span_s if span_s else 0.0
        return {
            "swaps": swaps,
            "blocks": blocks,
            "swaps_per_second": swaps * rate,
            "gbps": blocks * block_bytes * rate / 1e9,
            "blocks_per_swap": _quantiles(self.sizes),
            "share_left_by_merging": self.runs["both"].total() / blocks if blocks else None,
            "runs": {ids: _of_runs(lengths) for ids, lengths in self.runs.items()},
        }


class TraceStatistics:
    """What a trace looks like; `by_direction` has one entry for loads (h2d) and one for stores (d2h)."""

    def __init__(self, swaps: Iterable[Swap]) -> None:
        self.by_direction = {direction: DirectionStatistics() for direction in SIDES}
        self.span_s = self.in_flight_s = 0.0
        seconds: Counter[int] = Counter()
        begin_s = None
        for swap in swaps:
            begin_s = swap.at_s if begin_s is None else begin_s
            self.span_s = swap.at_s - begin_s
            self.in_flight_s += (swap.done_s or swap.at_s) - swap.at_s
            seconds[int(swap.at_s)] += 1
            self.by_direction[swap.direction].add(swap)
        self.most_in_a_second = max(seconds.values(), default=0)

    def summary(self, block_bytes: int) -> Mapping[str, Any]:
        """Everything as plain data: times in seconds, rates in 10^9 bytes a second, runs in blocks."""
        return {
            "span_s": self.span_s,
            "most_swaps_in_a_second": self.most_in_a_second,
            # Files without times of completion do not say it.
            "mean_in_flight": self.in_flight_s / self.span_s if self.span_s and self.in_flight_s else None,
            **{name: side.summary(self.span_s, block_bytes) for name, side in self.by_direction.items()},
        }


def span_text(summary: Mapping[str, Any]) -> str:
    """The length of a trace, how many of its swaps come close together, and what its rows list."""
    flight = summary["mean_in_flight"]
    texts = [f"{summary['span_s']:.1f} s, up to {count(summary['most_swaps_in_a_second'])} swaps in a second"]
    texts += [f"{flight:.2f} swaps in flight on average"] if flight is not None else []
    return "; ".join([*texts, f"four numbers are {', '.join(f'p{percent}' for percent in QUANTILES)}"])


def rows_of(summary: Mapping[str, Any]) -> list[list[str]]:
    rows: dict[str, list[str]] = {}
    for side in (summary[direction] for direction in SIDES):
        left = side["share_left_by_merging"]
        values = {
            "Swaps": count(side["swaps"]),
            "Swaps a second": figure(side["swaps_per_second"]),
            "GB/s": figure(side["gbps"]),
            "Blocks a swap": _listed(side["blocks_per_swap"]),
            "Descriptors that merging leaves": "-" if left is None else f"{left:.1%}",
        }
        for ids, lengths in side["runs"].items():
            for by, noun in RUNS_BY.items():
                values[f"Run length of {RUNS_OF[ids]}, by {noun}"] = _listed(lengths[by])
        for name, value in values.items():
            rows.setdefault(name, [name]).append(value)
    return list(rows.values())


def _listed(quantiles: Mapping[str, int]) -> str:
    return ", ".join(map(count, quantiles.values())) or "-"


def _quantiles(counts: Mapping[int, int]) -> dict[str, int]:
    """The quantiles of values that occur `counts` times; empty if there are none."""
    if not counts:
        return {}
    values = sorted(counts)
    reached = np.cumsum([counts[value] for value in values])
    positions = np.searchsorted(reached, [reached[-1] * percent / 100 for percent in QUANTILES])
    return {f"p{percent}": values[index] for percent, index in zip(QUANTILES, positions.tolist(), strict=True)}


def _of_runs(lengths: Mapping[int, int]) -> dict[str, dict[str, int]]:
    # By block, a run counts once for each of its blocks.
    by_block = {length: length * times for length, times in lengths.items()}
    return {"by_run": _quantiles(lengths), "by_block": _quantiles(by_block)}
