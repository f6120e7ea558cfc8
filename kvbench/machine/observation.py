"""The environment of a run: its identity (the kind of machine) and what was observed.

No probe raises: a field that this machine does not tell is None, and `observe` says why under "unavailable".
"""

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from kvbench.machine.probes import IDENTITY, OBSERVED
from kvbench.machine.sources import Json, Machine, Scalar, Sources, open_machine, reason_of

Value = TypeVar("Value", bound=Json)


def identity(
    device: str,
    engine_hash: str,
    *,
    pci_bus_id: str | None = None,
    sm_count: int | None = None,
    sources: Sources | None = None,
) -> dict[str, Scalar]:
    """Return what makes two machines the same kind; nothing in it changes while a machine runs.

    `device` is "cpu" or "cuda:N". The engine knows the rest: the hash of its sources, the PCI bus id of the device
    (without it the ordinal is NVML's, where that is certain) and the SM count, which NVML does not tell.
    """
    with open_machine(device, pci_bus_id, sources or Sources()) as machine:
        fields, _ = _read_all(IDENTITY, machine)
    return {"device_kind": device.partition(":")[0], **fields, "sm_count": sm_count, "engine_hash": engine_hash}


def observe(
    device: str, pci_bus_id: str | None = None, *, own_pids: Collection[int] = (), sources: Sources | None = None
) -> dict[str, Json]:
    """Return what holds just now, with units in the names, and under "unavailable" every missing field's reason.

    The reasons cover the fields of `identity` too. `own_pids` are our processes on the GPU (the worker), which are
    not counted among the others.
    """
    with open_machine(device, pci_bus_id, sources or Sources(), own_pids) as machine:
        fields, unavailable = _read_all(OBSERVED, machine)
        _, unknown = _read_all(IDENTITY, machine)
    return {**fields, "unavailable": {**unknown, **unavailable}}


def _read_all(
    probes: Mapping[str, Callable[[Machine], Value]], machine: Machine
) -> tuple[dict[str, Value | None], dict[str, str]]:
    """Return every field's value, None where its probe raised, and field -> reason for those."""
    values: dict[str, Value | None] = {}
    reasons: dict[str, str] = {}
    for field, probe in probes.items():
        try:
            values[field] = probe(machine)
        except Exception as error:
            values[field] = None
            reasons[field] = reason_of(error)
    return values, reasons
