"""Read a model's geometry from its `config.json`, as written by Hugging Face's transformers.

The fields are those of transformers' configurations. An optional field has the default of its class in transformers or
of vLLM's `ModelArchConfigConvertorBase`. A model whose cache is not equal blocks of K and V (state-space and linear
layers, chunked attention, layers with different head sizes) is rejected.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from kvbench.errors import UsageError
from kvbench.files import MAX_FILE_BYTES, read_as
from kvbench.models.geometry import Geometry, KvDtype
from kvbench.text import NAME_PATTERN, convert, located, name_of, printable_tree, shown

Table = Mapping[str, object]

_Count = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
_NoneOrMore = Annotated[int, msgspec.Meta(ge=0, le=10**6)]

# By default engines run 32-bit checkpoints in 16 bits; vLLM's dtype "auto" does too.
_DTYPES: Final = {"bfloat16": KvDtype.BF16, "float16": KvDtype.FP16, "float32": KvDtype.BF16}
_FP8_SCHEME: Final = {"num_bits": 8, "type": "float"}
# Newer and older names of the same field; the first one present counts, as in vLLM.
_KV_HEADS: Final = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num")
# Every n-th layer has no sliding window; this is the default of each model type where the field is absent.
_FULL_EVERY: Final = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "cohere2": 4}
# What transformers' class of a model type takes where a field is absent.
_GEMMA_3: Final = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096}
_CLASS_DEFAULTS: Final[Mapping[str, Table]] = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "sliding_window": 4096},
    "gemma3": _GEMMA_3,
    "gemma3_text": _GEMMA_3,
    "gpt_oss": {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
}
_NO_KV_BLOCKS: Final = re.compile(
    r"(mamba|ssm|linear_(attn|conv|key|value|num))_.*|hybrid_override_pattern|attn_layer_(period|indices)|"
    r"layer_group_size"
)
# Fields with the kind of each layer, and the values that mean attention to all tokens.
_KINDS: Final = ("attn_type_list", "attention_layers", "block_types", "layers_block_type", "mixer_types")
_FULL: Final = (1, "attention", "full_attention", "global")
_OTHER_BLOCKS: Final = (
    "attention_chunk_size", "index_head_dim", "global_head_dim", "num_global_key_value_heads", "swa_head_dim",
    "swa_num_key_value_heads",
)  # fmt: skip


def read_config_json(path: Path) -> Geometry:
    """Return the geometry of the model whose `config.json` is at or in `path`, named after its folder.

    Raises UsageError, which names the file, the field and what would be right.
    """
    path = path / "config.json" if path.is_dir() else path
    with located(str(path)):
        stem = path.absolute().parent.name if path.name == "config.json" else path.stem
        with read_as("JSON"):
            if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
                raise UsageError("is not a regular file of up to 1 MiB" if path.exists() else "file not found")
            table = printable_tree(json.loads(path.read_bytes()))
        if not isinstance(table, dict):
            raise UsageError(f"{shown(table)} is not a config.json: it must hold a JSON object")
        return geometry_of(name_of(stem, "model"), table)


def geometry_of(name: str, config: Table) -> Geometry:
    """Return the geometry of a model's configuration; raises UsageError that names the field."""
    assert re.fullmatch(NAME_PATTERN, name)
    nested = config.get("text_config")
    if nested is not None and not isinstance(nested, dict):
        raise UsageError(f"text_config: {shown(nested)} is not a table")
    given: Table = config if nested is None else nested
    model_type = str(given.get("model_type") or config.get("model_type"))
    text: Table = {**_CLASS_DEFAULTS.get(model_type, {}), **given}
    _refuse_other_caches(text)
    layers = _needed(text, "num_hidden_layers")
    sliding = _sliding(text, layers)
    window = _whole(text, "sliding_window") or 0
    if any(sliding) and not window:
        raise UsageError("sliding_window: missing, but layer_types has sliding_attention layers")
    kv_heads, head_dim, kv_parts = _shape(text)
    return Geometry(
        name=name,
        layers=len(sliding),
        kv_heads=kv_heads,
        head_dim=head_dim,
        kv_parts=kv_parts,
        sliding_layers=sum(sliding),
        window=window if any(sliding) else 0,
        dtype=_dtype(text, config),
    )


def _shape(text: Table) -> tuple[int, int, Literal[1, 2]]:
    """Return the KV heads, the elements per head, and the parts: 2 (K and V), or 1 for multi-head latent attention."""
    if rank := _whole(text, "kv_lora_rank"):
        return 1, rank + _needed(text, "qk_rope_head_dim"), 1
    head_dim = _whole(text, "head_dim")
    if head_dim is None:
        hidden, heads = _needed(text, "hidden_size"), _needed(text, "num_attention_heads")
        if hidden % heads:
            raise UsageError(
                f"head_dim: missing, and hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
            )
        head_dim = hidden // heads
    value_dim = _whole(text, "v_head_dim")
    if value_dim not in (None, head_dim):
        raise UsageError(f"v_head_dim: {value_dim}, but K has {head_dim}; only equal blocks of K and V are supported")
    if text.get("multi_query") is True and text.get("new_decoder_architecture") is not True:
        return 1, head_dim, 2
    given = (_whole(text, name) for name in _KV_HEADS)
    return next(filter(None, given), None) or _needed(text, "num_attention_heads"), head_dim, 2


def _sliding(text: Table, layers: int) -> list[bool]:
    shared = text.get("num_kv_shared_layers") or 0  # the last layers, which share an earlier layer's cache
    fewer = Annotated[int, msgspec.Meta(ge=0, le=layers - 1)]
    caching = layers - convert(shared, fewer, "num_kv_shared_layers")
    types = text.get("layer_types")
    if types is not None:
        known = {"full_attention": False, "sliding_attention": True}
        if not isinstance(types, list) or len(types) != layers or not all(isinstance(kind, str) for kind in types):
            raise UsageError(f"layer_types: {shown(types)} is not a list of {layers} strings")
        other = next((kind for kind in types if kind not in known), None)
        if other is not None:
            raise UsageError(f"layer_types: {shown(other)} is not one of {', '.join(known)}")
        return [known[kind] for kind in types][:caching]
    if text.get("sliding_window") is None or text.get("use_sliding_window") is False:
        return [False] * caching
    if text.get("use_sliding_window") is True:
        first: int = convert(text.get("max_window_layers"), _NoneOrMore, "max_window_layers")
        return [layer >= first for layer in range(caching)]
    every = _whole(text, "sliding_window_pattern") or _FULL_EVERY.get(str(text.get("model_type")))
    return [every is None or (layer + 1) % every != 0 for layer in range(caching)]


def _refuse_other_caches(text: Table) -> None:
    if text.get("is_encoder_decoder") is True:
        raise UsageError("is_encoder_decoder: true; only decoder-only models are supported")
    for field, value in text.items():
        if value is not None and _NO_KV_BLOCKS.fullmatch(field):
            raise UsageError(f"{field}: the model has layers without KV blocks, which are not supported")
        full = isinstance(value, list) and all(kind in _FULL for kind in value)
        if value is not None and field in _KINDS and not full:
            raise UsageError(f"{field}: {shown(value)} names layers without KV blocks, which are not supported")
        if value is not None and field in _OTHER_BLOCKS:
            raise UsageError(f"{field}: the model has blocks of different sizes; only equal sizes are supported")


def _dtype(text: Table, config: Table) -> KvDtype:
    """Return the type that the quantization sets for the cache, or the model's own; bf16 if the config names none."""
    if _quantized(next(filter(None, (table.get("quantization_config") for table in (text, config))), {})):
        return KvDtype.FP8
    named = (table.get(field) for table in (text, config) for field in ("dtype", "torch_dtype"))
    name = next((name for name in named if name is not None), "bfloat16")
    if not isinstance(name, str) or name.removeprefix("torch.") not in _DTYPES:
        raise UsageError(f"torch_dtype: {shown(name)} is not one of {', '.join(_DTYPES)}")
    return _DTYPES[name.removeprefix("torch.")]


def _quantized(config: object) -> bool:
    """Return whether a quantization config has an 8-bit cache, as compressed-tensors and ModelOpt write it."""
    if not isinstance(config, dict):
        raise UsageError(f"quantization_config: {shown(config)} is not a table")
    scheme, algorithm = (config.get(field) for field in ("kv_cache_scheme", "kv_cache_quant_algo"))
    if scheme is not None and not (isinstance(scheme, dict) and _FP8_SCHEME.items() <= scheme.items()):
        raise UsageError(f"quantization_config.kv_cache_scheme: {shown(scheme)} is not a float type of 8 bits")
    if algorithm not in (None, "FP8"):
        raise UsageError(f"quantization_config.kv_cache_quant_algo: {shown(algorithm)} is not FP8")
    return scheme is not None or algorithm is not None


def _whole(table: Table, field: str) -> int | None:
    value: int | None = convert(table.get(field), _Count | None, field)
    return value


def _needed(table: Table, field: str) -> int:
    value = _whole(table, field)
    if value is None:
        raise UsageError(f"{field}: missing; a Hugging Face config.json of a language model must have it")
    return value
