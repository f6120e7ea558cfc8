"""The JSON schemas in docs/reference/schemas, from the types that the files are written with.

The types of `show --json` are here: kvbench makes it of plain dictionaries, and tests read it with these.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from kvbench.cells.axes import Direction, StreamState
from kvbench.gate.outputs import GateData
from kvbench.models.presets import ModelFacts
from kvbench.results import RunInfo
from kvbench.tune.planner import TokenLine

FOLDER: Final = Path(__file__).parents[2] / "docs" / "reference" / "schemas"
_Interval = tuple[float, float]
# From and to; null where there is no limit.
_Range = tuple[int | None, int | None]


class _Plain(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of an answer; it has these keys and no others."""


class _Around(_Plain):
    host_note: str
    warnings: list[str]


class ShownFindings(_Around):
    """What `kvbench show --json` prints about runs without a choice between backends."""

    findings: list[str]


class _Run(_Plain):
    created: str
    command: list[str]


class _Workload(_Plain):
    words: str
    pool: str
    reuse: str
    pause: str
    pattern: str
    host_pattern: str
    device_pattern: str
    sizes: str


class _Kind(_Plain):
    direction: Direction
    stream_state: StreamState


class _Shape(_Kind):
    block_bytes: int
    blocks: int


class _Part(_Kind):
    """What to use for blocks of these bytes; null where there is no limit."""

    quantity: str
    choice: str
    block_bytes: _Range
    not_told_apart: list[str]


class _Beside(_Plain):
    direction: Direction
    choice: str
    times_as_long: dict[str, float]


class _Load(_Kind):
    model: str
    group: str
    tokens: int
    block_bytes: int
    blocks: int
    quantity: str
    choice: str
    us: float
    gbps: float
    caller_us: float
    sms: int
    measured: dict[str, int]


class _Loss(_Plain):
    mean: float
    worst: float


class _TimesAsFast(_Plain):
    median: float
    low: float
    high: float


class _Gain(_Kind):
    over: str
    shapes: int
    times_as_fast: _TimesAsFast


class _RunLength(_Plain):
    from_blocks: int
    gbps: _Interval


class _Candidate(_Plain):
    choice: str
    us: float
    interval_us: _Interval | None
    caller_us: float | None
    sms: int


class _Alternative(_Plain):
    choice: str
    ratio: float
    low: float | None
    high: float | None


class _Chosen(_Plain):
    choice: str
    loss: float | None


class _Answer(_Shape):
    quantity: str
    choice: str
    us: float
    interval_us: _Interval | None
    caller_us: float | None
    sms: int
    gbps: float
    decided: bool
    tied: list[_Alternative]
    open: list[_Alternative]
    candidates: list[_Candidate]
    rule: _Chosen


class ShownAnswer(_Around):
    """What `kvbench show --json` prints about runs with a choice between backends."""

    kvbench: str
    device: str
    driver: str | None
    created: str
    link: str
    ceiling_gbps: dict[Direction, float]
    runs: list[_Run]
    workload: _Workload
    rule: list[_Part]
    loss: _Loss | None
    gains: list[_Gain]
    beside: list[_Beside]
    merged_in_runs: dict[Direction, _RunLength]
    answers: list[_Answer]
    models: list[_Load]
    token_lines: list[TokenLine]


class ShownMachines(_Plain):
    """What `kvbench show --json` prints about runs of several machines.

    `side_by_side` has the texts by row and machine; `machines` has for each what `show` prints about its runs alone.
    """

    side_by_side: dict[str, dict[str, str]]
    notes: list[str]
    machines: dict[str, dict[str, Any]]


# File -> the types of what it describes, one of which fits.
TYPES: Final[Mapping[str, tuple[Any, ...]]] = {
    "gate.json": (GateData,),
    "models.json": (list[ModelFacts],),
    "run.json": (RunInfo,),
    "show.json": (ShownAnswer, ShownFindings, ShownMachines),
    "token-lines.json": (list[TokenLine],),
}


def schema(name: str) -> str:
    """Return the JSON schema of what kvbench writes, as text."""
    each, named = msgspec.json.schema_components(TYPES[name], ref_template="#/$defs/{name}")
    made = {**(each[0] if len(each) == 1 else {"anyOf": [*each]}), "$defs": named}
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **made}, indent=2) + "\n"
