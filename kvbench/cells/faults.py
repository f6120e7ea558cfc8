"""Faults to inject on the engine's host device, in the grammar of `--fault`.

A fault is `KIND=NUMBER`, a whole number unless the kind is slow, optionally with ` when FILTER` (the grammar of
`--filter`) to select cells. Faults are separated by semicolons; the first one that applies to a cell is armed for it.
`no-batch` removes the batched copy from the device.
"""

import re
from dataclasses import dataclass
from typing import Final

from kvbench.cells.cell import Cell
from kvbench.cells.filter import Filter, parse_filters
from kvbench.ground.errors import UsageError, brief

KINDS: Final = {
    "error@call": "the N-th copy call of a visit fails",
    "error@descriptor": "the N-th descriptor of a visit fails",
    "closed-gate@wait": "the N-th wait of a stream for an event never ends",
    "hang@call": "the stream stops forever at the N-th call",
    "crash@call": "the process dies at the N-th call",
    "corrupt@descriptor": "the N-th descriptor arrives with a wrong last byte",
    "stray@descriptor": "the N-th descriptor also writes the byte after its destination",
    "slow": "every copy takes N microseconds longer",
    "late-source": "batches of N or more descriptors with access order any read sources after the stream's next work",
    "inline": "h2d batches of blocks of at most N bytes copy inside the call if the stream is idle",
    "split": "copies of N or more bytes across two registrations fail",
    "synchronous": "single copies of N or more bytes return when they are done",
    "pinning": "registering memory holds up all copies for N microseconds",
    "pin-limit": "registering N or more bytes at once fails",
}
NO_BATCH: Final = "no-batch"
_FAULT: Final = re.compile(r"([a-z@-]+)=(\d{1,12}|(?<=slow=)\d{1,12}\.\d{1,6})(?:\s+when\s+(.+))?")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its kind (a key of KINDS), its number, and the filters of its cells."""

    kind: str
    number: float
    filters: tuple[Filter, ...] = ()


@dataclass(frozen=True, slots=True)
class FaultPlan:
    faults: tuple[Fault, ...] = ()
    with_batch: bool = True

    def for_cell(self, cell: Cell) -> Fault | None:
        fitting = (fault for fault in self.faults if all(condition.holds(cell) for condition in fault.filters))
        return next(fitting, None)


def parse_faults(text: str | None, option: str = "--fault") -> FaultPlan:
    """Read the value of `option`; raises UsageError, which names the invalid part and what would be right."""
    parts = [part.strip() for part in text.split(";")] if text else []
    faults = tuple(_parse_one(part, option) for part in parts if part != NO_BATCH)
    return FaultPlan(faults, with_batch=NO_BATCH not in parts)


def _parse_one(text: str, option: str) -> Fault:
    match = _FAULT.fullmatch(text)
    if match is None or match[1] not in KINDS:
        raise UsageError(
            f'{option} "{brief(text)}": not a fault; write KIND=NUMBER [when FILTER] with KIND one of '
            f"{', '.join(KINDS)}"
        )
    return Fault(match[1], float(match[2]), tuple(parse_filters(match[3])) if match[3] else ())
