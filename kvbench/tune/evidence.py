"""What runs of one machine say of swaps: the machine, the workload, the times of every method at each shape, and what
swaps cost steps beside them. An answer reads runs here alone.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kvbench.analysis.compare import MIN_PAIRS, Visits
from kvbench.cells.axes import Direction, ListPlace, Neighbour, Priority, Reuse, Situation, StreamState
from kvbench.cells.blocks import TRACE, is_alone
from kvbench.cells.cell import AXES, EQUAL, Cell, SwapShape
from kvbench.cells.facts import COPIER, NO_CHOICES
from kvbench.cells.pattern import AS_PATTERN, SHUFFLED
from kvbench.cells.policy import WORKLOAD_AXES, Choice
from kvbench.cells.units import parse_size, size_text
from kvbench.ground.errors import UsageError
from kvbench.ground.text import MAX_LINE, printable, short
from kvbench.models.presets import ModelChoice, presets
from kvbench.results import Run, RunInfo, Visit
from kvbench.results.outcomes import Cost, Key, by_cell, grouped
from kvbench.sweep.spec import SIDES
from kvbench.tune.candidates import Arm, Measured, MeasuredBeside, arms_by_size, round_in

# Cells with a smaller share than this do not define the workload of a run.
_FEW: Final = 1 / 3
_USUAL: Final = {
    "pause": "0",
    "reuse": Reuse.FRESH.value,
    "pattern": str(SHUFFLED),
    "host_pattern": str(AS_PATTERN),
    "device_pattern": str(AS_PATTERN),
    "sizes": EQUAL,
}
# The swaps of a trace in one direction are divided by size into this many parts, or fewer.
PARTS: Final = 4
_SWAPS_OF: Final = ("sha256", "descriptors", *Direction)  # of a trace in a spec: its file, and which of its swaps

_Blocks = npt.NDArray[np.int64]


class Origin(NamedTuple):
    """The `machine` (its device and driver) of an answer, the runs that it rests on, and what most of their swaps have
    in common: the `workload` as values of axes, and the `trace` that all of them replay, empty without one.
    """

    machine: tuple[str, str]
    runs: Sequence[RunInfo]
    directions: Sequence[Direction]
    ceilings_gbps: Mapping[Direction, float]
    workload: Mapping[str, str]
    trace: Mapping[str, Any]

    @property
    def on_host(self) -> bool:
        """Whether the runs are of the device cpu."""
        return self.runs[0].device.get("kind") == "cpu"

    @property
    def settings(self) -> dict[str, int]:
        """The settings of engines that the runs recorded."""
        return dict(chain.from_iterable(run.settings.items() for run in self.runs))

    @property
    def lines(self) -> list[str]:
        """The machine, its link, the rates of large copies, and the kind of swaps that were measured."""
        ceilings = [f"{gbps:.1f} GB/s {direction}" for direction, gbps in self.ceilings_gbps.items()]
        ceiling = f"Ceiling {', '.join(ceilings)}; " if ceilings else ""
        return [", ".join(filter(None, (self.machine_text, self.runs[0].link))), ceiling + self.workload_text]

    @property
    def machine_text(self) -> str:
        """The machine of these runs, and the dates of the first and the last."""
        host = "; all figures are copies between two host buffers, without a GPU" if self.on_host else ""
        info = self.runs[0]
        driver = info.identity.get("driver_version")
        named = [info.device.get("title"), driver and f"driver {driver}", dates_text(self.runs)]
        return ", ".join(short(printable(part), 80) for part in named if part) + host

    @property
    def workload_text(self) -> str:
        """The blocks that most of the swaps behind answers move, and their caller; "hot" means the same adjacent
        blocks every time.

        Blocks are shuffled unless a layout is named.
        """
        if self.trace:
            sides = {title.split()[0].lower(): self.trace.get(direction) for direction, title in SIDES.items()}
            swaps = (f"{side.get('total')} {name}" for name, side in sides.items() if isinstance(side, dict))
            return printable(f"the swaps of {trace_text(self.trace)}: {' and '.join(swaps)}")
        axes = self.workload
        pool, reuse = axes["pool"], axes["reuse"]
        from_pool = "from a dense pool" if pool == "dense" else f"from {size_text(parse_size(pool))}"
        layout = "" if axes["pattern"] == str(SHUFFLED) else f" in the layout {axes['pattern']}"
        layout += "".join(
            f", {axes[name]} {side}"
            for name, side in (("host_pattern", "on the host"), ("device_pattern", "on the GPU"), ("sizes", "in size"))
            if axes[name] not in (AS_PATTERN.kind, EQUAL)
        )
        blocks = f"the same blocks{layout} in every swap, {from_pool}"
        if reuse == Reuse.FRESH.value:
            blocks = f"fresh blocks{layout} {from_pool}"
        elif pool == "dense":
            blocks = f"hot, {blocks}"
        pause = axes["pause"]
        return f"{blocks}, {'tight C++ loop' if pause == '0' else f'after {pause} of other work each'}"


# By direction and situation, then by block size.
BesideBySize = Mapping[tuple[Direction, Situation], Mapping[int, Sequence[Arm]]]


class Evidence(NamedTuple):
    """What an answer rests on, by the methods that may be used: what was measured `beside` steps, of shuffled blocks
    and in other layouts; the `shapes` of swaps alone, or why there are none (`no_shapes`), with the block sizes of
    these swaps; the shapes of blocks in contiguous runs, by their length, and of swaps by the pause before them.
    """

    origin: Origin
    beside: BesideBySize
    other_layouts: BesideBySize
    shapes: Sequence[Measured]
    no_shapes: str
    sizes_alone: Collection[int]
    in_runs: Mapping[int, Sequence[Measured]]
    by_pause: Mapping[str, Sequence[Measured]]


def evidence_of(runs: Sequence[Run], keep: Callable[[Choice], bool], *, by_pause: bool = False) -> Evidence:
    """Read runs of one machine for an answer by the methods that `keep` accepts; with `by_pause`, also by pause.

    Raises UsageError where there is nothing to choose from at all, and for runs of several machines.
    """
    origin = origin_of(runs)
    beside, other_layouts = (measured_beside(runs, keep, shuffled=shuffled) for shuffled in (True, False))
    shapes: Sequence[Measured] = ()
    no_shapes = ""
    try:
        shapes = shapes_of(runs, keep)
    except UsageError as none:
        if not beside:
            raise
        no_shapes = str(none)
    cells = {cell for run in runs for cell in run.outcomes}
    lengths: dict[int, str] = {}
    if shapes and not origin.trace and origin.workload["pattern"] == str(SHUFFLED):
        patterns = {cell.pattern for cell in cells if cell.pattern.kind == "runs"}
        lengths = {pattern.run: str(pattern) for pattern in sorted(patterns, key=lambda pattern: pattern.run)}
    pauses = [str(AXES["pause"].show(us)) for us in sorted({cell.pause_us for cell in cells})] if by_pause else []
    return Evidence(
        origin,
        {key: arms_by_size(arms) for key, arms in beside.items()},
        {key: arms_by_size(arms) for key, arms in other_layouts.items()},
        shapes,
        no_shapes,
        {cell.block_bytes for cell in candidate_cells(runs)},
        _shapes_by(runs, lambda _: True, "pattern", lengths),
        _shapes_by(runs, keep, "pause", {pause: pause for pause in pauses}),
    )


def origin_of(runs: Sequence[Run]) -> Origin:
    """Raises UsageError for runs of several machines."""
    cells = {cell for run in runs for cell in run.outcomes}
    directions = [direction for direction in Direction if any(cell.direction is direction for cell in cells)]
    trace = runs[0].trace if all(run.trace for run in runs) else {}
    machine, workload = machine_of(runs), workload_axes(runs)
    return Origin(machine, [run.info for run in runs], directions, ceilings_of(runs), workload, trace)


def ceilings_of(runs: Iterable[Run]) -> dict[Direction, float]:
    """The median GB/s of the large copies that runs of one machine made, of each direction that has some."""
    rates: dict[Direction, list[float]] = {}
    for run in runs:
        for direction, gbps in run.ceiling_rates.items():
            rates.setdefault(direction, []).extend(gbps)
    return {direction: median(gbps) for direction, gbps in rates.items()}


def machine_of(runs: Sequence[Run]) -> tuple[str, str]:
    """The one device and driver of `runs`; raises UsageError where they are of several."""
    pairs = [(run.info.device.get("title"), run.info.identity.get("driver_version")) for run in runs]
    machines = {(str(title or "")[:MAX_LINE], str(driver or "")[:MAX_LINE]) for title, driver in pairs}
    if len(machines) > 1:
        names = sorted(f"{title or 'an unnamed device'} with driver {driver or 'none'}" for title, driver in machines)
        raise UsageError(f"runs must be of one device and driver; these are of {'; '.join(names)}")
    return machines.pop()


def candidate_cells(runs: Sequence[Run]) -> list[Cell]:
    """The cells that a choice can go by, measured or failed: single swaps on a usual stream, nothing beside them."""
    outcomes = chain.from_iterable(run.outcomes.items() for run in runs)
    alone = [cell for cell, outcome in outcomes if outcome.status != "skipped" and is_alone(cell)]
    return [cell for cell in alone if cell.priority is Priority.NONE]


def workload_axes(runs: Sequence[Run]) -> dict[str, str]:
    """The pool, the reuse and the patterns of most of the swaps that a policy is based on."""
    # Swaps of a trace are not alone: all of their cells are of one workload.
    cells = one_workload(candidate_cells(runs)) or [*chain.from_iterable(run.outcomes for run in runs)]
    counts = {axis: Counter(usual_text(cell, axis) for cell in cells) for axis in WORKLOAD_AXES if cells}
    return {axis: count.most_common(1)[0][0] for axis, count in counts.items()}


def one_workload(cells: Iterable[Cell]) -> list[Cell]:
    """The cells of one workload: lists on the host, memory allocated by the driver; no pause before pauses,
    fresh blocks before reused ones, shuffled blocks before other patterns, one pattern for both sides and blocks of one
    size, unless there are few; the pool of most cells.
    """
    listed_on_host = (cell for cell in cells if cell.list_place is ListPlace.HOST)
    kept = [cell for cell in listed_on_host if cell.text("memory") in (None, "allocated")]
    for axis, usual in _USUAL.items():
        values = {cell: usual_text(cell, axis) for cell in kept}
        ranked = Counter(values[cell] for cell in kept).most_common()
        counts = dict(ranked)
        if counts.get(usual, 0) >= min(_FEW * len(kept), ranked[0][1] if ranked else 0):
            kept = [cell for cell in kept if values[cell] == usual]
        else:  # the shapes of models have layouts of their own
            rarity = {value: rank for rank, (value, _) in enumerate(ranked)}
            least: dict[tuple[int, int], int] = {}
            for cell in kept:
                size = cell.blocks, cell.block_bytes
                least[size] = min(least.get(size, len(ranked)), rarity[values[cell]])
            kept = [cell for cell in kept if rarity[values[cell]] == least[cell.blocks, cell.block_bytes]]
    pools = Counter(cell.pool_bytes for cell in kept)
    pool_bytes = max((pool for pool, count in pools.items() if count == max(pools.values())), default=0)
    return [cell for cell in kept if cell.pool_bytes == pool_bytes]


def usual_text(cell: Cell, axis: str) -> str:
    return str(cell.text(axis) or _USUAL.get(axis, ""))


def shapes_of(runs: Sequence[Run], keep: Callable[[Choice], bool], **only: str) -> list[Measured]:
    """The measurements of every shape, or part of the swaps of a trace, by the methods that `keep` accepts.

    Raises UsageError where nothing is left to choose from.
    """
    shapes = swaps_of_trace(runs) if all(run.trace for run in runs) else measured_in(runs, **only)
    allowed = [kept for kept in (measured.only(keep) for measured in shapes) if kept.arms]
    if not allowed:
        raise UsageError("nothing to choose from: no swap was measured with the allowed backends and SM counts")
    return allowed


def measured_in(runs: Sequence[Run], **only: str) -> list[Measured]:
    """The measurements of every shape for which runs of one device have two backends or more.

    `only` takes the swaps with these values of axes alone, such as a pause. A failed cell is no candidate. Raises
    UsageError without any, and for runs of several devices.
    """
    card, _ = machine_of(runs)

    def is_wanted(cell: Cell) -> bool:
        return all(usual_text(cell, axis) == value for axis, value in only.items())

    workload = set(one_workload(filter(is_wanted, candidate_cells(runs))))
    arms, caller_us = _times_of(runs, workload)
    backends: dict[SwapShape, set[str]] = {}
    for cell in workload:
        # Failed cells too: at a shape where all others failed, the one that swapped is the answer.
        backends.setdefault(SwapShape.of_cell(cell), set()).add(cell.backend)
    several = [shape for shape in sorted(arms) if len(backends[shape].difference(NO_CHOICES)) > 1]
    if not several:
        names = sorted({cell.backend for cell in workload} - {*NO_CHOICES})
        what = f"{names[0]} alone was measured" if len(names) == 1 else "no shape was measured with two backends"
        raise UsageError(f"nothing to choose from: {what}; measure more, such as -a backend=batched,sm")
    return [Measured.of_visits(shape, arms[shape], caller_us[shape], card) for shape in several]


_VisitTimes = dict[SwapShape, dict[Choice, dict[int, float]]]
_CallerTimes = dict[SwapShape, dict[Choice, list[float]]]


def _times_of(runs: Sequence[Run], cells: Collection[Cell]) -> tuple[_VisitTimes, _CallerTimes]:
    """The visits of each choice at each shape, and the median time of its caller in each run."""
    arms: _VisitTimes = {}
    caller_us: _CallerTimes = {}
    for number, run in enumerate(runs):
        for cell, outcome in run.outcomes.items():
            times_us = outcome.times() if cell in cells and cell.backend not in NO_CHOICES - {COPIER} else {}
            if times_us:
                choice, shape = Choice.of_cell(cell, plug_in=outcome.plug_in), SwapShape.of_cell(cell)
                visits = arms.setdefault(shape, {}).setdefault(choice, {})
                visits |= {round_in(number, round_): us for round_, us in times_us.items()}
                caller_us.setdefault(shape, {}).setdefault(choice, []).append(outcome.us("caller_us"))
    return arms, caller_us


def _shapes_by(
    runs: Sequence[Run], keep: Callable[[Choice], bool], axis: str, texts: Mapping[Key, str]
) -> dict[Key, list[Measured]]:
    """The measurements of every shape by the value of an axis; none of a value with too few backends."""
    shapes: dict[Key, list[Measured]] = {}
    for key, text in texts.items():
        with suppress(UsageError):
            shapes[key] = shapes_of(runs, keep, **{axis: text})
    return shapes


def measured_beside(runs: Sequence[Run], keep: Callable[[Choice], bool], *, shuffled: bool = True) -> MeasuredBeside:
    """The methods that were measured beside steps, of blocks that are shuffled on both sides, or of others."""
    costs: dict[tuple[Direction, Situation], dict[tuple[Choice, Cell], dict[int, Cost]]] = {}
    for number, run in enumerate(runs):
        for cell, outcome in run.outcomes.items():
            situation = cell.neighbour.situation
            is_shuffled = cell.sides == (SHUFFLED, SHUFFLED)
            competes = is_shuffled is shuffled and not cell.layers and cell.backend not in NO_CHOICES
            competes = competes and cell.priority is Priority.NONE
            if situation in (None, Situation.ALONE) or not competes or outcome.status != "ok" or not outcome.costs:
                continue
            choice = Choice.of_cell(cell, plug_in=outcome.plug_in)
            if situation and keep(choice):
                visits = costs.setdefault((cell.direction, situation), {}).setdefault((choice, cell), {})
                visits |= {round_in(number, round_): cost for round_, cost in outcome.costs.items()}
    return {beside: _beside_one_neighbour(costs_beside) for beside, costs_beside in costs.items()}


def _beside_one_neighbour(costs: Mapping[tuple[Choice, Cell], Mapping[int, Cost]]) -> list[Arm]:
    """The arms beside the usual neighbour of a situation, or the one that most cells have.

    They are of one device; without such cells of the fewest that swap at once, and of the most ranks, as in an engine.
    """
    counts = Counter(cell.neighbour for _, cell in costs)
    usual = next(filter(counts.get, (Neighbour.DECODE, Neighbour.PREFILL)), counts.most_common(1)[0][0])
    arms = [Arm(choice, cell, visits) for (choice, cell), visits in costs.items() if cell.neighbour == usual]
    by_devices = grouped(arms, lambda arm: (arm.cell.devices, -arm.cell.ranks))
    return by_devices[min(by_devices)]


def gathers_of(runs: Sequence[Run]) -> dict[int, dict[int, float]]:
    """The times in microseconds of gathers by ids on the GPU, by the bytes and the number of rows, at the best grid."""
    times_us: dict[int, dict[int, float]] = {}
    for run in runs:
        for cell, outcome in run.outcomes.items():
            # Most runs have none, and `show` asks every run.
            if cell.list_place is ListPlace.GPU and math.isfinite(us := outcome.us()):
                by_rows = times_us.setdefault(cell.block_bytes, {})
                by_rows[cell.blocks] = min(us, by_rows.get(cell.blocks, us))
    return times_us


class _ReplayedSwap(NamedTuple):
    blocks: int
    us: float
    thread_us: float


# The visits of swaps of a trace, by choice, then by the number of the swap.
_Replays = dict[Choice, dict[int, list[_ReplayedSwap]]]


def swaps_of_trace(runs: Sequence[Run]) -> list[Measured]:
    """The swaps of replays, a shape for each part of the swaps of a direction; a round is a swap's number.

    The times are those of a swap of the size that stands for the part, at the rate of the swap. Raises UsageError
    without swaps that every method made, and for runs of different swaps or of several devices.
    """
    machine_of(runs)
    # Numbers of swaps are the same swaps only in replays of one file with one choice from it.
    replayed = [{name: run.trace.get(name) for name in _SWAPS_OF} for run in runs]
    if any(swaps != replayed[0] for swaps in replayed):
        paths = (Path(str(run.trace.get("path", ""))) for run in runs)
        names = " and ".join(sorted({path.name or "the trace" for path in paths}))
        raise UsageError(
            printable(f"RUN: the runs replay different swaps, of {names}; give runs of one trace and seed")
        )
    by_side: dict[tuple[Direction, int], _Replays] = {}
    for run in runs:
        for cell, visits in by_cell(run.visits).items():
            if cell.sequence == TRACE and cell.backend not in NO_CHOICES and run.outcomes[cell].medians:
                replays = by_side.setdefault((cell.direction, cell.block_bytes), {})
                _add_swaps(replays.setdefault(Choice.of_cell(cell), {}), visits)
    parts: list[Measured] = []
    for (direction, block_bytes), replays in sorted(by_side.items()):
        if len({choice.backend for choice in replays}) > 1:
            parts += _parts_of(direction, block_bytes, replays)
    if not parts:
        raise UsageError("nothing to choose from: no swap of the trace was made by two backends or more")
    return parts


def _add_swaps(by_number: dict[int, list[_ReplayedSwap]], visits: Sequence[Visit]) -> None:
    """Add every swap that the visits of a cell replayed."""
    for visit in visits:
        samples = visit.samples
        numbers, blocks = samples.swap_numbers or (), samples.swap_blocks or ()
        for number, *swap in zip(numbers, blocks, samples.wall_us, samples.caller_us, strict=False):
            by_number.setdefault(number, []).append(_ReplayedSwap(int(swap[0]), swap[1], swap[2]))


def _parts_of(direction: Direction, block_bytes: int, replays: _Replays) -> list[Measured]:
    # Only swaps that every choice made are compared.
    numbers = sorted(set.intersection(*(set(by_number) for by_number in replays.values())))
    first = next(iter(replays.values()))
    blocks = np.array([first[number][0].blocks for number in numbers], dtype=np.int64)
    parts = []
    for indices in parts_of(blocks) if numbers else ():
        label = label_of(blocks[indices])
        in_part = [numbers[index] for index in indices.tolist()]
        arms: dict[Choice, Visits] = {}
        caller_us: dict[Choice, float] = {}
        for choice, by_number in replays.items():
            swaps = {number: _mean_at_rate(by_number[number], label) for number in in_part}
            times_us = {number: swap.us for number, swap in swaps.items() if swap.us > 0}
            if times_us:
                arms[choice] = times_us
            caller_us[choice] = median(swap.thread_us for swap in swaps.values())
        shape = SwapShape(direction, StreamState.IDLE, label, block_bytes)
        parts.append(Measured(shape, arms, arms, {}, caller_us))
    return parts


def _mean_at_rate(visits: Sequence[_ReplayedSwap], blocks: int) -> _ReplayedSwap:
    """The mean of the visits of a swap, as it would be with another number of blocks at the same rate."""

    def at_rate(times_us: Iterable[float]) -> float:
        return sum(times_us) / len(visits) / visits[0].blocks * blocks

    return _ReplayedSwap(blocks, at_rate(swap.us for swap in visits), at_rate(swap.thread_us for swap in visits))


def parts_of(blocks: _Blocks) -> list[_Blocks]:
    """The indices of the swaps of each part, of swaps with these numbers of blocks, the smallest first.

    The parts have about equal shares of the bytes, so that each counts for about its share of the time. A part without
    the swaps that a verdict needs joins the one below it, or the first the one above; so does one whose middle swap is
    as large.
    """
    order = np.argsort(blocks, kind="stable")
    before = np.cumsum(blocks[order]) - blocks[order]
    part = before * PARTS // max(1, int(blocks.sum()))
    parts: list[_Blocks] = []
    for indices in (order[part == number] for number in range(PARTS)):
        too_small = bool(parts) and min(len(indices), len(parts[-1])) < MIN_PAIRS
        if too_small or (parts and label_of(blocks[indices]) == label_of(blocks[parts[-1]])):
            parts[-1] = np.concatenate([parts[-1], indices])
        elif len(indices):
            parts.append(indices)
    return parts


def label_of(blocks: _Blocks) -> int:
    """The number of blocks that stands for a part: that of its middle swap."""
    return int(np.sort(blocks)[len(blocks) // 2])


def dates_text(runs: Sequence[RunInfo]) -> str:
    """When the first and the last run began: "2026-11-26 to 11-27"."""
    first, last = (end(run.created[:10] for run in runs) for end in (min, max))
    return first if first == last else f"{first} to {last.removeprefix(first[:5])}"


def trace_text(trace: Mapping[str, Any]) -> str:
    """The origin of the trace of a run, or, in a run that does not know it, the size of its blocks."""
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
