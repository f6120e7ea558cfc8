"""What the swaps of a trace look like: sizes, rates, runs, what merging leaves, how soon blocks come again."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvbench.sweep.swap_file import Swap

_Numbers = npt.NDArray[np.int64]
QUANTILES: Final = (10, 50, 90, 99)
# Host ids from here on are not followed: an array of this length has 128 MiB.
MOST_FOLLOWED: Final = 1 << 24


def _run_lengths(breaks: npt.NDArray[np.bool_]) -> list[int]:
    """Return the lengths of the runs of a swap: `breaks[i]` says that block i + 1 does not continue block i."""
    ends = np.append(np.flatnonzero(breaks), len(breaks))
    lengths: list[int] = np.diff(ends, prepend=-1).tolist()
    return lengths


class DirectionStatistics:
    """What the swaps of one direction look like; add them one by one, in order.

    `sizes` counts swaps by their blocks, `runs` by side (on "both", blocks adjacent on both) the runs by their length.
    """

    def __init__(self) -> None:
        self.sizes: Counter[int] = Counter()
        self.runs: dict[str, Counter[int]] = {"host": Counter(), "gpu": Counter(), "both": Counter()}

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
            "runs": {side: _of_runs(lengths) for side, lengths in self.runs.items()},
        }


class Revisits:
    """How soon host blocks come again, in bytes that were swapped in between."""

    def __init__(self) -> None:
        self._last: _Numbers = np.full(1024, -1, dtype=np.int64)
        self._blocks = 0
        self._gaps: Counter[int] = Counter()

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
        self._gaps.update(np.log2(np.maximum(gaps, 1)).astype(np.int64).tolist())

    def summary(self, block_bytes: int) -> dict[str, Any]:
        return {
            "share_of_blocks": self._gaps.total() / self._blocks if self._blocks else None,
            "bytes_between": {name: block_bytes << power for name, power in _quantiles(self._gaps).items()},
        }


class TraceStatistics:
    """What a trace looks like; `by_direction` has one entry for loads (h2d) and one for stores (d2h)."""

    def __init__(self, swaps: Iterable[Swap]) -> None:
        self.by_direction = {"h2d": DirectionStatistics(), "d2h": DirectionStatistics()}
        self.span_s = self.in_flight_s = 0.0
        self.revisits = Revisits()
        seconds: Counter[int] = Counter()
        begin_s = None
        for swap in swaps:
            begin_s = swap.at_s if begin_s is None else begin_s
            self.span_s = swap.at_s - begin_s
            self.in_flight_s += (swap.done_s or swap.at_s) - swap.at_s
            seconds[int(swap.at_s)] += 1
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


def _of_runs(lengths: Counter[int]) -> dict[str, dict[str, int]]:
    """Return quantiles by run, and by block, where a run counts once for each of its blocks."""
    by_block = Counter({length: length * times for length, times in lengths.items()})
    return {"by_run": _quantiles(lengths), "by_block": _quantiles(by_block)}


def _quantiles(counts: Counter[int]) -> dict[str, int]:
    """Return the quantiles of values that occur `counts` times; empty if there are none."""
    if not counts:
        return {}
    values = sorted(counts)
    reached = np.cumsum([counts[value] for value in values])
    positions = np.searchsorted(reached, [reached[-1] * one / 100 for one in QUANTILES])
    return {f"p{one}": values[at] for one, at in zip(QUANTILES, positions.tolist(), strict=True)}
