"""The JSON schemas in docs/reference/schemas, from the types that the files are written with.

`show.json` is written by hand, since kvbench makes what `show --json` prints of plain dictionaries: tests hold these
against it.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from kvbench.gate.outputs import GateData
from kvbench.models.presets import ModelFacts
from kvbench.results import RunInfo
from kvbench.tune.planner import TokenLine

FOLDER: Final = Path(__file__).parents[2] / "docs" / "reference" / "schemas"
SHOW: Final = FOLDER / "show.json"
# File -> the type of what it describes.
TYPES: Final[Mapping[str, Any]] = {
    "gate.json": GateData,
    "models.json": list[ModelFacts],
    "run.json": RunInfo,
    "token-lines.json": list[TokenLine],
}
_KINDS: Final = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": int | float,
    "null": type(None),
}  # fmt: skip


def schema(name: str) -> str:
    (made,), named = msgspec.json.schema_components([TYPES[name]], ref_template="#/$defs/{name}")
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "$defs": named}
    return json.dumps(whole, indent=2) + "\n"


def misfits(value: Any, name: str) -> list[str]:
    """Return what is wrong with a part of what `show --json` prints, by the definition of this name."""
    return [*_misfits(value, {"$ref": f"#/$defs/{name}"}, json.loads(SHOW.read_text())["$defs"], name)]


def _misfits(value: Any, wanted: dict[str, Any], named: dict[str, Any], where: str) -> Iterator[str]:
    """Yield what is wrong with a value, by the words of JSON schema that show.json uses."""
    if "$ref" in wanted:
        yield from _misfits(value, named[wanted["$ref"].rpartition("/")[2]], named, where)
    elif "anyOf" in wanted:
        tried = [[*_misfits(value, one, named, where)] for one in wanted["anyOf"]]
        yield from min(tried, key=len)
    elif "enum" in wanted:
        if value not in wanted["enum"]:
            yield f"{where}: {value!r} is not one of {wanted['enum']}"
    elif not isinstance(value, _KINDS[wanted["type"]]) or (isinstance(value, bool) and wanted["type"] != "boolean"):
        yield f"{where}: {value!r} is not of the type {wanted['type']}"
    elif isinstance(value, dict):
        known, other = wanted.get("properties", {}), wanted.get("additionalProperties", True)
        yield from (f"{where}: {key} is missing" for key in wanted.get("required", ()) if key not in value)
        yield from (f"{where}: {key} is unknown" for key in value if key not in known and other is False)
        for key, inner in value.items():
            if isinstance(each := known.get(key, other), dict):
                yield from _misfits(inner, each, named, f"{where}.{key}")
    elif isinstance(value, list):
        each = wanted.get("prefixItems") or [wanted.get("items", {})] * len(value)
        if len(value) != len(each):
            yield f"{where}: {len(value)} items, not {len(each)}"
        for number, (inner, one) in enumerate(zip(value, each, strict=False)):
            yield from _misfits(inner, one, named, f"{where}[{number}]")
