"""The environment of a run: its identity (the kind of machine) and observed values.

No probe raises: a field that cannot be read is None, and `observe` gives the reason under "unavailable".
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final, TypeVar

from kvbench.machine.probes import IDENTITY, OBSERVED
from kvbench.machine.sources import Json, Machine, Scalar, Sources, UnavailableError, open_machine, reason_of

# NVML's event type of critical errors, and how many of them a run records at most.
_XID: Final = 8
_MOST_XIDS: Final = 100
Value = TypeVar("Value", bound=Json)


def identity(
    device: str,
    engine_hash: str,
    *,
    pci_bus_id: str | None = None,
    sm_count: int | None = None,
    sources: Sources | None = None,
) -> dict[str, Scalar]:
    """Return the fields that identify a kind of machine; none of them changes while a machine runs.

    `device` is "cpu" or "cuda:N". The other arguments come from the engine: the hash of its sources, the PCI bus id of
    the device (without it, the ordinal is taken as NVML's if that is certain) and the SM count, which NVML lacks.
    """
    with open_machine(device, pci_bus_id, sources or Sources()) as machine:
        fields, _ = _read_all(IDENTITY, machine)
    return {"device_kind": device.partition(":")[0], **fields, "sm_count": sm_count, "engine_hash": engine_hash}


class XidErrors:
    """The numbers of the Xid errors that NVML reports for a GPU from now on; raises where it reports none."""

    def __init__(self, device: str, pci_bus_id: str | None, sources: Sources | None = None) -> None:
        self._open = ExitStack()  # a closed NVML drops its events
        machine = self._open.enter_context(open_machine(device, pci_bus_id, sources or Sources()))
        if not int(machine.ask("nvmlDeviceGetSupportedEventTypes")) & _XID:
            raise UnavailableError("the GPU does not report Xid errors")
        events = machine.nvml("nvmlEventSetCreate")
        machine.ask("nvmlDeviceRegisterEvents", _XID, events)
        self._wait, self._numbers = partial(machine.nvml, "nvmlEventSetWait_v2", events, 0), list[Json]()

    def so_far(self) -> list[Json]:
        """Return the numbers until now, in order."""
        with suppress(Exception):  # raised when no event is left
            while len(self._numbers) < _MOST_XIDS:
                self._numbers.append(int(self._wait().eventData))
        return [*self._numbers]


def observe(
    device: str,
    pci_bus_id: str | None = None,
    *,
    own_pids: Collection[int] = (),
    sources: Sources | None = None,
    **of_run: Callable[[Machine], Json],
) -> dict[str, Json]:
    """Return the current observations, with units in the names, and under "unavailable" why each missing field is None.

    The reasons also cover the fields of `identity`. `own_pids` are kvbench's processes on the GPU (the worker), which
    do not count as other processes; `of_run` are more probes.
    """
    with open_machine(device, pci_bus_id, sources or Sources(), own_pids) as machine:
        fields, unavailable = _read_all({**OBSERVED, **of_run}, machine)
        _, unknown = _read_all(IDENTITY, machine)
    return {**fields, "unavailable": {**unknown, **unavailable}}


def _read_all(
    probes: Mapping[str, Callable[[Machine], Value]], machine: Machine
) -> tuple[dict[str, Value | None], dict[str, str]]:
    """Return the value of every field, None if its probe raised, and field -> reason for those."""
    values: dict[str, Value | None] = {}
    reasons: dict[str, str] = {}
    for field, probe in probes.items():
        try:
            values[field] = probe(machine)
        except Exception as error:
            values[field] = None
            reasons[field] = reason_of(error)
    return values, reasons
