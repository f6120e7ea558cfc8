"""The origin of an answer: the machine that was measured, its link and ceilings, and what most of the swaps have in
common.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from kvbench.cells.axes import Direction, ListPlace, Priority, Reuse
from kvbench.cells.blocks import is_alone
from kvbench.cells.cell import EQUAL, Cell
from kvbench.cells.pattern import AS_PATTERN, SHUFFLED
from kvbench.cells.policy import WORKLOAD_AXES
from kvbench.cells.units import parse_size, size_text
from kvbench.ground.errors import UsageError
from kvbench.ground.text import MAX_LINE, printable, short
from kvbench.models.presets import ModelChoice, presets
from kvbench.results import Run, RunInfo
from kvbench.results.rundir import ceilings_of
from kvbench.sweep.spec import SIDES

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


def origin_of(runs: Sequence[Run]) -> Origin:
    """Raises UsageError for runs of several machines."""
    cells = {cell for run in runs for cell in run.outcomes}
    directions = [direction for direction in Direction if any(cell.direction is direction for cell in cells)]
    trace = runs[0].trace if all(run.trace for run in runs) else {}
    machine, workload = machine_of(runs), workload_axes(runs)
    return Origin(machine, [run.info for run in runs], directions, ceilings_of(runs), workload, trace)


def machine_of(runs: Sequence[Run]) -> tuple[str, str]:
    """The one device and driver of `runs`; raises UsageError where they are of several."""
    pairs = [(run.info.device.get("title"), run.info.identity.get("driver_version")) for run in runs]
    machines = {(str(title or "")[:MAX_LINE], str(driver or "")[:MAX_LINE]) for title, driver in pairs}
    if len(machines) > 1:
        names = sorted(f"{title or 'an unnamed device'} with driver {driver or 'none'}" for title, driver in machines)
        raise UsageError(f"runs must be of one device and driver; these are of {'; '.join(names)}")
    return machines.pop()


def driver_of(runs: Sequence[Run]) -> int:
    """The newest CUDA version that the driver of some runs supports (13010: 13.1), 0 where it is not known."""
    match = re.fullmatch(r"(\d{1,3})\.(\d)", str(runs[0].info.identity.get("cuda_driver_api")))
    return 1000 * int(match[1]) + 10 * int(match[2]) if match else 0


def settings_in(runs: Sequence[Run]) -> dict[str, int]:
    """The settings of engines that runs recorded."""
    backends = chain.from_iterable(run.info.backends for run in runs)
    settings = chain.from_iterable(backend.settings for backend in backends)
    return {setting.name: setting.default for setting in settings}


def candidate_cells(runs: Sequence[Run]) -> list[Cell]:
    """The cells that a choice can go by, measured or failed: single swaps on a usual stream, nothing beside them."""
    outcomes = chain.from_iterable(run.outcomes.items() for run in runs)
    alone = [cell for cell, outcome in outcomes if outcome.status != "skipped" and is_alone(cell)]
    return [cell for cell in alone if cell.priority is Priority.NONE]


def workload_axes(runs: Sequence[Run]) -> dict[str, str]:
    """The pool, the reuse and the patterns of most of the swaps that a policy is based on."""
    # Swaps of a trace are not alone: all of their cells are of one workload.
    cells = one_workload(candidate_cells(runs)) or [*chain.from_iterable(run.outcomes for run in runs)]
    return {axis: Counter(usual_text(cell, axis) for cell in cells).most_common(1)[0][0] for axis in WORKLOAD_AXES}


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


def origin_lines(origin: Origin) -> list[str]:
    """The machine, its link, the rates of large copies, and the kind of swaps that were measured."""
    ceilings = [f"{gbps:.1f} GB/s {direction}" for direction, gbps in origin.ceilings_gbps.items()]
    ceiling = f"Ceiling {', '.join(ceilings)}; " if ceilings else ""
    return [", ".join(filter(None, (machine_text(origin), origin.runs[0].link))), ceiling + workload_text(origin)]


def machine_text(origin: Origin) -> str:
    """The machine of these runs, and the dates of the first and the last."""
    host = "; all figures are copies between two host buffers, without a GPU" if origin.on_host else ""
    info = origin.runs[0]
    driver = info.identity.get("driver_version")
    named = [info.device.get("title"), driver and f"driver {driver}", dates_text(origin.runs)]
    return ", ".join(short(printable(part), 80) for part in named if part) + host


def dates_text(runs: Sequence[RunInfo]) -> str:
    """When the first and the last run began: "2026-11-26 to 11-27"."""
    first, last = (end(run.created[:10] for run in runs) for end in (min, max))
    return first if first == last else f"{first} to {last.removeprefix(first[:5])}"


def workload_text(origin: Origin) -> str:
    """The blocks that most of the swaps behind answers move, and their caller; "hot" means the same adjacent blocks
    every time.

    Blocks are shuffled unless a layout is named.
    """
    if origin.trace:
        sides = {title.split()[0].lower(): origin.trace.get(direction) for direction, title in SIDES.items()}
        swaps = " and ".join(f"{side.get('total')} {name}" for name, side in sides.items() if isinstance(side, dict))
        return printable(f"the swaps of {trace_text(origin.trace)}: {swaps}")
    axes = origin.workload
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
