"""A registry of guarded probes: field -> reader. A reader returns its value or raises; the reason is recorded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from kvbench.machine.sources import Gpu, Sources, reason_of

Scalar = str | int | float | bool | None
Json = Scalar | list["Json"] | dict[str, "Json"]
Value = TypeVar("Value", bound=Json)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a reader may look at: the device's name, its GPU, the host's files, and whose processes are our own."""

    device: str
    gpu: Gpu
    sources: Sources
    own_pids: frozenset[int] = frozenset()


def read_all(
    readers: Mapping[str, Callable[[Machine], Value]], machine: Machine
) -> tuple[dict[str, Value | None], dict[str, str]]:
    """Return every field's value, None where its reader raised, and field -> reason for those."""
    values: dict[str, Value | None] = {}
    reasons: dict[str, str] = {}
    for field, reader in readers.items():
        try:
            values[field] = reader(machine)
        except Exception as error:
            values[field] = None
            reasons[field] = reason_of(error)
    return values, reasons
