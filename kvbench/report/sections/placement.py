"""Where blocks lie: hot or fresh and scattered, in extents, fragments or registrations, on several devices, and what
address translation allows of scattered small ones.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final, NamedTuple

import pandas as pd

from kvbench.analysis.compare import Comparison, Verdict
from kvbench.cells.axes import Direction, Neighbour, Reuse, slots_of
from kvbench.cells.cell import Cell
from kvbench.cells.facts import BATCHED, method_label
from kvbench.cells.units import KIB
from kvbench.ground.text import range_text
from kvbench.report.cells import copied, ladders, measured, outcomes_in, rows_with, selected
from kvbench.report.model import DataTable, Once, Part, PartOrReason, Text
from kvbench.report.numbers import TIMES, bytes_size, count, figure, slower_text, with_interval
from kvbench.report.sections import contrast
from kvbench.report.sections.contrast import Contrast, ContrastSide, Figure, Key
from kvbench.report.tables import measured_table, method_of, rate, ratio_text, swap_text
from kvbench.report.view import STATES, Pinned, View, compare
from kvbench.results.outcomes import Outcome, grouped, is_measured, opposite_rate
from kvbench.results.roofs import SmReach, reached

MIN_LENGTHS: Final = 3  # two show that extents matter, not from where on
_HOT, _FAR = "hot, dense", "fresh, scattered"
_ARMS: Final = {
    (False, Reuse.SAME): _HOT,
    (False, Reuse.FRESH): "fresh, dense",
    (True, Reuse.SAME): "same, scattered",
    (True, Reuse.FRESH): _FAR,
}


def _hot_and_far(view: View) -> Pinned | None:
    pinned = view.pin(view.cells, free=("pool", "reuse", "sms"))
    idle = rows_with(pinned.cells, stream_state="idle")
    largest = int(idle["pool_bytes"].max()) if len(idle) else 0
    if not largest:
        return None
    cells = idle[idle["pool_bytes"].isin([0, largest])]
    # a swap of which nothing was measured has nothing to compare
    return Pinned(ladders(cells, "pool_bytes", 1, "direction", "backend", "blocks", "block_bytes"), pinned.hidden)


def _scatter_findings(side: ContrastSide) -> Iterable[Text]:
    """Say which backend pays most for scattered blocks, and which pay nothing; nothing where that is undecided."""
    costs = [(line[_HOT], cost) for line, cost in side.comparisons]
    dearer = [(hot, cost.ratio) for hot, cost in costs if cost.verdict is Verdict.SLOWER]
    doubtful = {hot.backend_name for hot, cost in costs if cost.verdict in (Verdict.SLOWER, Verdict.UNDECIDED)}
    parts = []
    if dearer:
        hot, ratio = max(dearer, key=lambda cost: cost[1])
        parts.append(f"{hot.backend_name} of {swap_text(hot.cell)} {slower_text(ratio)}")
    if unharmed := sorted({hot.backend_name for hot, _ in costs} - doubtful):
        parts.append(f"{', '.join(unharmed)} {'is' if len(unharmed) == 1 else 'are'} not slower")
    if parts:
        yield f"{side.cell.direction} of fresh, scattered blocks against hot, dense ones: {'; '.join(parts)}."


def _rate_by_sms(outcome: Outcome) -> str:
    return method_label(rate(outcome), outcome.cell.sms)


LOCALITY: Final = Contrast(
    needed="it needs a swap measured both hot and dense and from a large pool",
    select=_hot_and_far,
    tables_by=(contrast.by_direction,),
    keys=(contrast.SWAP, contrast.BACKEND),
    title=lambda side: f"{side.cell.direction}, idle stream: GB/s of hot and fresh, dense and scattered blocks",
    columns=lambda _: [Figure(arm, arm, _rate_by_sms) for arm in _ARMS.values()],
    arm=lambda outcome: _ARMS[outcome.cell.pool_bytes > 0, outcome.cell.reuse],
    compared=(_HOT, _FAR),
    ratio="Cost",
    notes=lambda _: [
        "Hot, dense: every swap moves the same blocks of a pool that is just large enough. Fresh: every swap moves "
        "blocks that the caches no longer hold. Scattered: blocks of the largest pool of the run, on both sides. Cost: "
        "time of a fresh, scattered swap over that of a hot, dense one"
    ],
    find=_scatter_findings,
)


def _extent(cell: Cell) -> int | None:
    """The blocks in an extent: 1 where none are adjacent, None where extents differ in length."""
    return cell.pattern.run if cell.pattern.kind in ("runs", "shuffled") else None


def _in_runs(view: View) -> Pinned:
    idle = rows_with(view.cells, stream_state="idle")
    pinned = view.pin(selected(idle, lambda outcome: _extent(outcome.cell)), free=("pattern",))
    several = ladders(measured(pinned.cells), "pattern", MIN_LENGTHS, "backend", "direction", "block_bytes", "blocks")
    return Pinned(several, pinned.hidden)


_EXTENT: Final = Key("Extent", _extent, lambda outcome: count(_extent(outcome.cell) or 0))
RUNS: Final = Contrast(
    needed=f"it needs a backend measured at {MIN_LENGTHS} extents (pattern=shuffled,runs-8,runs-32) when idle",
    select=_in_runs,
    tables_by=(contrast.by_direction,),
    keys=(contrast.SWAP, _EXTENT),
    title=lambda side: f"{side.cell.direction}, idle stream: GB/s by the number of adjacent blocks",
    columns=contrast.backends,
    fastest=True,
    notes=lambda _: [
        "Extent: how many blocks are adjacent, in the same order on both sides; 1: scattered one by one (shuffled)"
    ],
    find=lambda side: contrast.turns(side, _EXTENT, unit="an extent of"),
)


_ALONE, _AT_ONCE = "alone", "at once"
_NEEDS_DEVICES: Final = "it needs cells that several devices swapped at once (--device cuda:all)"


def make_devices(view: View) -> PartOrReason:
    """Make the tables of cells that several devices swapped at once, beside those of one of them alone."""
    command = view.run.info.command  # of the runs of all devices of a sweep
    several = [run for run in (*view.earlier, view) if any(outcome.cell.devices > 1 for outcome in run.measured)]
    several = [run for run in several if run.run.info.command == command]
    if not several or several[-1] is not view:  # the last makes the tables, and its command is in their captions
        return _NEEDS_DEVICES
    names = [str(run.run.info.device.get("name")) for run in several]
    if len(set(names)) < len(names):  # two of one name, such as cpu and cpu
        names = [run.label for run in several]
    cells = pd.concat([copied(run.cells).assign(device=name) for run, name in zip(several, names, strict=True)])
    arms = cells.assign(
        arm=[_AT_ONCE if devices > 1 else _ALONE for devices in cells["devices"]],
        cell_alone=pd.Series([replace(outcome.cell, devices=1) for outcome in outcomes_in(cells)], cells.index, object),
    )
    # A line needs both: most cells of such a run are of one device alone.
    pairs = arms.pivot(index=["cell_alone", "device"], columns="arm", values="outcome").reset_index()
    pairs = pairs.reindex(columns=["device", _ALONE, _AT_ONCE]).dropna()
    lines = [DeviceLine(*line) for line in pairs.itertuples(index=False)]
    if not lines:
        return _NEEDS_DEVICES
    sides = grouped(sorted(lines, key=_device_order), lambda line: line.alone.cell.direction).values()
    findings = [*chain.from_iterable(map(_loss_findings, sides))]
    return lambda: Part(findings, tables=[_devices_table(view, side) for side in sides])


class DeviceLine(NamedTuple):
    """A cell of one device, alone and while all devices swap."""

    device: str
    alone: Outcome
    at_once: Outcome

    @property
    def slowed(self) -> Comparison:
        """How the time of a swap while all devices swap differs from that alone."""
        return compare(self.alone, self.at_once)


def _device_order(line: DeviceLine) -> tuple[Any, ...]:
    cell = line.alone.cell
    shape = contrast.by_direction(cell), cell.backend, cell.block_bytes, cell.blocks
    return (*shape, STATES.index(cell.stream_state), str(cell.neighbour), line.device)


def _devices_table(view: View, lines: Sequence[DeviceLine]) -> DataTable:
    body = []
    for line in lines:
        cell = line.alone.cell
        beside = "" if cell.neighbour == Neighbour.NONE else f", beside {cell.neighbour}"
        keys = (method_of(line.alone), swap_text(cell), f"{cell.stream_state}{beside}", line.device)
        body.append([*keys, rate(line.alone), rate(line.at_once), ratio_text(line.slowed)])
    title = f"{lines[0].alone.cell.direction}: GB/s of swaps alone, and of all devices at once"
    clock = "CUDA events; a cell alone, and while every device swaps its own blocks at the same time"
    header = ("Method", "Swap", "Stream", "Device", "GB/s alone", "GB/s at once", "Time, at once / alone")
    outcomes = [*chain.from_iterable((line.alone, line.at_once) for line in lines)]
    return measured_table(view, outcomes, clock, title, header, body, left=4)


def _loss_findings(lines: Iterable[DeviceLine]) -> Iterable[Text]:
    """Say what the card that loses most has left of its rate alone, where the visits tell that it loses some."""
    slower = [line for line in lines if line.slowed.verdict is Verdict.SLOWER]
    if slower:
        worst = max(slower, key=lambda line: line.slowed.ratio)
        cell = worst.at_once.cell
        yield (
            f"{cell.direction} on {count(cell.devices)} devices at once: {rate(worst.at_once)} GB/s at worst, "
            f"{rate(worst.alone)} alone ({method_of(worst.alone)}, {swap_text(cell)})."
        )


def _with_opposite(view: View) -> Pinned:
    return Pinned(selected(view.cells, lambda outcome: outcome.opposite), view.pinned.hidden)


def _opposite_rate(column: str) -> Callable[[Outcome], Text]:
    return lambda outcome: with_interval(*opposite_rate(outcome.opposite, column))


_OPPOSITE: Final = {
    "GB/s alone": "alone_gbps",
    "at once": "at_once_gbps",
    "Other direction alone": "opposite_alone_gbps",
    "Other at once": "opposite_at_once_gbps",
}
OPPOSITE: Final = Contrast(
    needed="it needs cells whose swaps run beside those of the other direction (opposite=on)",
    select=_with_opposite,
    tables_by=(),
    keys=(contrast.DIRECTION, contrast.METHOD, contrast.SWAP),
    title=lambda _: "GB/s of swaps of both directions, each alone and at once",
    columns=lambda side: [Figure(head, side.arms[0], _opposite_rate(column)) for head, column in _OPPOSITE.items()],
    includes="CUDA events, while swaps of both directions ran",
    arm=lambda _: "on",
)


def _registrations(cell: Cell) -> int:
    slots = slots_of(cell.memory)
    return -(-cell.pool_bytes // slots.slot_bytes) if slots else 1


_REGISTRATIONS: Final = Key("Registrations", _registrations, lambda outcome: count(_registrations(outcome.cell)))


def _in_registrations(view: View) -> Pinned | None:
    idle = rows_with(view.cells, stream_state="idle")
    cells = selected(idle, lambda outcome: re.match(r"shared|slots-", outcome.cell.memory or ""))
    pinned = view.pin(cells, free=("memory",))
    numbers = {_registrations(outcome.cell) for outcome in outcomes_in(measured(pinned.cells))}
    return pinned if len(numbers) > 1 else None


def _a_descriptor(outcome: Outcome) -> str:
    return with_interval(*(us / outcome.cell.blocks for us in (outcome.us(), *outcome.interval())))


def _registration_findings(side: ContrastSide) -> Iterable[Text]:
    """Say of each backend how much longer its longest swap takes in most registrations than in fewest."""
    blocks = max(outcome.cell.blocks for outcome in side.measured)
    longest = [outcome for outcome in side.measured if outcome.cell.blocks == blocks]
    numbers = [_registrations(outcome.cell) for outcome in longest]
    least, most = min(numbers), max(numbers)
    parts = []
    for column in contrast.backends(side):
        outcomes = {_registrations(outcome.cell): outcome for outcome in longest if outcome.cell.backend == column.arm}
        if least < most and {least, most} <= outcomes.keys():
            cost = compare(outcomes[least], outcomes[most])
            slower = slower_text(cost.ratio) if cost.verdict is Verdict.SLOWER else "is not slower"
            parts += [] if cost.verdict is Verdict.UNDECIDED else [f"{column.head} {slower}"]
    if parts:
        yield (
            f"{side.cell.direction} of {bytes_size(side.cell.block_bytes)}, in {count(most)} registrations in "
            f"place of {count(least)}: {'; '.join(parts)}."
        )


REGISTRATIONS: Final = Contrast(
    needed="it needs pools in different numbers of registrations (memory=shared,slots-256KiBx2)",
    select=_in_registrations,
    tables_by=(contrast.by_direction, contrast.size),
    keys=(contrast.BLOCKS, _REGISTRATIONS),
    title=lambda side: (
        f"{side.cell.direction} of {bytes_size(side.cell.block_bytes)}, idle stream: us a descriptor by the "
        "number of registrations"
    ),
    columns=lambda side: [Figure(column.head, column.arm, _a_descriptor) for column in contrast.backends(side)],
    notes=lambda _: [
        "Registrations: in which the pool of the host lies: a file in /dev/shm, registered whole or slot by slot; us a "
        "descriptor: time of the swap over its number of blocks"
    ],
    find=_registration_findings,
)


def _ranks(cell: Cell) -> int | None:
    """How many ranks share the pages of which a cell copies fragments, None where it copies whole blocks."""
    patterns = (cell.host_pattern, cell.pattern)
    return next((pattern.ranks for pattern in patterns if pattern.kind == "fragments"), None)


_RANKS: Final = Key("Ranks", _ranks, lambda outcome: str(_ranks(outcome.cell)))


def _in_fragments(view: View) -> Pinned | None:
    idle = rows_with(view.cells, stream_state="idle")
    pinned = view.pin(selected(idle, lambda outcome: _ranks(outcome.cell)), free=("pattern", "host_pattern"))
    return pinned if measured(pinned.cells)["backend"].nunique() > 1 else None


def _fragment_findings(side: ContrastSide) -> Iterable[Text]:
    """Say by how much the fastest backend exceeds batched copies, where by most."""
    gaps = []
    for line in side.lines:
        outcomes = [*filter(is_measured, line.values())]
        base = next((outcome for outcome in outcomes if outcome.cell.backend == BATCHED), None)
        best = min(outcomes, key=Outcome.us, default=None)
        if base and best and (compared := compare(best, base)).significant:
            gaps.append((compared.ratio, base, best))
    if gaps:
        _, base, best = max(gaps, key=lambda gap: gap[0])
        cell = base.cell
        yield (
            f"{cell.direction} of fragments of {bytes_size(cell.block_bytes)}, {_ranks(cell)} ranks: "
            f"{method_of(best)} moves {rate(best)} GB/s, {BATCHED} {rate(base)} "
            f"({figure(best.gbps / base.gbps)}{TIMES})."
        )


FRAGMENTS: Final = Contrast(
    needed="it needs two backends measured on fragments (pattern=fragments-16x8)",
    select=_in_fragments,
    tables_by=(contrast.by_direction,),
    keys=(_RANKS, contrast.SIZE),
    title=lambda side: f"{side.cell.direction}, idle stream: GB/s of fragments by their size",
    columns=contrast.backends,
    fastest=True,
    notes=lambda _: [
        "Fragments: pieces of a page that all ranks share, one descriptor each; those of a rank are adjacent on the "
        "device, and on the host as far apart as the row of all ranks is long"
    ],
    find=_fragment_findings,
)


_NEEDS_SCATTERED: Final = "it needs a run on a GPU whose blocks are scattered over 1 GiB or more"
_ALL_SMS: Final = Once("All SMs; execution times by CUDA events: a long swap less a short one. ")


class PoolRow(NamedTuple):
    """What the runs of a machine reach in a direction with small blocks scattered over as much memory."""

    direction: Direction
    pool_bytes: int
    runs: Sequence[SmReach]

    @property
    def scattered(self) -> str:
        return _millions([run.scattered.rate for run in self.runs])

    @property
    def dense(self) -> str:
        return _millions([run.dense.rate for run in self.runs])

    @property
    def fills_from(self) -> str:
        """From which block size scattered blocks fill the link; "" where nothing limits them."""
        sizes = [run.gbps.rate * 1e9 / run.limit.rate / KIB for run in self.runs if run.limit.rate > 0]
        return range_text(sizes, figure) if sizes else ""


def _millions(rates: Sequence[float]) -> str:
    return range_text([rate / 1e6 for rate in rates], figure)


def make_limits(view: View) -> PartOrReason:
    rows = [*chain.from_iterable(_pool_rows(view.of_machine, direction) for direction in Direction)]
    return (lambda: Part(_limit_findings(rows), tables=[_limits_table(view, rows)])) if rows else _NEEDS_SCATTERED


def _pool_rows(views: Sequence[View], direction: Direction) -> list[PoolRow]:
    """The largest pool first."""
    limits = [*filter(None, (reached(view.run.others, direction) for view in views))]
    pools = sorted(grouped(limits, lambda run: run.pool_bytes).items(), reverse=True)
    return [PoolRow(direction, pool_bytes, runs) for pool_bytes, runs in pools]


def _limit_findings(rows: Sequence[PoolRow]) -> list[str]:
    """Say of each direction, with the largest pool, where all of its runs were limited."""
    findings = []
    for direction in Direction:
        row = next((row for row in rows if row.direction is direction), None)
        if row and all(run.limit.rate > 0 for run in row.runs):
            blocks = f"of {bytes_size(row.runs[0].block_bytes)} scattered over {bytes_size(row.pool_bytes)}"
            findings.append(f"{direction}, all SMs: {row.scattered} M blocks a second {blocks}, {row.dense} M dense.")
    return findings


def _limits_table(view: View, rows: Sequence[PoolRow]) -> DataTable:
    body = [
        [
            row.direction.value,
            bytes_size(row.pool_bytes),
            count(len(row.runs)),
            range_text([run.gbps.rate for run in row.runs], figure),
            row.scattered,
            row.dense,
            row.fills_from,
        ]
        for row in rows
    ]
    size = bytes_size(rows[0].runs[0].block_bytes)
    header = ("Dir", "Pool", "Runs", "Large copies, GB/s", "Scattered, M/s", "Dense, M/s", "Fills the link from, KiB")
    notes = ["Scattered blocks are addressed by more pages than the GPU keeps translations of, dense ones are not"]
    title = f"Blocks of {size} a second by SM copies, and the size from which scattered ones fill the link"
    return DataTable(title, header, body, notes, (_ALL_SMS, f"Ends over the runs. {view.heading}"), left=2)
