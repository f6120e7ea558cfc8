"""What a call accepts and when it reads: streams and captures, numbers of descriptors, its arrays, its sources."""

import ctypes
import mmap
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import numpy as np

from kvbench.cells.axes import Direction, Order
from kvbench.cells.units import KIB
from kvbench.engine.device import DIRECTIONS, Buffer, EngineError, MemoryKind, begin_capture, end_capture
from kvbench.probe.common import ProbeFinding, Unanswered
from kvbench.probe.probe_bench import Arrays, Blocks, ProbeBench

# The driver's handles: CU_STREAM_LEGACY, which is also what 0 means, and CU_STREAM_PER_THREAD.
_LEGACY, _PER_THREAD = 0, 2


def capture(bench: ProbeBench) -> ProbeFinding:
    """Call on each stream and in a capture, in both directions; the answer names the error of each refusal."""
    blocks = Blocks(bench, [16 * KIB] * 16)

    def on(stream: int, direction: Direction) -> None:
        bench.submit(blocks.arrays(direction), direction, stream)
        bench.device.driver.synchronize(stream)

    def captured(direction: Direction) -> None:
        driver, stream, arrays = bench.device.driver, bench.stream.handle, blocks.arrays(direction)
        begin_capture(driver, stream)
        try:
            bench.submit(arrays, direction)
        except EngineError:
            with suppress(EngineError):  # the refused call can have ended the capture
                end_capture(driver, stream)
            raise
        end_capture(driver, stream)

    calls = {
        "legacy stream": lambda direction: on(_LEGACY, direction),
        "per-thread stream": lambda direction: on(_PER_THREAD, direction),
        "capture": captured,
    }
    refusals = {name: _refusal(bench, name, work) for name, work in calls.items()}
    answer = "; ".join(f"{name}: {why or 'allowed'}" for name, why in refusals.items())
    return ProbeFinding(
        answer=answer,
        number=sum(map(bool, refusals.values())),
        unit="of 3",
        of="places that refuse the call",
        expected=bool(refusals["legacy stream"]) and not refusals["per-thread stream"],
    )


def _refusal(bench: ProbeBench, name: str, work: Callable[[Direction], None]) -> str:
    refusals = []
    for direction in Direction:
        bench.step(f"{name}, {direction}")
        try:
            work(direction)
        except EngineError as error:
            refusals.append(f"{direction} refused ({error.name})")
    both = {refusal.partition(" ")[2] for refusal in refusals}
    return both.pop() if len(refusals) == len(Direction) and len(both) == 1 else ", ".join(refusals)


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


_GUARDED_COUNTS = (1, 64, 4096)


class _Guarded:
    """Bytes that end where an unreadable page begins; a read beyond them kills the process."""

    def __init__(self, content: bytes) -> None:
        page = mmap.PAGESIZE
        self._pages = mmap.mmap(-1, 2 * page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = np.frombuffer(self._pages, np.uint8).ctypes.data
        self._pages[page - len(content) : page] = content
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + page), page, 0) != 0:
            raise OSError("mprotect failed")
        self.address = start + page - len(content)


def attributes(bench: ProbeBench) -> ProbeFinding:
    """Copy with one attribute for up to 4096 descriptors, in both directions."""
    wrong = 0
    for count in _GUARDED_COUNTS:
        blocks = Blocks(bench, [4 * KIB] * count)
        for direction in Direction:
            arrays = blocks.arrays(direction)
            attributes, firsts = _Guarded(arrays.attributes.tobytes()), _Guarded(arrays.firsts.tobytes())
            blocks.load(direction)
            bench.step(f"one attribute for {count} descriptors, {direction}", count, "descriptors")
            bench.submit(arrays, direction, attributes=(attributes.address, firsts.address))
            wrong += blocks.wrong(direction)
    answer = "no: one attribute at the end of a page serves every descriptor"
    if wrong:
        answer = "not read beyond, but blocks are wrong"
    return ProbeFinding(
        answer=answer,
        number=_GUARDED_COUNTS[-1],
        unit="descriptors",
        of="largest call with one entry",
        expected=not wrong,
    )


_REUSED_COUNTS: Final = (1, 16, 1024, 10_000)


def lifetime(bench: ProbeBench) -> ProbeFinding | Unanswered:
    """Overwrite the arrays of a call whose stream is still busy with those of a copy between other buffers."""
    wrong = total = 0
    for count in _REUSED_COUNTS:
        blocks, decoy = (Blocks(bench, [4 * KIB] * count) for _ in range(2))
        for direction in Direction:
            bench.step(f"{count} descriptors, {direction}", count, "descriptors")
            _, held = bench.gated(partial(_reuse, bench, blocks, decoy, direction), partial(blocks.load, direction))
            if not held:
                return Unanswered(f"a call of {count} descriptors returns only when the stream is free")
            wrong += blocks.wrong(direction)
            total += count
    answer = "later than at the return of the call" if wrong else "at the return of the call"
    return ProbeFinding(answer=answer, number=wrong, unit=f"of {total} blocks", of="wrong", expected=not wrong)


def _reuse(bench: ProbeBench, blocks: Blocks, decoy: Blocks, direction: Direction) -> Arrays:
    """Call, and overwrite every array; return them, so that they outlive the stream's work."""
    arrays, others = blocks.arrays(direction), decoy.arrays(direction)
    bench.submit(arrays, direction)
    for field in ("destinations", "sources", "sizes"):
        np.copyto(getattr(arrays, field), getattr(others, field))
    arrays.attributes.fill(-1)
    arrays.firsts.fill(7)
    return arrays


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
