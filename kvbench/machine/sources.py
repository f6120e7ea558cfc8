"""What the probes look at: NVML through one callable, the kernel's files below one root. Tests replace both."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Scalar = str | int | float | bool | None
Json = Scalar | list["Json"] | dict[str, "Json"]
# NVML as one callable: the name of a function of nvidia-ml-py and its arguments; raises what that raises.
Nvml = Callable[..., Any]


class UnavailableError(Exception):
    """Something that this machine does not tell; the message is the reason."""


@contextmanager
def open_nvml() -> Iterator[Nvml]:
    """Open the NVML of this machine; raises whatever stands in the way (no package, no driver)."""
    import pynvml

    pynvml.nvmlInit()
    try:
        yield lambda function, *arguments: getattr(pynvml, function)(*arguments)
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a machine's NVML, files and environment are."""

    nvml: Callable[[], AbstractContextManager[Nvml]] = open_nvml
    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def text(self, path: str) -> str:
        """Return the stripped text of a file below the root ("proc/loadavg"); raises OSError."""
        return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: NVML, and its handle there."""

    nvml: Nvml
    handle: Any = None

    def ask(self, function: str, /, *arguments: Any) -> Any:
        """Return what the NVML function says of this GPU; raises."""
        return self.nvml(function, self.handle, *arguments)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a probe may look at: the device's name, its GPU, the host's files, and whose processes are our own."""

    device: str
    gpu: Gpu
    sources: Sources
    own_pids: frozenset[int] = frozenset()


@contextmanager
def open_gpu(device: str, pci_bus_id: str | None, sources: Sources) -> Iterator[Gpu]:
    """Open the GPU behind `device` ("cpu" or "cuda:N"); never raises: a GPU that is out of reach says why."""
    if device == "cpu":
        yield _out_of_reach("the device is cpu")
        return
    with ExitStack() as stack:
        try:
            nvml = stack.enter_context(sources.nvml())
        except Exception as error:
            gpu = _out_of_reach(f"NVML cannot be opened: {reason_of(error)}")
        else:
            gpu = _find(nvml, device, pci_bus_id, sources.environ)
        yield gpu


def _out_of_reach(reason: str) -> Gpu:
    def nvml(*_: Any) -> Any:
        raise UnavailableError(reason)

    return Gpu(nvml)


def _find(nvml: Nvml, device: str, pci_bus_id: str | None, environ: Mapping[str, str]) -> Gpu:
    try:
        if pci_bus_id is not None:
            return Gpu(nvml, nvml("nvmlDeviceGetHandleByPciBusId", pci_bus_id))
        return Gpu(nvml, _handle_of_ordinal(nvml, int(device.removeprefix("cuda:")), environ))
    except Exception as error:
        return _out_of_reach(f"NVML does not find {device}: {reason_of(error)}")


def _handle_of_ordinal(nvml: Nvml, ordinal: int, environ: Mapping[str, str]) -> Any:
    """Return the handle of CUDA's device `ordinal`; raises UnavailableError when the mapping would be a guess.

    CUDA numbers the devices that CUDA_VISIBLE_DEVICES leaves, the fastest first unless CUDA_DEVICE_ORDER says PCI bus
    order, which is NVML's. GPUs of one kind are in PCI bus order either way.
    """
    handles = [nvml("nvmlDeviceGetHandleByIndex", index) for index in range(nvml("nvmlDeviceGetCount"))]
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(index) for index in range(len(handles))] if visible is None else visible.replace(" ", "").split(",")
    if not 0 <= ordinal < len(names):
        raise UnavailableError(f"CUDA sees {len(names)} of {len(handles)} GPUs")
    name = names[ordinal]
    if not name.isdecimal():
        return _handle_of_uuid(nvml, handles, name)
    if int(name) >= len(handles):
        raise UnavailableError(f"CUDA_VISIBLE_DEVICES={visible} names a GPU that is not there")
    kinds = {str(nvml("nvmlDeviceGetName", handle)) for handle in handles}
    if len(kinds) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise UnavailableError("GPUs of several kinds and no PCI bus id; set CUDA_DEVICE_ORDER=PCI_BUS_ID")
    return handles[int(name)]


def _handle_of_uuid(nvml: Nvml, handles: list[Any], name: str) -> Any:
    if name.startswith("MIG-"):
        return nvml("nvmlDeviceGetHandleByUUID", name)
    found = [handle for handle in handles if name and str(nvml("nvmlDeviceGetUUID", handle)).startswith(name)]
    if len(found) != 1:
        raise UnavailableError(f"CUDA_VISIBLE_DEVICES names {name!r}, which fits {len(found)} GPUs")
    return found[0]


def reason_of(error: Exception) -> str:
    """Return one line that says what went wrong."""
    text = " ".join(str(error).split())
    return text if isinstance(error, UnavailableError) else f"{type(error).__name__}: {text}".removesuffix(": ")
