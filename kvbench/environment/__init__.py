"""The environment of a run: its identity (the kind of machine), hashed to key baselines, and what was observed.

No probe raises: a field that this machine does not tell is None, and `observe` says why under "unavailable".
"""

import hashlib
import json
from collections.abc import Collection, Mapping

from kvbench.environment import gpu, host
from kvbench.environment.probes import Json, Machine, Scalar, read_all
from kvbench.environment.sources import Nvml, Sources, open_gpu

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


def identity_hash(fields: Mapping[str, Scalar]) -> str:
    """Return 16 hex digits that depend on the fields and not on their order."""
    text = json.dumps(dict(fields), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()


def differences(a: Mapping[str, Scalar], b: Mapping[str, Scalar]) -> list[str]:
    """Return one line a field that differs ('triton: "3.6.0" against "3.7.1"'), by name.

    Empty just when the hashes agree; a field that one side lacks differs from one that is None.
    """
    names = sorted(a.keys() | b.keys())
    pairs = ((name, _show(name, a), _show(name, b)) for name in names)
    return [f"{name}: {in_a} against {in_b}" for name, in_a, in_b in pairs if in_a != in_b]


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


def _show(name: str, fields: Mapping[str, Scalar]) -> str:
    if name not in fields:
        return "not recorded"
    value = fields[name]
    return "unknown" if value is None else json.dumps(value, ensure_ascii=False, allow_nan=False)
