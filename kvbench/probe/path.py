"""How the driver makes a batched copy: how many blocks a call takes, when it reads sources, and what copies."""

import ctypes
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Final

from kvbench.cells.axes import Direction, Order
from kvbench.cells.facts import CPU_INLINE_UP_TO_BYTES
from kvbench.cells.units import KIB, MIB, size_text
from kvbench.engine.device import DIRECTIONS, Buffer, Event, MemoryKind, Stream, copy
from kvbench.engine.nvrtc import cached_cubin
from kvbench.ground.errors import KvbenchError
from kvbench.machine.probes import identity
from kvbench.machine.sources import Sources, open_machine, reason_of
from kvbench.probe import ProbeFinding, Unanswered
from kvbench.probe.probe_bench import Arrays, Blocks, ProbeBench

# 51 828 mixed descriptors crashed a driver in public, and more than 8192 another.
_COUNTS: Final = (1, 1024, 8192, 32_768, 51_828, 65_536, 131_072, 200_000)
_REPEATS: Final = 2
_SIZES: Final = (64, 256, 500, 1024)
_GATE_MS: Final = 30


def _sizes(count: int) -> list[int]:
    """Mixed sizes: mostly small, one in 256 too large for a copy by the CPU."""
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
    cases = list(product(Direction, Order))
    early, late = dict.fromkeys(cases, 0), dict.fromkeys(cases, 0)
    after_return = total = 0
    for count, size in _SHAPES:
        blocks = Blocks(bench, [size] * count)
        mark = Buffer(bench.device.driver, MemoryKind.device, count * size)
        bench.device.driver.fill(mark.address, _MARK, mark.size_bytes, bench.stream.handle)
        for case in cases:
            bench.step(f"{count} blocks of {size} bytes, {case[0]}, {case[1]}", count, "blocks")
            unmarked, was_busy = _copy(bench, blocks, mark, case, write_first=True)
            early[case] += unmarked
            after_return += count - unmarked if was_busy and case[1] is Order.DURING_API_CALL else 0
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
    """Count the blocks that arrive as they were before the stream, before or after the call, wrote to their source.

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
        was_busy = bench.gated(work, lambda: blocks.load(direction))
    else:
        blocks.load(direction)
        work()
        was_busy = False
    return len(arrays.sizes) - blocks.wrong(direction), was_busy


def _turn(case: tuple[Direction, Order], early: int, late: int) -> str:
    times = [moment for moment, count in (("before", early), ("after", late)) if count]
    return f"{case[0]} {case[1]} {' and '.join(times) + ' its turn' if times else 'in its turn'}"


_BLOCKS: Final = 256
_STEP: Final = 512
_LARGEST: Final = 256 * KIB
# Where to look for a size that is copied inside the call, before the limit is bisected.
_TRIED: Final = (16 * KIB, 8 * KIB, 4 * KIB)
# Of the probe `engine`. The kernel holds the SMs so long; what completes within this share of it did not need them.
_ENGINE_SIZES: Final = (4 * KIB, 64 * KIB)
_FLAGS: Final = {"without the prefer-overlap flag": 0, "with it": 1}
_HOLD_MS: Final = 100
_SEEN_SHARE: Final = 0.7
_STARTED_S: Final = 0.002
# About 5 ms of a link of 50 GB/s.
_PENDING_BYTES: Final = 256 * MIB
_WARP: Final = 32
# CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR
_BLOCKS_A_SM: Final = 106
# The host device does not copy inside the call.
_EXPECTED: Final = {"cuda": CPU_INLINE_UP_TO_BYTES, "cpu": 0}


def inline(bench: ProbeBench) -> ProbeFinding:
    """Bisect the limit to 512 bytes for each direction and order on an idle stream; then try it on a busy one."""
    blocks = Blocks(bench, [_LARGEST] * _BLOCKS)
    limits: dict[tuple[Direction, Order], int] = {}
    for direction in Direction:
        for order in Order:
            bench.step(f"{direction}, order {order}")
            limits[direction, order] = _limit(partial(_inline, bench, blocks, direction, order))
    largest = max(limits.values())
    size = largest or _TRIED[0]
    calls = [partial(bench.submit, blocks.arrays(direction, size=size), direction) for direction in Direction]
    busy = [not bench.gated(call) for call in calls]
    by_direction = {direction: {limits[direction, order] for order in Order} for direction in Direction}
    h2d_only = by_direction == {Direction.H2D: {largest}, Direction.D2H: {0}}
    device = bench.device
    bar1 = identity(device.name, "", pci_bus_id=device.driver.info.pci_bus_id or None)["bar1_bytes"]
    return ProbeFinding(
        answer=_answer(limits, any(busy)),
        number=largest / KIB,
        unit="KiB",
        of="largest block that the CPU copies inside the call",
        expected=h2d_only and not any(busy) and largest == _EXPECTED[device.kind],
        figures={
            **{f"{direction}_{order}_kib": limit / KIB for (direction, order), limit in limits.items()},
            **({"bar1_mib": bar1 / MIB} if isinstance(bar1, int) else {}),
        },
    )


def _inline(bench: ProbeBench, blocks: Blocks, direction: Direction, order: Order, size: int) -> bool:
    """Whether the CPU copies inside the call on an idle stream: the same call on a busy one takes far less CPU."""
    arrays, idle_us, busy_us = blocks.arrays(direction, order, size), [], []
    for _ in range(5):
        idle_us.append(bench.submit(arrays, direction)[1])
        bench.stream.synchronize()
        bench.device.driver.delay(2_000_000, bench.stream.handle)
        busy_us.append(bench.submit(arrays, direction)[1])
        bench.stream.synchronize()
    # A thread that was held up has found the stream idle again.
    return min(idle_us) > 2 * min(busy_us) + 50


def _limit(inline: Callable[[int], bool]) -> int:
    """The largest block in bytes that is copied inside the call, 0 if none is; at most _LARGEST."""
    low = next((size for size in _TRIED if inline(size)), 0)
    if not low or inline(_LARGEST):
        return low and _LARGEST
    high = _LARGEST
    while high - low > _STEP:
        middle = (low + high) // 2 // _STEP * _STEP
        low, high = (middle, high) if inline(middle) else (low, middle)
    return low


def _answer(limits: dict[tuple[Direction, Order], int], busy: bool) -> str:
    parts = []
    for direction in Direction:
        of_orders = {order: limits[direction, order] for order in Order}
        by_order = {order: f"up to {size_text(limit)}" if limit else "none" for order, limit in of_orders.items()}
        if len(set(by_order.values())) == 1:
            parts.append(f"{direction} {by_order[Order.STREAM]}, every order")
        else:
            parts.append(f"{direction} " + ", ".join(f"{order} {limit}" for order, limit in by_order.items()))
    idle = f"on an idle stream: {'; '.join(parts)}" if any(limits.values()) else "on an idle stream: none"
    return f"{idle}; on a busy stream: {'the call waits' if busy else 'none'}"


def engine(bench: ProbeBench) -> ProbeFinding | Unanswered:
    """Hold every SM by a kernel, and see whether a batched copy on another stream completes meanwhile.

    A plain copy keeps that stream busy at the call, so that the CPU does not copy. A kernel in place of the batched
    copy must not complete: then the answer would mean nothing.
    """
    if not bench.device.is_cuda:
        return Unanswered(f"the device {bench.device.name} has no SMs", off=True)
    sms, pending, needs_sms = _HeldSms(bench), Blocks(bench, [_PENDING_BYTES]), {}
    if _completes(bench, sms, lambda: bench.device.driver.delay(1000, bench.stream.handle)):
        return Unanswered("a kernel ran although another one held every SM")
    for size in _ENGINE_SIZES:
        blocks = Blocks(bench, [size] * _BLOCKS)
        for direction in Direction:
            for flag in _FLAGS:
                bench.step(f"{size_text(size)} blocks, {direction}, {flag}", size / KIB, "KiB")
                arrays = blocks.arrays(direction)
                arrays.attributes[-1] = _FLAGS[flag]

                def submit(arrays: Arrays = arrays, direction: Direction = direction) -> None:
                    sides = pending.card, pending.host
                    pending.move(*(sides if direction is Direction.H2D else sides[::-1]), direction)
                    bench.submit(arrays, direction)

                needs_sms[size, direction, flag] = not _completes(bench, sms, submit)
    answers = {flag: _movers({key[:2]: needs for key, needs in needs_sms.items() if key[2] == flag}) for flag in _FLAGS}
    return ProbeFinding(
        answer="; ".join(f"{flag}: {answer}" for flag, answer in answers.items()),
        number=sum(needs_sms.values()),
        unit=f"of {len(needs_sms)} cases",
        of="batched copies that need SMs",
        expected=not any(needs_sms.values()),
    )


def _movers(needs_sms: dict[tuple[int, Direction], bool]) -> str:
    if len(set(needs_sms.values())) == 1:
        return "SMs" if any(needs_sms.values()) else "the copy engine"
    return "SMs for " + ", ".join(f"{size_text(key[0])} {key[1]}" for key, needs in needs_sms.items() if needs)


def _completes(bench: ProbeBench, sms: "_HeldSms", work: Callable[[], object]) -> bool:
    """Whether `work` on the stream completes while every SM is held."""
    done = Event(bench.device.driver)
    until_s = sms.hold() + _SEEN_SHARE * _HOLD_MS / 1e3
    work()
    done.record(bench.stream.handle)
    completed = done.completed()
    while not completed and time.monotonic() < until_s:
        completed = done.completed()
    in_time = completed and time.monotonic() < until_s
    sms.release()
    bench.stream.synchronize()
    return in_time


class _HeldSms:
    """A kernel that takes every slot for thread blocks on the GPU, so that no other kernel can start."""

    def __init__(self, bench: ProbeBench) -> None:
        self._driver, self._stream = bench.device.driver, Stream(bench.device.driver)
        self._library = ctypes.CDLL("libcuda.so.1")
        self._driver.bind_thread()
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        cubin, device, slots = cached_cubin("delay", bench.device.arch), ctypes.c_int(), ctypes.c_int()
        self._call("cuModuleLoadData", ctypes.byref(module), cubin)
        self._call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"kvbench_delay")
        self._call("cuCtxGetDevice", ctypes.byref(device))
        self._call("cuDeviceGetAttribute", ctypes.byref(slots), _BLOCKS_A_SM, device)
        self._blocks = slots.value * bench.device.driver.info.sm_count

    def hold(self) -> float:
        """Hold every SM for _HOLD_MS from now on; return the time, monotonic, at which the kernel was launched."""
        delay_ns = ctypes.c_uint64(_HOLD_MS * 1_000_000)
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(delay_ns), ctypes.c_void_p))
        stream = ctypes.c_void_p(self._stream.handle)
        self._driver.bind_thread()
        began_s = time.monotonic()
        self._call("cuLaunchKernel", self._kernel, self._blocks, 1, 1, _WARP, 1, 1, 0, stream, arguments, None)
        time.sleep(_STARTED_S)
        return began_s

    def release(self) -> None:
        self._stream.synchronize()

    def _call(self, function: str, *arguments: object) -> None:
        error = getattr(self._library, function)(*arguments)
        if error:
            raise KvbenchError(f"{function}: CUDA error {error}")


_BYTES: Final = 16 * MIB


def confidential(bench: ProbeBench) -> ProbeFinding:
    """Ask NVML, and see whether a copy returns while its stream is busy; with bounce buffers it cannot."""
    driver = bench.device.driver
    host, card = (Buffer(driver, kind, _BYTES) for kind in (MemoryKind.allocated, MemoryKind.device))
    waits = []
    for direction in Direction:
        bench.step(f"a copy behind a busy stream, {direction}")
        to, source = (card, host) if direction is Direction.H2D else (host, card)
        arguments = to.address, source.address, _BYTES, DIRECTIONS[direction], bench.stream.handle
        waits += [] if bench.gated(partial(copy, driver, *arguments)) else [str(direction)]
    state, is_on = _state(bench)
    copies = f"{' and '.join(waits)} copies of pinned memory wait for the stream" if waits else "copies do not wait"
    return ProbeFinding(
        answer=f"Confidential Computing: {state}; {copies}",
        number=len(waits),
        unit="of 2",
        of="directions whose copies are synchronous with the host",
        expected=not waits and not is_on,
    )


def _state(bench: ProbeBench) -> tuple[str, bool]:
    with open_machine(bench.device.name, bench.device.driver.info.pci_bus_id or None, Sources()) as machine:
        try:
            is_on = bool(machine.nvml("nvmlSystemGetConfComputeState").ccFeature)
        except Exception as error:  # NVML of an old driver, or no GPU
            return f"not known ({reason_of(error)})", False
    return "on" if is_on else "off", is_on
