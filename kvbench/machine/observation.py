"""The environment of a run: its identity (the kind of machine), with its hash, and what was observed.

No probe raises: a field that this machine does not tell is None, and `observe` says why under "unavailable".
"""

from collections.abc import Collection

from kvbench.machine import gpu, host
from kvbench.machine.identity import differences, identity_hash
from kvbench.machine.probes import Json, Machine, Scalar, read_all
from kvbench.machine.sources import Nvml, Sources, open_gpu

__all__ = [
    "Json",
    "Nvml",
    "Scalar",
    "Sources",
    "cpus_of_node",
    "differences",
    "gpu_numa_node",
    "identity",
    "identity_hash",
    "observe",
]


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
    (without it the ordinal is mapped as CUDA_VISIBLE_DEVICES says) and the SM count, which NVML does not tell.
    """
    sources = sources or Sources()
    with open_gpu(device, pci_bus_id, sources) as the_gpu:
        fields, _ = read_all({**gpu.IDENTITY, **host.IDENTITY}, Machine(device, the_gpu, sources))
    return {"device_kind": device.partition(":")[0], **fields, "sm_count": sm_count, "engine_hash": engine_hash}


def observe(
    device: str,
    pci_bus_id: str | None = None,
    *,
    own_pids: Collection[int] = (),
    sources: Sources | None = None,
) -> dict[str, Json]:
    """Return what holds just now, with units in the names, and under "unavailable" every missing field's reason.

    The reasons cover the fields of `identity` too. `own_pids` are our processes on the GPU (the worker), which are
    not counted among the others.
    """
    sources = sources or Sources()
    with open_gpu(device, pci_bus_id, sources) as the_gpu:
        machine = Machine(device, the_gpu, sources, frozenset(own_pids))
        fields, unavailable = read_all({**gpu.OBSERVED, **host.OBSERVED}, machine)
        _, unknown = read_all({**gpu.IDENTITY, **host.IDENTITY}, machine)
    return {**fields, "unavailable": {**unknown, **unavailable}}


def gpu_numa_node(device: str, pci_bus_id: str | None = None, *, sources: Sources | None = None) -> int | None:
    """Return the NUMA node whose CPUs are nearest to the GPU; None where that is unknown or the device is cpu."""
    sources = sources or Sources()
    with open_gpu(device, pci_bus_id, sources) as the_gpu:
        fields, _ = read_all({"node": gpu.numa_node}, Machine(device, the_gpu, sources))
    return fields["node"]


def cpus_of_node(node: int, *, sources: Sources | None = None) -> set[int]:
    """Return the CPUs of a NUMA node; empty where the kernel does not tell."""
    try:
        return host.node_cpus(node, sources or Sources())
    except (OSError, ValueError):
        return set()
