"""Replay: the swaps of a trace, one after the other, by every backend: latency, GB/s and time of the thread."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from kvbench.analysis.compare import MIN_PAIRS, leaders, median_interval
from kvbench.analysis.margins import IN_TURN, MIN_P99
from kvbench.cells.blocks import TRACE
from kvbench.cells.facts import method_label
from kvbench.cells.units import gigabytes_per_second, two_digits
from kvbench.report.model import DataTable, Part, PartOrReason, Text
from kvbench.report.numbers import count, figure
from kvbench.report.tables import INCLUDES, measured_table, sms_of
from kvbench.report.view import View, by_direction, rows_of
from kvbench.results import Run, Visit
from kvbench.results.outcomes import by_cell
from kvbench.sweep.installed import of_engine
from kvbench.sweep.spec import SIDES
from kvbench.text import ends
from kvbench.tune.text import trace_text

_NOTE: Final = (
    "A replay makes every k-th swap of the trace, with its own block ids and size, one after the other on an idle "
    "stream; a visit is a block of time. p50 to worst: latency. GB/s: all bytes over all time of swaps, with the "
    "interval of the visits. Caller: time of the thread that submits, p50. Copies left: the share of the descriptors "
    "that are copied after merging"
)


class Replayed(NamedTuple):
    """The swaps of one cell: a row for each, and what it is called."""

    method: str
    backend: str
    swaps: pd.DataFrame


def make(view: View) -> PartOrReason:
    if _cells_of(view).empty:
        return "it needs swaps of a trace (kvbench sweep --trace FILE)"
    parts = [_part(run) for run in view.of_machine if not _cells_of(run).empty]
    findings = [one for part in parts for one in part.findings]
    return lambda: Part(findings, tables=[one for part in parts for one in part.tables])


def _cells_of(view: View) -> pd.DataFrame:
    return view.only(view.measured, lambda cell: cell.sequence == TRACE)


def _part(view: View) -> Part:
    cells = _cells_of(view)
    swaps = _replays_of(view.run)
    sides = by_direction(cells)
    replays: dict[str, list[Replayed]] = {direction: [] for direction in sides}
    for row in rows_of(cells):
        method = method_label(row["backend"], sms_of(row))
        replays[row["direction"]].append(Replayed(method, row["backend"], swaps[row["cell_id"]]))
    findings = [text for side in replays.items() if (text := _finding(view, *side))]
    tables = [_table(view, direction, side, replays[direction]) for direction, side in sides.items()]
    return Part(findings, tables=tables)


def _finding(view: View, direction: str, replays: Sequence[Replayed]) -> str:
    """The one or two methods that make the swaps in the least time, and their gain over an engine's own code."""
    times = _times(replays)
    fastest = [*leaders(times, IN_TURN)]
    if len(replays) < 2 or len(fastest) > min(2, len(replays) - 1) or min(map(len, times.values())) < MIN_PAIRS:
        return ""
    first = next(replay for replay in replays if replay.method == fastest[0])
    rates = {replay.method: _rate_of(replay.swaps) for replay in replays}
    usual = [replay.method for replay in replays if replay.backend == "batched" or of_engine(replay.backend)]
    rivals = [method for method in usual if method not in fastest]
    gains = ", ".join(f"{two_digits(rates[first.method] / rates[name])}x as fast as {name}" for name in rivals)
    names = f"{' and '.join(fastest)} {'is' if len(fastest) == 1 else 'are'}"
    gbps = ends([rates[name] for name in fastest], figure)
    text = f"{SIDES[direction]} of {_trace_text(view)}: {names} fastest at {gbps} GB/s"
    return f"{text}; {gains}." if gains else f"{text}."


def _trace_text(view: View) -> str:
    """The origin of the trace, its number of swaps, and the name of the run."""
    trace = view.run.trace
    sides = [side for side in (trace.get("h2d"), trace.get("d2h")) if isinstance(side, dict)]
    swaps = f"{count(sum(int(side['total']) for side in sides))} swaps, " if sides else ""
    return f"{trace_text(view.run)} ({swaps}run {view.label})"


def _table(view: View, direction: str, cells: pd.DataFrame, replays: Sequence[Replayed]) -> DataTable:
    trace = view.run.trace
    ordered = sorted(replays, key=lambda replay: replay.swaps["wall_us"].sum())
    many = min(len(replay.swaps) for replay in replays) >= MIN_P99
    quantiles = ("p50, us", "p90, us", *(["p99, us"] if many else []), "Worst, us (its blocks)")
    header = ("Method", "Swaps", *quantiles, "GB/s", "Caller, us", "Copies left")
    choice = trace.get(direction)
    of = f"of {count(total)} " if isinstance(choice, dict) and (total := int(choice["total"])) else ""
    title = f"{SIDES[direction]}: {count(replays[0].swaps['number'].nunique())} {of}swaps of run {view.label}"
    body = [_row(replay, many=many) for replay in ordered]
    return measured_table(view, cells, INCLUDES["idle"], title, header, body, [_NOTE])


def _row(replay: Replayed, *, many: bool) -> list[Text]:
    swaps, latencies = replay.swaps, replay.swaps["wall_us"]
    low, high = median_interval(np.array([_rate_of(visit) for _, visit in swaps.groupby("round")]))
    worst = swaps.iloc[int(latencies.argmax())]
    interval = f" ({figure(low)} to {figure(high)})" if np.isfinite(low) else ""
    return [
        replay.method,
        count(len(latencies)),
        *(figure(float(latencies.quantile(share))) for share in (0.5, 0.9, *([0.99] if many else []))),
        f"{figure(worst['wall_us'])} ({count(worst['blocks'])})",
        f"{figure(_rate_of(swaps))}{interval}",
        figure(float(swaps["caller_us"].median())),
        f"{swaps['pieces'].sum() / swaps['blocks'].sum():.0%}",
    ]


def _times(replays: Sequence[Replayed]) -> dict[str, dict[int, float]]:
    sums = {replay.method: replay.swaps.groupby("round")["wall_us"].sum() for replay in replays}
    return {name: dict(zip(map(int, visits.index), visits.tolist(), strict=True)) for name, visits in sums.items()}


def _replays_of(run: Run) -> dict[str, pd.DataFrame]:
    """Return a table by the id of each cell that replays a trace, with a row for each swap: its round, number in the
    trace, times, descriptors, and the copies left of them. A cell that failed has none.
    """
    visits = by_cell(visit for visit in run.visits if visit.cell.sequence == TRACE)
    replays = ((cell, made) for cell, made in visits.items() if not run.outcomes[cell].failures)
    return {cell.id: _table_of(made, cell.block_bytes) for cell, made in replays}


def _table_of(visits: Sequence[Visit], block_bytes: int) -> pd.DataFrame:
    parts = []
    for visit in visits:
        samples = visit.samples
        fields = {
            "wall_us": samples.wall_us,
            "caller_us": samples.caller_us,
            "blocks": samples.swap_blocks or [],
            "pieces": samples.pieces or [],
            "number": samples.swap_numbers or [],
        }
        parts.append(pd.DataFrame(fields).assign(round=visit.round))
    swaps = pd.concat(parts, ignore_index=True)
    return swaps.assign(swap_bytes=swaps["blocks"] * block_bytes)


def _rate_of(swaps: pd.DataFrame) -> float:
    return gigabytes_per_second(float(swaps["swap_bytes"].sum()), float(swaps["wall_us"].sum()))
