"""The swaps of a trace that a run replayed, one row each."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvbench.cells.layers import TRACE
from kvbench.errors import UsageError
from kvbench.results.frame import visits_that_count
from kvbench.results.rundir import Run
from kvbench.results.schema import Visit


def replayed_swaps(visits: Sequence[Visit], block_bytes: int) -> pd.DataFrame:
    """Return a row for each swap: its round, number in the trace, times, descriptors, and the copies left of them."""
    parts = []
    for visit in visits:
        samples = visit.samples
        fields = {
            "wall_us": samples.wall_us,
            "caller_us": samples.caller_us,
            "blocks": samples.swap_blocks or [],
            "pieces": samples.pieces or [],
            "number": samples.swap_numbers or [],
            "late_us": samples.late_us or [0.0] * len(samples),
        }
        parts.append(pd.DataFrame(fields).assign(round=visit.round))
    found = pd.concat(parts, ignore_index=True)
    return found.assign(swap_bytes=found["blocks"] * block_bytes, latency_us=found["wall_us"] + found["late_us"])


def replayed_by(run: Run, backend: str, descriptor_bytes: int) -> dict[str, pd.DataFrame]:
    """Return the swaps that `backend` replayed, by direction.

    Raises UsageError for a run without such swaps, or with descriptors of another size.
    """
    visits: dict[str, list[Visit]] = {}
    for visit in visits_that_count(run.records):
        if visit.cell.sequence == TRACE and visit.cell.backend == backend:
            if visit.cell.block_bytes != descriptor_bytes:
                sizes = f"{visit.cell.block_bytes} bytes, those of this trace {descriptor_bytes}"
                raise UsageError(f"--run {run.path}: its descriptors have {sizes}; replay a trace of this model")
            visits.setdefault(visit.cell.direction.value, []).append(visit)
    if not visits:
        wanted = f"kvbench sweep --trace FILE -a backend={backend}"
        raise UsageError(f"--run {run.path}: has no swaps of a trace by {backend}; measure them with {wanted}")
    return {way: replayed_swaps(own, descriptor_bytes) for way, own in visits.items()}


class SwapCost:
    """What swaps of one direction cost: so much a swap, a copy and a byte, fitted to a time of measured swaps.

    `error` is the median of the relative errors of the swaps that it was fitted to. No byte takes less than
    `least_us_per_byte`: where all swaps leave about the same share of copies, the fit cannot tell copies from bytes.
    """

    def __init__(self, swaps: pd.DataFrame, time: str, least_us_per_byte: float = 0.0) -> None:
        self._least_us_per_byte = least_us_per_byte
        swaps = swaps[swaps[time] > 0]
        measured_us = swaps[time].to_numpy(dtype=float)
        terms = np.stack([np.ones(len(swaps)), swaps["pieces"], swaps["swap_bytes"]], axis=1).astype(float)
        best = np.inf
        for kept in ((0, 1, 2), (1, 2), (0, 2), (0, 1), (2,), (1,), (0,)):  # no cost is negative
            rows = terms[:, kept] / measured_us[:, None]
            costs, *_ = np.linalg.lstsq(rows, np.ones(len(swaps)), rcond=None)
            rest = float(np.sum((rows @ costs - 1) ** 2))
            if (costs >= 0).all() and rest < best:
                best = rest
                self.each_us = np.zeros(3)
                self.each_us[list(kept)] = costs
        self.error = float(np.median(np.abs(terms @ self.each_us / measured_us - 1)))

    def total_s(self, swaps: int, copies: float, swap_bytes: int) -> float:
        """Return the seconds that `swaps` take in all."""
        return max(float(self.each_us @ (swaps, copies, swap_bytes)), self._least_us_per_byte * swap_bytes) / 1e6
