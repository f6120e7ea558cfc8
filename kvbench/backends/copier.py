"""The copier of a policy: the engine's BlockCopier, with a way for every choice and a table for every stream state."""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import Final, NamedTuple

from kvbench.backends.base import facts_of
from kvbench.backends.batched import CPU_INLINE_UP_TO_BYTES, PRIME_NS
from kvbench.backends.sm import INLINE_UP_TO_BYTES, Sm, shape_for
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.kernel_shape import KernelShape
from kvbench.cells.locality import SCATTERED_FROM_BYTES
from kvbench.engine.device import DIRECTIONS, BlockCopier, CopyTable, CopyWay, Device
from kvbench.policy import Choice, Policy, Table
from kvbench.sweep.plan import with_usual
from kvbench.units import KIB

# Stream states that say whether something is pending when a list comes.
_STATES: Final = {StreamState.IDLE: False, StreamState.GATED: True}
COPIES: Final = ("batched", "primed", "merged")
_UNALIGNED: Final = 1
# Block sizes and numbers of blocks between which the rule of the copy kernel changes.
_RULE_SIZES: Final = tuple(kib * KIB for kib in (1, 2, 4, 8, 16, 32, 64))
_RULE_COUNTS: Final = (256, 1024)


def copier_for(device: Device, policies: Sequence[Policy], max_entries: int = 0) -> BlockCopier:
    """Return a copier by these policies: for each direction, the first that has a table serves.

    It has room for lists of `max_entries` entries of one size; 0: room is made for each longer list.

    Only kvbench's own ways serve: a choice of another backend is replaced by the copy kernel, and on the device cpu by
    batched copies.
    """
    ways = _Ways(device)
    tables = [
        CopyTable(
            direction=DIRECTIONS[direction],
            pending=pending,
            size_limits=_limits(sizes := sorted({*table.block_bytes, *_RULE_SIZES})),
            count_limits=_limits(counts := sorted({*table.blocks, *_RULE_COUNTS})),
            ways=[ways.place(table, size, count) for size in sizes for count in counts],
        )
        for direction in Direction
        for state, pending in _STATES.items()
        if (table := next(filter(None, (policy.table(direction, state) for policy in policies)), None))
    ]
    return BlockCopier(device.driver, ways.made, tables, max_entries)


def _limits(values: Sequence[int]) -> list[float]:
    """Return up to which value each of `values`, which ascend, is the nearest in ratio, without the last."""
    return [sqrt(low * high) for low, high in pairwise(values)]


class _Kernels(NamedTuple):
    """An SM count with the shapes of the copy kernel for aligned and for all other lists."""

    sms: int | None
    aligned: KernelShape
    unaligned: KernelShape


class _Ways:
    """The ways of a copier, each made once."""

    def __init__(self, device: Device) -> None:
        self._device, self._sm = device, Sm()
        self._here = device.facts()
        self._places: dict[Choice | _Kernels, int] = {}
        self.made: list[CopyWay] = []

    def place(self, table: Table, block_bytes: int, blocks: int) -> int:
        """Return the index in `made` of what a table chooses at a point."""
        choice = self._own(table.choose(blocks, block_bytes))
        by_copies = choice.backend in COPIES
        way = choice if by_copies else self._kernels(choice, table.direction, block_bytes, blocks)
        if way not in self._places:
            self._places[way] = len(self.made)
            self.made.append(self._by_kernel(way) if isinstance(way, _Kernels) else self._by_copies(way))
        return self._places[way]

    def _own(self, choice: Choice) -> Choice:
        if choice.backend in COPIES:
            return choice
        if not self._device.is_cuda:
            return Choice("batched")
        return choice if choice.backend == Sm.name else Choice(Sm.name)

    def _by_copies(self, choice: Choice) -> CopyWay:
        merged, sliced = choice.backend == "merged", choice.backend != "batched"
        return CopyWay(
            sliced=sliced,
            by_host_address=merged,
            merge=merged,
            prime_ns=PRIME_NS,
            prime_up_to_bytes=CPU_INLINE_UP_TO_BYTES if sliced and self._device.is_cuda else 0,
        )

    def _kernels(self, choice: Choice, direction: Direction, block_bytes: int, blocks: int) -> _Kernels:
        plain = Cell(Sm.name, direction, blocks, block_bytes, pool_bytes=SCATTERED_FROM_BYTES)
        cell = with_usual(choice.apply(plain), facts_of(Sm.name, self._here), self._here)
        info = self._device.driver.info
        compute = 10 * info.compute_major + info.compute_minor
        aligned, unaligned = (
            shape_for(cell, block_bytes, bits, compute, info.shared_bytes) for bits in (0, _UNALIGNED)
        )
        return _Kernels(cell.sms, aligned, unaligned)

    def _by_kernel(self, way: _Kernels) -> CopyWay:
        return CopyWay(
            sms=way.sms or 0,
            bulk=self._sm.kernel(self._device, way.aligned) if way.aligned.method == "bulk" else None,
            lanes=self._sm.kernel(self._device, way.unaligned),
            inline_up_to=INLINE_UP_TO_BYTES,
        )
