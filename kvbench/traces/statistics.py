"""What the swaps of a trace look like: sizes, rates, runs, what merging leaves, how soon blocks come again."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvbench.traces.file import Swap

_Numbers = npt.NDArray[np.int64]
QUANTILES: Final = (10, 50, 90, 99)
# Host ids from here on are not followed: an array of this length has 128 MiB.
MOST_FOLLOWED: Final = 1 << 24


class RunLengths:
    """How often each run length occurred; quantiles by run, and by block, where a run counts once for each block."""

    def __init__(self) -> None:
        self._times: dict[int, int] = {}

    @property
    def runs(self) -> int:
        return sum(self._times.values())

    def add(self, breaks: npt.NDArray[np.bool_]) -> None:
        """Count the runs of a swap: `breaks[i]` says that block i + 1 does not continue block i."""
        ends = np.append(np.flatnonzero(breaks), len(breaks))
        lengths, times = np.unique(np.diff(ends, prepend=-1), return_counts=True)
        for length, count in zip(lengths.tolist(), times.tolist(), strict=True):
            self._times[length] = self._times.get(length, 0) + count

    def quantiles(self) -> dict[str, dict[str, int]]:
        lengths = np.array(sorted(self._times), dtype=np.int64)
        times = np.array([self._times[one] for one in lengths.tolist()], dtype=np.int64)
        weights = {"by_run": times, "by_block": times * lengths}
        return {name: _weighted(lengths, weight) for name, weight in weights.items()}


class DirectionStatistics:
    """What the swaps of one direction look like; add them one by one, in order."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.host, self.gpu, self.both = RunLengths(), RunLengths(), RunLengths()

    def add(self, swap: Swap) -> None:
        host, gpu = np.asarray(swap.host), np.asarray(swap.gpu)
        self.sizes.append(len(host))
        self.host.add(np.diff(np.sort(host)) != 1)
        self.gpu.add(np.diff(np.sort(gpu)) != 1)
        order = np.argsort(host)
        self.both.add((np.diff(host[order]) != 1) | (np.diff(gpu[order]) != 1))

    def summary(self, span_s: float, block_bytes: int) -> dict[str, Any]:
        blocks = sum(self.sizes)
        sizes, swaps_of_size = np.unique(np.array(self.sizes, dtype=np.int64), return_counts=True)
        rate = 1 / span_s if span_s else 0.0
        return {
            "swaps": len(self.sizes),
            "blocks": blocks,
            "swaps_per_second": len(self.sizes) * rate,
            "gbps": blocks * block_bytes * rate / 1e9,
            "blocks_per_swap": _weighted(sizes, swaps_of_size),
            "share_left_by_merging": self.both.runs / blocks if blocks else None,
            "runs": {name: getattr(self, name).quantiles() for name in ("host", "gpu", "both")},
        }


class Revisits:
    """How soon host blocks come again, in bytes that were swapped in between."""

    def __init__(self) -> None:
        self._last: _Numbers = np.full(1024, -1, dtype=np.int64)
        self._blocks = 0
        self._gaps: dict[int, int] = {}

    def add(self, ids: _Numbers) -> None:
        """Count a swap; a gap is kept as the power of two below it."""
        ids = ids[ids < MOST_FOLLOWED]
        if len(ids) and ids.max() >= len(self._last):
            longer = np.full(1 << int(ids.max()).bit_length(), -1, dtype=np.int64)
            longer[: len(self._last)] = self._last
            self._last = longer
        before = self._last[ids]
        gaps = self._blocks - before[before >= 0]
        self._last[ids] = self._blocks
        self._blocks += len(ids)
        powers, times = np.unique(np.log2(np.maximum(gaps, 1)).astype(np.int64), return_counts=True)
        for power, count in zip(powers.tolist(), times.tolist(), strict=True):
            self._gaps[power] = self._gaps.get(power, 0) + count

    def summary(self, block_bytes: int) -> dict[str, Any]:
        again = sum(self._gaps.values())
        powers = np.array(sorted(self._gaps), dtype=np.int64)
        times = np.array([self._gaps[one] for one in powers.tolist()], dtype=np.int64)
        gaps = _weighted(powers, times)
        return {
            "share_of_blocks": again / self._blocks if self._blocks else None,
            "bytes_between": {name: block_bytes << power for name, power in gaps.items()},
        }


class TraceStatistics:
    """What a trace looks like; `by_direction` has one entry for loads (h2d) and one for stores (d2h)."""

    def __init__(self, swaps: Iterable[Swap]) -> None:
        self.by_direction = {"h2d": DirectionStatistics(), "d2h": DirectionStatistics()}
        self.span_s = self.in_flight_s = 0.0
        self.revisits = Revisits()
        seconds: dict[int, int] = {}
        begin_s = None
        for swap in swaps:
            begin_s = swap.at_s if begin_s is None else begin_s
            self.span_s = swap.at_s - begin_s
            self.in_flight_s += (swap.done_s or swap.at_s) - swap.at_s
            seconds[int(swap.at_s)] = seconds.get(int(swap.at_s), 0) + 1
            self.by_direction[swap.direction].add(swap)
            self.revisits.add(np.asarray(swap.host))
        self.most_in_a_second = max(seconds.values(), default=0)

    def summary(self, block_bytes: int) -> Mapping[str, Any]:
        """Return everything as plain data: times in seconds, rates in 10^9 bytes a second, runs in blocks."""
        return {
            "span_s": self.span_s,
            "most_swaps_in_a_second": self.most_in_a_second,
            # Files without times of completion do not say it.
            "mean_in_flight": self.in_flight_s / self.span_s if self.span_s and self.in_flight_s else None,
            "host_blocks_again": self.revisits.summary(block_bytes),
            **{name: one.summary(self.span_s, block_bytes) for name, one in self.by_direction.items()},
        }


def _weighted(values: _Numbers, weights: _Numbers) -> dict[str, int]:
    """Return the quantiles of sorted `values` that occur `weights` times; empty if there are none."""
    if not len(values):
        return {}
    reached = np.cumsum(weights)
    found = values[np.searchsorted(reached, [reached[-1] * one / 100 for one in QUANTILES])]
    return {f"p{one}": int(value) for one, value in zip(QUANTILES, found, strict=True)}
