"""What the parent and its worker process say to each other over stdin and stdout: one JSON object a line."""

from typing import Final, Literal

import msgspec

from kvbench.cells.cell import AxisTexts
from kvbench.cells.facts import BackendFacts, DeviceFacts
from kvbench.results.schema import Ceiling, Control, Failure, Roof, Visit
from kvbench.sweep.spec import Sampling
from kvbench.tune.table import Policy

# Of what is said below. Two builds that are measured in turn have one parent, which speaks one of them.
VERSION: Final = 4


class _Message(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, tag_field="type"):
    """A line either way."""


class Open(_Message, tag="open", frozen=True, kw_only=True):
    """Open `device` ("auto", "cpu", "cuda", "cuda:N"); answered by Opened or Refused."""

    device: str
    fault: str | None


class Opened(_Message, tag="opened", frozen=True, kw_only=True):
    """The device as found; `backends` are those that were described on it."""

    device: DeviceFacts
    backends: list[BackendFacts]
    engine_hash: str
    delay_us: dict[str, float]
    pci_bus_id: str | None
    notes: list[str]


class Describe(_Message, tag="describe", frozen=True, kw_only=True):
    """Load a backend and describe it on the open device; answered by Described, or the end of a worker that it takes
    with it.
    """

    backend: str


class Described(_Message, tag="described", frozen=True, kw_only=True):
    """The backend as found."""

    backend: BackendFacts


class Reserve(_Message, tag="reserve", frozen=True, kw_only=True):
    """Make the memory pools, `pool_bytes` each, and what else the cells share; answered by Reserved or Refused."""

    pool_bytes: int
    busy_delay_us: int
    policy: Policy | None


class Reserved(_Message, tag="reserved", frozen=True, kw_only=True):
    """The pools are there."""


class _MeasureCopies(_Message, frozen=True, kw_only=True):
    direction: Literal["h2d", "d2h"]
    round: int
    samples: int


class MeasureCeiling(_MeasureCopies, tag="measure_ceiling", frozen=True, kw_only=True):
    """Time plain large copies one way; answered by a Ceiling record or Refused."""


class MeasureRoof(_MeasureCopies, tag="measure_roof", frozen=True, kw_only=True):
    """Time what SM copies reach one way; answered by a Roof record or Refused."""


class MeasureControl(_MeasureCopies, tag="measure_control", frozen=True, kw_only=True):
    """Time large copies one way without the engine; answered by a Control record or Refused."""


class InTurn(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How to visit a cell in turn with another worker: it stays set up for the next visit.

    With `verify` every byte is compared, as in any other visit; without, none is. `cpu` is that of the other's visit.
    """

    verify: bool
    cpu: int | None = None


class Start(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Where workers meet to begin at once: a file of one 64-bit number a worker, the visit that it is ready for.

    `place` is this worker's number in the file, `number` the visit's; later visits have higher ones.
    """

    path: str
    place: int
    number: int


class MeasureCell(_Message, tag="measure_cell", frozen=True, kw_only=True):
    """Visit a cell; answered by a Visit or a Failure record."""

    cell: AxisTexts
    round: int
    attempt: int = 0
    seed: int
    sampling: Sampling
    in_turn: InTurn | None = None
    start: Start | None = None


class Refused(_Message, tag="refused", frozen=True, kw_only=True):
    """What was asked cannot be done, in one line; `usage` when the input asks for the impossible."""

    message: str
    usage: bool


Request = Open | Describe | Reserve | MeasureCeiling | MeasureRoof | MeasureControl | MeasureCell
Answer = Opened | Described | Reserved | Refused | Ceiling | Roof | Control | Visit | Failure

REQUESTS: Final[msgspec.json.Decoder[Request]] = msgspec.json.Decoder(Request)
ANSWERS: Final[msgspec.json.Decoder[Answer]] = msgspec.json.Decoder(Answer)


def encode(message: Request | Answer) -> bytes:
    """Return `message` as one line."""
    return msgspec.json.encode(message) + b"\n"
