"""Run directories for tests, written by the real writer; the times come from a formula, nothing is measured."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from kvbench.cells.axes import Direction, Neighbour, Order, StreamState
from kvbench.cells.cell import Cell
from kvbench.results import Beside, Ceiling, Failure, Record, Run, RunInfo, RunWriter, Samples, Skip, Visit
from kvbench.results.rundir import load_run
from kvbench.results.schema import Opposite, Roof

CEILING_GBPS = 55.5
STATES = (StreamState.IDLE, StreamState.BUSY)
FULL_CHANNEL = 1024
ORDERS = {Direction.H2D: Order.ANY, Direction.D2H: Order.STREAM}
CLIFF_KIB = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 64, 128, 256)
FEW_KIB = (1, 4, 24, 28, 64)  # where it does not matter how many sizes there are


def info(title: str = "Synthetic H200", kind: str = "cuda", **changes: object) -> RunInfo:
    fields: dict[str, object] = {
        "kvbench": "0.1.0",
        "commit": "0123456789ab",
        "created": "2026-11-20T10:00:00Z",
        "command": ["kvbench", "sweep", "configs/cliff.toml"],
        "spec": {"axes": {"backend": ["batched"]}},
        "device": {"name": "cuda:0" if kind == "cuda" else "cpu", "kind": kind, "title": title, "sm_count": 132},
        "identity": {"gpu_name": title, "driver_version": "580.159", "cuda_driver_api": "13.0"},
        "identity_hash": "0123456789ab",
        "observed": [{"at": "start"}],
        "status": "complete",
    }
    return RunInfo(**(fields | changes))  # type: ignore[arg-type]


def samples(cell: Cell, swap_us: float, count: int = 30, noise: float = 0.02, seed: int = 0) -> Samples:
    spread = swap_us * (1 + noise * np.abs(np.random.default_rng(seed).standard_normal(count)))
    busy = cell.stream_state.pending
    times = spread.tolist()
    return Samples(
        caller_us=(spread * 0.3).tolist(),
        event_us=times if cell.swap_clock == "event_us" else None,
        wall_us=(spread + (50.0 if busy else 0.0)).tolist(),
        cpu_us=(spread * 0.3).tolist(),
        pending_before=[int(busy)] * count,
        pending_after=[int(busy)] * count,
        depth_held=[int(cell.queued < FULL_CHANNEL)] * count if cell.queued else None,
    )


def visit(cell: Cell, swap_us: float, count: int = 30, noise: float = 0.02, round_: int = 0) -> Visit:
    seed = int(cell.id, 16) % 2**32 + round_
    return Visit(
        cell_text=cell.as_strings(),
        round=round_,
        samples=samples(cell, swap_us, count, noise, seed),
        stopped_by="time",
        path="copy engine",
        calls=1,
        verified_bytes=cell.swap_bytes,
    )


def with_samples(made: Visit, changes: Mapping[str, object], **others: object) -> Visit:
    return msgspec.structs.replace(made, samples=msgspec.structs.replace(made.samples, **changes), **others)


def beside(cell: Cell, slowdown: float, gbps: float, rounds: int = 6) -> list[Visit]:
    """Visits of a cell whose neighbour takes 200 us an iteration alone, and 1 ms in two of a hundred beside swaps,
    which on average slow it by `slowdown`.
    """
    usual_us = (200.0 * slowdown * 100 - 2 * 1000.0) / 98
    turns = Beside(
        neighbour_alone_us=[200.0] * 100,
        neighbour_beside_us=[usual_us] * 98 + [1000.0] * 2,
        swaps_alone_gbps=[50.0, 50.0],
        swaps_beside_gbps=[gbps, gbps],
        swaps_alone_us=[1000.0] * 2,
        swaps_beside_us=[1300.0] * 2,
        one_block_alone_us=[10.0] * 8,
        one_block_beside_us=[12.0] * 8,
        readback_alone_us=[10.0] * 100 if cell.neighbour == Neighbour.DECODE else [],
        readback_us=[20.0] * 100 if cell.neighbour == Neighbour.DECODE else [],
    )
    return _in_rounds(cell, gbps, rounds, beside=turns)


def _in_rounds(cell: Cell, gbps: float, rounds: int, **record: object) -> list[Visit]:
    visits = (visit(cell, cell.swap_bytes / gbps / 1e3, count=7, round_=number) for number in range(rounds))
    return [msgspec.structs.replace(one, **record) for one in visits]


def both_ways(cell: Cell, rounds: int = 6) -> list[Visit]:
    """Visits of a cell whose swaps run beside those of the other direction."""
    rates = Opposite(
        alone_gbps=[50.0, 52.0], at_once_gbps=[30.0], opposite_alone_gbps=[49.0], opposite_at_once_gbps=[40.0]
    )
    return _in_rounds(cell, 51.0, rounds, opposite=rates)


def beside_step(cell: Cell, loads_us: float, hidden: Sequence[float]) -> list[Visit]:
    """Visits of a cell by layers beside a step of 4 ms, one for each share of the loads that the step hides."""
    step_visits = []
    for number, share in enumerate(hidden):
        one = visit(cell, loads_us, count=4, noise=0.0, round_=number)
        both_us = 4000.0 + (1 - share) * loads_us
        turns = Beside(
            neighbour_alone_us=[4000.0] * 4, neighbour_beside_us=[both_us] * 4, swaps_alone_us=[loads_us] * 4,
            swaps_beside_us=[loads_us] * 4, swaps_alone_gbps=[50.0] * 4, swaps_beside_gbps=[20.0] * 4,
        )  # fmt: skip
        layers = {"first_layer_us": [60.0] * 4, "slowest_gap_us": [90.0] * 4}
        step_visits.append(with_samples(one, layers, beside=turns))
    return step_visits


def replayed(cell: Cell, gbps: float, rounds: int = 6) -> list[Visit]:
    """Visits that replay swaps of 16 to 512 blocks at this rate; merging leaves half of the copies."""
    sizes = [1 << power for power in range(4, 10)]
    replays = []
    for number in range(rounds):
        one = visit(cell, 1.0, count=len(sizes), noise=0.0, round_=number)
        walls = [size * cell.block_bytes / gbps / 1e3 * (1 + 0.001 * number) for size in sizes]
        numbers = [10 * (number * len(sizes) + index) for index in range(len(sizes))]
        swaps = {"swap_blocks": sizes, "pieces": [size // 2 for size in sizes], "swap_numbers": numbers}
        replays.append(with_samples(one, {"wall_us": walls, "event_us": walls, **swaps}))
    return replays


def gbps_of(cell: Cell) -> float:
    """A made-up device with a cliff above 24 KiB for idle batched h2d swaps, and a knee at 3 SMs."""
    size = cell.block_bytes
    if cell.backend == "triton":
        return min(49.0, 16.0 * (cell.sms or 12) * (size / (size + 1024)))
    if cell.backend == "per_block":
        return min(54.0, size / 3e3)
    if cell.direction is Direction.H2D and cell.stream_state is StreamState.IDLE and size <= 24 * 1024:
        return 2.3 + 3.3 * size / (24 * 1024)
    return min(54.5, 8.0 + size / 1024 * 0.8)


def visits(cells: Iterable[Cell], rate: Callable[[Cell], float] = gbps_of, **options: object) -> list[Visit]:
    return [visit(cell, cell.swap_bytes / rate(cell) / 1e3, **options) for cell in cells]  # type: ignore[arg-type]


def rounds(
    cells: Iterable[Cell],
    rate: Callable[[Cell], float] = gbps_of,
    count: int = 5,
    numbers: Iterable[int] = range(6),
    **options: object,
) -> list[Visit]:
    """Return a visit of every cell in each round: by default as many as a verdict needs."""
    every_cell = list(cells)
    return [visit for number in numbers for visit in visits(every_cell, rate, count=count, round_=number, **options)]


def timed(cells: Iterable[Cell], us: Callable[[Cell, int], float], noise: float = 0.0, count: int = 3) -> list[Visit]:
    """Return as many visits of every cell as a verdict needs, each of the time for its number."""
    return [visit(cell, us(cell, number), count, noise, number) for cell in cells for number in range(6)]


def ceilings() -> list[Ceiling]:
    size, us = 1 << 30, [(1 << 30) / CEILING_GBPS / 1e3] * 3
    return [Ceiling(direction=way, round=0, swap_bytes=size, event_us=us) for way in ("h2d", "d2h")]


def cliff_cells(counts: tuple[int, ...] = (256, 10_000), kib: tuple[int, ...] = CLIFF_KIB) -> list[Cell]:
    shapes = [(way, n, size * 1024, state) for way in Direction for n in counts for size in kib for state in STATES]
    return [
        cell
        for way, n, size, state in shapes
        for cell in (
            Cell("per_block", way, n, size, state),
            Cell("batched", way, n, size, state, order=ORDERS[way], overlap=False),
            Cell("triton", way, n, size, state, sms=12),
        )
    ]


def order_cells() -> list[Cell]:
    shapes = [*((n, 4096) for n in (64, 256, 1024, 4096)), (64, 32768), (256, 32768), (32, 262144), (64, 131072)]
    return [Cell("batched", way, n, size, order=order) for way in Direction for n, size in shapes for order in Order]


def queue_cells() -> list[Cell]:
    depths = (0, 1, 4, 16, 64, 256, 1024, 4096)
    busy = StreamState.BUSY
    return [
        Cell(backend, Direction.H2D, blocks, 32 * 1024, busy, queued=depth, streams=streams)
        for backend, blocks in (("per_block", 1), ("batched", 64))
        for streams in (1, 8)
        for depth in depths
    ]


def queue_gbps(cell: Cell) -> float:
    """A made-up device on which single copies take fifty times as long to submit once a stream's channel is full."""
    full = cell.backend == "per_block" and cell.queued >= FULL_CHANNEL * cell.streams
    return cell.swap_bytes / (350.0 if full else 7.0 if cell.backend == "per_block" else 100.0) / 1e3


def roofs(
    scattered_us: float = 1000.0, dense_us: float = 300.0, rounds: int = 6, pool_bytes: int = 16 << 30
) -> list[Roof]:
    """What SM copies reach in each round, of 28 000 small blocks and in large ones at 50 GB/s."""
    return [
        Roof(
            direction="h2d", round=number, pool_bytes=pool_bytes, copy_bytes=50_000_000, copy_us=[1000.0],
            blocks=28_000, block_bytes=512, scattered_us=[scattered_us], dense_us=[dense_us],
        )
        for number in range(rounds)
    ]  # fmt: skip


def failure(cell: Cell, message: str = "CUDA_ERROR_INVALID_VALUE", kind: str = "error") -> Failure:
    return Failure(cell_text=cell.as_strings(), round=0, kind=kind, message=message, command=cell.command())  # type: ignore[arg-type]


def skip(cell: Cell, reason: str = "does not fit in memory") -> Skip:
    return Skip(cell_text=cell.as_strings(), reason=reason)


def write_run(path: Path, records: Iterable[Record], info_: RunInfo | None = None) -> Path:
    """Write a run; one without a record has just begun."""
    made = list(records)
    with RunWriter.create(path, info_ or info(**({} if made else {"status": "running"}))) as writer:
        for record in made:
            writer.append(record)
    return path


def loaded(path: Path, records: Iterable[Record], info_: RunInfo | None = None) -> Run:
    return load_run(write_run(path, records, info_))
