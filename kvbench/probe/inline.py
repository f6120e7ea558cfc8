"""Up to which block size the CPU copies inside the call, by direction, order and state of the stream."""

from collections.abc import Callable
from functools import partial
from typing import Final

from kvbench.cells.axes import Direction, Order
from kvbench.cells.device_facts import CPU_INLINE_UP_TO_BYTES
from kvbench.machine.observation import identity
from kvbench.probe.common import ProbeFinding
from kvbench.probe.probe_bench import Blocks, ProbeBench
from kvbench.units import KIB, MIB, size_text

_BLOCKS: Final = 256
_STEP: Final = 512
_LARGEST: Final = 256 * KIB
# Where to look for a size that is copied inside the call, before the limit is bisected.
_TRIED: Final = (16 * KIB, 8 * KIB, 4 * KIB)
# The host device does not copy inside the call.
_EXPECTED: Final = {"cuda": CPU_INLINE_UP_TO_BYTES, "cpu": 0}


def probe(bench: ProbeBench) -> ProbeFinding:
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
    busy = [not bench.gated(call)[1] for call in calls]
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
    return bench.copies_inline(blocks.arrays(direction, order, size), direction)


def _limit(inline: Callable[[int], bool]) -> int:
    """Return the largest block in bytes that is copied inside the call, 0 if none is; at most _LARGEST."""
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
