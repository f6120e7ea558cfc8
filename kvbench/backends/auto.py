"""The backend that picks another one for every swap, by a policy measured on this device."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Final

from kvbench.backends.base import Backend, PreparedSwap, SwapRequest, facts_of, load_backends
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.facts import BackendFacts, DeviceFacts
from kvbench.tune.table import AUTO, Choice, Chooser, Policy, Table
from kvbench.units import KIB

# Runs on any device, by single copies where the driver has no batched one.
LAST_RESORT: Final = Choice("batched")
# Without a policy: what held on an H200 with driver 580 (reports/). A batched call costs the host something for every
# descriptor, a kernel does not; with large blocks the copy engine gets more out of the link, and with none pending in
# front of it that wants many of them.
_BY_DEFAULT: Final = {
    StreamState.IDLE: (("sm", "sm"), ("sm", "primed"), ("primed", "primed")),
    StreamState.BUSY: (("sm", "sm"), ("primed", "primed"), ("primed", "primed")),
}
DEFAULTS: Final = Policy(
    device="any",
    tables=tuple(
        Table(
            direction=direction,
            stream_state=state,
            block_bytes=(16 * KIB, 64 * KIB, 256 * KIB),
            blocks=(16, 1024),
            choices=choices,
        )
        for direction in Direction
        for state, choices in _BY_DEFAULT.items()
    ),
)
NO_POLICY: Final = "auto had no policy and chose by built-in defaults; kvbench tune -p FILE makes one"


class Auto:
    """Hands a swap to the backend that the policy names for its direction, stream state, blocks and mean block size.

    The choice is made before the swap is prepared. The stream's state is what the cell says; a caller asks the stream.
    """

    name = AUTO
    summary = "picks backend and parameters for every swap, by a policy measured on this device"

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        return frozenset({"memory"} if device.kind == "cuda" else ())

    def unavailable(self, _device: DeviceFacts) -> str | None:
        return None

    def create(self, request: SwapRequest) -> PreparedSwap:
        here = request.device.facts()
        known = {name: facts_of(other, here) for name, other in self._others.items()}
        choice, warnings = _choose(request, known)
        cell, facts = choice.apply(request.cell), known[choice.backend]
        if cell.sms is None and "sms" in facts.axes:
            mean_bytes = float(request.memory.sizes.mean())
            cell = replace(cell, sms=facts.sms_for(cell.direction, cell.spread_bytes, mean_bytes))
        prepared = self._others[choice.backend].create(replace(request, cell=cell))
        return replace(prepared, chosen=str(choice), warnings=(*prepared.warnings, *warnings))

    @cached_property
    def _others(self) -> Mapping[str, Backend]:
        # Not in __init__: loading the backends makes one of this class, too.
        return {name: backend for name, backend in load_backends().items() if name != AUTO}


def _choose(request: SwapRequest, known: Mapping[str, BackendFacts]) -> tuple[Choice, tuple[str, ...]]:
    """Return the choice for `request`, and what has to be said about how it came about."""
    choice = _look_up(request.policy, request) if request.policy else None
    if choice is not None:
        reason = _why_not(choice, known)
        if reason is None:
            return choice, ()
        told = f"auto could not take {choice.backend}, which the policy chooses ({reason}); it chose by defaults"
    elif request.policy is not None:
        told = f"the policy has no table for {request.cell.direction}; auto chose by defaults"
    else:
        told = NO_POLICY
    usual = _look_up(DEFAULTS, request)
    assert usual is not None  # the defaults have every table
    return (usual if _why_not(usual, known) is None else LAST_RESORT), (told,)


def _why_not(choice: Choice, known: Mapping[str, BackendFacts]) -> str | None:
    facts = known.get(choice.backend)
    return "no such backend is installed" if facts is None else facts.unavailable


def _look_up(policy: Policy, request: SwapRequest) -> Choice | None:
    cell, sizes = request.cell, request.memory.sizes
    return Chooser(policy).choose(cell.direction, cell.stream_state, len(sizes), float(sizes.mean()))
