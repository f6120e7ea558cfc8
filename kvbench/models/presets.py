"""The models that come with kvbench, and the choice of models that a config or a command makes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvbench.errors import UsageError
from kvbench.files import read_toml, shipped_folder
from kvbench.models.geometry import Geometry, KvDtype, KvLayout, ModelSwap, model_swap
from kvbench.models.hf_config import geometry_of, read_config_json
from kvbench.text import hint, shown

Word = TypeVar("Word", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The models whose swaps a sweep is asked for, and how: None leaves a setting to its default.

    A model is the name of a preset or the path of a config.json; `@tpN` behind it is a number of ranks of its own.
    """

    models: tuple[str, ...] = ()
    tp: int | None = None
    tokens: int | None = None
    block_tokens: int | None = None
    layout: str | None = None
    kv_dtype: str | None = None

    def over(self, other: "ModelChoice") -> "ModelChoice":
        """Return this choice, completed by `other` where it says nothing."""
        said = {name: value for name, value in self._settings() if value is not None}
        return ModelChoice(self.models or other.models, **{**dict(other._settings()), **said})

    def swaps(self) -> tuple[ModelSwap, ...]:
        """Return the swap of every model, each once; raises UsageError that names the setting."""
        given = next(((name, value) for name, value in self._settings() if value is not None), None)
        if not self.models and given is not None:
            raise UsageError(f"{given[0]}: {shown(given[1])} without a model; choose one with --model")
        return tuple(dict.fromkeys(self._swap(text) for text in self.models))

    def _settings(self) -> list[tuple[str, Any]]:
        return [(part.name, getattr(self, part.name)) for part in fields(self) if part.name != "models"]

    def _swap(self, text: str) -> ModelSwap:
        match = re.fullmatch(r"(.+)@tp(\d{1,6})", text)
        geometry = find_model(match[1] if match else text)
        if self.kv_dtype is not None:
            geometry = msgspec.structs.replace(geometry, dtype=_one_of(KvDtype, "kv_dtype", self.kv_dtype))
        layout = KvLayout.PER_LAYER if self.layout is None else _one_of(KvLayout, "layout", self.layout)
        numbers = {"tp": self.tp, "tokens": self.tokens, "block_tokens": self.block_tokens}
        if match:
            numbers["tp"] = int(match[2])
        given = {name: number for name, number in numbers.items() if number is not None}
        return model_swap(geometry, layout=layout, **given)


def presets() -> Mapping[str, Geometry]:
    """Return name -> geometry of the models that come with kvbench, in the order of their file."""
    tables = read_toml(shipped_folder() / "presets" / "models.toml")
    return {name: geometry_of(name, table) for name, table in tables.items()}


def find_model(name_or_path: str) -> Geometry:
    """Return the geometry of a preset, or of the config.json at a path (ending in .json or with a slash).

    Raises UsageError for a name that no preset has, and for a file that is no config.json of a known kind.
    """
    known = presets()
    if name_or_path in known:
        return known[name_or_path]
    if name_or_path.endswith(".json") or "/" in name_or_path:
        return read_config_json(Path(name_or_path))
    near = hint(name_or_path, known, "kvbench list models shows them, or give the path of a config.json")
    raise UsageError(f"model {shown(name_or_path)}: kvbench comes with no such model; {near}")


def _one_of(kind: type[Word], name: str, value: object) -> Word:
    try:
        return kind(str(value))
    except ValueError:
        raise UsageError(f"{name}: {shown(value)} is not one of {', '.join(kind)}") from None
