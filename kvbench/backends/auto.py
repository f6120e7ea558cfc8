"""The backend auto, which chooses another backend for every swap according to a policy measured on this device."""

from dataclasses import replace
from typing import Final

from kvbench.backends.base import PreparedSwap, SwapRequest, backend_named, facts_of
from kvbench.backends.copier import COPIES, copier_for
from kvbench.backends.sm import Sm
from kvbench.cells.axes import DEFAULT_ORDER, Direction, Order, StreamState
from kvbench.cells.facts import DeviceFacts
from kvbench.engine.device import BlockCopier, Device, Swap, copier_swap
from kvbench.policy import AUTO, NO_POLICY, Choice, Policy, Table
from kvbench.sweep.plan import with_usual
from kvbench.units import KIB

# Runs on any device; without a batched copy in the driver it runs single copies.
LAST_RESORT: Final = Choice("batched")
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
            choices=(("sm",), ("primed",)),
        )
        for direction in Direction
    ),
)


class Auto:
    """Runs a swap on the backend that the policy names for its direction, stream state, blocks and block size.

    The choice is made before the swap is prepared, for the stream state of the cell; an engine would query the stream.
    """

    name = AUTO
    summary = "chooses backend and parameters for every swap by a policy measured on this device"

    def __init__(self) -> None:
        self._copiers: list[tuple[Device, Policy | None, BlockCopier]] = []

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        return frozenset({"memory"} if device.kind == "cuda" else ())

    def unavailable(self, _device: DeviceFacts) -> str | None:
        return None

    def create(self, request: SwapRequest) -> PreparedSwap:
        here = request.device.facts()
        choice, warnings = _choose(request, here)
        cell = with_usual(choice.apply(request.cell), facts_of(choice.backend, here), here)
        chosen = backend_named(choice.backend)
        assert chosen is not None  # an uninstalled backend is never chosen
        prepared = chosen.create(replace(request, cell=cell))
        if choice.backend in (*COPIES, Sm.name) and _has_lists(request):
            prepared = replace(prepared, swap=self._swap(request))
        return replace(prepared, chosen=str(choice), warnings=(*prepared.warnings, *warnings))

    def _swap(self, request: SwapRequest) -> Swap:
        device, policy, memory = request.device, request.policy, request.memory
        if not self._copiers or self._copiers[0][:2] != (device, policy):
            policies = (policy, DEFAULTS) if policy else (DEFAULTS,)
            self._copiers = [(device, policy, copier_for(device, policies))]
        order = request.cell.order or DEFAULT_ORDER[request.cell.direction]
        return copier_swap(self._copiers[0][2], memory.sources, memory.destinations, memory.sizes, order is Order.ANY)


def _has_lists(request: SwapRequest) -> bool:
    """Whether the swap is a list to the copier, which chooses when it is submitted.

    Tensors have a shorter list for kernels, and of swaps one behind the other the first would be another choice.
    """
    return not request.memory.grids and request.cell.stream_state is not StreamState.SUSTAINED


def _choose(request: SwapRequest, here: DeviceFacts) -> tuple[Choice, tuple[str, ...]]:
    choice = _look_up(request.policy, request) if request.policy else None
    if choice is not None:
        reason = _why_not(choice, here)
        if reason is None:
            return choice, ()
        told = f"auto used its defaults: {choice.backend}, which the policy chooses, is unavailable ({reason})"
    elif request.policy is not None:
        told = f"auto used its defaults: the policy has no table for {request.cell.direction}"
    else:
        told = NO_POLICY
    usual = _look_up(DEFAULTS, request)
    assert usual is not None  # the defaults have every table
    return (usual if _why_not(usual, here) is None else LAST_RESORT), (told,)


def _why_not(choice: Choice, here: DeviceFacts) -> str | None:
    if backend_named(choice.backend) is None:
        return "the backend is not installed"
    return facts_of(choice.backend, here).unavailable


def _look_up(policy: Policy, request: SwapRequest) -> Choice | None:
    cell = request.cell
    return policy.choose(cell.direction, cell.stream_state, len(request.memory.sizes), cell.swap_bytes / cell.blocks)
