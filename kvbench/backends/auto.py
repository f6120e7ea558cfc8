"""The backend auto, which copies as `kvbench.copy.BlockCopier` does: each list as a policy chooses for it."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import sqrt
from typing import Final, NamedTuple

from kvbench.backends.base import Backend, Mechanism, PreparedSwap, SwapRequest, facts_of
from kvbench.backends.driver_copies import Batched, Merged, PerBlock, Primed
from kvbench.backends.sm import FEW_BLOCKS, INLINE_UP_TO_BYTES, KernelShape, Sm, Staged, page_shape, shape_on
from kvbench.cells.axes import DEFAULT_ORDER, NO_PACE, Direction, Order, Situation, StreamState, pace_of
from kvbench.cells.blocks import SCATTERED_FROM_BYTES
from kvbench.cells.cell import Cell
from kvbench.cells.facts import AUTO, PRIMED, SM, STAGED, DeviceFacts, with_usual
from kvbench.cells.policy import NO_POLICY, SERVING, Choice, Policy, Table
from kvbench.cells.units import KIB
from kvbench.engine.device import DIRECTIONS, BlockCopier, CopyTable, CopyWay, Device, copier_swap

# Stream states that say whether something is pending when a list comes.
_STATES: Final = {StreamState.IDLE: False, StreamState.GATED: True}
# Situation -> which tables of a copier serve it; 0 are those where a call does not say.
TABLES_OF: Final = {situation: number for number, situation in enumerate(Situation, 1)}
_UNALIGNED: Final = 1
# Block sizes and numbers of blocks between which the rule of the copy kernel changes.
_RULE_SIZES: Final = tuple(kib * KIB for kib in (1, 2, 4, 8, 16, 32, 64))
_RULE_COUNTS: Final = (FEW_BLOCKS, FEW_BLOCKS + 1)
_WITH_KERNEL: Final = (SM, STAGED)
_BATCHED: Final = {backend.name: backend for backend in (Batched(), Primed(), Merged())}


class Way(NamedTuple):
    """What a copier does with some lists: `choice`, `instead_of` another backend ("" for as the policy says).

    Lists that are not in pages on the host, which the backend needs, go another way: that of index `otherwise`.
    """

    choice: Choice
    instead_of: str
    otherwise: int | None = None

    @property
    def pace_gbps(self) -> float | None:
        pace = pace_of(dict(self.choice.axes).get("pace", NO_PACE))
        return pace.gbps if pace else None


class Copier(NamedTuple):
    """An engine's copier, and its ways by their indexes there."""

    engine: BlockCopier
    ways: Sequence[Way]


def copier_for(
    device: Device,
    policies: Sequence[Policy],
    max_entries: int = 0,
    pools: Sequence[tuple[int, int]] = (),
    pace_gbps: float | None = None,
    beside: Situation = Situation.ALONE,
) -> Copier:
    """A copier that follows these policies; for each direction, the first that has a table serves. `beside` is the
    situation of calls that name none.

    It has room for lists of `max_entries` entries of one size; 0: it makes room when a longer list comes. `pools` are
    addresses and bytes of memory, each taken for one region. The copy kernel replaces a backend that is not one of
    `SERVING`, and `staged` for lists that are not in pages on the host. On the device cpu, batched copies replace all
    but copies. `pace_gbps` holds the copy kernel at a rate, in place of the pace of its choice.
    """
    ways = _Ways(device, pace_gbps)
    tables = []
    for number, situation in ((0, beside), *((number, named) for named, number in TABLES_OF.items())):
        for direction, (state, pending) in product(Direction, _STATES.items()):
            serving = _serving(policies, direction, state, situation)
            if serving is not None:
                tables.append(_copy_table(ways, *serving, direction=direction, pending=pending, beside=number))
    engine = BlockCopier(device.driver, ways.made, tables, max_entries, list(pools))
    return Copier(engine, [way for way, _ in ways.indexes])


def _copy_table(
    ways: "_Ways", policy: Policy, table: Table, *, direction: Direction, pending: bool, beside: int
) -> CopyTable:
    """A policy's table with a way at each of its points, and at those where the rule of the copy kernel changes."""
    sizes, counts = sorted({*table.block_bytes, *_RULE_SIZES}), sorted({*table.blocks, *_RULE_COUNTS})
    return CopyTable(
        direction=DIRECTIONS[direction],
        pending=pending,
        size_limits=_limits(sizes),
        count_limits=_limits(counts),
        ways=[ways.index(policy, table, size, count) for size, count in product(sizes, counts)],
        beside=beside,
    )


def serves(policies: Sequence[Policy], situation: Situation) -> bool:
    """Whether a policy has a table for swaps beside a step; alone, defaults serve."""
    tables = (policy.beside(direction, situation) for policy in policies for direction in Direction)
    return situation is Situation.ALONE or any(table is not None for table in tables)


def _serving(
    policies: Sequence[Policy], direction: Direction, state: StreamState, situation: Situation
) -> tuple[Policy, Table] | None:
    """The first policy that has a table, with the table; or None.

    Where a step has a table for one direction alone, defaults serve the other.
    """
    if not serves(policies, situation):
        return None
    beside = [(policy, policy.beside(direction, situation)) for policy in policies]
    by_state = [(policy, policy.table(direction, state)) for policy in policies]
    in_order = by_state if situation is Situation.ALONE else [*beside, *by_state[-1:]]
    return next(((policy, table) for policy, table in in_order if table), None)


def _limits(values: Sequence[int]) -> list[float]:
    """Up to which value each of `values`, which ascend, is the nearest in ratio, without the last."""
    return [sqrt(low * high) for low, high in pairwise(values)]


# The shapes of a way's copy kernel for aligned and for all other lists; None where it has no kernel.
_Kernels = tuple[KernelShape, KernelShape] | None


class _Ways:
    """The ways of a copier, each made once."""

    def __init__(self, device: Device, pace_gbps: float | None) -> None:
        self._device, self._sm, self._pace_gbps = device, Sm(), pace_gbps
        self._device_facts = device.facts()
        self._facts = {name: facts_of(name, self._device_facts) for name in _WITH_KERNEL}
        self.indexes: dict[tuple[Way, _Kernels], int] = {}
        self.made: list[CopyWay] = []

    def index(self, policy: Policy, table: Table, block_bytes: int, blocks: int) -> int:
        """The index in `made` of what a table of a policy chooses at a point."""
        wanted = policy.choose(table, blocks, block_bytes)
        choice = self._served(wanted)
        plain = Cell(choice.backend, table.direction, blocks, block_bytes, pool_bytes=SCATTERED_FROM_BYTES)
        return self._index(choice, "" if choice == wanted else wanted.backend, plain)

    def _index(self, choice: Choice, instead_of: str, plain: Cell) -> int:
        if self._pace_gbps and choice.backend == SM:
            choice = choice.at_pace(self._pace_gbps)
        otherwise = self._index(Choice(SM), STAGED, plain) if choice.backend == STAGED else None
        way, kernels = self._with_kernels(Way(choice, instead_of, otherwise), plain)
        if (way, kernels) not in self.indexes:
            self.indexes[way, kernels] = len(self.made)
            self.made.append(self._by_kernel(way, *kernels) if kernels else self._by_copies(choice))
        return self.indexes[way, kernels]

    def _served(self, wanted: Choice) -> Choice:
        if not self._device.is_cuda:
            return wanted if wanted.backend in SERVING and wanted.backend not in _WITH_KERNEL else Choice(Batched.name)
        return wanted if wanted.backend in SERVING else Choice(SM)

    def _with_kernels(self, way: Way, plain: Cell) -> tuple[Way, _Kernels]:
        backend = way.choice.backend
        if backend not in _WITH_KERNEL:
            return way, None
        cell = with_usual(way.choice.apply(plain), self._facts[backend], self._device_facts)
        shape = page_shape if backend == STAGED else shape_on
        aligned, unaligned = (shape(self._device, cell, plain.block_bytes, bits) for bits in (0, _UNALIGNED))
        # With its usual values: a choice that leaves them out is the same way as one that names them.
        return way._replace(choice=Choice.of_cell(cell)), (aligned, unaligned)

    def _by_copies(self, choice: Choice) -> CopyWay:
        if choice.backend == PerBlock.name:
            return CopyWay(one_by_one=True)
        # As of a load: the copier itself has an access order for each list, and primes no store.
        cell = choice.apply(Cell(choice.backend, Direction.H2D, 1, 1))
        return CopyWay(batch=_BATCHED[choice.backend].options(self._device, cell))

    def _by_kernel(self, way: Way, aligned: KernelShape, unaligned: KernelShape) -> CopyWay:
        return CopyWay(
            sms=int(dict(way.choice.axes)["sms"]),
            aligned=self._sm.kernel(self._device, aligned) if aligned != unaligned else None,
            any=self._sm.kernel(self._device, unaligned),
            inline_up_to=INLINE_UP_TO_BYTES,
            pace_gbps=way.pace_gbps or 0.0,
            staged=way.otherwise is not None,
            otherwise=way.otherwise or 0,
        )


# Without a policy: the smallest rule of the engine runs of an H200 and an H100 (reports/) is one line, `sm` with its
# default SM counts. For blocks larger than there, copies that take no SM lose little.
DEFAULTS: Final = Policy(
    device="any",
    tables=tuple(
        Table(
            direction=direction,
            stream_state=StreamState.IDLE,
            block_bytes=(64 * KIB, 256 * KIB),
            blocks=(1024,),
            choices=((SM,), (PRIMED,)),
        )
        for direction in Direction
    ),
)
_NOTHING_PENDING: Final = (StreamState.IDLE, StreamState.OPENED)


class Auto(Backend):
    """Copies a list by the policy, which is asked when the list is submitted, as in an engine."""

    name = AUTO
    summary = "chooses backend and parameters for every swap by a policy measured on this device"

    def __init__(self) -> None:
        self._made: tuple[Device, Policy | None, Copier] | None = None

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        return frozenset({"memory"} if device.kind == "cuda" else ())

    def create(self, request: SwapRequest) -> PreparedSwap:
        cell, memory = request.cell, request.memory
        copier = self._copier(request.device, request.policy)
        copier.engine.forget()  # pools come and go with the cells
        order = cell.order or DEFAULT_ORDER[cell.direction]
        tables = _tables_for(request)
        swap = copier_swap(copier.engine, memory.sources, memory.destinations, memory.sizes, order is Order.ANY, tables)
        blocks, swap_bytes = len(memory.sizes), int(memory.sizes.sum())
        when_free, when_busy = (
            copier.ways[copier.engine.way_of(blocks, swap_bytes, DIRECTIONS[cell.direction], idle=idle, beside=tables)]
            for idle in (True, False)
        )
        way = when_free if cell.stream_state in _NOTHING_PENDING else when_busy
        if way.otherwise is not None and cell.host_run_bytes < Staged.host_run_bytes:
            way = copier.ways[way.otherwise]
        mechanism = _mechanism(way.choice, request.device)
        orders = {"order": order.value} if mechanism is Mechanism.BATCHED_COPY else {}
        chosen = Choice.with_axes(way.choice.backend, {**dict(way.choice.axes), **orders})
        warnings = tuple(_warnings(request, way))
        same = when_free == when_busy
        return PreparedSwap(swap, mechanism, str(chosen), warnings, same_when_busy=same, pace_gbps=way.pace_gbps)

    def _copier(self, device: Device, policy: Policy | None) -> Copier:
        if self._made is None or self._made[:2] != (device, policy):
            policies = (policy, DEFAULTS) if policy else (DEFAULTS,)
            self._made = device, policy, copier_for(device, policies)
        return self._made[2]


def _tables_for(request: SwapRequest) -> int:
    """Which tables serve a swap: those of what it runs beside, or of swaps alone where there are none."""
    situation = request.cell.neighbour.situation or Situation.ALONE
    return TABLES_OF[situation] if request.policy and serves([request.policy], situation) else 0


def _warnings(request: SwapRequest, way: Way) -> Iterator[str]:
    """Yield why a swap does not go by the policy of its sweep."""
    direction, policy = request.cell.direction, request.policy
    situation = request.cell.neighbour.situation or Situation.ALONE
    if policy is None:
        yield NO_POLICY
    elif not serves([policy], situation):
        yield f"{AUTO} used its choices for swaps alone: the policy has no table for swaps beside {situation}"
    elif situation is not Situation.ALONE and policy.beside(direction, situation) is None:
        yield f"{AUTO} used its defaults: the policy has no table for {direction} beside {situation}"
    elif situation is Situation.ALONE and policy.table(direction, request.cell.stream_state) is None:
        yield f"{AUTO} used its defaults: the policy has no table for {direction}"
    elif way.instead_of:
        yield f"{AUTO} used {way.choice.backend}: it cannot use {way.instead_of}, which the policy chooses, here"


def _mechanism(choice: Choice, device: Device) -> Mechanism:
    if choice.backend in _WITH_KERNEL:
        return Mechanism.STAGED if choice.backend == STAGED else Mechanism.SM_KERNEL
    if choice.backend != PerBlock.name and device.batch_entry is None:
        return Mechanism.FALLBACK
    if not device.is_cuda:
        return Mechanism.HOST_THREAD
    return Mechanism.SINGLE_COPIES if choice.backend == PerBlock.name else Mechanism.BATCHED_COPY
