"""The model presets, and the models and settings that a config or a command chooses."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec

from kvbench.errors import UsageError
from kvbench.files import read_toml, shipped_folder
from kvbench.models.geometry import BlockTokens, Geometry, KvDtype, KvLayout, ModelSwap, Ranks, Tokens, model_swap
from kvbench.models.hf_config import geometry_of, read_config_json
from kvbench.text import convert, hint, shown

USUAL_TOKENS: Final = 2048


class ModelChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The models whose swaps a sweep measures, with their settings; None leaves a setting at its default.

    A model is the name of a preset, or the path of a config.json or its folder; the suffix `@tpN` sets its own number
    of ranks, `@tokensN` behind it its own tokens.
    """

    # fmt: off
    models: Annotated[tuple[str, ...], msgspec.Meta(
        description="names of presets or paths of a config.json or its folder; `@tpN` gives a model its own ranks, "
        "`@tokensN` its own tokens")] = ()
    tp: Annotated[Ranks | None, msgspec.Meta(description="tensor-parallel ranks of a model")] = None
    tokens: Annotated[Tokens | None, msgspec.Meta(description="tokens of a model per swap")] = None
    block_tokens: Annotated[BlockTokens | None, msgspec.Meta(description="tokens of a model per block")] = None
    layout: Annotated[KvLayout | None, msgspec.Meta(
        description=f"memory layout of a model's layers: {', '.join(KvLayout)}")] = None
    kv_dtype: Annotated[KvDtype | None, msgspec.Meta(
        description="data type of a model's KV cache: bf16, fp16, fp32 or fp8 (default: the model's)")] = None
    # fmt: on

    def over(self, other: "ModelChoice") -> "ModelChoice":
        """Return this choice, with unset settings taken from `other`."""
        return ModelChoice(*(getattr(self, name) or getattr(other, name) for name in self.__struct_fields__))

    def swaps(self) -> tuple[ModelSwap, ...]:
        """Return the swap of every model without duplicates; raises UsageError, which names the setting."""
        for name in self.__struct_fields__ if not self.models else ():
            if value := getattr(self, name):
                raise UsageError(f"{name}: {shown(value)} requires a model; choose one with --model")
        return tuple(dict.fromkeys(self._swap(text) for text in self.models))

    def _swap(self, text: str) -> ModelSwap:
        match = re.fullmatch(r"(.+?)(?:@tp(\d{1,6}))?(?:@tokens(\d{1,9}))?", text)
        name, tp, tokens = match.groups() if match else (text, None, None)
        geometry = find_model(name)
        if self.kv_dtype is not None:
            geometry = msgspec.structs.replace(geometry, dtype=self.kv_dtype)
        return model_swap(
            geometry,
            tp=convert(int(tp), Ranks, "tp") if tp else self.tp or 1,
            tokens=convert(int(tokens), Tokens, "tokens") if tokens else self.tokens or USUAL_TOKENS,
            block_tokens=self.block_tokens or 16,
            layout=self.layout or KvLayout.PER_LAYER,
        )


def presets() -> Mapping[str, Geometry]:
    """Return name -> geometry of the presets, in the order of their file."""
    tables = read_toml(shipped_folder() / "presets" / "models.toml")
    return {name: geometry_of(name, table) for name, table in tables.items()}


def find_model(name_or_path: str) -> Geometry:
    """Return the geometry of a preset, or of the config.json at a path: a file ending in .json, or a folder.

    Raises UsageError for an unknown preset, and for a file that is not a supported config.json.
    """
    known = presets()
    if name_or_path in known:
        return known[name_or_path]
    path = Path(name_or_path)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name_or_path) and path.suffix != ".json" and not path.exists():
        raise UsageError(
            f"model {shown(name_or_path)}: kvbench does not download models: download its config.json and give "
            f"the path, or {hint(path.name, known, 'see kvbench list models')}"
        )
    if name_or_path.endswith(".json") or "/" in name_or_path or path.is_dir():
        return read_config_json(path)
    near = hint(name_or_path, known, "list the presets with kvbench list models, or give the path of a config.json")
    raise UsageError(f"model {shown(name_or_path)}: kvbench ships no model of that name; {near}")
