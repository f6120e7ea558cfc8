"""The JSON schemas in docs/reference/schemas, from the types that the files are written with."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from kvbench.gate.outputs import GateData
from kvbench.results import RunInfo
from kvbench.tune.model_swaps import TokenLine

FOLDER: Final = Path(__file__).parents[2] / "docs" / "reference" / "schemas"
# File -> the type of what it describes.
TYPES: Final[Mapping[str, Any]] = {
    "gate.json": GateData,
    "run.json": RunInfo,
    "token-lines.json": list[TokenLine],
}


def schema(name: str) -> str:
    """Return the JSON schema of a file that kvbench writes, as text."""
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(TYPES[name])}
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"
