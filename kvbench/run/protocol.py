"""The protocol between the parent and its worker process over stdin and stdout: one JSON object per line."""

from typing import Final, Literal

import msgspec

from kvbench.cells.cell import AxisTexts
from kvbench.cells.facts import BackendFacts, DeviceFacts
from kvbench.cells.policy import Policy
from kvbench.models.steps import StepSizes
from kvbench.results.schema import Ceiling, Control, Failure, Roof, Visit
from kvbench.sweep.spec import Replay, Sampling

# The version of this protocol. If two builds are measured in turn, one parent speaks to the workers of both.
VERSION: Final = 9


class _Message(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, tag_field="type", omit_defaults=True
):
    """A line in either direction.

    A field at its default is left out: the gate speaks to a build that lacks it, as long as nothing needs it.
    """


class Open(_Message, tag="open", frozen=True, kw_only=True):
    """Open `device` ("auto", "cpu", "cuda", "cuda:N"); answered by Opened or Refused."""

    device: str
    fault: str | None


class Opened(_Message, tag="opened", frozen=True, kw_only=True):
    """The opened device; `backends` are the backends described on it."""

    device: DeviceFacts
    backends: list[BackendFacts]
    engine_hash: str
    delay_us: dict[str, float]
    pci_bus_id: str | None
    notes: list[str]


class Describe(_Message, tag="describe", frozen=True, kw_only=True):
    """Load a backend and describe it on the open device; answered by Described, unless the worker crashes."""

    backend: str


class Described(_Message, tag="described", frozen=True, kw_only=True):
    backend: BackendFacts


class Reserve(_Message, tag="reserve", frozen=True, kw_only=True):
    """Allocate the memory pools, `pool_bytes` each, and other shared resources; answered by Reserved or Refused.

    `host_pools` is the number of methods of pinning memory whose pools can exist at once, `memories` are those methods,
    `backends` the names of those that are measured, `trace` what cells replay, and `step_model` the model of steps
    beside swaps.
    """

    pool_bytes: int
    host_pools: int
    memories: list[str] = []
    backends: list[str]
    busy_delay_us: int
    policy: Policy | None
    trace: Replay | None = None
    step_model: StepSizes | None = None


class Reserved(_Message, tag="reserved", frozen=True, kw_only=True):
    """The pools are allocated; `notes` say what is not as it should be."""

    notes: list[str]


class _MeasureCopies(_Message, frozen=True, kw_only=True):
    direction: Literal["h2d", "d2h"]
    round: int
    samples: int


class MeasureCeiling(_MeasureCopies, tag="measure_ceiling", frozen=True, kw_only=True):
    """Time plain large copies in one direction; answered by a Ceiling record or Refused."""


class MeasureRoof(_MeasureCopies, tag="measure_roof", frozen=True, kw_only=True):
    """Time SM copies in one direction; answered by a Roof record or Refused."""


class MeasureControl(_MeasureCopies, tag="measure_control", frozen=True, kw_only=True):
    """Time large copies in one direction without the engine; answered by a Control record or Refused."""


class InTurn(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How to visit a cell in turn with another worker; the cell stays set up for the next visit.

    With `verify` every byte is compared, as in any other visit; without it, none. `cpu` is the CPU of the other
    worker's visit.
    """

    verify: bool
    cpu: int | None = None


# Rows of the file of a `Start`: the visit that a worker is ready for, and what it gives at meetings within one.
START_ROWS: Final = 3


class Start(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A file in which workers meet: START_ROWS rows of one 64-bit number per worker, 0 at first.

    `place` is this worker's index in a row, `number` that of the visit; later visits have higher numbers.
    """

    path: str
    place: int
    number: int


class MeasureCells(_Message, tag="measure_cells", frozen=True, kw_only=True):
    """Visit a cell, or several in turn, the arms of `group`; answered by MeasuredCells or Refused."""

    cells: list[AxisTexts]
    group: str | None = None
    round: int
    attempt: int = 0
    seed: int
    sampling: Sampling
    in_turn: InTurn | None = None
    start: Start | None = None


class MeasuredCells(_Message, tag="measured", frozen=True, kw_only=True):
    """The records of a visit, one for each arm; or the failure of one arm, which ended it for all."""

    records: list[Visit | Failure]


class Refused(_Message, tag="refused", frozen=True, kw_only=True):
    """The request cannot be carried out, with the reason in one line; `usage` is true if the input is invalid."""

    message: str
    usage: bool


CopyRequest = MeasureCeiling | MeasureRoof | MeasureControl
Request = Open | Describe | Reserve | CopyRequest | MeasureCells
Answer = Opened | Described | Reserved | Refused | Ceiling | Roof | Control | MeasuredCells

REQUESTS: Final[msgspec.json.Decoder[Request]] = msgspec.json.Decoder(Request)
ANSWERS: Final[msgspec.json.Decoder[Answer]] = msgspec.json.Decoder(Answer)


def encode(message: Request | Answer) -> bytes:
    return msgspec.json.encode(message) + b"\n"
