"""Replay: the swaps of a trace, one after the other, by every backend: latency, GB/s and time of the thread."""

from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from kvbench.analysis.compare import MIN_PAIRS, Verdict, leaders, median_interval
from kvbench.analysis.margins import IN_TURN, MIN_P99
from kvbench.cells.blocks import TRACE
from kvbench.cells.facts import BATCHED
from kvbench.cells.installed import of_engine
from kvbench.cells.units import gigabytes_per_second, two_digits
from kvbench.ground.text import range_text
from kvbench.report.model import DataTable, Part, PartOrReason, Text
from kvbench.report.numbers import count, figure
from kvbench.report.tables import INCLUDES, measured_table, method_of
from kvbench.report.view import DIRECTIONS, View
from kvbench.results import Visit
from kvbench.results.outcomes import Outcome, by_cell, grouped
from kvbench.sweep.spec import SIDES
from kvbench.tune.evidence import trace_text

_NOTE: Final = (
    "A replay makes every k-th swap of the trace, with its own block ids and size, one after the other on an idle "
    "stream; a visit is a block of time. p50 to worst: latency. GB/s: all bytes over all time of swaps, with the "
    "interval of the visits. Caller: time of the thread that submits, p50. Copies left: the share of the descriptors "
    "that are copied after merging"
)


class Replayed(NamedTuple):
    """A cell that replays a trace, and a row for each of its swaps."""

    outcome: Outcome
    swaps: pd.DataFrame

    @property
    def method(self) -> str:
        return method_of(self.outcome)


def make(view: View) -> PartOrReason:
    if not any(map(_replays, view.measured)):
        return "it needs swaps of a trace (kvbench sweep --trace FILE)"
    sides = [*chain.from_iterable(map(_sides, view.of_machine))]
    findings = [*filter(None, (_finding(*side) for side in sides))]
    return lambda: Part(findings, tables=[_table(*side) for side in sides])


def _replays(outcome: Outcome) -> bool:
    return outcome.cell.sequence == TRACE


def _sides(view: View) -> list[tuple[View, str, list[Replayed]]]:
    """The replays of a run by direction, h2d first."""
    by_direction = grouped(_replays_of(view), lambda replay: replay.outcome.cell.direction.value)
    return [(view, direction, by_direction[direction]) for direction in DIRECTIONS if direction in by_direction]


def _finding(view: View, direction: str, replays: Sequence[Replayed]) -> str:
    """The one or two methods that make the swaps in the least time, and their gain over an engine's own code."""
    times = _times(replays)
    leading = leaders(times, IN_TURN)
    fastest = [*leading]
    # Where most lead, or visits are too few for a verdict, no method is worth naming.
    if len(replays) < 2 or len(fastest) > min(2, len(replays) - 1) or min(map(len, times.values())) < MIN_PAIRS:
        return ""
    first = next(replay for replay in replays if replay.method == fastest[0])
    rates = {replay.method: _rate_of(replay.swaps) for replay in replays}
    of_engines = [replay.method for replay in replays if _is_of_engines(replay.outcome.cell.backend)]
    slower = [method for method in of_engines if method not in fastest]
    gains = ", ".join(f"{two_digits(rates[first.method] / rates[name])}x as fast as {name}" for name in slower)
    # Two that are the same are both the fastest; of two that are not told apart, one may be.
    names = f"{' and '.join(fastest)} are" if {*leading.values()} == {Verdict.SAME} else f"{' or '.join(fastest)} is"
    names = f"{fastest[0]} is" if len(fastest) == 1 else names
    gbps = range_text([rates[name] for name in fastest], figure)
    text = f"{SIDES[direction]} of {_trace_text(view)}: {names} fastest at {gbps} GB/s"
    return f"{text}; {gains}." if gains else f"{text}."


def _is_of_engines(backend: str) -> bool:
    """Whether an engine may swap so today: by its own code, or by plain batched copies."""
    return backend == BATCHED or bool(of_engine(backend))


def _trace_text(view: View) -> str:
    """The origin of the trace, its number of swaps, and the name of the run."""
    trace = view.run.trace
    sides = [side for side in (trace.get("h2d"), trace.get("d2h")) if isinstance(side, dict)]
    swaps = f"{count(sum(int(side['total']) for side in sides))} swaps, " if sides else ""
    return f"{trace_text(view.run.trace)} ({swaps}run {view.label})"


def _table(view: View, direction: str, replays: Sequence[Replayed]) -> DataTable:
    trace = view.run.trace
    ordered = sorted(replays, key=lambda replay: replay.swaps["wall_us"].sum())
    many = min(len(replay.swaps) for replay in replays) >= MIN_P99
    quantiles = ("p50, us", "p90, us", *(["p99, us"] if many else []), "Worst, us (its blocks)")
    header = ("Method", "Swaps", *quantiles, "GB/s", "Caller, us", "Copies left")
    choice = trace.get(direction)
    total = int(choice["total"]) if isinstance(choice, dict) else 0
    number = count(replays[0].swaps["number"].nunique())
    number = f"{number} of {count(total)}" if total else number
    title = f"{SIDES[direction]}: {number} swaps of run {view.label}"
    body = [_row(replay, many=many) for replay in ordered]
    outcomes = [replay.outcome for replay in replays]
    return measured_table(view, outcomes, INCLUDES["idle"], title, header, body, [_NOTE])


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
    # A visit replays a block of the trace: its swaps differ, and only their sum is the same work for each method.
    sums = {replay.method: replay.swaps.groupby("round")["wall_us"].sum() for replay in replays}
    return {name: dict(zip(map(int, visits.index), visits.tolist(), strict=True)) for name, visits in sums.items()}


def _replays_of(view: View) -> list[Replayed]:
    """The cells that replay a trace, with their swaps: of each its round, its number in the trace, times,
    descriptors, and the copies left of them.
    """
    visits = by_cell(visit for visit in view.run.visits if visit.cell.sequence == TRACE)
    return [
        Replayed(outcome, _table_of(visits[outcome.cell], outcome.cell.block_bytes))
        for outcome in view.measured
        if _replays(outcome)
    ]


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
