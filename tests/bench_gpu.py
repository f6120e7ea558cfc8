"""Times that should agree on a GPU, measured in turn: part of `make bench` where there is one.

One line a pair: the median of the ratios of its visits, one round after the other, with the lowest and the highest;
then the calls of a copier over 16 384 registrations, against one, and behind lists in flight. `registrations` as an
argument: these alone, in a few seconds. Nothing here passes or fails: beside other work the ratios scatter.
"""

import mmap
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from statistics import median
from typing import Final

import numpy as np

from kvbench.backends.auto import DEFAULTS, copier_for
from kvbench.cells.axes import Direction, Neighbour, Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.faults import FaultPlan
from kvbench.engine.device import Buffer, Device, MemoryKind, Stream, TimedRegion, open_device, register_pages
from kvbench.measure.bench import Bench
from kvbench.measure.roof import measure_ceiling, open_control, time_copies
from kvbench.sweep.spec import Sampling
from tests.gates import Gate
from tests.visits import bench_of, load_backends, measure

ROUNDS: Final = 7
SAMPLING: Final = Sampling(warmups=2, min_samples=7, max_samples=30, cell_seconds=0.3)
FRESH: Final = {"reuse": Reuse.FRESH, "pool_bytes": 1 << 29}

TimeUs = Callable[[], float]


def visit_us(bench: Bench, cell: Cell, times_of: str = "swap_times_us") -> TimeUs:
    return lambda: median(attrgetter(times_of)(measure(bench, load_backends()[cell.backend], cell, SAMPLING, 5, None)))


def pairs(bench: Bench, direction: Direction) -> dict[str, tuple[TimeUs, TimeUs]]:
    cell = Cell("sm", direction, 2000, 16_384, sms=4, **FRESH)  # type: ignore[arg-type]
    busy = replace(cell, stream_state=StreamState.BUSY)
    layers = replace(cell, blocks=4096, sequence="layers-8")
    neighbour = replace(cell, backend="batched", sms=None, blocks=64, block_bytes=1 << 20, neighbour=Neighbour.IDLE)
    long_delay = replace(bench, region=TimedRegion(bench.device.driver, bench.stream.handle, 5_000_000))
    control = open_control(bench.device.name)

    def in_state(state: StreamState) -> TimeUs:
        return visit_us(bench, replace(cell, stream_state=state))

    def control_us() -> float:
        return min(time_copies(control, direction, 5)) * 1e9 / control.copy_bytes

    def ceiling_us() -> float:
        copy_bytes, times_us = measure_ceiling(bench, direction, 5)
        return min(times_us) * 1e9 / copy_bytes

    return {
        "behind a closed gate / busy": (in_state(StreamState.GATED), in_state(StreamState.BUSY)),
        "behind an open gate / idle": (in_state(StreamState.OPENED), in_state(StreamState.IDLE)),
        "a long delay / a short one": (visit_us(long_delay, busy), in_state(StreamState.BUSY)),
        "sustained / executed": (in_state(StreamState.SUSTAINED), in_state(StreamState.BUSY)),
        "by layers / at once": (visit_us(bench, layers), visit_us(bench, replace(layers, sequence="whole"))),
        "neighbour idle, beside / alone": (
            visit_us(bench, neighbour, "beside.neighbour_beside_us"),
            visit_us(bench, neighbour, "beside.neighbour_alone_us"),
        ),
        "control copies / ceiling": (control_us, ceiling_us),
    }  # fmt: skip


class Registered:
    """A host pool of `SLOTS` slots, registered one by one with as much between them, or as one; and a copier for it."""

    BLOCK, SLOT, SLOTS, ENTRIES, CALLS = 4096, 64 << 10, 16_384, 10_000, 24

    def __init__(self, device: Device, slot_by_slot: bool) -> None:
        self.stride = (2 if slot_by_slot else 1) * self.SLOT
        self.pages = mmap.mmap(-1, self.SLOTS * self.stride)
        self.host = np.frombuffer(self.pages, np.uint8)
        self.host[:: mmap.PAGESIZE] = 1
        registered = self.SLOT if slot_by_slot else len(self.host)
        for start in range(0, len(self.host), registered * (2 if slot_by_slot else 1)):
            register_pages(device.driver, self.host.ctypes.data + start, registered)
        self.card = Buffer(device.driver, MemoryKind.device, 1 << 30)
        self.stream = Stream(device.driver)
        self.copier = copier_for(device, [DEFAULTS]).engine
        self.rng = np.random.default_rng(1)

    def call_us(self, direction: Direction, slots: np.ndarray | None = None, *, wait: bool = True) -> float:
        """The time of a call with one random block in each of `slots`, or in random ones."""
        chosen = self.rng.integers(0, self.SLOTS, self.ENTRIES) if slots is None else slots
        inside = self.rng.integers(0, self.SLOT // self.BLOCK, len(chosen)) * self.BLOCK
        card = self.rng.integers(0, self.card.size_bytes // self.BLOCK, len(chosen)) * self.BLOCK
        ends = chosen * self.stride + inside + self.host.ctypes.data, card + self.card.address
        sources, destinations = ends if direction is Direction.H2D else ends[::-1]
        sizes = np.full(len(chosen), self.BLOCK)
        began_s = time.perf_counter()
        self.copier.copy(sources, destinations, sizes, self.stream.handle)
        took_us = (time.perf_counter() - began_s) * 1e6
        if wait:
            self.stream.synchronize()
        return took_us


def in_flight(device: Device, pool: Registered) -> None:
    """Print how long a call takes behind lists that a kernel has not read yet."""
    for lists in (0, 1, 16, 60):
        times_us = []
        for _ in range(ROUNDS):
            with Gate(device, pool.stream.handle):
                times_us.append([pool.call_us(Direction.H2D, wait=False) for _ in range(lists + 1)][-1])
            pool.stream.synchronize()
        print(f"h2d copier's call behind {lists} lists in flight: {median(times_us):.0f} us", flush=True)


def unseen_us(device: Device, pool: Registered) -> tuple[float, float]:
    """The time of a slot never seen, and of the driver's answer: pools from slot to slot ask once about each, too."""
    order = pool.rng.permutation(pool.SLOTS)
    pool.copier.forget()
    call_us = sum(pool.call_us(Direction.H2D, part) for part in np.array_split(order, 2))
    ends = np.sort(order.reshape(-1, 2)) * pool.stride + pool.host.ctypes.data
    pools, times_us = [(first, last + pool.SLOT - first) for first, last in ends.tolist()], []
    for vouched in (pools, []):
        began_s = time.perf_counter()
        copier_for(device, [DEFAULTS], pools=vouched)
        times_us.append((time.perf_counter() - began_s) * 1e6)
    return call_us / pool.SLOTS, (times_us[0] - times_us[1]) / pool.SLOTS


def registrations(device: Device) -> None:
    one, many = Registered(device, slot_by_slot=False), Registered(device, slot_by_slot=True)
    # First, as it makes every slot known.
    unseen = [unseen_us(device, many) for _ in range(ROUNDS)]
    slot, answer, own = (median(times) for times in zip(*((a, b, a - b) for a, b in unseen), strict=True))
    print(f"A slot never seen: {slot:.2f} us, {answer:.2f} for the driver's answer, {own:.2f} without", flush=True)
    for direction in Direction:
        calls = [(many.call_us(direction), one.call_us(direction)) for _ in range(2 + many.CALLS)][2:]
        slow, fast = (median(times) for times in zip(*calls, strict=True))
        ratio = f"{median(a / b for a, b in calls):.2f} times as long"
        print(f"{direction} call, {many.ENTRIES} x 4 KiB: {many.SLOTS} slots {slow:.0f} us, one {fast:.0f}, {ratio}")
    in_flight(device, one)


def main() -> None:
    device = open_device("cuda:0", FaultPlan())
    device.driver.bind_thread()
    if sys.argv[1:] == ["registrations"]:
        registrations(device)
        return
    bench = bench_of(1 << 29, 300, device)
    for direction in Direction:
        for name, (one, other) in pairs(bench, direction).items():
            ratios = sorted(one() / other() for _ in range(ROUNDS))
            print(f"{direction} {name:32s} {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})", flush=True)
    for neighbour in bench.neighbours.values():
        neighbour.close()
    # Last, as what is registered then stays so until the process ends.
    registrations(device)


if __name__ == "__main__":
    main()
