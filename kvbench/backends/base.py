"""What a backend is, and how installed ones are found.

Another project's kernel is measured by installing a package that names a class under the entry-point group
`kvbench.backends`; the class needs no arguments and follows `Backend`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Protocol, runtime_checkable

import msgspec

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.cells.facts import DEFAULT_SMS, BackendFacts, DeviceFacts, SmsRow
from kvbench.engine.device import Device, Swap
from kvbench.engine.memory import SwapMemory
from kvbench.errors import UsageError
from kvbench.sweep.installed import Installed, installed
from kvbench.text import printable, short
from kvbench.tune.table import Policy


class Mechanism(StrEnum):
    """What a backend asks for; measuring finds the effective path, which may be another."""

    SINGLE_COPIES = "single copies"
    BATCHED_COPY = "batched copy"
    FALLBACK = "single copies in place of the batched one"
    SM_KERNEL = "SM kernel"
    HOST_THREAD = "host thread"


@dataclass(frozen=True)
class SwapRequest:
    """The swap that a backend is asked to run: the cell, its descriptors as addresses, and the device.

    The arrays in `memory` are written anew before every swap, in place: count and sizes stay.

    `policy` is the sweep's, for a backend that chooses among others.
    """

    device: Device
    cell: Cell
    memory: SwapMemory
    policy: Policy | None = None


@runtime_checkable
class PythonSwap(Protocol):
    """A swap submitted from Python. `prepare` and `submit` are timed apart; `submit` must not wait for completion.

    Descriptor buffers that a submission reads must not be reused while it is in flight.
    """

    @property
    def calls(self) -> int:
        """Driver calls or kernel launches in one submission."""

    def prepare(self) -> None:
        """Turn the descriptors into what the kernel takes; called before every submission."""

    def submit(self, stream: int) -> None:
        """Submit on the CUDA stream with this handle (on the cpu device: the engine's stream)."""


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class PreparedSwap:
    """A backend's answer to a request: a swap of the compiled engine or one of its own, and what moves the bytes.

    Between two swaps the addresses in the request's memory change. A swap that reads them in `prepare` needs nothing
    else; one that has copied them gives a `retarget`, which takes them over. A backend that chooses among others says
    with `chosen` what it chose; `warnings` go into the cell's row.
    """

    swap: Swap | PythonSwap
    mechanism: Mechanism
    retarget: Callable[[], None] = _nothing
    chosen: str | None = None
    warnings: tuple[str, ...] = ()


class Backend(Protocol):
    """A way of running swaps.

    One that runs on SMs may say with `default_sms` how many it takes when none are named: a number, or a rule as in
    `kvbench.cells.facts`; one with the axis kernel says with `kernels` which there are.
    """

    @property
    def name(self) -> str:
        """The word on the backend axis."""

    @property
    def summary(self) -> str:
        """One line for `kvbench list backends`."""

    def axes(self, device: DeviceFacts, /) -> frozenset[str]:
        """Return the optional axes that this backend supports on `device`."""

    def unavailable(self, device: DeviceFacts, /) -> str | None:
        """Return why it cannot run on `device`, None when it can."""

    def create(self, request: SwapRequest) -> PreparedSwap:
        """Return the swap of `request`, ready to be submitted again and again."""


@dataclass(frozen=True)
class BrokenBackend:
    """Stands for an entry point that does not load, so that its cells say why."""

    name: str
    reason: str
    summary: str = "does not load"

    def axes(self, _device: DeviceFacts) -> frozenset[str]:
        return frozenset()

    def unavailable(self, _device: DeviceFacts) -> str | None:
        return self.reason

    def create(self, request: SwapRequest) -> PreparedSwap:
        raise UsageError(f"backend {request.cell.backend}: {self.reason}")


@cache
def backend_named(name: str) -> Backend | None:
    """Return an installed backend, loaded once; one that fails to load with its reason, None for no backend's name."""
    known, _ = installed()
    return _load(known[name]) if name in known else None


@cache
def is_own(name: str) -> bool:
    """Return whether an installed backend comes with kvbench; to look them all up takes as long as a short visit."""
    return installed()[0][name].own


def load_backends() -> Mapping[str, Backend]:
    """Return every installed backend by its name; one that fails to load is there with its reason."""
    return {name: _load(backend) for name, backend in installed()[0].items()}


def _load(found: Installed) -> Backend:
    if found.entry is None:
        return BrokenBackend(found.name, f"packages {found.package} both bring it: uninstall one")
    told = f"{found.entry.value} of {found.package}"
    try:
        backend: Backend = found.entry.load()()
        name = backend.name
    except Exception as error:  # another package's import can fail in any way
        return BrokenBackend(found.name, f"{told} does not load: {_line(error)}")
    return backend if name == found.name else BrokenBackend(found.name, f"{told} calls itself {name!r}")


def facts_of(name: str, device: DeviceFacts) -> BackendFacts:
    """Return what the plan has to know of an installed backend on `device`; one that cannot tell is unavailable."""
    found, backend = installed()[0][name], backend_named(name)
    assert backend is not None
    try:
        usual = getattr(backend, "default_sms", DEFAULT_SMS)
        told = {
            "name": name,
            "summary": backend.summary,
            "axes": backend.axes(device),
            "unavailable": backend.unavailable(device),
            "default_sms": (SmsRow(usual),) if isinstance(usual, int) else usual,
            "kernels": getattr(backend, "kernels", ()),
            "package": found.package,
        }
        # Another package may answer anything.
        facts: BackendFacts = msgspec.convert(msgspec.to_builtins(told), BackendFacts)
        if not facts.default_sms or not facts.default_sms[-1].fits(Direction.H2D, 0, 1 << 34):
            raise ValueError("the last row of default_sms does not fit every swap")
        return facts
    except Exception as error:  # as in _load
        reason = f"{found.package} does not describe it: {_line(error)}"
        return BackendFacts(name, "does not describe itself", frozenset(), reason, package=found.package)


def _line(error: Exception) -> str:
    return short(printable(" ".join(f"{type(error).__name__}: {error}".split())))
