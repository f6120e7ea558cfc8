"""The backend interface, and the discovery of installed backends.

To measure another project's kernel, install a package that registers a class under the entry-point group
`kvbench.backends`. The class takes no arguments and implements `Backend`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.cells.facts import DEFAULT_SMS, BackendFacts, DeviceFacts, SmsRow
from kvbench.cells.installed import Installed, installed
from kvbench.cells.policy import Policy
from kvbench.ground.errors import UsageError
from kvbench.ground.text import printable, short

if TYPE_CHECKING:
    from kvbench.engine.device import Device, Swap, SwapMemory


class Mechanism(StrEnum):
    """The mechanism that a backend requests; the effective path, which measuring determines, can differ."""

    SINGLE_COPIES = "single copies"
    BATCHED_COPY = "batched copy"
    FALLBACK = "single copies in place of the batched one"
    SM_KERNEL = "SM kernel"
    STAGED = "SM kernel and copy engine"
    HOST_THREAD = "host thread"
    NOTHING = "nothing is copied"


@dataclass(frozen=True)
class SwapRequest:
    """The swap that a backend is to run: the cell, its descriptors as addresses, and the device.

    The arrays in `memory` are rewritten in place before every swap; the number, sizes and alignment of descriptors stay
    the same. A swap begins when they are written: all that depends on their content belongs to `submit`. Only what
    depends on the number and sizes alone, such as buffers and compilation, may be done earlier.

    `policy` is the policy of the sweep, for a backend that chooses among others. `pace_gbps` is the rate at which the
    swap is held, None for none.
    """

    device: "Device"
    cell: Cell
    memory: "SwapMemory"
    policy: Policy | None = None
    pace_gbps: float | None = None


@runtime_checkable
class PythonSwap(Protocol):
    """A swap submitted from Python.

    A descriptor buffer must not be reused while a submission that reads it is in flight.
    """

    @property
    def calls(self) -> int:
        """Driver calls or kernel launches per submission."""

    def submit(self, stream: int) -> None:
        """Read the arrays of the request, convert them, and submit the swap to the CUDA stream with this handle (on the
        cpu device: the engine's stream), without waiting for completion.
        """


@dataclass(frozen=True)
class PreparedSwap:
    """A prepared swap: a swap of the compiled engine or of the backend itself, and the mechanism that moves the bytes.

    A backend that chooses among others sets `chosen` to its choice. `warnings` appear in the cell's row of the
    results. `same_when_busy` says that a busy stream gets the same submission, `pace_gbps` the rate at which the swap
    is held, None if at none.
    """

    swap: "Swap | PythonSwap"
    mechanism: Mechanism
    chosen: str | None = None
    warnings: tuple[str, ...] = ()
    same_when_busy: bool = True
    stage: Callable[[], None] | None = None
    pace_gbps: float | None = None


class Backend(Protocol):
    """An implementation of swaps.

    A backend that runs on SMs can set `default_sms` to its default SM count: a number, or a rule as in
    `kvbench.cells.facts`; () leaves the count to the backend. A backend that runs the code of another package
    names it in `package` ("name==version") and that package's settings in `settings`. A backend with `on_request` is
    measured only if it is named. One for pages on the host sets `host_run_bytes`, the bytes that must lie together
    there, in the mean.
    """

    @property
    def name(self) -> str:
        """The value of the axis backend."""

    @property
    def summary(self) -> str:
        """One line for `kvbench list backends`."""

    def axes(self, device: DeviceFacts, /) -> frozenset[str]:
        """The optional axes that this backend supports on `device`; none, unless it says so."""
        del device
        return frozenset()

    def unavailable(self, device: DeviceFacts, /) -> str | None:
        """Why it cannot run on `device`, or None if it can; the default can run everywhere."""
        del device
        return None

    def create(self, request: SwapRequest) -> PreparedSwap:
        """The swap of `request`, ready to be submitted repeatedly."""


@dataclass(frozen=True)
class BrokenBackend:
    """Replaces a backend that fails to load, so that its cells report the reason."""

    name: str
    reason: str
    summary: str = "does not load"
    on_request: bool = True

    def axes(self, _device: DeviceFacts) -> frozenset[str]:
        return frozenset()

    def unavailable(self, _device: DeviceFacts) -> str | None:
        return self.reason

    def create(self, request: SwapRequest) -> PreparedSwap:
        raise UsageError(f"backend {request.cell.backend}: {self.reason}")


@cache
def backend_named(name: str) -> Backend | None:
    """An installed backend, loaded once; a BrokenBackend if it fails to load, None for an unknown name."""
    backends, _ = installed()
    return _load(backends[name]) if name in backends else None


def is_own(name: str) -> bool:
    """Whether an installed backend comes with kvbench."""
    return installed()[0][name].own


def _load(registration: Installed) -> Backend:
    if registration.entry is None:
        return BrokenBackend(
            registration.name, f"packages {registration.package} provide a backend of this name: uninstall all but one"
        )
    source = f"{registration.entry.value} of {registration.package}"
    try:
        backend: Backend = registration.entry.load()()
        name = backend.name
    except Exception as error:  # the import of another package can fail in any way
        return BrokenBackend(registration.name, f"{source} does not load: {_line(error)}")
    return backend if name == registration.name else BrokenBackend(registration.name, f"{source} calls itself {name!r}")


def facts_of(name: str, device: DeviceFacts) -> BackendFacts:
    """The facts that the plan needs about a backend on `device`; a backend that fails is unavailable."""
    registration, backend = installed()[0][name], backend_named(name)
    assert backend is not None
    try:
        usual = getattr(backend, "default_sms", DEFAULT_SMS)
        description = {
            "name": name,
            "summary": backend.summary,
            "axes": backend.axes(device),
            "unavailable": backend.unavailable(device),
            "default_sms": (SmsRow(usual),) if isinstance(usual, int) else usual,
            "package": getattr(backend, "package", None) or registration.package,
            "settings": getattr(backend, "settings", ()),
            "on_request": bool(registration.engine) or getattr(backend, "on_request", False),
            "plug_in": registration.plug_in,
            "host_run_bytes": getattr(backend, "host_run_bytes", 0),
        }
        # Another package can return anything.
        facts: BackendFacts = msgspec.convert(msgspec.to_builtins(description), BackendFacts)
        if facts.default_sms and not facts.default_sms[-1].fits(Direction.H2D, 0, 1 << 34, 1 << 62):
            raise ValueError("the last row of default_sms must apply to every swap")
        return facts
    except Exception as error:  # as in _load
        reason = f"{registration.package} fails to describe it: {_line(error)}"
        return BackendFacts(
            name, "does not describe itself", frozenset(), reason, package=registration.package, on_request=True
        )


def _line(error: Exception) -> str:
    return short(printable(" ".join(f"{type(error).__name__}: {error}".split())))
