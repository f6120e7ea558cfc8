"""What the layers of a model cache, and which layers cache what: of a token the rows of attention (K and V, latent,
index), of a sequence the states of linear layers (the last inputs of a convolution, and what recurs).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from kvbench.ground.text import quoted
from kvbench.models.fields import (
    Count,
    FieldError,
    Fields,
    NoneOrMore,
    by_word,
    family_tables,
    head_size,
    kv_heads,
    layer_count,
)
from kvbench.models.geometry import CachePart

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
    allowed: Sequence[str],
    names: Sequence[str] = ("layer_types",),
    *,
    at_least: bool = False,
) -> list[str] | None:
    """The kind of each layer, by the first of these fields present; raises UsageError unless it is `allowed`."""
    kinds, kind_of = None, by_word(family_tables().layer_kinds)
    for name in names:
        items = fields.items(name, layers, at_least=at_least)
        if unknown := [item for item in items or () if kind_of.get(str(item)) not in allowed]:
            raise FieldError(name, f"{quoted(unknown[0])} {NO_KIND}")
        kinds = kinds or (items and [kind_of[item] for item in items])
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
    fields: Fields, layers: int = 0, *, attentions: int = 1, kinds: Sequence[str] = ("full",), index_every: int = 0
) -> Layers:
    """Multi-head latent attention: one row of K, and index rows of 8 bits with scales where attention is sparse.

    Where the file does not say in which layers, `index_every` is the period of its family.
    """
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
    kinds_of(fields, layers, kinds)
    size = fields.whole("index_head_dim")
    has_index = _indexed(fields, layers, index_every) if size else [False] * layers
    index = index_rows(size, fields.whole("index_kpool") or 1) if size else []
    return [[row] * attentions + index * is_indexed for is_indexed in has_index]


def index_rows(size: int, tokens: int = 1) -> list[Cache]:
    return [Cache(1, size, 1, CachePart.INDEX, row_bytes=size + 4 * math.ceil(size / 128), row_tokens=tokens)]


def _indexed(fields: Fields, layers: int, usual_period: int) -> list[bool]:
    """The layers with index rows of their own; the others use those of a layer before."""
    fields.skip("index_n_heads index_topk index_share_for_mtp_iteration indexer_rope_interleave")
    period = fields.whole("index_topk_freq")
    first: int = fields.read("index_skip_topk_offset", NoneOrMore, 2)
    pattern = fields.items("index_topk_pattern", layers)
    types = fields.items("indexer_types", layers)
    for name, values, allowed in (
        ("index_topk_pattern", pattern, ("F", "S")),
        ("indexer_types", types, ("full", "shared")),
    ):
        if unknown := [value for value in values or () if value not in allowed]:
            raise FieldError(name, f"{quoted(unknown[0])} is not one of {', '.join(allowed)}")
    if types or pattern:
        return [kind in ("full", "F") for kind in types or pattern or ()]
    if usual_period and period is None:
        period, first = usual_period, 2
    return [max(layer - first + 1, 0) % (period or 1) == 0 for layer in range(layers)]


_IN_TABLE: Final = "num_heads head_dim short_conv_kernel_size"


def state_of(units: int, conv_elements: int, elements: int, element_bytes: int) -> list[Cache]:
    """A layer's state: the convolution's in 16 bits, and the recurrent one, in `units` that ranks divide."""
    row_bytes = (conv_elements * 2 + elements * element_bytes) // units
    return [Cache(units, row_bytes, 1, CachePart.STATES, row_bytes=row_bytes)]


def _element_bytes(fields: Fields, name: str) -> int:
    """The bytes of an element of a recurrent state; without a type it has the model's 16 bits."""
    element_type = fields.get(name)
    sizes: Final[Mapping[object, int]] = {None: 2, "bfloat16": 2, "float16": 2, "float32": 4}
    if not isinstance(element_type, str | None) or element_type not in sizes:
        raise FieldError(name, f"{quoted(element_type)} is not one of bfloat16, float16, float32")
    return sizes[element_type]


def delta_state(fields: Fields, names: str = _IN_TABLE) -> list[Cache]:
    """Kimi's delta attention; `names` are the fields of heads, head size and kernel, where no table has them."""
    table = linear_table(fields) if fields.has("linear_attn_config") else None
    heads, size, kernel = map(table.needed, _IN_TABLE.split()) if table else map(fields.needed, names.split())
    return state_of(heads, 3 * (kernel - 1) * heads * size, heads * size * size, 4)


def gated_delta_state(fields: Fields) -> list[Cache]:
    keys, values = fields.needed("linear_num_key_heads"), fields.needed("linear_num_value_heads")
    key_dim, value_dim = fields.needed("linear_key_head_dim"), fields.needed("linear_value_head_dim")
    conv = (fields.needed("linear_conv_kernel_dim") - 1) * (2 * keys * key_dim + values * value_dim)
    size = _element_bytes(fields, "mamba_ssm_dtype")
    return state_of(math.gcd(keys, values), conv, values * value_dim * key_dim, size)


def mamba2_state(fields: Fields, names: str) -> list[Cache]:
    """`names` are the fields of heads, head size, groups, states and kernel."""
    heads_field, size_field, *other_fields = names.split()
    heads, (groups, state_size, kernel) = fields.needed(heads_field), map(fields.needed, other_fields)
    automatic = fields.get(size_field) in (None, "auto")
    size = _inner_size(fields) // heads if automatic else fields.needed(size_field)
    conv = (kernel - 1) * (heads * size + 2 * groups * state_size)
    bytes_of_state = _element_bytes(fields, "mamba_ssm_cache_dtype")
    return state_of(math.gcd(heads, groups), conv, heads * size * state_size, bytes_of_state)


def mamba1_state(fields: Fields) -> list[Cache]:
    inner, conv = _inner_size(fields), fields.needed("mamba_d_conv") - 1
    elements = inner * fields.needed("mamba_d_state")
    return state_of(inner, conv * inner, elements, _element_bytes(fields, "mamba_ssm_dtype"))


def _inner_size(fields: Fields) -> int:
    return fields.whole("mamba_d_ssm") or (fields.whole("mamba_expand", "expand") or 2) * fields.needed("hidden_size")


def conv_state(fields: Fields) -> list[Cache]:
    width = fields.whole("conv_dim") or fields.needed("hidden_size")
    return state_of(width, (fields.needed("conv_L_cache") - 1) * width, 0, 0)


def linear_table(fields: Fields) -> Fields:
    table = fields.table("linear_attn_config")
    table.skip(f"full_attn_layers kda_layers gate_lower_bound use_full_rank_gate {_IN_TABLE}")
    return table


_STATES: Final[Mapping[str, Callable[..., list[Cache]]]] = {
    "conv": conv_state,
    "delta": delta_state,
    "gated_delta": gated_delta_state,
    "mamba1": mamba1_state,
    "mamba2": mamba2_state,
}


@dataclass(frozen=True, slots=True)
class Mixed:
    """A family whose layers attend, have a state, or (as `attends` says) both: "hybrid". Called, it reads them.

    `state` is the kind of its states, one of `_STATES`, read from `state_fields` where their names are not the usual.
    Which layers attend is in the first field of `kinds` that a file has, else in `attn_type_list`, in the field
    `indexes`, or follows from a period: that of the field `period`, by default `usual`, in which the layer of the field
    `offset` attends, or the last without such a field. With `has_tail`, the layers after the last whole period attend
    too. Without `has_sizes`, the files of the family may lack the sizes of its state.
    """

    state: str = ""
    state_fields: str = ""
    attends: str = "full"
    is_latent: bool = False
    has_sizes: bool = True
    kinds: Sequence[str] = ("layers_block_type", "layer_types")
    indexes: str = ""
    period: str = ""
    usual: int = 0
    offset: str = ""
    has_tail: bool = False

    def __call__(self, fields: Fields) -> Layers:
        kinds = self._kinds(fields)
        if self.is_latent:
            rows = latent(fields, len(kinds), kinds=("full", "state"))
        else:
            rows = [usual_rows(fields)] * len(kinds)
        states = self._states(fields, needed=not {"state", "conv", "hybrid"}.isdisjoint(kinds))
        layers = []
        for row, kind in zip(rows, kinds, strict=True):
            attends, has_state = kind in ("full", "hybrid"), kind not in ("full", "none")
            layers.append((row if attends else []) + (states if has_state else []))
        return layers

    def _states(self, fields: Fields, *, needed: bool) -> list[Cache]:
        if not self.state:
            return []
        try:
            return _STATES[self.state](fields, *filter(None, [self.state_fields]))
        except FieldError:
            if self.has_sizes and needed:
                raise
            return []

    def _kinds(self, fields: Fields) -> list[str]:
        """The kind of each layer. Every field is read, also after one decided: what nobody read is refused."""
        lists = [fields.get(name) for name in self.kinds]
        listed = next((value for value in lists if isinstance(value, list | str)), None)
        count = layer_count(fields) if listed is None or fields.has("num_hidden_layers") else len(listed)
        kinds = kinds_of(fields, count, ("full", "state", "none", "conv", self.attends), self.kinds)
        flags = fields.flags("attn_type_list", count)
        indexes: list[int] | None = fields.read(self.indexes, list[NoneOrMore] | None) if self.indexes else None
        period = (fields.whole(self.period) if self.period else None) or self.usual
        within = Annotated[int, msgspec.Meta(ge=0, le=period - 1)]
        offset: int = fields.read(self.offset, within, 4) if self.offset else period - 1  # Jamba's default
        if kinds:
            return kinds
        if indexes is not None:
            flags = [layer in indexes for layer in range(count)]
        if not flags and not period:
            raise FieldError(self.period or self.kinds[0], "missing; a config.json of this kind of model must have it")
        tail = count // period * period if self.has_tail else count
        flags = flags or [layer % period == offset or layer >= tail for layer in range(count)]
        return [self.attends if attends else "state" for attends in flags]
