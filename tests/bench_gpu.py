"""Times that should agree on a GPU, measured in turn: part of `make bench` where there is one.

One line a pair: the median of the ratios of its visits, one round after the other, with the lowest and the highest.
Nothing here passes or fails: beside other work the ratios scatter.
"""

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Final

from kvbench.cells.axes import Direction, Neighbour, Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.engine.device import TimedRegion, open_device
from kvbench.engine.faults import FaultPlan
from kvbench.measure.bench import Bench
from kvbench.measure.roof import measure_ceiling, open_control, time_copies
from kvbench.sweep.spec import Sampling
from tests.visits import bench_of, load_backends, measure

ROUNDS: Final = 7
SAMPLING: Final = Sampling(warmups=2, min_samples=7, max_samples=30, cell_seconds=0.3)
FRESH: Final = {"reuse": Reuse.FRESH, "pool_bytes": 1 << 29}

TimeUs = Callable[[], float]


def visit_us(bench: Bench, cell: Cell) -> TimeUs:
    return lambda: median(measure(bench, load_backends()[cell.backend], cell, SAMPLING, 5, None).swap_times_us)


def beside_us(bench: Bench, cell: Cell, side: str) -> TimeUs:
    def of_visit() -> float:
        visit = measure(bench, load_backends()[cell.backend], cell, SAMPLING, 5, None)
        times_us: list[float] = getattr(visit.beside, side)
        return median(times_us)

    return of_visit


def pairs(bench: Bench, direction: Direction) -> dict[str, tuple[TimeUs, TimeUs]]:
    """Return what should take equally long."""
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
            beside_us(bench, neighbour, "neighbour_beside_us"), beside_us(bench, neighbour, "neighbour_alone_us"),
        ),
        "control copies / ceiling": (control_us, ceiling_us),
    }  # fmt: skip


def main() -> None:
    device = open_device("cuda:0", FaultPlan())
    device.driver.bind_thread()
    bench = bench_of(1 << 29, 300, device)
    for direction in Direction:
        for name, (one, other) in pairs(bench, direction).items():
            ratios = sorted(one() / other() for _ in range(ROUNDS))
            print(f"{direction} {name:32s} {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})", flush=True)
    for neighbour in bench.neighbours.values():
        neighbour.close()


if __name__ == "__main__":
    main()
