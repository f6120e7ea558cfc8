"""The backend auto, which copies as `kvbench.copy.BlockCopier` does: each list in the way that a policy names."""

from collections.abc import Iterator
from typing import Final

from kvbench.backends.base import Backend, Mechanism, PreparedSwap, SwapRequest
from kvbench.backends.copier import Copier, Way, copier_for
from kvbench.backends.per_block import PerBlock
from kvbench.backends.sm import Sm
from kvbench.cells.axes import DEFAULT_ORDER, Direction, Order, StreamState
from kvbench.cells.backend_facts import AUTO, PRIMED, SM
from kvbench.cells.device_facts import DeviceFacts
from kvbench.cells.units import KIB
from kvbench.engine.device import DIRECTIONS, Device, copier_swap
from kvbench.policy import NO_POLICY, Choice, Policy, Table

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
        swap = copier_swap(copier.engine, memory.sources, memory.destinations, memory.sizes, order is Order.ANY)
        blocks, swap_bytes = len(memory.sizes), int(memory.sizes.sum())
        free, held = (
            copier.ways[copier.engine.way_of(blocks, swap_bytes, DIRECTIONS[cell.direction], idle=idle)]
            for idle in (True, False)
        )
        way = free if cell.stream_state in _NOTHING_PENDING else held
        mechanism = _mechanism(way.choice, request.device)
        orders = {"order": order.value} if mechanism is Mechanism.BATCHED_COPY else {}
        chosen = Choice.of(way.choice.backend, {**dict(way.choice.axes), **orders})
        warnings = tuple(_warnings(request, way))
        return PreparedSwap(swap, mechanism, chosen=str(chosen), warnings=warnings, same_when_busy=free == held)

    def _copier(self, device: Device, policy: Policy | None) -> Copier:
        if self._made is None or self._made[:2] != (device, policy):
            policies = (policy, DEFAULTS) if policy else (DEFAULTS,)
            self._made = device, policy, copier_for(device, policies)
        return self._made[2]


def _warnings(request: SwapRequest, way: Way) -> Iterator[str]:
    """Yield why a swap does not go by the policy of its sweep."""
    direction, policy = request.cell.direction, request.policy
    if policy is None:
        yield NO_POLICY
    elif policy.table(direction, request.cell.stream_state) is None:
        yield f"{AUTO} used its defaults: the policy has no table for {direction}"
    elif way.instead_of:
        yield f"{AUTO} used {way.choice.backend}: it cannot use {way.instead_of}, which the policy chooses, here"


def _mechanism(choice: Choice, device: Device) -> Mechanism:
    if choice.backend == Sm.name:
        return Mechanism.SM_KERNEL
    if choice.backend != PerBlock.name and device.batch_entry is None:
        return Mechanism.FALLBACK
    if not device.is_cuda:
        return Mechanism.HOST_THREAD
    return Mechanism.SINGLE_COPIES if choice.backend == PerBlock.name else Mechanism.BATCHED_COPY
