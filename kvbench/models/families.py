"""What the layers of a text model cache, from the fields of its configuration, family by family.

A family is a `model_type` of transformers. Its reader knows the fields that shape its cache. `Fields` records which
were read: a field whose name could shape a cache and that no reader asked for is refused, so nothing is guessed. An
optional field has the default of its class in transformers.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from kvbench.errors import UsageError
from kvbench.models.geometry import CachePart
from kvbench.text import convert, shown

Table = Mapping[str, object]

_Count = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
_NoneOrMore = Annotated[int, msgspec.Meta(ge=0, le=10**6)]

_SHAPING: Final = re.compile(
    r"(?i)(^|_)(heads?|layers?|rank|windows?|states?|ssm|mamba|index|indexer|indices|indexes|share[ds]?|sharing|kv|values?|"
    r"latent|dims?|chunk|attn|attention|conv|blocks?|sparse|sparsity|compress\w*|linear|recurrent|lru|cache|cla|cross|"
    r"pattern|groups|period|interval|freq|stride|sinks?|memory|meta|swa|local|global|mla|mqa|gqa|query|hybrid|types?|mixer|"
    r"ratios?|retention|rwkv|channels|causal|loops?)(_|$)"
)
_HARMLESS: Final = re.compile(
    r"(?i).*(expert|moe|mlp|ffn|feed_forward|router|(^|_)gate($|_)|rope|rotary|norm|drop|bias|vision|image|video|audio|speech|visual|"
    r"_token_(id|ids|index)$|loss|initializer|mtp|nextn|softcap|logit|embed|vocab|multiplier|intermediate|lm_head|reward|"
    r"softmax).*|model_type|use_cache|cache_implementation|_?attn_implementation(_autoset)?|attn_temperature_tuning|"
    r"attn_scale|attn_factor|attention_value_scale|add_(full|swa)_attention_sink_bias|scale_attn_\w+|reorder_and_upcast_attn|"
    r"(num_ln_in_)?parallel_attn|pre_allocate_kv_cache|query_pre_attn_scalar|hidden_size_per_layer_input|decoder_sparse_step|dim_model_base|type_vocab_size|"
    r"apply_query_key_layer_scaling|num_return_sequences|first_k_dense_replace|laurel_rank|activation_sparsity_pattern|"
    r"interleave_\w*_layer_step|num_beam_groups|\w+_act|\w+_beta|keys_to_ignore_at_inference|problem_type|summary_\w+"
)
_WORD_OF_LAYER: Final[Mapping[object, str]] = {
    "full_attention": "full", "attention": "full", "global": "full", "global_attention": "full", "*": "full",
    "deepseek_sparse_attention": "full", "indexed_attention": "full",
    "sliding_attention": "sliding", "chunked_attention": "chunked",
    "linear_attention": "state", "mamba": "state", "M": "state",
    "moe": "none", "mlp": "none", "-": "none", "E": "none",
}  # fmt: skip
_HYBRID: Final = ("full", "state", "none")


class Cache(NamedTuple):
    """What one layer keeps in one kind of blocks; the fields are those of `LayerGroup`."""

    heads: int
    head_dim: int
    parts: Literal[1, 2] = 2
    part: CachePart = CachePart.KV
    window: int = 0
    chunked: bool = False
    row_bytes: int = 0


Layers = list[list[Cache]]


class Fields:
    """The fields of a configuration, below `path`; remembers which of them were read."""

    def __init__(self, table: Table, path: str = "") -> None:
        self._table, self._path = table, path
        self._read: set[str] = set()
        self._inner: list[Fields] = []

    def get(self, name: str) -> object:
        self._read.add(name)
        return self._table.get(name)

    def skip(self, names: str) -> None:
        """Mark fields, separated by spaces, as known not to shape the cache."""
        self._read.update(names.split())

    def has(self, name: str) -> bool:
        return self._table.get(name) is not None

    def whole(self, *names: str) -> int | None:
        """Return the value of a field that has these names; raises UsageError if two of them differ."""
        values: dict[str, int] = {}
        for name in names:
            value: int | None = convert(self.get(name), _Count | None, self._path + name)
            if value is not None:
                values[name] = value
        if len(set(values.values())) > 1:
            given = " and ".join(f"{name} {value}" for name, value in values.items())
            raise UsageError(f"{self._path}{given} contradict each other")
        return next(iter(values.values()), None)

    def needed(self, *names: str) -> int:
        value = self.whole(*names)
        if value is None:
            raise UsageError(f"{self._path}{names[0]}: missing; a config.json of this kind of model must have it")
        return value

    def upto(self, name: str, most: int) -> int:
        within = Annotated[int, msgspec.Meta(ge=0, le=most)]
        value: int = convert(self.get(name) or 0, within, self._path + name)
        return value

    def items(self, name: str, count: int, *, at_least: bool = False) -> list[Any] | None:
        """Return a list with an item for each of `count` layers, or None if it is absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list | str) or len(value) < count or (len(value) > count and not at_least):
            raise UsageError(f"{self._path}{name}: {shown(value)} is not a list of {count} items, one for each layer")
        return list(value)[:count]

    def flags(self, name: str, count: int) -> list[bool] | None:
        """Return a list with 0 or 1 for each of `count` layers as booleans, or None if it is absent."""
        values = self.items(name, count)
        if set(values or ()) - {0, 1}:
            raise UsageError(f"{self._path}{name}: {shown(values)} has other values than 0 and 1")
        return values and [bool(value) for value in values]

    def table(self, name: str) -> "Fields":
        value = self.get(name)
        if not isinstance(value, dict):
            raise UsageError(f"{self._path}{name}: {shown(value)} is not a table")
        inner = Fields(value, f"{self._path}{name}.")
        self._inner.append(inner)
        return inner

    def refuse_unread(self, family: str) -> None:
        """Raise UsageError for a field that could shape the cache and that was not read."""
        for name, value in self._table.items():
            unknown = _SHAPING.search(name) and not _HARMLESS.fullmatch(name) and name not in self._read
            if unknown and value:
                raise UsageError(
                    f"{self._path}{name}: {shown(value)} may change the KV cache, and kvbench does not know how for "
                    f"model_type {family}"
                )
        for inner in self._inner:
            inner.refuse_unread(family)


def layers_of(fields: Fields, model_type: str) -> tuple[Layers, str]:
    """Return what each layer caches, and what of the state is left out; raises UsageError that names the field."""
    left_out = ""
    fields.skip(_IGNORED.get(model_type, ""))
    if fields.get("use_cla") is False:
        fields.skip("cla_share_factor")
    layers = _FAMILIES.get(model_type, dense)(fields)
    if model_type in _STATES_UNKNOWN and [] in layers:
        left_out = "the states of its linear layers are left out, since the file does not give their size"
    layers = layers[: len(layers) - fields.upto("num_kv_shared_layers", len(layers) - 1)]
    fields.refuse_unread(model_type)
    if not any(layers):
        raise UsageError(f"{model_type}: no layer has a KV cache")
    return layers, left_out


def layer_count(fields: Fields) -> int:
    return fields.needed("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def head_size(fields: Fields) -> int:
    size = fields.whole("head_dim", "attention_head_dim", "kv_channels")
    hidden, heads = (
        fields.whole(*names)
        for names in (("hidden_size", "n_embd", "d_model"), ("num_attention_heads", "n_head", "n_heads"))
    )
    if size is not None:
        return size
    if hidden is None or heads is None:
        missing = "num_attention_heads" if heads is None else "hidden_size"
        raise UsageError(f"{missing}: missing; without head_dim a config.json must have it")
    if hidden % heads:
        raise UsageError(
            f"head_dim: missing, and hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
        )
    return hidden // heads


def kv_heads(fields: Fields, *names: str) -> int:
    """Return the number of KV heads: by default that of the query heads."""
    heads = fields.whole("num_attention_heads", "n_head", "n_heads")
    single = fields.get("multi_query") is True and fields.get("new_decoder_architecture") is not True
    given = fields.whole(*(names or ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads")))
    if single:
        return 1
    return given or heads or fields.needed("num_attention_heads")


def k_and_v(heads: int, head_dim: int, value_dim: int | None, window: int = 0, *, chunked: bool = False) -> list[Cache]:
    """Return the caches of a layer, one for K and V together where their rows are equal."""
    if value_dim in (None, head_dim):
        return [Cache(heads, head_dim, window=window, chunked=chunked)]
    sides = ((CachePart.K, head_dim), (CachePart.V, value_dim or 0))
    return [Cache(heads, size, 1, part, window, chunked) for part, size in sides]


def kinds_of(
    fields: Fields,
    layers: int,
    known: Sequence[str],
    names: Sequence[str] = ("layer_types",),
    *,
    at_least: bool = False,
) -> list[str] | None:
    """Return the kind of each layer, by the first of these fields present; raises UsageError unless it is `known`."""
    kinds = None
    for name in names:
        items = fields.items(name, layers, at_least=at_least)
        other = next((one for one in items or () if _WORD_OF_LAYER.get(str(one)) not in known), None)
        if other is not None:
            raise UsageError(f"{name}: {shown(other)} is not a kind of layer that kvbench knows for this model_type")
        kinds = kinds or (items and [_WORD_OF_LAYER[item] for item in items])
    return kinds


def window_of(fields: Fields, kinds: Sequence[str]) -> int:
    window = fields.whole("sliding_window", "sliding_window_size")
    if "sliding" in kinds and window is None:
        raise UsageError("sliding_window: missing, but layers with sliding attention need it")
    return window or 0


def sliding_kinds(fields: Fields, layers: int, every: int = 0, *, all_slide: bool = False) -> list[str]:
    """Return the kinds of layers that are full or sliding: every layer `every` is full, if the family has a default."""
    kinds = kinds_of(fields, layers, ("full", "sliding"))
    window = fields.get("sliding_window")
    uses = fields.get("use_sliding_window")
    first = fields.get("max_window_layers")
    pattern = fields.get("sliding_window_pattern") or fields.get("_sliding_window_pattern")
    if uses is False or window is None:
        return kinds if kinds and uses is not False else ["full"] * layers
    if kinds:
        return kinds
    if uses is True:
        after: int = convert(first, _NoneOrMore, "max_window_layers")
        return ["sliding" if layer >= after else "full" for layer in range(layers)]
    if isinstance(pattern, str) and re.fullmatch("[LG]+", pattern):  # L slides, G is global; the last layer is global
        last = layers - 1
        return ["sliding" if pattern[at % len(pattern)] == "L" and at != last else "full" for at in range(layers)]
    if every or all_slide or pattern is not None:
        every = convert(pattern, _Count, "sliding_window_pattern") if pattern is not None else every
        return ["sliding" if not every or (layer + 1) % every else "full" for layer in range(layers)]
    raise UsageError(f"sliding_window: {shown(window)}, but neither layer_types nor its family says which layers slide")


def dense(fields: Fields, every: int = 0, *, all_slide: bool = False, heads: Sequence[str] = ()) -> Layers:
    """Layers of K and V, full or with a sliding window."""
    layers = layer_count(fields)
    kinds = sliding_kinds(fields, layers, every, all_slide=all_slide)
    window = window_of(fields, kinds)
    shape = kv_heads(fields, *heads), head_size(fields), fields.whole("v_head_dim")
    return [k_and_v(*shape, window if kind == "sliding" else 0) for kind in kinds]


def _qwen(fields: Fields) -> Layers:
    """Return layers whose window counts only where the file says that it is used."""
    if fields.get("use_sliding_window") is True:
        return dense(fields)
    fields.skip("sliding_window max_window_layers layer_types")
    return [k_and_v(kv_heads(fields), head_size(fields), None)] * layer_count(fields)


def _by_type_lists(fields: Fields) -> Layers:
    """MiniMax: 1 is a layer of attention, 0 a linear one."""
    layers = layer_count(fields)
    attends = fields.flags("attn_type_list", layers) or [True] * layers
    cache = k_and_v(kv_heads(fields), head_size(fields), None)
    return [cache if one else [] for one in attends]


def _minimax_m3(fields: Fields) -> Layers:
    layers = layer_count(fields)
    caches = [k_and_v(kv_heads(fields), head_size(fields), None) for _ in range(layers)]
    if not fields.has("sparse_attention_config"):
        return caches
    sparse = fields.table("sparse_attention_config")
    sparse.skip("sparse_block_size sparse_init_block sparse_local_block sparse_num_index_heads sparse_topk_blocks")
    sparse.skip("sparse_score_type")
    has_index = sparse.flags("sparse_attention_freq", layers) or [True] * layers
    without_value = sparse.flags("sparse_disable_index_value", layers) or [True] * layers
    if sparse.get("use_sparse_attention") is False:
        sparse.skip("sparse_index_dim")
        return caches
    size = sparse.needed("sparse_index_dim")
    for cache, index, key_only in zip(caches, has_index, without_value, strict=True):
        if index:
            cache.append(Cache(1, size, 1 if key_only else 2, CachePart.INDEX))
    return caches


def _latent(fields: Fields, layers: int = 0, *, attentions: int = 1) -> Layers:
    """Multi-head latent attention: one row of K, and index rows of 8 bits with scales where attention is sparse."""
    fields.skip("q_lora_rank v_head_dim qk_head_dim num_key_value_heads num_attention_heads use_mla")
    rank = fields.get("kv_lora_rank")
    if not rank:  # written with 0 or null where attention is plain
        fields.skip("kv_lora_rank qk_nope_head_dim qk_rope_head_dim")
        return [k_and_v(kv_heads(fields), head_size(fields), None)] * layer_count(fields)
    fields.skip("qk_nope_head_dim head_dim mla_use_nope")
    row = Cache(1, fields.needed("kv_lora_rank") + fields.needed("qk_rope_head_dim"), 1)
    layers = layers or layer_count(fields)
    kinds_of(fields, layers, ("full",))
    size = fields.whole("index_head_dim")
    indexed = _indexed(fields, layers) if size else [False] * layers
    rows = [Cache(1, size or 0, 1, CachePart.INDEX, row_bytes=(size or 0) + 4 * math.ceil((size or 0) / 128))]
    return [[row] * attentions + (rows if has_index else []) for has_index in indexed]


def _indexed(fields: Fields, layers: int) -> list[bool]:
    """Return which layers have index rows of their own; the others use those of a layer before."""
    fields.skip("index_n_heads index_topk index_share_for_mtp_iteration indexer_rope_interleave")
    every, offset = fields.whole("index_topk_freq") or 1, fields.get("index_skip_topk_offset")
    pattern = fields.items("index_topk_pattern", layers)
    types = fields.items("indexer_types", layers)
    for name, values, known in (("index_topk_pattern", pattern, "FS"), ("indexer_types", types, ("full", "shared"))):
        if other := next((value for value in values or () if value not in known), None):
            raise UsageError(f"{name}: {shown(other)} is not one of {', '.join(known)}")
    if types or pattern:
        return [one in ("full", "F") for one in types or pattern or ()]
    first: int = convert(2 if offset is None else offset, _NoneOrMore, "index_skip_topk_offset")
    return [max(layer - first + 1, 0) % every == 0 for layer in range(layers)]


def _longcat(fields: Fields) -> Layers:
    """Return layers of two attentions; `num_hidden_layers` counts either the layers or the attentions."""
    layers, others = fields.needed("num_layers"), fields.whole("num_hidden_layers")
    if others not in (None, layers, 2 * layers):
        raise UsageError(f"num_hidden_layers: {others} is neither num_layers {layers} nor twice as many")
    return _latent(fields, layers, attentions=2)


def _mllama(fields: Fields) -> Layers:
    """Layers of cross-attention cache the image's tokens, not the text's."""
    layers = dense(fields)
    within = Annotated[int, msgspec.Meta(ge=0, le=len(layers) - 1)]
    crossing: list[int] = convert(fields.get("cross_attention_layers") or [], list[within], "cross_attention_layers")
    return [[] if at in crossing else layer for at, layer in enumerate(layers)]


def _deepseek_v4(fields: Fields) -> Layers:
    raise UsageError(
        f"compress_ratios: {shown(fields.get('compress_ratios'))}: caches of one row for several tokens are not known"
    )


def _llama4(fields: Fields) -> Layers:
    """Layers with rotary positions attend within chunks, the others to all tokens."""
    layers = layer_count(fields)
    every = fields.whole("no_rope_layer_interval") or 4
    by_period = [(layer + 1) % every != 0 for layer in range(layers)]
    rotary = fields.flags("no_rope_layers", layers) if fields.get("no_rope_layers") else by_period
    by_position = ["chunked" if one else "full" for one in rotary or by_period]
    kinds = kinds_of(fields, layers, ("full", "chunked")) or by_position
    chunk = fields.whole("attention_chunk_size")
    shape = kv_heads(fields), head_size(fields), None
    slides = [kind == "chunked" and chunk is not None for kind in kinds]
    return [k_and_v(*shape, (chunk or 0) if one else 0, chunked=one) for one in slides]


def _mimo_v2(fields: Fields) -> Layers:
    """Sliding layers have heads of their own; engines ignore `attention_chunk_size`."""
    fields.skip("attention_chunk_size swa_num_attention_heads")
    layers = layer_count(fields)
    slides = fields.flags("hybrid_layer_pattern", layers) or [False] * layers
    window = window_of(fields, ["sliding"] if any(slides) else [])
    heads, head_dim, value_dim = kv_heads(fields), head_size(fields), fields.whole("v_head_dim")
    full = k_and_v(heads, head_dim, value_dim)
    sliding = k_and_v(
        fields.whole("swa_num_key_value_heads") or heads,
        fields.whole("swa_head_dim") or head_dim,
        fields.whole("swa_v_head_dim") or value_dim,
        window,
    )
    return [sliding if one else full for one in slides]


def _gemma4(fields: Fields) -> Layers:
    """Full layers have heads of another size and, where K serves as V too, of another number."""
    if fields.get("use_bidirectional_attention") is True:
        raise UsageError("use_bidirectional_attention: true; an encoder has no KV cache")
    layers = layer_count(fields)
    kinds = sliding_kinds(fields, layers, 6)
    kinds[-1] = "full"
    heads, head_dim, window = kv_heads(fields), head_size(fields), window_of(fields, kinds)
    of_full = fields.whole("num_global_key_value_heads"), fields.whole("global_head_dim")
    full_heads = of_full[0] if fields.get("attention_k_eq_v") is True else heads
    full = k_and_v(full_heads or heads, of_full[1] or head_dim, None)
    return [full if kind == "full" else k_and_v(heads, head_dim, None, window) for kind in kinds]


def _step(fields: Fields) -> Layers:
    """`num_attention_groups` is the number of KV heads; sliding layers may have other heads."""
    fields.skip("share_q_dim yarn_only_types swiglu_limits_shared att_impl_type")
    names = ("num_attention_groups", "num_key_value_heads")
    layers = layer_count(fields)
    kinds = kinds_of(fields, layers, ("full", "sliding"), at_least=True) or ["full"] * layers
    window = window_of(fields, kinds)
    full = k_and_v(kv_heads(fields, *names), head_size(fields), None)
    sliding = full
    if fields.has("attention_other_setting"):
        other = fields.table("attention_other_setting")
        other.skip("true_head_dim")
        if other.get("attention_type") != "sliding_attention":
            raise UsageError("attention_other_setting.attention_type: not sliding_attention, the only one known")
        sliding = k_and_v(kv_heads(other, *names), other.whole("head_dim") or full[0].head_dim, None)
    return [[one._replace(window=window) for one in sliding] if kind == "sliding" else full for kind in kinds]


def _nemotron_nas(fields: Fields) -> Layers:
    """Read a table for each layer: its query heads of one KV head, or no attention at all."""
    layers, size, heads = layer_count(fields), head_size(fields), fields.needed("num_attention_heads")
    fields.skip("num_key_value_heads")
    blocks: list[Any] | None = fields.items("block_configs", layers)
    if blocks is None:
        raise UsageError("block_configs: missing; a config.json of this kind of model must have it")
    caches: Layers = []
    for at, block in enumerate(blocks):
        table = Fields({"attention": {}} | block if isinstance(block, dict) else {}, f"block_configs[{at}].")
        attention = table.table("attention")
        absent = attention.get("no_op") is True or attention.get("replace_with_linear") is True
        attention.skip("use_prefill_window_in_sink_attention unshifted_sink")
        if absent:
            caches.append([])
            continue
        group = attention.needed("n_heads_in_group")
        if heads % group:
            raise UsageError(f"block_configs[{at}]: {heads} heads are not a multiple of n_heads_in_group {group}")
        caches.append(k_and_v(heads // group, size, None, attention.whole("window_length") or 0))
        attention.refuse_unread("nemotron-nas")
    return caches


def _state(units: int, conv_elements: int, elements: int, element_bytes: int) -> list[Cache]:
    """Return a layer's state: the convolution's in 16 bits, and the recurrent one, in `units` that ranks divide."""
    row_bytes = (conv_elements * 2 + elements * element_bytes) // units
    return [Cache(units, row_bytes, 1, CachePart.STATES, row_bytes=row_bytes)]


def _element_bytes(fields: Fields, name: str) -> int:
    """Return the bytes of an element of a recurrent state; without a type it has the model's 16 bits."""
    kind = fields.get(name)
    known: Final[Mapping[object, int]] = {None: 2, "bfloat16": 2, "float16": 2, "float32": 4}
    if kind not in known:
        raise UsageError(f"{name}: {shown(kind)} is not one of bfloat16, float16, float32")
    return known[kind]


def _gated_delta(fields: Fields) -> Layers:
    """Qwen3-Next and its successors: linear layers with a state, and full ones."""
    layers, every = layer_count(fields), fields.whole("full_attention_interval") or 4
    by_period = ["state" if (layer + 1) % every else "full" for layer in range(layers)]
    kinds = kinds_of(fields, layers, _HYBRID) or by_period
    keys, values = fields.needed("linear_num_key_heads"), fields.needed("linear_num_value_heads")
    key_dim, value_dim = fields.needed("linear_key_head_dim"), fields.needed("linear_value_head_dim")
    conv = (fields.needed("linear_conv_kernel_dim") - 1) * (2 * keys * key_dim + values * value_dim)
    size = _element_bytes(fields, "mamba_ssm_dtype")
    state = _state(math.gcd(keys, values), conv, values * value_dim * key_dim, size)
    full = k_and_v(kv_heads(fields), head_size(fields), None)
    caches = {"full": full, "state": state, "none": []}
    return [caches[kind] for kind in kinds]


def _kimi_linear(fields: Fields) -> Layers:
    """Layers of latent attention, and of delta attention with states; both lists count layers from 1."""
    linear = fields.table("linear_attn_config")
    linear.skip("gate_lower_bound use_full_rank_gate")
    fields.skip("attn_res_block_size")
    caches = _latent(fields)
    everyone = list(range(1, len(caches) + 1))
    full: list[int] = convert(linear.get("full_attn_layers"), list[int], "linear_attn_config.full_attn_layers")
    states: list[int] = convert(linear.get("kda_layers"), list[int], "linear_attn_config.kda_layers")
    if sorted(full + states) != everyone:
        raise UsageError(f"linear_attn_config: its lists do not name each of {len(caches)} layers once")
    heads, size = linear.needed("num_heads"), linear.needed("head_dim")
    conv = 3 * (linear.needed("short_conv_kernel_size") - 1) * heads * size
    state = _state(heads, conv, heads * size * size, 4)
    return [cache if at in full else state for at, cache in zip(everyone, caches, strict=True)]


def _mamba2(fields: Fields, names: Sequence[str], kinds: Sequence[str] = ("layer_types",)) -> Layers:
    """Layers of attention and of Mamba 2; `names` are the fields of heads, head size, groups, states and kernel."""
    fields.skip("mamba_expand expand chunk_size mamba_chunk_size time_step_rank time_step_limit use_mamba_kernels")
    given = next((value for name in kinds if isinstance(value := fields.get(name), list | str)), None)
    layers = fields.whole("num_hidden_layers") or (len(given) if given else fields.needed("num_hidden_layers"))
    found = kinds_of(fields, layers, _HYBRID, kinds)
    attention = fields.get("attn_layer_indices")
    if found is None and isinstance(attention, list):
        found = ["full" if layer in attention else "state" for layer in range(layers)]
    if found is None:
        raise UsageError(f"{kinds[0]}: missing; a config.json of this kind of model must have it")
    heads, size, groups, state_size, kernel = (fields.needed(name) for name in names)
    conv = (kernel - 1) * (heads * size + 2 * groups * state_size)
    bytes_of_state = _element_bytes(fields, "mamba_ssm_cache_dtype")
    state = _state(math.gcd(heads, groups), conv, heads * size * state_size, bytes_of_state)
    full = k_and_v(kv_heads(fields), head_size(fields), None)
    caches = {"full": full, "state": state, "none": []}
    return [caches[kind] for kind in found]


def _chatglm(fields: Fields) -> Layers:
    if fields.get("multi_query_attention") is not True:
        fields.skip("multi_query_group_num")
        return dense(fields)
    return dense(fields, heads=("multi_query_group_num",))


_GRANITE: Final = ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
_NEMOTRON: Final = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
_NEMOTRON_KINDS: Final = ("hybrid_override_pattern", "layers_block_type", "layer_types")
_STATES_UNKNOWN: Final = ("minimax_m2", "minimax_m1", "minimax_text_01", "minimax")
# Fields that a family's files have and its cache does not depend on.
_IGNORED: Final = {
    "cohere2": "layer_switch order_of_interleaved_layers use_parallel_block",
    "ernie4_5": "compression_ratio",
    "ernie4_5_moe": "compression_ratio",
}
_READERS: Final[Sequence[tuple[Callable[[Fields], Layers], str]]] = (
    (_qwen, "qwen2 qwen2_moe qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_5_omni_text mimo"),
    (_qwen, "qwen3 qwen3_moe qwen3_vl_text qwen3_vl_moe_text qwen3_omni_moe_text"),
    (partial(dense, all_slide=True), "mistral ministral mixtral phi3 phimoe starcoder2"),
    (partial(dense, every=2), "gemma2 gpt_oss"),
    (partial(dense, every=4), "cohere2 olmo3 exaone4 exaone_moe"),
    (partial(dense, every=5), "gemma3n_text"),
    (partial(dense, every=6), "gemma3 gemma3_text"),
    (_gemma4, "gemma4 gemma4_text"),
    (_latent, "deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 glm_moe_dsa glm4_moe_lite"),
    (_deepseek_v4, "deepseek_v4 deepseek_ref"),
    (_longcat, "longcat_flash"),
    (_kimi_linear, "kimi_linear"),
    (_by_type_lists, " ".join(_STATES_UNKNOWN)),
    (_minimax_m3, "minimax_m3 minimax_m3_vl minimax_m3_text"),
    (_llama4, "llama4 llama4_text"),
    (_mllama, "mllama mllama_text_model"),
    (_mimo_v2, "mimo_v2_flash"),
    (_step, "step3_text step3p5 step3p7 step3p7_text"),
    (_nemotron_nas, "nemotron-nas deci"),
    (_gated_delta, "qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text"),
    (partial(_mamba2, names=_NEMOTRON, kinds=_NEMOTRON_KINDS), "nemotron_h"),
    (partial(_mamba2, names=_GRANITE), "granitemoehybrid bamba"),
    (_chatglm, "chatglm"),
)
_FAMILIES: Final = {name: read for read, names in _READERS for name in names.split()}
