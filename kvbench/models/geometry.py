"""The swap that offloads a model's KV cache: from its geometry to tensors, block sizes and ids.

The formulas are those of vLLM: a block of one layer's K (or V) has block tokens x KV heads x head dim x bytes per
element (`AttentionSpec.page_size_bytes` is K and V together); multi-head latent attention has one tensor per layer,
with kv_lora_rank + qk_rope_head_dim elements per token (`MLAAttentionSpec`); a layer with a sliding window needs the
blocks of its last window - 1 tokens (`SlidingWindowManager.get_num_skipped_tokens`); tensor parallelism divides the KV
heads, and replicates them if there are fewer heads than ranks (`ModelConfig.get_num_kv_heads`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec

from kvbench.cells.axis import AxisValue
from kvbench.cells.cell import AXES
from kvbench.cells.pattern import AS_PATTERN, Pattern, Tensors, unfit_sides
from kvbench.errors import UsageError
from kvbench.text import NAME_PATTERN, convert, located

# The axes that a model sets.
MODEL_AXES: Final = ("blocks", "block_size", "pattern", "host_pattern")
# Tokens in a chunk of LMCache (`chunk_size` of its config).
LMCACHE_CHUNK: Final = 256

Name = Annotated[str, msgspec.Meta(pattern=f"^{NAME_PATTERN}$")]
Whole = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
NoneOrMore = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
Ranks = Annotated[int, msgspec.Meta(ge=1, le=1024)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
BlockTokens = Annotated[int, msgspec.Meta(ge=1, le=65_536)]


class KvDtype(StrEnum):
    """The type of an element of the KV cache."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    FP8 = "fp8"

    @property
    def size_bytes(self) -> int:
        return {KvDtype.FP8: 1, KvDtype.FP32: 4}.get(self, 2)


class KvLayout(StrEnum):
    """How the layers lie in the pools of both sides.

    Each layer has its own tensors of K and of V (`per-layer`), or one tensor holds the blocks of all layers
    (`cross-layer`). The others are engines' own: `vllm` has K and V of a layer in one block, and all layers of a block
    side by side on the host (`SharedOffloadRegion.create_next_view`); the `sglang-` layouts are those of
    `MHATokenToKVPoolHost.init_kv_buffer`, whose `page_first` goes token by token; `lmcache` packs chunks
    of 256 tokens on the host, tensor by tensor (`KV_2LTD`).
    """

    PER_LAYER = "per-layer"
    CROSS_LAYER = "cross-layer"
    VLLM = "vllm"
    SGLANG_LAYER_FIRST = "sglang-layer-first"
    SGLANG_PAGE_FIRST = "sglang-page-first"
    SGLANG_PAGE_FIRST_DIRECT = "sglang-page-first-direct"
    LMCACHE = "lmcache"


class Geometry(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The parameters that determine the size of a model's KV cache, for all ranks together.

    `kv_parts` is 2 if K and V are separate, 1 for multi-head latent attention, where `kv_heads` is 1 and `head_dim` is
    the number of elements per token. `sliding_layers` of the `layers` attend only to the last `window` tokens.
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

    def __post_init__(self) -> None:
        if self.sliding_layers > self.layers or bool(self.sliding_layers) != bool(self.window):
            raise ValueError(f"{self.sliding_layers} of {self.layers} layers with a window of {self.window} tokens")

    @property
    def label(self) -> str:
        """A description: "36 layers (18 of them with a window of 128 tokens) x 8 KV heads x 64, bf16"."""
        label = f"{self.layers} layers"
        if self.sliding_layers:
            label += f" ({self.sliding_layers} of them with a window of {self.window} tokens)"
        latent = self.kv_parts == 1
        label += f" x MLA of {self.head_dim} elements" if latent else f" x {self.kv_heads} KV heads x {self.head_dim}"
        return f"{label}, {self.dtype}"

    def rank_kv_heads(self, tp: int) -> int:
        return max(1, self.kv_heads // tp)


class ModelSwap(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The swap of `tokens` tokens of a model on one of `tp` ranks: the request, and the axis values derived from it.

    `blocks` (descriptors), `block_bytes` (bytes per descriptor), `pattern` and `host_pattern` identify the cells. They
    are stored because another version may derive another swap from the same geometry. Raises ValueError if they are
    inconsistent.
    """

    geometry: Geometry
    tp: Ranks
    tokens: Tokens
    block_tokens: BlockTokens
    layout: KvLayout
    blocks: Whole
    block_bytes: Whole
    pattern: str
    host_pattern: str = AS_PATTERN.kind

    def __post_init__(self) -> None:
        device, host = Pattern.parse(self.pattern), Pattern.of_side(self.host_pattern)
        if objection := unfit_sides(device if host == AS_PATTERN else host, device, self.blocks):
            raise ValueError(objection)

    @property
    def rank_kv_heads(self) -> int:
        return self.geometry.rank_kv_heads(self.tp)

    @property
    def title(self) -> str:
        """The model and what is unusual about its swaps: "llama-3-70b, TP 8"."""
        remarks = (
            f"TP {self.tp}" if self.tp > 1 else "",
            self.layout.value if self.layout is not KvLayout.PER_LAYER else "",
            self.geometry.dtype.value if self.geometry.dtype is not KvDtype.BF16 else "",
        )
        return ", ".join(filter(None, (self.geometry.name, *remarks)))

    @property
    def tensors(self) -> tuple[Tensors, ...]:
        """The kinds of tensors: the number of tensors, and the number of ids swapped in each."""
        return Pattern.parse(self.pattern).tensors(self.blocks)

    @property
    def axes(self) -> Mapping[str, tuple[AxisValue, ...]]:
        """The values of `MODEL_AXES`; raises UsageError if no cell can have them."""
        with located(f"model {self.geometry.name}"):
            texts = (str(self.blocks), str(self.block_bytes), self.pattern, self.host_pattern)
            return {name: AXES[name].parse(text) for name, text in zip(MODEL_AXES, texts, strict=True)}


def model_swap(
    geometry: Geometry, *, tp: Ranks, tokens: Tokens, block_tokens: BlockTokens, layout: KvLayout
) -> ModelSwap:
    """Return what one of `tp` ranks swaps for `tokens` tokens, rounded up to whole blocks; arguments are in range.

    Raises UsageError if the KV heads cannot be distributed over the ranks, for a layout that cannot hold these layers
    or blocks, and for a swap that no cell can have.
    """
    heads = geometry.kv_heads
    if max(heads, tp) % min(heads, tp):
        raise UsageError(
            f"tp: {heads} KV heads of {geometry.name} cannot be distributed over {tp} ranks; one must divide the other"
        )
    kinds = _kinds(geometry, tokens, block_tokens)
    layer_bytes = geometry.rank_kv_heads(tp) * geometry.head_dim * geometry.dtype.size_bytes * block_tokens
    device, host, block_bytes = _laid_out(geometry, kinds, layer_bytes, block_tokens, layout)
    swap = ModelSwap(
        geometry=geometry,
        tp=tp,
        tokens=tokens,
        block_tokens=block_tokens,
        layout=layout,
        blocks=sum(kind.blocks for kind in device),
        block_bytes=block_bytes,
        pattern=str(replace(Pattern.of_tensors(*device), order=host.order)),
        host_pattern=str(host),
    )
    assert swap.axes
    return swap


def _laid_out(
    geometry: Geometry, kinds: Sequence[tuple[int, int]], layer_bytes: int, block_tokens: int, layout: KvLayout
) -> tuple[list[Tensors], Pattern, int]:
    """Return the tensors of the device, the pattern of the host, whose order of ids is that of both, and the bytes of a
    block; `kinds` are (layers, ids), `layer_bytes` the bytes of K or V of a block in a layer.
    """
    parts = geometry.kv_parts
    if layout in (KvLayout.PER_LAYER, KvLayout.SGLANG_LAYER_FIRST):
        return [Tensors(layers * parts, ids) for layers, ids in kinds], AS_PATTERN, layer_bytes
    counts = {layers for layers, _ in kinds}
    if len(counts if layout is KvLayout.CROSS_LAYER else kinds) > 1:
        raise UsageError(
            f"layout: {geometry.name} has {' and '.join(map(str, sorted(counts)))} layers of two kinds, whose blocks "
            f"do not fit into pages of one size; choose {KvLayout.PER_LAYER}"
        )
    layers, ids = kinds[0]
    if layout is KvLayout.CROSS_LAYER:
        return [Tensors(1, ids) for _, ids in kinds], AS_PATTERN, layers * parts * layer_bytes
    if layout is KvLayout.VLLM:
        return [Tensors(layers, ids)], Pattern.of_pages(layers), parts * layer_bytes
    tensors = layers * parts
    if layout is KvLayout.LMCACHE:
        if LMCACHE_CHUNK % block_tokens:
            raise UsageError(f"block_tokens: {block_tokens} does not divide the {LMCACHE_CHUNK} tokens of a chunk")
        chunk = LMCACHE_CHUNK // block_tokens
        return [Tensors(tensors, -(-ids // chunk) * chunk)], Pattern.of_pages(tensors, chunk), layer_bytes
    host = Pattern.of_pages(tensors, regions=parts)
    if layout is KvLayout.SGLANG_PAGE_FIRST_DIRECT:
        return [Tensors(tensors, ids)], host, layer_bytes
    runs = Pattern("runs", block_tokens) if block_tokens > 1 else None
    return [Tensors(tensors, ids * block_tokens)], replace(host, order=runs), layer_bytes // block_tokens


def swaps_from_plain(plain: object) -> tuple[ModelSwap, ...]:
    """Read the model swaps of a run. They may come from an untrusted source and are checked. Raises UsageError."""
    swaps: tuple[ModelSwap, ...] = convert(plain, tuple[ModelSwap, ...], "models")
    return swaps


def _kinds(geometry: Geometry, tokens: int, block_tokens: int) -> list[tuple[int, int]]:
    """Return (layers, ids) of the layers without a sliding window and of those with one."""
    all_ids = -(-tokens // block_tokens)
    skipped_ids = max(0, tokens - geometry.window + 1) // block_tokens
    kept_ids = max(1, all_ids - skipped_ids)  # a window of 1 token keeps no block, but a swap needs one
    kinds = [(geometry.layers - geometry.sliding_layers, all_ids), (geometry.sliding_layers, kept_ids)]
    return [(layers, ids) for layers, ids in kinds if layers]
