"""Where blocks lie: hot or fresh and scattered, in extents, fragments or registrations, on several devices."""

import re
from collections.abc import Iterable
from typing import Final

import pandas as pd

from kvbench.analysis.compare import Verdict
from kvbench.cells.axes import Reuse, slots_of
from kvbench.cells.cell import AXES
from kvbench.cells.facts import BATCHED, method_label
from kvbench.report.model import Text
from kvbench.report.numbers import TIMES, bytes_size, count, figure, slower_text
from kvbench.report.sections.contrast import (
    BACKEND,
    BLOCKS,
    METHOD,
    SIZE,
    SWAP,
    Contrast,
    ContrastSide,
    Figure,
    Key,
    Line,
    backends,
    turns,
)
from kvbench.report.tables import INCLUDES, rate, sms_of
from kvbench.report.view import Pinned, Row, View, rows_of, where

MIN_LENGTHS: Final = 3
_HOT, _FAR = "hot, dense", "fresh, scattered"
_ARMS: Final = {
    (False, Reuse.SAME): _HOT,
    (False, Reuse.FRESH): "fresh, dense",
    (True, Reuse.SAME): "same, scattered",
    (True, Reuse.FRESH): _FAR,
}
_EXTENT: Final = Key("Extent", ("run_blocks",), lambda row: count(row["run_blocks"]))


def _hot_and_far(view: View) -> Pinned | None:
    pinned = view.pin(view.frame, shown=("pool", "reuse", "sms"))
    idle = where(pinned.cells, stream_state="idle")
    largest = int(idle["pool_bytes"].max()) if len(idle) else 0
    cells = idle[idle["pool_bytes"].isin([0, largest])] if largest else idle.iloc[:0]
    far, reuse = cells["pool_bytes"] > 0, cells["reuse"].fillna(Reuse.SAME.value)
    cells = cells.assign(arm=[_ARMS[bool(one), Reuse(other)] for one, other in zip(far, reuse, strict=True)])
    # a swap of which nothing was measured has nothing to compare
    swaps = cells.assign(measured=cells["status"] == "ok").groupby(["direction", "backend", "blocks", "block_bytes"])
    return Pinned(cells[swaps["measured"].transform("any").astype(bool)], pinned.hidden)


def _scattered(side: ContrastSide) -> Iterable[Text]:
    """Say which backend pays most for scattered blocks, and which pay nothing; nothing where that is undecided."""
    costs = [(line[_HOT], cost) for line, cost in side.comparisons]
    dearer = [(row, cost.ratio) for row, cost in costs if cost.verdict is Verdict.SLOWER]
    doubtful = {row["backend"] for row, cost in costs if cost.verdict in (Verdict.SLOWER, Verdict.UNDECIDED)}
    parts = []
    if dearer:
        row, ratio = max(dearer, key=lambda one: one[1])
        parts.append(f"{row['backend']} of {SWAP.text(row)} {slower_text(ratio)}")
    if unharmed := sorted({row["backend"] for row, _ in costs} - doubtful):
        parts.append(f"{', '.join(unharmed)} {'is' if len(unharmed) == 1 else 'are'} not slower")
    if parts:
        text = f"{side.first['direction']} of fresh, scattered blocks against hot, dense ones: {'; '.join(parts)}."
        yield text


LOCALITY: Final = Contrast(
    needed="it needs a swap measured both hot and dense and from a large pool",
    select=_hot_and_far,
    apart=("direction",),
    keys=(SWAP, BACKEND),
    title=lambda side: f"{side.first['direction']}, idle stream: GB/s of hot and fresh, dense and scattered blocks",
    columns=lambda _: [Figure(arm, arm, lambda row: method_label(rate(row), sms_of(row))) for arm in _ARMS.values()],
    includes=lambda _: INCLUDES["idle"],
    compared=(_HOT, _FAR),
    ratio="Cost",
    notes=lambda _: [
        "Hot, dense: every swap moves the same blocks of a pool that is just large enough. Fresh: every swap moves "
        "blocks that the caches no longer hold. Scattered: blocks of the largest pool of the run, on both sides. Cost: "
        "time of a fresh, scattered swap over that of a hot, dense one"
    ],
    find=_scattered,
)


def run_length(pattern: str) -> int | None:
    """Return the blocks in an extent of a pattern: 1 where none are adjacent, None where extents differ in length."""
    match = re.fullmatch(r"runs-(\d+)", pattern)
    return int(match[1]) if match else 1 if pattern == "shuffled" else None


def _in_runs(view: View) -> Pinned | None:
    lengths = view.frame["pattern"].map(run_length, na_action="ignore")
    known = view.frame[lengths.notna()].assign(run_blocks=lengths.dropna().astype("int64"))
    pinned = view.pin(where(known, stream_state="idle"), shown=("pattern",))
    measured = where(pinned.cells, status="ok")
    several = measured.groupby(["backend", "direction", *SWAP.columns])["run_blocks"].transform("nunique")
    cells = measured[several >= MIN_LENGTHS]
    return Pinned(cells, pinned.hidden) if len(cells) else None


RUNS: Final = Contrast(
    needed=f"it needs a backend measured at {MIN_LENGTHS} extents (pattern=shuffled,runs-8,runs-32) when idle",
    select=_in_runs,
    apart=("direction",),
    keys=(SWAP, _EXTENT),
    title=lambda side: f"{side.first['direction']}, idle stream: GB/s by the number of adjacent blocks",
    columns=backends,
    includes=lambda _: INCLUDES["idle"],
    arm="backend",
    fastest=True,
    notes=lambda _: [
        "Extent: how many blocks are adjacent, in the same order on both sides; 1: scattered one by one (shuffled)"
    ],
    find=lambda side: turns(side, _EXTENT, unit="an extent of"),
)


_ALONE, _AT_ONCE = "alone", "at once"
_DEVICE: Final = Key("Device", ("of_device",), lambda row: str(row["of_device"]))
_STATE: Final = Key(
    "Stream",
    ("stream_state", "neighbour"),
    lambda row: row["stream_state"] + (f", beside {row['neighbour']}" if isinstance(row["neighbour"], str) else ""),
)


def _together(view: View) -> Pinned | None:
    several = [(run, rows) for run in (*view.earlier, view) if len(rows := run.measured[run.measured["devices"] > 1])]
    if not several or several[-1][0] is not view:  # the caption names the command of the view
        return None
    axes = [name for name in AXES if name != "devices"]
    parts = []
    names = [str(run.run.info.device.get("name")) for run, _ in several]
    if len(set(names)) < len(names):  # two of one name, such as cpu and cpu
        names = [run.label for run, _ in several]
    for (run, together), name in zip(several, names, strict=True):
        alone = where(run.measured, devices=1).merge(together[axes], on=axes)
        both = together.merge(alone[axes], on=axes)  # a sweep that was ended early has cells at once alone
        parts += [pd.concat([alone, both]).assign(of_device=name)] if len(alone) else []
    if not parts:
        return None
    cells = pd.concat(parts, ignore_index=True)
    return Pinned(cells.assign(arm=[_AT_ONCE if devices > 1 else _ALONE for devices in cells["devices"]]), ())


def _kept(line: Line) -> float:
    alone, at_once = line[_ALONE]["gbps"], line[_AT_ONCE]["gbps"]
    return float(at_once / alone) if alone > 0 else 0.0


def _loss(side: ContrastSide) -> Iterable[Text]:
    """Say what the card that loses most has left of its rate alone, where the intervals tell both apart."""
    lines = [line for line in side.lines if line[_AT_ONCE]["gbps_high"] < line[_ALONE]["gbps_low"]]
    if lines:
        line = min(lines, key=_kept)
        row, alone = line[_AT_ONCE], rate(line[_ALONE])
        yield (
            f"{row['direction']} on {count(row['devices'])} devices at once: {rate(row)} GB/s at worst, {alone} alone "
            f"({METHOD.text(row)}, {SWAP.text(row)})."
        )


DEVICES: Final = Contrast(
    needed="it needs cells that several devices swapped at once (--device cuda:all)",
    select=_together,
    apart=("direction",),
    keys=(METHOD, SWAP, _STATE, _DEVICE),
    title=lambda side: f"{side.first['direction']}: GB/s of swaps alone, and of all devices at once",
    columns=lambda _: [Figure("GB/s alone", _ALONE), Figure("GB/s at once", _AT_ONCE)],
    includes=lambda _: "CUDA events; a cell alone, and while every device swaps its own blocks at the same time",
    more=lambda _: {"Share": lambda line: f"{_kept(line):.0%}"},
    find=_loss,
)


_REGISTRATIONS: Final = Key("Registrations", ("registrations",), lambda row: count(row["registrations"]))


def _registrations(row: Row) -> int:
    slots = slots_of(row["memory"])
    return -(-int(row["pool_bytes"]) // slots.slot_bytes) if slots else 1


def _in_registrations(view: View) -> Pinned | None:
    cells = where(view.frame, stream_state="idle")
    cells = cells[cells["memory"].astype("string").str.match(r"shared|slots-").fillna(False).astype(bool)]
    if cells.empty:
        return None
    counted = cells.assign(registrations=[_registrations(row) for row in rows_of(cells)])
    pinned = view.pin(counted, shown=("memory",))
    return pinned if where(pinned.cells, status="ok")["registrations"].nunique() > 1 else None


def _a_descriptor(row: Row) -> str:
    return figure(float(row["swap_us_median"]) / int(row["blocks"]))


def _looked_up(side: ContrastSide) -> Iterable[Text]:
    """Say of each backend how much longer its longest swap takes in most registrations than in fewest."""
    cells = side.measured[side.measured["blocks"] == side.measured["blocks"].max()]
    least, most = int(cells["registrations"].min()), int(cells["registrations"].max())
    parts = []
    for column in backends(side):
        ids = where(cells, backend=column.arm).set_index("registrations")["cell_id"]
        if least < most and {least, most} <= set(ids.index):
            cost = side.view.compare(ids[least], ids[most])
            slower = slower_text(cost.ratio) if cost.verdict is Verdict.SLOWER else "is not slower"
            parts += [] if cost.verdict is Verdict.UNDECIDED else [f"{column.head} {slower}"]
    if parts:
        yield (
            f"{side.first['direction']} of {bytes_size(side.first['block_bytes'])}, in {count(most)} registrations in "
            f"place of {count(least)}: {'; '.join(parts)}."
        )


REGISTRATIONS: Final = Contrast(
    needed="it needs pools in different numbers of registrations (memory=shared,slots-256KiBx2)",
    select=_in_registrations,
    apart=("direction", "block_bytes"),
    keys=(BLOCKS, _REGISTRATIONS),
    title=lambda side: (
        f"{side.first['direction']} of {bytes_size(side.first['block_bytes'])}, idle stream: us a descriptor by the "
        "number of registrations"
    ),
    columns=lambda side: [Figure(column.head, column.arm, _a_descriptor) for column in backends(side)],
    includes=lambda _: INCLUDES["idle"],
    arm="backend",
    notes=lambda _: [
        "Registrations: in which the pool of the host lies: a file in /dev/shm, registered whole or slot by slot; us a "
        "descriptor: time of the swap over its number of blocks"
    ],
    find=_looked_up,
)


_FRAGMENTS_OF: Final = r"^fragments-\d+x(\d+)"
_RANKS: Final = Key("Ranks", ("ranks",), lambda row: str(row["ranks"]))


def _in_fragments(view: View) -> Pinned | None:
    cells = where(view.frame, stream_state="idle")
    of_host, of_both = (
        cells[name].astype("string").str.extract(_FRAGMENTS_OF)[0] for name in ("host_pattern", "pattern")
    )
    ranks = of_host.fillna(of_both)
    if ranks.isna().all():
        return None
    known = cells[ranks.notna()].assign(ranks=ranks.dropna().astype("int64"))
    pinned = view.pin(known, shown=("pattern", "host_pattern"))
    return pinned if where(pinned.cells, status="ok")["backend"].nunique() > 1 else None


def _gap(side: ContrastSide) -> Iterable[Text]:
    """Say by how much the fastest backend exceeds batched copies, where by most."""
    gaps = []
    for line in side.lines:
        measured = [row for row in line.values() if row["status"] == "ok"]
        base = next((row for row in measured if row["backend"] == BATCHED), None)
        best = min(measured, key=lambda row: float(row["swap_us_median"]), default=None)
        if base and best and (compared := side.view.compare(best["cell_id"], base["cell_id"])).told_apart:
            gaps.append((compared.ratio, base, best))
    if gaps:
        ratio, base, best = max(gaps, key=lambda gap: gap[0])
        name = method_label(best["backend"], sms_of(best))
        yield (
            f"{base['direction']} of fragments of {bytes_size(base['block_bytes'])}, {base['ranks']} ranks: {name} "
            f"moves {rate(best)} GB/s, {BATCHED} {rate(base)} ({figure(ratio)}{TIMES})."
        )


FRAGMENTS: Final = Contrast(
    needed="it needs two backends measured on fragments (pattern=fragments-16x8)",
    select=_in_fragments,
    apart=("direction",),
    keys=(_RANKS, SIZE),
    title=lambda side: f"{side.first['direction']}, idle stream: GB/s of fragments by their size",
    columns=backends,
    includes=lambda _: INCLUDES["idle"],
    arm="backend",
    fastest=True,
    notes=lambda _: [
        "Fragments: pieces of a page that all ranks share, one descriptor each; those of a rank are adjacent on the "
        "device, and on the host as far apart as the row of all ranks is long"
    ],
    find=_gap,
)
