"""The swaps that offload a model's KV cache: from groups of its layers to tensors, block sizes and ids.

The formulas are those of vLLM: a block of one layer's K (or V) has block tokens x KV heads x head dim x bytes per
element (`AttentionSpec.page_size_bytes` is K and V together); multi-head latent attention has one tensor per layer,
with kv_lora_rank + qk_rope_head_dim elements per token (`MLAAttentionSpec`); a layer with a sliding window needs the
blocks of its last window - 1 tokens (`SlidingWindowManager.get_num_skipped_tokens`); tensor parallelism divides the KV
heads, and replicates them if there are fewer heads than ranks (`ModelConfig.get_num_kv_heads`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec.structs import replace as replace_fields

from kvbench.cells.cell import AXES
from kvbench.cells.pattern import AS_PATTERN, Pattern, Tensors, unfit_sides
from kvbench.ground.errors import UsageError
from kvbench.ground.text import NAME_PATTERN, Line, convert, counted, located

# The axes that a model sets.
MODEL_AXES: Final = ("blocks", "block_size", "pattern", "host_pattern")
# vLLM's least block of latent attention beside states.
_LATENT_BLOCK: Final = 128
# Tokens in a chunk of LMCache by default (`chunk_size` of its config).
LMCACHE_CHUNK: Final = 256

Name = Annotated[str, msgspec.Meta(pattern=f"^{NAME_PATTERN}$")]
Whole = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
NoneOrMore = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
Ranks = Annotated[int, msgspec.Meta(ge=1, le=1024)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
BlockTokens = Annotated[int, msgspec.Meta(ge=1, le=65_536)]


class KvDtype(StrEnum):
    """The type of the KV cache, by its name in vLLM."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    FP8 = "fp8"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    NVFP4 = "nvfp4"
    FP8_DS_MLA = "fp8_ds_mla"
    NVFP4_DS_MLA = "nvfp4_ds_mla"

    def row_bytes(self, elements: int, *, latent: bool) -> int:
        """The bytes of one head's `elements` of one token, scales included; raises UsageError."""
        if self in _LATENT_ROW_BYTES:
            if not latent or elements != _LATENT_ELEMENTS:
                raise UsageError(f"kv_dtype: {self} is of multi-head latent attention of {_LATENT_ELEMENTS} elements")
            return _LATENT_ROW_BYTES[self]
        if self is not KvDtype.NVFP4:
            return elements * {KvDtype.BF16: 2, KvDtype.FP16: 2, KvDtype.FP32: 4}.get(self, 1)
        if elements % _NVFP4_GROUP:
            raise UsageError(f"kv_dtype: nvfp4 has a scale for {_NVFP4_GROUP} elements, but a head has {elements}")
        return elements // 2 + elements // _NVFP4_GROUP


# Elements of one scale, which has a byte.
_NVFP4_GROUP: Final = 16
# The latent elements of a token, and the bytes of their formats, in which the rotary part keeps 16 bits.
_LATENT_ELEMENTS: Final = 576
_LATENT_ROW_BYTES: Final = {KvDtype.FP8_DS_MLA: 656, KvDtype.NVFP4_DS_MLA: 368}


class CachePart(StrEnum):
    """What the blocks of a group hold."""

    KV = ""
    K = "K"
    V = "V"
    INDEX = "index rows"
    STATES = "states"
    WINDOW = "last rows"
    LAYERS = "all layers"


class KvLayout(StrEnum):
    """How the layers lie in the pools of both sides.

    Each layer has its own tensors of K and of V (`per-layer`), or one tensor holds the blocks of all layers
    (`cross-layer`, in vLLM the layouts with the block outermost). The others are engines' own: `vllm` has K and V of a
    layer in one block, and all layers of a block side by side on the host (`SharedOffloadRegion.create_next_view`), or
    with `vllm-canonical` in a page that all ranks share, token by token (`canonical_mapping.py`, packed K and V in NHD
    order); the `sglang-` layouts are those of `MHATokenToKVPoolHost.init_kv_buffer`, whose `page_first` goes token by
    token; `lmcache` packs chunks of tokens on the host, tensor by tensor (`KV_2LTD`).
    """

    PER_LAYER = "per-layer"
    CROSS_LAYER = "cross-layer"
    VLLM = "vllm"
    VLLM_CANONICAL = "vllm-canonical"
    SGLANG_LAYER_FIRST = "sglang-layer-first"
    SGLANG_PAGE_FIRST = "sglang-page-first"
    SGLANG_PAGE_FIRST_DIRECT = "sglang-page-first-direct"
    LMCACHE = "lmcache"


class LayerGroup(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Layers of a model whose blocks have the same size, for all ranks together; `name` is the model's.

    `kv_parts` is 2 if K and V are separate tensors of equal blocks, else 1: multi-head latent attention, where
    `kv_heads` is 1 and `head_dim` is the number of elements per token, or what `part` names (`K`, `V`, `index rows`,
    `states`, `last rows`, or `all layers` of several groups, side by side in one block). `sliding_layers` of the
    `layers` attend only to the last `window` tokens or, if `chunked`, to those of their chunk of `window` tokens.
    `row_bytes` are the bytes of a head's row where the type does not tell; a row is for `row_tokens` tokens. Of
    `states` and `last rows` a layer has one block for each sequence. `label` tells the group from the others of its
    model; `left_out` says what of the model is in no group.
    Raises ValueError if these contradict each other.
    """

    name: Name
    layers: Whole
    kv_heads: Whole
    head_dim: Whole
    kv_parts: Literal[1, 2] = 2
    sliding_layers: NoneOrMore = 0
    window: NoneOrMore = 0
    dtype: KvDtype = KvDtype.BF16
    part: CachePart = CachePart.KV
    chunked: bool = False
    row_bytes: NoneOrMore = 0
    row_tokens: Whole = 1
    label: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9 .]{0,64}$")] = ""
    left_out: Line = ""

    def __post_init__(self) -> None:
        if self.sliding_layers > self.layers or bool(self.sliding_layers) != bool(self.window):
            raise ValueError(f"{self.sliding_layers} of {self.layers} layers with a window of {self.window} tokens")

    @property
    def is_latent(self) -> bool:
        return self.kv_parts == 1 and self.part is CachePart.KV

    @property
    def is_of_sequence(self) -> bool:
        """Whether a layer has one block for each sequence, whatever its length."""
        return self.part in (CachePart.STATES, CachePart.WINDOW)

    def page_tokens(self, block_tokens: int) -> int:
        """The tokens of a block that has whole rows: `block_tokens`, or the next number of them."""
        return math.lcm(block_tokens, self.row_tokens)

    @property
    def head_bytes(self) -> int:
        """The bytes of one part of a head: of a row of one or more tokens, or of a sequence's state."""
        return self.row_bytes or self.dtype.row_bytes(self.head_dim, latent=self.is_latent)

    @property
    def text(self) -> str:
        """A description: "36 layers (18 of them with a window of 128 tokens) x 8 KV heads x 64, bf16"."""
        if self.part is CachePart.LAYERS:
            return f"{self.label} side by side in a block"
        text = counted(self.layers, "layer")
        if self.sliding_layers:
            which = f"{'in chunks' if self.chunked else 'with a window'} of {self.window} tokens"
            text += f" {which}" if self.sliding_layers == self.layers else f" ({self.sliding_layers} of them {which})"
        if self.row_bytes:
            of_tokens = f" for {self.row_tokens} tokens" if self.row_tokens > 1 else ""
            return f"{text} x {self.part or 'rows'} of {self.kv_heads * self.row_bytes} B{of_tokens}"
        shape = (
            f"MLA of {self.head_dim} elements"
            if self.is_latent
            else f"{counted(self.kv_heads, 'KV head')} x {self.head_dim}"
        )
        part = f" ({self.part})" if self.part is not CachePart.KV else ""
        return f"{text} x {shape}{part}, {self.dtype}"

    def sharing_ranks(self, tp: int) -> int:
        """The number of `tp` ranks with different heads; those that repeat heads store them in turn."""
        return min(self.kv_heads, tp)

    def rank_bytes(self, tp: int = 1) -> int:
        """The bytes of a layer on one of `tp` ranks: of a row of one or more tokens, or of a sequence's state."""
        return self.kv_parts * self.rank_kv_heads(tp) * self.head_bytes

    def rank_kv_heads(self, tp: int) -> int:
        """The heads of one of `tp` ranks; raises UsageError if they cannot be distributed."""
        if max(self.kv_heads, tp) % min(self.kv_heads, tp) or (self.part is CachePart.STATES and tp > self.kv_heads):
            what = "parts of the states" if self.part is CachePart.STATES else "KV heads"
            raise UsageError(
                f"tp: {self.kv_heads} {what} of {self.name} cannot be distributed over {tp} ranks; one must divide "
                "the other"
            )
        return max(1, self.kv_heads // tp)


@dataclass(frozen=True, slots=True)
class Model:
    """A model as groups of layers with equal blocks."""

    name: str
    groups: tuple[LayerGroup, ...]

    @property
    def bytes_per_token(self) -> float:
        """The bytes of a token in all layers that hold it, on all ranks together, without repeated heads."""
        of_tokens = [group for group in self.groups if not group.is_of_sequence]
        exact = sum(Fraction(group.layers * group.rank_bytes(), group.row_tokens) for group in of_tokens)
        return int(exact) if exact == int(exact) else float(exact)

    @property
    def bytes_per_sequence(self) -> int:
        """The bytes of the states and last rows of a sequence, whatever its length."""
        return sum(group.layers * group.rank_bytes() for group in self.groups if group.is_of_sequence)

    def vllm_page(self, tp: int, block_tokens: int) -> tuple[int, int]:
        """The tokens of vLLM's blocks on one of `tp` ranks, and the bytes of its pages.

        Blocks are enlarged until a page holds a state (`Platform._align_hybrid_block_size`).
        """
        rows = [group.rank_bytes(tp) for group in self.groups if not group.is_of_sequence]
        states = [group.rank_bytes(tp) for group in self.groups if group.part is CachePart.STATES]
        least = block_tokens
        if states and any(group.is_latent for group in self.groups):
            least = max(block_tokens, _LATENT_BLOCK)
        tokens = least * max(1, -(-max(states, default=0) // (least * max(rows, default=1))))
        return tokens, max([tokens * row for row in rows] or states)

    @property
    def text(self) -> str:
        """A description: its groups, bytes of a token and, where it has them, states."""
        states = f", {self.bytes_per_sequence} B a sequence" if self.bytes_per_sequence else ""
        missing = f"; {self.groups[0].left_out}" if self.groups[0].left_out else ""
        groups = " + ".join(group.text for group in self.groups)
        return f"{groups}: {self.bytes_per_token:.12g} B a token{states}{missing}"

    def _side_by_side(self, tp: int) -> LayerGroup:
        """All groups in one block: vLLM's layouts with the block outermost, for layers that it keeps in one group
        (`get_kv_cache_config_from_groups`; it may pad the block). Raises UsageError for others.
        """
        why = ""
        if any(group.is_of_sequence or group.sliding_layers for group in self.groups):
            why = "vLLM lays the pages of layers with a window or a state over those of the others"
        elif tp > 1 and len({group.kv_heads for group in self.groups}) > 1:
            why = f"{tp} ranks divide the heads of its groups, which differ in number"
        if why:
            raise UsageError(f"layout: {self.name} in one block is not known: {why}; choose {KvLayout.PER_LAYER}")
        tokens = math.lcm(*(group.row_tokens for group in self.groups))
        rows = sum(group.layers * group.rank_bytes() * tokens // group.row_tokens for group in self.groups)
        heads = self.groups[0].kv_heads if tp > 1 else 1
        return replace_fields(
            self.groups[0],
            layers=1,
            kv_heads=heads,
            head_dim=1,
            kv_parts=1,
            part=CachePart.LAYERS,
            row_bytes=rows // heads,
            row_tokens=tokens,
            label=" and ".join(group.label for group in self.groups)[:64],
        )

    def swaps(
        self, *, tp: int, tokens: int, block_tokens: int, layout: KvLayout, chunk_tokens: int = LMCACHE_CHUNK
    ) -> tuple["ModelSwap", ...]:
        """The swaps of one of `tp` ranks, one for each group; raises UsageError as `model_swap` does.

        Where ranks that repeat heads store them in turn, another swap has the blocks that one of them stores.
        """
        if len(self.groups) > 1 and layout is KvLayout.CROSS_LAYER:
            return Model(self.name, (self._side_by_side(tp),)).swaps(
                tp=tp, tokens=tokens, block_tokens=block_tokens, layout=layout
            )
        placed = [KvLayout.PER_LAYER, KvLayout.SGLANG_LAYER_FIRST]
        if all(group.part in (CachePart.KV, CachePart.STATES) and group.row_tokens == 1 for group in self.groups):
            placed.append(KvLayout.VLLM)  # which gives such groups pages of one size, as far as is known here
        if len(self.groups) > 1 and layout not in placed:
            raise UsageError(
                f"layout: {self.name} has blocks of {len(self.groups)} sizes, which {layout} is not known to place; "
                f"choose {KvLayout.PER_LAYER}"
            )
        if layout is KvLayout.VLLM:
            return _vllm_swaps(self, tp, tokens, block_tokens)
        settings = {"tp": tp, "block_tokens": block_tokens, "chunk_tokens": chunk_tokens}
        lengths = [tokens]
        if layout is KvLayout.VLLM_CANONICAL:
            writers = tp // self.groups[0].sharing_ranks(tp)
            stored = -(-tokens // (writers * block_tokens)) * block_tokens  # by one of them, in whole blocks
            if stored < tokens:
                lengths.append(stored)
        return tuple(
            model_swap(group, layout=layout, tokens=length, **settings) for length in lengths for group in self.groups
        )


class ModelSwap(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The swap of `tokens` tokens of a model on one of `tp` ranks: the request, and the axis values derived from it.

    `page_tokens` are those of a page on the device, 0 where it is for a sequence or not known.
    `blocks` (descriptors), `block_bytes` (bytes per descriptor), `pattern` and `host_pattern` identify the cells. They
    are stored because another version may derive another swap from the same geometry. Raises ValueError if they are
    inconsistent.
    """

    geometry: LayerGroup
    tp: Ranks
    tokens: Tokens
    block_tokens: BlockTokens
    layout: KvLayout
    blocks: Whole
    block_bytes: Whole
    pattern: str
    host_pattern: str = AS_PATTERN.kind
    chunk_tokens: BlockTokens = LMCACHE_CHUNK
    page_tokens: NoneOrMore = 0

    def __post_init__(self) -> None:
        device, host = Pattern.parse(self.pattern), Pattern.of_side(self.host_pattern)
        if objection := unfit_sides(device if host == AS_PATTERN else host, device, self.blocks):
            raise ValueError(objection)

    @property
    def title(self) -> str:
        """The model and what is unusual about its swaps: "llama-3-70b, TP 8"."""
        remarks = (
            self.geometry.label,
            f"TP {self.tp}" if self.tp > 1 else "",
            self.layout.value if self.layout is not KvLayout.PER_LAYER else "",
            f"pages of {self.page_tokens} tokens" if self.page_tokens > self.block_tokens else "",
            f"chunks of {self.chunk_tokens}" if self.chunk_tokens != LMCACHE_CHUNK else "",
            "" if self.geometry.row_bytes or self.geometry.dtype is KvDtype.BF16 else self.geometry.dtype.value,
        )
        return ", ".join(filter(None, (self.geometry.name, *remarks)))

    @property
    def tensors(self) -> tuple[Tensors, ...]:
        """The kinds of tensors: the number of tensors, and the number of ids swapped in each."""
        return Pattern.parse(self.pattern).tensors(self.blocks)

    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """The values of `MODEL_AXES`; raises UsageError if no cell can have them."""
        with located(f"model {self.geometry.name}"):
            texts = (str(self.blocks), str(self.block_bytes), self.pattern, self.host_pattern)
            return {name: AXES[name].texts(text) for name, text in zip(MODEL_AXES, texts, strict=True)}


def model_swap(
    geometry: LayerGroup,
    *,
    tp: Ranks,
    tokens: Tokens,
    block_tokens: BlockTokens,
    layout: KvLayout,
    chunk_tokens: BlockTokens = LMCACHE_CHUNK,
) -> ModelSwap:
    """The swap of one of `tp` ranks for `tokens` tokens, rounded up to whole blocks; arguments are in range.

    Raises UsageError if the KV heads cannot be distributed over the ranks, for a layout that cannot hold these layers
    or blocks, and for a swap that no cell can have.
    """
    page_tokens = geometry.page_tokens(block_tokens)
    kinds = _kinds(geometry, tokens, page_tokens)
    rows = 1 if geometry.is_of_sequence else page_tokens // geometry.row_tokens
    layer_bytes = geometry.rank_kv_heads(tp) * geometry.head_bytes * rows
    device, host, block_bytes = _laid_out(geometry, kinds, layer_bytes, block_tokens, layout, chunk_tokens)
    if layout is KvLayout.VLLM_CANONICAL and geometry.sharing_ranks(tp) > 1 and geometry.dtype is not KvDtype.NVFP4:
        device = [Tensors(kind.count, kind.ids * rows) for kind in device]
        host, block_bytes = Pattern.of_fragments(rows, geometry.sharing_ranks(tp), device[0].count), block_bytes // rows
    asked = {"tp": tp, "tokens": tokens, "block_tokens": block_tokens, "layout": layout, "chunk_tokens": chunk_tokens}
    return _placed(geometry, asked, device, host, block_bytes, 0 if geometry.is_of_sequence else page_tokens)


def _placed(
    geometry: LayerGroup,
    asked: Mapping[str, Any],
    device: Sequence[Tensors],
    host: Pattern,
    block_bytes: int,
    page_tokens: int,
) -> ModelSwap:
    """The swap that was `asked` for, of blocks that lie so; raises UsageError if no cell can have it."""
    swap = ModelSwap(
        geometry=geometry,
        blocks=sum(kind.blocks for kind in device),
        block_bytes=block_bytes,
        pattern=str(replace(Pattern.of_tensors(*device), order=host.on_device.order)),
        host_pattern=str(host),
        page_tokens=page_tokens,
        **asked,
    )
    assert swap.axes
    return swap


def _vllm_swaps(model: Model, tp: int, tokens: int, block_tokens: int) -> tuple[ModelSwap, ...]:
    """The swaps of each group in vLLM's pages, which have one size: smaller ones get more tokens or are padded
    (`unify_kv_cache_spec_page_size`). As many layers as the smallest kind has share the ids of their pages, or as the
    largest, if that is less than 1.5 times as many (`_get_kv_cache_groups_uniform_page_size`); padding layers count.
    """
    enlarged, page_bytes = model.vllm_page(tp, block_tokens)
    pages = [0 if group.is_of_sequence else _tokens_in(group, tp, enlarged, page_bytes) for group in model.groups]
    kinds = [_kinds(group, tokens, page or 1) for group, page in zip(model.groups, pages, strict=True)]
    counts = [layers for of_group in kinds for layers, _ in of_group]
    if len(counts) > 1 and any(group.chunked for group in model.groups):
        raise UsageError(
            f"layout: how vllm places the chunks of {model.name} is not known; choose {KvLayout.PER_LAYER}"
        )
    layers = min(counts) if max(counts) >= 1.5 * min(counts) else max(counts)
    asked = {"tp": tp, "tokens": tokens, "block_tokens": block_tokens, "layout": KvLayout.VLLM}
    swaps = []
    for group, page_tokens, of_group in zip(model.groups, pages, kinds, strict=True):
        ids = sum(-(-count // layers) * ids for count, ids in of_group)
        device, host = [Tensors(layers, ids)], Pattern.of_pages(layers)
        swaps.append(_placed(group, asked, device, host, page_bytes, page_tokens))
    return tuple(swaps)


def _tokens_in(group: LayerGroup, tp: int, block_tokens: int, page_bytes: int) -> int:
    """The tokens of a group in a page of vLLM; raises UsageError for latent rows, which are never padded."""
    own_bytes = group.rank_bytes(tp) * block_tokens
    if page_bytes % own_bytes and group.is_latent:
        raise UsageError(f"layout: vllm has no pages of one size for {group.name}; choose {KvLayout.PER_LAYER}")
    return block_tokens if page_bytes % own_bytes else page_bytes // own_bytes * block_tokens


def _laid_out(
    geometry: LayerGroup,
    kinds: Sequence[tuple[int, int]],
    layer_bytes: int,
    block_tokens: int,
    layout: KvLayout,
    chunk_tokens: int,
) -> tuple[list[Tensors], Pattern, int]:
    """The tensors of the device, the pattern of the host, whose order of ids is that of both, and the bytes of a
    block; `kinds` are (layers, ids), `layer_bytes` the bytes of K or V of a block in a layer.
    """
    parts = geometry.kv_parts
    if layout in (KvLayout.PER_LAYER, KvLayout.SGLANG_LAYER_FIRST):
        return [Tensors(layers * parts, ids) for layers, ids in kinds], AS_PATTERN, layer_bytes
    counts = {layers for layers, _ in kinds}
    tensors_of_kinds = min(counts)
    is_canonical = layout is KvLayout.VLLM_CANONICAL
    if is_canonical and not geometry.chunked and not any(count % tensors_of_kinds for count in counts):
        # kinds share the tensors: each group of as many layers as the smaller kind has ids of its own
        kinds = [(tensors_of_kinds, sum(layers // tensors_of_kinds * ids for layers, ids in kinds))]
    if len(counts if layout is KvLayout.CROSS_LAYER else kinds) > 1:
        raise UsageError(
            f"layout: {geometry.name} has {' and '.join(map(str, sorted(counts)))} layers of two kinds, whose blocks "
            f"do not fit into pages of one size; choose {KvLayout.PER_LAYER}"
        )
    layers, ids = kinds[0]
    if layout is KvLayout.CROSS_LAYER:
        return [Tensors(1, ids) for _, ids in kinds], AS_PATTERN, layers * parts * layer_bytes
    if is_canonical:
        return [Tensors(layers, ids)], Pattern.of_pages(layers), parts * layer_bytes
    tensors = layers * parts
    if layout is KvLayout.LMCACHE:
        if chunk_tokens % block_tokens:
            raise UsageError(f"block_tokens: {block_tokens} does not divide the {chunk_tokens} tokens of a chunk")
        chunk = chunk_tokens // block_tokens
        return [Tensors(tensors, -(-ids // chunk) * chunk)], Pattern.of_pages(tensors, chunk), layer_bytes
    host = Pattern.of_pages(tensors, regions=parts)
    if layout is KvLayout.SGLANG_PAGE_FIRST_DIRECT:
        return [Tensors(tensors, ids)], host, layer_bytes
    runs = Pattern("runs", block_tokens) if block_tokens > 1 else None
    return [Tensors(tensors, ids * block_tokens)], replace(host, order=runs), layer_bytes // block_tokens


def models_of(swaps: Sequence[ModelSwap]) -> list[Model]:
    """The models that swaps are of, each with those of its groups that are swapped."""
    groups: dict[str, list[LayerGroup]] = {}
    for group in dict.fromkeys(swap.geometry for swap in swaps):
        groups.setdefault(group.name, []).append(group)
    return [Model(name, tuple(of_model)) for name, of_model in groups.items()]


def swaps_from_plain(plain: object) -> tuple[ModelSwap, ...]:
    """Read the model swaps of a run. They may come from an untrusted source and are checked. Raises UsageError."""
    swaps: tuple[ModelSwap, ...] = convert(plain, tuple[ModelSwap, ...], "models")
    with located("models"):
        assert all(swap.geometry.head_bytes for swap in swaps)
    return swaps


def _kinds(geometry: LayerGroup, tokens: int, block_tokens: int) -> list[tuple[int, int]]:
    """(layers, ids) of the layers without a sliding window, and of those with one."""
    all_ids = 1 if geometry.is_of_sequence else -(-tokens // block_tokens)
    skipped = tokens // geometry.window * geometry.window if geometry.chunked else tokens - geometry.window + 1
    skipped_ids = max(0, skipped) // block_tokens
    kept_ids = max(1, all_ids - skipped_ids)  # a window of 1 token keeps no block, but a swap needs one
    kinds = [(geometry.layers - geometry.sliding_layers, all_ids), (geometry.sliding_layers, kept_ids)]
    return [(layers, ids) for layers, ids in kinds if layers]
