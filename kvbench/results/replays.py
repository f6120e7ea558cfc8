"""The swaps of a trace that a run replayed: a row each, and what such swaps cost."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvbench.cells.blocks import TRACE
from kvbench.cells.cell import Cell
from kvbench.cells.units import gigabytes_per_second, size_text
from kvbench.models.presets import ModelChoice, presets
from kvbench.results.rundir import Run
from kvbench.results.schema import Failure, Visit
from kvbench.text import short

if TYPE_CHECKING:
    import pandas as pd


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


def replays_of(run: Run) -> "dict[Cell, pd.DataFrame]":
    """Return a table for each cell that replays a trace, with a row for each swap: its round, number in the trace,
    times, descriptors, and the copies left of them. A cell that failed has none.
    """
    visits: dict[Cell, list[Visit]] = {}
    failed = {record.cell for record in run.records if isinstance(record, Failure)}
    for visit in run.visits:
        if visit.cell.sequence == TRACE and visit.cell not in failed:
            visits.setdefault(visit.cell, []).append(visit)
    return {cell: _swaps(replayed, cell.block_bytes) for cell, replayed in visits.items()}


def _swaps(visits: Sequence[Visit], block_bytes: int) -> "pd.DataFrame":
    import pandas as pd  # takes a second, and commands that print no table of swaps do without

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


def rate_of(swaps: "pd.DataFrame") -> float:
    return gigabytes_per_second(float(swaps["swap_bytes"].sum()), float(swaps["wall_us"].sum()))
