"""What the layers of a text model cache, from the fields of its configuration, family by family.

A family has some of transformers' model types (`configs/presets/families.toml`). Its reader knows the fields that shape
its cache; an optional field has the default of its class in transformers. A field that could shape a cache and that no
reader asked for is refused.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import msgspec

from kvbench.ground.errors import UsageError
from kvbench.ground.text import quoted
from kvbench.models.caches import (
    NO_KIND,
    Cache,
    Layers,
    Mixed,
    dense,
    index_rows,
    k_and_v,
    kinds_of,
    latent,
    linear_table,
    sliding_kinds,
    state_of,
    usual_rows,
    window_of,
)
from kvbench.models.fields import (
    MOST_LAYERS,
    Count,
    Family,
    FieldError,
    Fields,
    NoneOrMore,
    family_tables,
    head_size,
    kv_heads,
    layer_count,
)
from kvbench.models.geometry import CachePart

_DRAFT_LAYERS: Final = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "mtp_num_layers")
NO_DRAFT: Final = "the layers that propose tokens are left out, since the model names none of its own"


def layers_of(fields: Fields, model_type: str, *, with_draft: bool = False) -> tuple[Layers, str]:
    """The cache of each layer, and what is left out; raises FieldError, or UsageError.

    `with_draft`, the layers that propose tokens count too; they attend as the last layer that does.
    """
    family = _family_of(model_type)
    fields.skip(" ".join(family_tables().ignored[name] for name in family.ignores))
    if model_type in family.types.split():
        fields.skip("attention_method")
    if fields.get("use_cla") is False:
        fields.skip("cla_share_factor")
    if fields.get("use_sliding_window") is not True:
        fields.skip("max_window_layers sliding_window" if fields.has("use_sliding_window") else "max_window_layers")
    layers = _READERS[family.reader](fields, **family.options)
    left_out = []
    if family.states_unknown and [] in layers:
        left_out = ["the states of its linear layers are left out, since the file does not give their size"]
    if (pooled := fields.whole("index_kpool") or 1) > 1:
        left_out.append(f"the index rows of a sequence's last tokens, before {pooled} become one, are left out")
    layers = layers[: len(layers) - fields.upto("num_kv_shared_layers", len(layers) - 1)]
    steps = fields.whole("total_ut_steps") or 1
    if len(layers) * steps > MOST_LAYERS:
        raise UsageError(f"{len(layers) * steps} layers are more than {MOST_LAYERS}")
    layers *= steps  # each pass over the layers keeps rows of its own
    fields.refuse_unread(model_type)
    rows = [[cache for cache in layer if cache.part is not CachePart.STATES] for layer in layers]
    attending = [caches for caches in rows if caches]
    if not attending:
        raise UsageError(f"{model_type}: no layer has a KV cache")
    if with_draft:
        draft = max(fields.upto(name, 1000) for name in _DRAFT_LAYERS)
        left_out += [] if draft else [NO_DRAFT]
        layers = [*layers, *[attending[-1]] * draft]
    return layers, "; ".join(left_out)


def is_plain(model_type: str) -> bool:
    """Whether all layers of the family have the plain numbers, as far as its fields say."""
    return _family_of(model_type).reader in ("dense", "qwen")


def _family_of(model_type: str) -> Family:
    families = (family for family in family_tables().family if model_type in family.types.split())
    return next(families, Family(types="", reader="dense"))


def _qwen(fields: Fields) -> Layers:
    """Layers whose window counts only where the file says that it is used."""
    if fields.get("use_sliding_window") is True:
        return dense(fields)
    fields.skip("sliding_window max_window_layers layer_types")
    return [usual_rows(fields)] * layer_count(fields)


def _minimax_m3(fields: Fields) -> Layers:
    layers = layer_count(fields)
    caches = [usual_rows(fields) for _ in range(layers)]
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


def _longcat(fields: Fields) -> Layers:
    """Layers of two attentions; `num_hidden_layers` counts either the layers or the attentions."""
    layers, hidden_layers = fields.needed("num_layers"), fields.whole("num_hidden_layers")
    if hidden_layers not in (None, layers, 2 * layers):
        raise FieldError("num_hidden_layers", f"{hidden_layers} is neither num_layers {layers} nor twice as many")
    return latent(fields, layers, attentions=2)


def _mllama(fields: Fields) -> Layers:
    """Layers of cross-attention cache the image's tokens, not the text's."""
    layers = dense(fields)
    within = Annotated[int, msgspec.Meta(ge=0, le=len(layers) - 1)]
    crossing: list[int] = fields.read("cross_attention_layers", list[within], [])
    return [[] if number in crossing else layer for number, layer in enumerate(layers)]


def _dots(fields: Fields) -> Layers:
    """Latent attention, in sliding layers with rows of another size and without index rows."""
    fields.skip("use_dsa swa_num_attention_heads swa_num_key_value_heads swa_q_lora_rank swa_v_head_dim")
    rows = latent(fields, kinds=("full", "sliding"))
    window = fields.whole("sliding_window", "sliding_window_size")
    kinds = kinds_of(fields, len(rows), ("full", "sliding"))
    if fields.get("use_sliding_window") is False or not window:
        return rows
    kinds = kinds or ["full" if layer < 2 or layer % 4 == 1 else "sliding" for layer in range(len(rows))]
    size = fields.whole("swa_kv_lora_rank") or 1024
    head, nope = fields.whole("swa_head_dim") or 256, fields.whole("swa_qk_nope_head_dim") or 192
    sliding = Cache(1, size + (fields.whole("swa_qk_rope_head_dim") or head - nope), 1, window=window)
    return [row if kind == "full" else [sliding] for row, kind in zip(rows, kinds, strict=True)]


def _deepseek_v4(fields: Fields) -> Layers:
    """Rows for 4 tokens, with index rows, or for 128 tokens; of all layers the rows of a window, for each sequence.

    A row has 8 bits for an element and 16 for those of positions.
    """
    if not any(fields.has(name) for name in ("compress_ratios", "compress_rates", "layer_types")):
        return latent(fields)
    fields.skip("num_key_value_heads num_attention_heads q_lora_rank o_lora_rank o_groups index_n_heads index_topk")
    fields.skip("compress_rope_theta num_hash_layers kv_lora_rank v_head_dim qk_nope_head_dim")
    layers, size, window = layer_count(fields), fields.needed("head_dim"), fields.needed("sliding_window")
    row_bytes = size + (fields.whole("qk_rope_head_dim") or 64)
    rates: dict[str, int] = {"sliding_attention": 0, **_V4_RATES, **fields.read("compress_rates", dict[str, Count], {})}
    types = fields.items("layer_types", layers, at_least=True)
    if unknown := [kind for kind in types or () if str(kind) not in rates]:
        raise FieldError("layer_types", f"{quoted(unknown[0])} {NO_KIND}")
    ratios: list[int] = fields.read("compress_ratios", list[NoneOrMore], [rates[kind] for kind in types or ()])
    if len(ratios) < layers:
        raise fields.error("compress_ratios", f"{quoted(ratios)} is not a list of {layers} items, one for each layer")
    row = Cache(1, size, 1, row_bytes=row_bytes)
    last = Cache(1, window * size, 1, CachePart.WINDOW, row_bytes=window * row_bytes)
    indexed = rates["compressed_sparse_attention"]
    index = {indexed: index_rows(fields.needed("index_head_dim"), indexed)} if indexed in ratios else {}
    return [
        [*([row._replace(row_tokens=ratio), *index.get(ratio, [])] if ratio else []), last] for ratio in ratios[:layers]
    ]


_V4_RATES: Final = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def _llama4(fields: Fields) -> Layers:
    """Layers with rotary positions attend within chunks, the others to all tokens."""
    layers = layer_count(fields)
    every = fields.whole("no_rope_layer_interval") or 4
    by_period = [(layer + 1) % every != 0 for layer in range(layers)]
    rotary = fields.flags("no_rope_layers", layers) if fields.get("no_rope_layers") else by_period
    by_position = ["chunked" if has_positions else "full" for has_positions in rotary or by_period]
    kinds = kinds_of(fields, layers, ("full", "chunked")) or by_position
    chunk = fields.whole("attention_chunk_size")
    shape = kv_heads(fields), head_size(fields), None
    full, chunked = k_and_v(*shape), k_and_v(*shape, chunk or 0, chunked=chunk is not None)
    return [chunked if kind == "chunked" else full for kind in kinds]


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
    return [sliding if is_sliding else full for is_sliding in slides]


def _gemma4(fields: Fields) -> Layers:
    """Full layers have heads of another size and, where K serves as V too, of another number."""
    if fields.get("use_bidirectional_attention") is True:
        raise FieldError("use_bidirectional_attention", "true; an encoder has no KV cache")
    layers = layer_count(fields)
    kinds = sliding_kinds(fields, layers, 6)
    kinds[-1] = "full"
    heads, head_dim, window = kv_heads(fields), head_size(fields), window_of(fields, kinds)
    global_heads, global_head_dim = fields.whole("num_global_key_value_heads"), fields.whole("global_head_dim")
    full_heads = global_heads if fields.get("attention_k_eq_v") is True else heads
    full = k_and_v(full_heads or heads, global_head_dim or head_dim, None)
    return [full if kind == "full" else k_and_v(heads, head_dim, None, window) for kind in kinds]


def _step(fields: Fields) -> Layers:
    """`num_attention_groups` is the number of KV heads; sliding layers may have other heads."""
    fields.skip("share_q_dim yarn_only_types swiglu_limits_shared att_impl_type")
    names = ("num_attention_groups", "num_key_value_heads")
    layers = layer_count(fields)
    kinds = kinds_of(fields, layers, ("full", "sliding"), at_least=True)
    if kinds is None and fields.has("sliding_window"):  # the classes of Step 3.5 and 5 differ in what slides then
        raise FieldError("sliding_window", "layer_types is missing, which says which layers slide")
    kinds = kinds or ["full"] * layers
    window = window_of(fields, kinds)
    full = k_and_v(kv_heads(fields, *names), head_size(fields), None)
    sliding = full
    if fields.has("attention_other_setting"):
        other = fields.table("attention_other_setting")
        other.skip("true_head_dim")
        if other.get("attention_type") != "sliding_attention":
            raise other.error("attention_type", "not sliding_attention, the only one known")
        sliding = k_and_v(kv_heads(other, *names), other.whole("head_dim") or full[0].head_dim, None)
    sliding = [cache._replace(window=window) for cache in sliding]
    return [sliding if kind == "sliding" else full for kind in kinds]


def _nemotron_nas(fields: Fields) -> Layers:
    """A table for each layer: its query heads of one KV head, or no attention at all."""
    layers, size, heads = layer_count(fields), head_size(fields), fields.needed("num_attention_heads")
    fields.skip("num_key_value_heads")
    blocks: list[Any] | None = fields.items("block_configs", layers)
    if blocks is None and fields.has("num_key_value_heads_per_layer"):
        return _heads_by_layer(fields, "num_key_value_heads_per_layer")
    if blocks is None:
        raise FieldError("block_configs", "missing; a config.json of this kind of model must have it")
    caches: Layers = []
    for number, block in enumerate(blocks):
        table = Fields({"attention": {}} | block if isinstance(block, dict) else {}, f"block_configs[{number}].")
        attention = table.table("attention")
        absent = attention.get("no_op") is True or attention.get("replace_with_linear") is True
        attention.skip("use_prefill_window_in_sink_attention unshifted_sink")
        if absent:
            caches.append([])
            continue
        group = attention.needed("n_heads_in_group")
        if heads % group:
            raise FieldError(
                f"block_configs[{number}]", f"{heads} heads are not a multiple of n_heads_in_group {group}"
            )
        caches.append(k_and_v(heads // group, size, None, attention.whole("window_length") or 0))
        attention.refuse_unread("nemotron-nas")
    return caches


def _kimi_linear(fields: Fields) -> Layers:
    """Latent and delta attention; two lists count their layers from 1."""
    linear, layers = linear_table(fields), layer_count(fields)
    full: list[int] = linear.read("full_attn_layers", list[int])
    if sorted(full + linear.read("kda_layers", list[int])) != list(range(1, layers + 1)):
        raise FieldError("linear_attn_config", f"its lists do not name each of {layers} layers once")
    kinds = ["attention" if number in full else "mamba" for number in range(1, layers + 1)]
    return Mixed("delta", is_latent=True)(fields.over({"layer_types": kinds}))


def _shared_attention(fields: Fields, *, state: str, state_fields: str = "", fixed: bool = False) -> Layers:
    """Zamba: one attention block in some layers of Mamba, each time with rows of its own, on twice the hidden size.

    In the first version (`fixed`) these are the third, and those of a period that begins behind it.
    """
    fields.over({"attention_head_dim": 2 * fields.needed("hidden_size") // fields.needed("num_attention_heads")})
    if fixed:
        period, offset = fields.whole("attn_layer_period") or 6, fields.read("attn_layer_offset", NoneOrMore, 4)
        fields.over({"hybrid_layer_ids": [2, *range(3 + offset, layer_count(fields), period)]})
    return Mixed(state, state_fields, "hybrid", indexes="hybrid_layer_ids")(fields)


def _zaya(fields: Fields) -> Layers:
    """Attention whose Q and K pass two convolutions: of a sequence their last inputs and the last hidden state stay.

    The checkpoint's form (with `cca`) counts layers of experts too, which alternate with those that attend (SGLang's
    `ZayaConfig.full_attention_layer_ids`); in transformers' form every layer attends and has experts.
    """
    layers, of_checkpoint = layer_count(fields), fields.has("cca") or fields.has("num_query_groups")
    kinds = kinds_of(fields, layers, ("hybrid",))
    if not (of_checkpoint or kinds or fields.has("router_hidden_size")):
        raise FieldError("cca", "missing, and so are layer_types and router_hidden_size: which layers attend is open")
    heads, size = kv_heads(fields, "num_query_groups", "num_key_value_heads"), head_size(fields)
    channels = (fields.needed("num_attention_heads") + heads) * size
    inputs = (fields.whole("cca_time0") or 2) + (fields.whole("cca_time1") or 2) - 2
    # Ranks divide the channels but repeat the hidden state: one unit, so that more than one rank is refused.
    attends = [*k_and_v(heads, size, None), *state_of(1, channels * inputs + fields.needed("hidden_size"), 0, 0)]
    return [attends if layer % 2 == 0 or not of_checkpoint else [] for layer in range(layers)]


def _heads_by_layer(fields: Fields, name: str) -> Layers:
    """KV heads in a list with a number for each layer."""
    layers = layer_count(fields)
    heads: list[int] = fields.read(name, Annotated[list[Count], msgspec.Meta(min_length=layers, max_length=layers)])
    return [k_and_v(count, head_size(fields), None) for count in heads]


def _mixed(fields: Fields, **options: Any) -> Layers:
    return Mixed(**options)(fields)


_READ_BY: Final[Sequence[Callable[..., Layers]]] = (
    dense, latent, _deepseek_v4, _dots, _gemma4, _heads_by_layer, _kimi_linear, _llama4, _longcat, _mimo_v2,
    _minimax_m3, _mixed, _mllama, _nemotron_nas, _qwen, _shared_attention, _step, _zaya,
)  # fmt: skip
# By the names that `families.toml` has for them.
_READERS: Final = {reader.__name__.removeprefix("_"): reader for reader in _READ_BY}
