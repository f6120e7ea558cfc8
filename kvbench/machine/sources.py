"""The sources of the probes: NVML as one callable, and kernel files below one root. Tests replace both."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Scalar = str | int | float | bool | None
Json = Scalar | list["Json"] | dict[str, "Json"]
# NVML as one callable: takes the name of a function of nvidia-ml-py and its arguments; raises what that raises.
Nvml = Callable[..., Any]


class UnavailableError(Exception):
    """A value that cannot be read on this machine; the message is the reason."""


@contextmanager
def open_nvml() -> Iterator[Nvml]:
    """Open NVML on this machine; raises the underlying error (no package, no driver)."""
    import pynvml

    pynvml.nvmlInit()
    try:
        yield lambda function, *arguments: getattr(pynvml, function)(*arguments)
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


@dataclass(frozen=True, slots=True)
class Sources:
    """The NVML, files and environment variables of a machine."""

    nvml: Callable[[], AbstractContextManager[Nvml]] = open_nvml
    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def text(self, path: str) -> str:
        """Return the stripped text of a file below the root ("proc/loadavg"); raises OSError."""
        return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()


@dataclass(frozen=True, slots=True)
class Machine:
    """The input of a probe: the device's name, NVML and its handle of the GPU, and the host's files.

    `own_pids` are kvbench's own processes.
    """

    device: str
    sources: Sources
    nvml: Nvml
    handle: Any = None
    own_pids: Collection[int] = ()

    def ask(self, function: str, /, *arguments: Any) -> Any:
        return self.nvml(function, self.handle, *arguments)


@contextmanager
def open_machine(
    device: str, pci_bus_id: str | None, sources: Sources, own_pids: Collection[int] = ()
) -> Iterator[Machine]:
    """Open the GPU of `device` ("cpu" or "cuda:N"). Never raises: the probes of an unreachable GPU give the reason."""
    with ExitStack() as stack:
        step = ""
        try:
            if device == "cpu":
                raise UnavailableError("the device is cpu")
            step = "NVML cannot be opened: "
            nvml = stack.enter_context(sources.nvml())
            step = f"NVML does not find {device}: "
            if pci_bus_id is not None:
                handle = nvml("nvmlDeviceGetHandleByPciBusId", pci_bus_id)
            else:
                handle = _handle_of_ordinal(nvml, int(device.removeprefix("cuda:")), sources.environ)
            machine = Machine(device, sources, nvml, handle, own_pids)
        except Exception as error:
            machine = Machine(device, sources, _out_of_reach(step + reason_of(error)))
        yield machine


def _out_of_reach(reason: str) -> Nvml:
    def nvml(*_: Any) -> Any:
        raise UnavailableError(reason)

    return nvml


def _handle_of_ordinal(nvml: Nvml, ordinal: int, environ: Mapping[str, str]) -> Any:
    """Return the handle of CUDA device `ordinal` if its PCI bus id is unknown because the engine did not load.

    Raises UnavailableError if CUDA can number the GPUs differently from NVML, which uses PCI order.
    """
    if "CUDA_VISIBLE_DEVICES" in environ:
        raise UnavailableError("CUDA_VISIBLE_DEVICES renumbers the GPUs, and the PCI bus id is unknown")
    handles = [nvml("nvmlDeviceGetHandleByIndex", index) for index in range(nvml("nvmlDeviceGetCount"))]
    if not 0 <= ordinal < len(handles):
        raise UnavailableError(f"the machine has {len(handles)} GPUs")
    kinds = {str(nvml("nvmlDeviceGetName", handle)) for handle in handles}
    if len(kinds) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise UnavailableError(
            "the machine has different GPUs and the PCI bus id is unknown; set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    return handles[ordinal]


def reason_of(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UnavailableError) else f"{type(error).__name__}: {text}".removesuffix(": ")
