"""What the worker tells the parent about its device and its backends, so that a plan needs neither."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """A backend as the plan sees it.

    `axes` are the optional axes that it heeds on this device (of memory, order, sms, descriptors_per_call, coalesce,
    overlap); `unavailable` is the reason why it cannot run there, None where it can.
    """

    name: str
    summary: str
    axes: frozenset[str]
    unavailable: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device as the plan sees it: `name` is "cpu" or "cuda:N", `kind` "cpu" or "cuda"."""

    name: str
    kind: str
    title: str
    sm_count: int | None
    device_free_bytes: int
    host_free_bytes: int
    batch_entry: str | None
