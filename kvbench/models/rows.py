"""The rows that attention keeps of a token, and in which layers: K and V, latent rows, index rows, windows."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from kvbench.ground.text import quoted
from kvbench.models.fields import Count, FieldError, Fields, NoneOrMore, head_size, kv_heads, layer_count
from kvbench.models.geometry import CachePart

_WORD_OF_LAYER: Final[Mapping[object, str]] = {
    "full_attention": "full", "attention": "full", "global": "full", "global_attention": "full", "*": "full",
    "deepseek_sparse_attention": "full", "indexed_attention": "full",
    "sliding_attention": "sliding", "chunked_attention": "chunked",
    "linear_attention": "state", "mamba": "state", "mamba2": "state", "M": "state", "conv": "conv",
    "hybrid": "hybrid", "moe": "none", "mlp": "none", "-": "none", "E": "none",
}  # fmt: skip
NO_KIND: Final = "is not a kind of layer that kvbench knows for this model_type"


class Cache(NamedTuple):
    """What one layer keeps in one kind of blocks; the fields are those of `LayerGroup`."""

    kv_heads: int
    head_dim: int
    kv_parts: Literal[1, 2] = 2
    part: CachePart = CachePart.KV
    window: int = 0
    chunked: bool = False
    row_bytes: int = 0
    row_tokens: int = 1


Layers = list[list[Cache]]


def k_and_v(heads: int, head_dim: int, value_dim: int | None, window: int = 0, *, chunked: bool = False) -> list[Cache]:
    """The caches of a layer, one for K and V together where their rows are equal."""
    if value_dim in (None, head_dim):
        return [Cache(heads, head_dim, window=window, chunked=chunked)]
    sides = ((CachePart.K, head_dim), (CachePart.V, value_dim or 0))
    return [Cache(heads, size, 1, part, window, chunked) for part, size in sides]


def usual_rows(fields: Fields) -> list[Cache]:
    return [Cache(kv_heads(fields), head_size(fields))]


def kinds_of(
    fields: Fields,
    layers: int,
    known: Sequence[str],
    names: Sequence[str] = ("layer_types",),
    *,
    at_least: bool = False,
) -> list[str] | None:
    """The kind of each layer, by the first of these fields present; raises UsageError unless it is `known`."""
    kinds = None
    for name in names:
        items = fields.items(name, layers, at_least=at_least)
        if others := [item for item in items or () if _WORD_OF_LAYER.get(str(item)) not in known]:
            raise FieldError(name, f"{quoted(others[0])} {NO_KIND}")
        kinds = kinds or (items and [_WORD_OF_LAYER[item] for item in items])
    return kinds


def window_of(fields: Fields, kinds: Sequence[str]) -> int:
    window = fields.whole("sliding_window", "sliding_window_size")
    if "sliding" in kinds and window is None:
        raise FieldError("sliding_window", "missing, but layers with sliding attention need it")
    return window or 0


def sliding_kinds(fields: Fields, layers: int, every: int = 0, *, all_slide: bool = False) -> list[str]:
    """The kinds of layers that are full or sliding: every layer `every` is full, if the family has a default."""
    kinds = kinds_of(fields, layers, ("full", "sliding"))
    window = fields.get("sliding_window")
    uses = fields.get("use_sliding_window")
    fields.skip("max_window_layers")
    pattern = fields.get("sliding_window_pattern") or fields.get("_sliding_window_pattern")
    nth = fields.whole("global_attn_every_n_layers", "global_attn_every_n")
    by_nth = nth and ["sliding" if (layer + 1) % nth else "full" for layer in range(layers)]
    if uses is False or window is None:
        return kinds if kinds and uses is not False else ["full"] * layers
    if kinds and by_nth and kinds != by_nth:
        raise FieldError("global_attn_every_n_layers", f"{nth} contradicts layer_types")
    if kinds or by_nth:
        return kinds or by_nth or []
    if uses is True and fields.has("max_window_layers"):
        after: int = fields.read("max_window_layers", NoneOrMore)
        return ["sliding" if layer >= after else "full" for layer in range(layers)]
    if isinstance(pattern, str) and re.fullmatch("[LG]+", pattern):  # L slides, G is global; the last layer is global
        last = layers - 1
        by_layer = (pattern[layer % len(pattern)] if layer != last else "G" for layer in range(layers))
        return ["sliding" if letter == "L" else "full" for letter in by_layer]
    if every or all_slide or pattern is not None:
        name = "sliding_window_pattern" if fields.get("sliding_window_pattern") else "_sliding_window_pattern"
        every = fields.read(name, Count) if pattern is not None else every
        return ["sliding" if not every or (layer + 1) % every else "full" for layer in range(layers)]
    raise FieldError(
        "sliding_window", f"{quoted(window)}, but neither layer_types nor its family says which layers slide"
    )


def dense(fields: Fields, every: int = 0, *, all_slide: bool = False) -> Layers:
    layers = layer_count(fields)
    kinds = sliding_kinds(fields, layers, every, all_slide=all_slide)
    window = window_of(fields, kinds)
    shape = kv_heads(fields), head_size(fields), fields.whole("v_head_dim")
    return [k_and_v(*shape, window if kind == "sliding" else 0) for kind in kinds]


def latent(
    fields: Fields, layers: int = 0, *, attentions: int = 1, known: Sequence[str] = ("full",), indexed: str = ""
) -> Layers:
    """Multi-head latent attention: one row of K, and index rows of 8 bits with scales where attention is sparse."""
    fields.skip("q_lora_rank v_head_dim qk_head_dim num_key_value_heads num_attention_heads use_mla")
    if not (fields.get("kv_lora_rank") or fields.has("attention_kv_lora_dim")):  # 0 or null where attention is plain
        fields.skip("kv_lora_rank qk_nope_head_dim qk_rope_head_dim")
        return [usual_rows(fields)] * layer_count(fields)
    fields.skip("qk_nope_head_dim head_dim mla_use_nope attention_q_lora_dim attention_qk_dim attention_v_dim")
    rank = fields.needed("kv_lora_rank", "attention_kv_lora_dim")
    position = "attention_qk_rope_dim" if fields.has("attention_qk_rope_dim") else "qk_rope_head_dim"
    positions = fields.upto(position, 10**6) if fields.has(position) else fields.needed(position)
    row = Cache(1, rank + positions, 1)
    layers = layers or layer_count(fields)
    kinds_of(fields, layers, known)
    size = fields.whole("index_head_dim")
    has_index = _indexed(fields, layers, default=indexed) if size else [False] * layers
    index = index_rows(size, fields.whole("index_kpool") or 1) if size else []
    return [[row] * attentions + index * own for own in has_index]


def index_rows(size: int, tokens: int = 1) -> list[Cache]:
    return [Cache(1, size, 1, CachePart.INDEX, row_bytes=size + 4 * math.ceil(size / 128), row_tokens=tokens)]


def _indexed(fields: Fields, layers: int, default: str = "") -> list[bool]:
    """The layers with index rows of their own; the others use those of a layer before."""
    fields.skip("index_n_heads index_topk index_share_for_mtp_iteration indexer_rope_interleave")
    every = fields.whole("index_topk_freq") or 1
    first: int = fields.read("index_skip_topk_offset", NoneOrMore, 2)
    pattern = fields.items("index_topk_pattern", layers)
    types = fields.items("indexer_types", layers)
    for name, values, known in (
        ("index_topk_pattern", pattern, ("F", "S")),
        ("indexer_types", types, ("full", "shared")),
    ):
        if others := [value for value in values or () if value not in known]:
            raise FieldError(name, f"{quoted(others[0])} is not one of {', '.join(known)}")
    if types or pattern:
        return [kind in ("full", "F") for kind in types or pattern or ()]
    if default and not fields.has("index_topk_freq"):
        return [kind == "F" for kind in default[:layers]]
    return [max(layer - first + 1, 0) % every == 0 for layer in range(layers)]
