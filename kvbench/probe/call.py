"""How many descriptors a call takes, and when it reads their sources."""

from typing import Final

from kvbench.cells.axes import Direction, Order
from kvbench.cells.units import KIB
from kvbench.engine.device import DIRECTIONS, Buffer, MemoryKind
from kvbench.probe.common import ProbeFinding
from kvbench.probe.probe_bench import Blocks, ProbeBench

# 51 828 mixed descriptors crashed a driver in public, and more than 8192 another.
_COUNTS: Final = (1, 1024, 8192, 32_768, 51_828, 65_536, 131_072, 200_000)
_REPEATS: Final = 2
_SIZES: Final = (64, 256, 500, 1024)
_GATE_MS: Final = 30


def _sizes(count: int) -> list[int]:
    """Return mixed sizes: mostly small, one in 256 too large for a copy by the CPU."""
    return [28 * KIB if i % 256 == 255 else _SIZES[i % len(_SIZES)] for i in range(count)]


def count(bench: ProbeBench) -> ProbeFinding:
    """Copy up to 200 000 blocks in one call, on an idle and on a busy stream, in both directions, and compare them."""
    wrong = blocking = 0
    us_each = taken_us = 0.0
    figures: dict[str, float] = {}
    for count in _COUNTS:
        blocks = Blocks(bench, _sizes(count))
        for direction in Direction:
            arrays = blocks.arrays(direction)
            for repeat in range(_REPEATS):
                bench.step(f"{count} mixed descriptors, {direction}, call {repeat + 1}", count, "descriptors")
                blocks.load(direction)
                bench.submit(arrays, direction)
                wrong += blocks.wrong(direction)
            bench.step(f"{count} mixed descriptors, {direction}, on a busy stream", count, "descriptors")
            # Three times what the descriptors took so far: a call that lasts longer waits for the stream.
            opened = bench.gate(_GATE_MS + 3 * us_each * count / 1e3)
            taken_us = bench.submit(arrays, direction)[0] / count
            if not opened.completed():
                us_each = taken_us
            elif not blocking:
                blocking = count
            bench.stream.synchronize()
            figures[f"{direction}_{count}_busy_us_a_descriptor"] = taken_us
    blocks_from = f"blocks the caller from {blocking} on" if blocking else "never blocks"
    return ProbeFinding(
        answer=f"{wrong} blocks are wrong" if wrong else f"up to {_COUNTS[-1]} work, repeated; the call {blocks_from}",
        number=taken_us,
        unit="us",
        of=f"a descriptor of {_COUNTS[-1]}, d2h, on a busy stream",
        expected=not wrong,
        figures={name: round(value, 4) for name, value in figures.items()},
    )


_SHAPES: Final = ((1, 64 * KIB), (64, 4 * KIB), (64, 64 * KIB), (1024, 4 * KIB))
_MARK: Final = 0x5A


def order(bench: ProbeBench) -> ProbeFinding:
    """Count the blocks whose source was read early or late, by direction and order, behind a gate and without."""
    cases = [(direction, order) for direction in Direction for order in Order]
    early, late = dict.fromkeys(cases, 0), dict.fromkeys(cases, 0)
    after_return = total = 0
    for count, size in _SHAPES:
        blocks = Blocks(bench, [size] * count)
        mark = Buffer(bench.device.driver, MemoryKind.device, count * size)
        bench.device.driver.fill(mark.address, _MARK, mark.size_bytes, bench.stream.handle)
        for case in cases:
            bench.step(f"{count} blocks of {size} bytes, {case[0]}, {case[1]}", count, "blocks")
            unmarked, held = _copy(bench, blocks, mark, case, write_first=True)
            early[case] += unmarked
            after_return += count - unmarked if held and case[1] is Order.DURING_API_CALL else 0
            for busy in (True, False):
                unmarked, _ = _copy(bench, blocks, mark, case, write_first=False, busy=busy)
                late[case] += count - unmarked
                total += count
    turns = [_turn(case, early[case], late[case]) for case in cases if case[1] is not Order.DURING_API_CALL]
    during = "reads sources after it returned" if after_return else "reads every source before it returns"
    strict = sum(early[direction, Order.STREAM] for direction in Direction)
    return ProbeFinding(
        answer="; ".join([*turns, f"during_api_call {during}"]),
        number=sum(late.values()),
        unit=f"of {total} blocks",
        of="read after their turn",
        expected=not strict and not any(late.values()) and not (after_return and bench.device.is_cuda),
        figures={f"early_{direction}_{order}": count for (direction, order), count in early.items()},
    )


def _copy(
    bench: ProbeBench,
    blocks: Blocks,
    mark: Buffer,
    case: tuple[Direction, Order],
    *,
    write_first: bool,
    busy: bool = True,
) -> tuple[int, bool]:
    """Return how many blocks arrive as they were before the stream, before or after the call, wrote to their source.

    The second value is whether the stream was busy until the call had returned.
    """
    direction, order = case
    arrays, driver, handle = blocks.arrays(direction, order), bench.device.driver, bench.stream.handle

    def write() -> None:
        if direction is Direction.H2D:
            driver.transfer(blocks.host.address, mark.address, mark.size_bytes, DIRECTIONS[Direction.D2H], handle)
        else:
            driver.fill(blocks.card.address, _MARK, mark.size_bytes, handle)

    def work() -> None:
        if write_first:
            write()
        bench.submit(arrays, direction)
        if not write_first:
            write()

    if busy:
        _, held = bench.gated(work, lambda: blocks.load(direction))
    else:
        blocks.load(direction)
        work()
        held = False
    return len(arrays.sizes) - blocks.wrong(direction), held


def _turn(case: tuple[Direction, Order], early: int, late: int) -> str:
    times = [moment for moment, count in (("before", early), ("after", late)) if count]
    return f"{case[0]} {case[1]} {' and '.join(times) + ' its turn' if times else 'in its turn'}"
