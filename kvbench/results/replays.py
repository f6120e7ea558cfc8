"""The swaps of a trace that a run replayed: a row each, and what such swaps cost."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from kvbench.cells.axes import Direction
from kvbench.cells.blocks import TRACE
from kvbench.cells.cell import Cell
from kvbench.cells.units import gigabytes_per_second, size_text
from kvbench.errors import UsageError
from kvbench.models.presets import ModelChoice, presets
from kvbench.results.rundir import Run
from kvbench.results.schema import Failure, Visit
from kvbench.text import short


def trace_of(run: Run) -> Mapping[str, Any] | None:
    """Return the trace that a run replays, as its spec has it, or None."""
    trace = run.info.spec.get("trace")
    return trace if isinstance(trace, dict) else None


def trace_text(run: Run) -> str:
    """Return what the trace of a run is of, or, in a run that does not know it, the size of its blocks."""
    trace = trace_of(run) or {}
    if origin := str(trace.get("origin") or ""):
        return short(origin)
    if not trace.get("descriptors"):
        return "a trace"
    pieces = int(trace["descriptors"])
    row_bytes = int(trace["block_bytes"]) // pieces
    for name in presets():
        swaps = ModelChoice((name,), tokens=16, block_tokens=16).swaps()
        if [(swap.blocks, swap.block_bytes) for swap in swaps] == [(pieces, row_bytes)]:
            return f"a trace with blocks like {name}"
    return f"a trace with blocks of {pieces} x {size_text(row_bytes)}"


def replays_of(run: Run) -> dict[Cell, pd.DataFrame]:
    """Return a table for each cell that replays a trace, with a row for each swap: its round, number in the trace,
    times, descriptors, and the copies left of them. A cell that failed has none.
    """
    visits: dict[Cell, list[Visit]] = {}
    failed = {record.cell for record in run.records if isinstance(record, Failure)}
    for visit in run.visits:
        if visit.cell.sequence == TRACE and visit.cell not in failed:
            visits.setdefault(visit.cell, []).append(visit)
    return {cell: _swaps(replayed, cell.block_bytes) for cell, replayed in visits.items()}


def _swaps(visits: Sequence[Visit], block_bytes: int) -> pd.DataFrame:
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
    swaps = pd.concat(parts, ignore_index=True)
    return swaps.assign(swap_bytes=swaps["blocks"] * block_bytes, latency_us=swaps["wall_us"] + swaps["late_us"])


def rate_of(swaps: pd.DataFrame) -> float:
    return gigabytes_per_second(float(swaps["swap_bytes"].sum()), float(swaps["wall_us"].sum()))


def costs_by(
    runs: Sequence[Run], backend: str, descriptor_bytes: int, times: Iterable[str]
) -> dict[str, dict[str, "SwapCost"]]:
    """Return what swaps by `backend` cost in replays, by direction and time; the latency is held to the ceilings.

    Raises UsageError for a run without such swaps, or with descriptors of another size.
    """
    replayed: dict[str, list[pd.DataFrame]] = {}
    for run in runs:
        replays = {cell: swaps for cell, swaps in replays_of(run).items() if cell.backend == backend}
        if not replays:
            wanted = f"kvbench sweep --trace FILE -a backend={backend}"
            raise UsageError(f"--run {run.path}: has no swaps of a trace by {backend}; measure them with {wanted}")
        for cell, swaps in replays.items():
            if cell.block_bytes != descriptor_bytes:
                sizes = f"{cell.block_bytes} bytes, those of this trace {descriptor_bytes}"
                raise UsageError(f"--run {run.path}: its descriptors have {sizes}; replay a trace of this model")
            replayed.setdefault(cell.direction.value, []).append(swaps)
    costs: dict[str, dict[str, SwapCost]] = {}
    for direction in sorted(replayed, key=[*Direction].index):
        rates = [rate for run in runs for rate in run.ceilings().get(direction, [])]
        least = {"wall_us": 1e-3 / median(rates)} if rates else {}
        every = pd.concat(replayed[direction])
        costs[direction] = {time: SwapCost(every, time, least.get(time, 0.0)) for time in times}
    return costs


class SwapCost:
    """What swaps of one direction cost: so much a swap, a copy and a byte, fitted to a time of measured swaps.

    `error` is the median of the relative errors of the swaps that it was fitted to. No byte takes less than
    `least_us_per_byte`: where all swaps leave about the same share of copies, a fit cannot separate copies from bytes.
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
        return max(float(self.each_us @ (swaps, copies, swap_bytes)), self._least_us_per_byte * swap_bytes) / 1e6
