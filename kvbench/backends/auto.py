"""The backend that picks another one for every swap, by a policy measured on this device."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Final

from kvbench.backends.base import Backend, PreparedSwap, SwapRequest, facts_of, load_backends
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.facts import BackendFacts, DeviceFacts
from kvbench.engine.device import Device
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

    The choice is made here, before the swap is prepared: two searches in sorted lists, which whoever asks once a swap
    pays for once a swap. The stream's state is what the cell says; a caller asks the stream.
    """

    name = AUTO
    summary = "picks backend and parameters for every swap, by a policy measured on this device"

    def __init__(self) -> None:
        self._defaults = Chooser(DEFAULTS)
        self._loaded: tuple[Policy, Chooser] | None = None
        self._found: tuple[Device, Mapping[str, BackendFacts]] | None = None

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        return frozenset({"memory"} if device.kind == "cuda" else ())

    def unavailable(self, device: DeviceFacts) -> str | None:
        del device
        return None

    def create(self, request: SwapRequest) -> PreparedSwap:
        choice, warnings = self._choose(request)
        cell = choice.apply(request.cell)
        facts = self._facts(request.device)[choice.backend]
        if cell.sms is None and "sms" in facts.axes:
            cell = replace(
                cell, sms=facts.sms_for(cell.direction, cell.spread_bytes, float(request.memory.sizes.mean()))
            )
        prepared = self._others[choice.backend].create(replace(request, cell=cell))
        return replace(prepared, chosen=str(choice), warnings=(*prepared.warnings, *warnings))

    def _choose(self, request: SwapRequest) -> tuple[Choice, tuple[str, ...]]:
        """Return the choice for `request`, and what has to be said about how it came about."""
        policy = request.policy
        choice = None if policy is None else self._chooser(policy).choose(*_key(request))
        if choice is not None:
            reason = self._why_not(choice, request.device)
            if reason is None:
                return choice, ()
            told = f"auto could not take {choice.backend}, which the policy chooses ({reason}); it chose by defaults"
        elif policy is not None:
            told = f"the policy has no table for {request.cell.direction}; auto chose by defaults"
        else:
            told = NO_POLICY
        usual = self._defaults.choose(*_key(request))
        assert usual is not None  # the defaults have every table
        return (usual if self._why_not(usual, request.device) is None else LAST_RESORT), (told,)

    def _chooser(self, policy: Policy) -> Chooser:
        if self._loaded is None or self._loaded[0] is not policy:
            self._loaded = policy, Chooser(policy)
        return self._loaded[1]

    @cached_property
    def _others(self) -> Mapping[str, Backend]:
        # Not in __init__: loading the backends makes one of this class, too.
        return {name: backend for name, backend in load_backends().items() if name != AUTO}

    def _facts(self, device: Device) -> Mapping[str, BackendFacts]:
        if self._found is None or self._found[0] is not device:
            here = device.facts()
            self._found = device, {name: facts_of(other, here) for name, other in self._others.items()}
        return self._found[1]

    def _why_not(self, choice: Choice, device: Device) -> str | None:
        """Return why a choice cannot run on `device`, None when it can."""
        facts = self._facts(device).get(choice.backend)
        return "no such backend is installed" if facts is None else facts.unavailable


def _key(request: SwapRequest) -> tuple[Direction, StreamState, int, float]:
    sizes = request.memory.sizes
    return request.cell.direction, request.cell.stream_state, len(sizes), float(sizes.mean())
