"""The models that come with kvbench, and the choice of models that a config or a command makes."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from kvbench.errors import UsageError
from kvbench.files import read_toml, shipped_folder
from kvbench.models.geometry import BlockTokens, Geometry, KvDtype, KvLayout, ModelSwap, Ranks, Tokens, model_swap
from kvbench.models.hf_config import geometry_of, read_config_json
from kvbench.text import convert, hint, shown


class ModelChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The models whose swaps a sweep is asked for, and how: None leaves a setting to its default.

    A model is the name of a preset or the path of a config.json; `@tpN` behind it is a number of ranks of its own.
    """

    models: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="names of presets or paths of config.json; `@tpN` gives a model its own ranks"),
    ] = ()
    tp: Annotated[Ranks | None, msgspec.Meta(description="ranks that a model's KV heads are spread over")] = None
    tokens: Annotated[Tokens | None, msgspec.Meta(description="tokens of a model that one swap moves")] = None
    block_tokens: Annotated[BlockTokens | None, msgspec.Meta(description="tokens of a model in one block")] = None
    layout: Annotated[
        KvLayout | None, msgspec.Meta(description="how a model's layers lie: per-layer or cross-layer")
    ] = None
    kv_dtype: Annotated[
        KvDtype | None,
        msgspec.Meta(description="type of a model's KV cache: bf16, fp16, fp32, fp8 (default: the model's)"),
    ] = None

    def over(self, other: "ModelChoice") -> "ModelChoice":
        """Return this choice, completed by `other` where it says nothing."""
        return ModelChoice(*(getattr(self, name) or getattr(other, name) for name in self.__struct_fields__))

    def swaps(self) -> tuple[ModelSwap, ...]:
        """Return the swap of every model, each once; raises UsageError that names the setting."""
        for name in self.__struct_fields__ if not self.models else ():
            if value := getattr(self, name):
                raise UsageError(f"{name}: {shown(value)} without a model; choose one with --model")
        return tuple(dict.fromkeys(self._swap(text) for text in self.models))

    def _swap(self, text: str) -> ModelSwap:
        match = re.fullmatch(r"(.+)@tp(\d{1,6})", text)
        geometry = find_model(match[1] if match else text)
        if self.kv_dtype is not None:
            geometry = msgspec.structs.replace(geometry, dtype=self.kv_dtype)
        return model_swap(
            geometry,
            tp=convert(int(match[2]), Ranks, "tp") if match else self.tp or 1,
            tokens=self.tokens or 2048,
            block_tokens=self.block_tokens or 16,
            layout=self.layout or KvLayout.PER_LAYER,
        )


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
    path = Path(name_or_path)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name_or_path) and path.suffix != ".json" and not path.exists():
        raise UsageError(
            f"model {shown(name_or_path)}: names of a model hub are not looked up: download its config.json and give "
            f"the path, or {hint(path.name, known, 'see kvbench list models')}"
        )
    if name_or_path.endswith(".json") or "/" in name_or_path:
        return read_config_json(Path(name_or_path))
    near = hint(name_or_path, known, "kvbench list models shows them, or give the path of a config.json")
    raise UsageError(f"model {shown(name_or_path)}: kvbench comes with no such model; {near}")
