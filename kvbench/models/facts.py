"""Models for planners, as `--json` prints them: bytes, groups of layers, and the pages of each layout."""

from collections.abc import Sequence

import msgspec

from kvbench.errors import UsageError
from kvbench.models.geometry import LMCACHE_CHUNK, CachePart, KvLayout, LayerGroup, Model, ModelSwap, models_of


class GroupFacts(msgspec.Struct, kw_only=True):
    """A group of layers, and the bytes of all its layers on all ranks."""

    geometry: LayerGroup
    bytes_per_token: float
    bytes_per_sequence: int


class GroupPages(msgspec.Struct, kw_only=True):
    """The pages of a group in a layout, on one rank: their tokens (null where a page is for a sequence), and the
    descriptors that copy one, with their bytes.
    """

    tokens: int | None
    descriptors: int
    descriptor_bytes: int


class ModelFacts(msgspec.Struct, kw_only=True):
    """A model; `layouts` has the pages of its groups, null where a layout cannot hold the model.

    `state_page_tokens` are those of the block that vLLM makes so large that it holds a state; null without states.
    """

    model: str
    geometry: str
    bytes_per_token: float
    bytes_per_sequence: int
    left_out: str
    tp: int
    block_tokens: int
    state_page_tokens: int | None
    groups: list[GroupFacts]
    layouts: dict[KvLayout, list[GroupPages] | None]


def model_facts(model: Model, *, tp: int = 1, block_tokens: int = 16, chunk_tokens: int = LMCACHE_CHUNK) -> ModelFacts:
    """The facts of a model for planners; raises UsageError if its heads cannot be distributed over the ranks."""
    alone = [Model(model.name, (group,)) for group in model.groups]
    return ModelFacts(
        model=model.name,
        geometry=model.text,
        bytes_per_token=model.bytes_per_token,
        bytes_per_sequence=model.bytes_per_sequence,
        left_out=model.groups[0].left_out,
        tp=tp,
        block_tokens=block_tokens,
        state_page_tokens=state_page_tokens(model, tp, block_tokens),
        groups=[
            GroupFacts(
                geometry=one.groups[0],
                bytes_per_token=one.bytes_per_token,
                bytes_per_sequence=one.bytes_per_sequence,
            )
            for one in alone
        ],
        layouts={layout: _pages(model, layout, tp, block_tokens, chunk_tokens) for layout in KvLayout},
    )


def facts_of(swaps: Sequence[ModelSwap]) -> list[ModelFacts]:
    """Return the models that swaps are of, each once for every number of ranks."""
    settings = {(swap.geometry.name, swap.tp): swap for swap in swaps}
    return [
        model_facts(model, tp=swap.tp, block_tokens=swap.block_tokens, chunk_tokens=swap.chunk_tokens)
        for model in models_of(swaps)
        for (name, _), swap in settings.items()
        if name == model.name
    ]


def _pages(model: Model, layout: KvLayout, tp: int, block_tokens: int, chunk_tokens: int) -> list[GroupPages] | None:
    tokens = chunk_tokens if layout is KvLayout.LMCACHE else block_tokens
    try:
        swaps = model.swaps(tp=tp, tokens=tokens, block_tokens=block_tokens, layout=layout, chunk_tokens=chunk_tokens)
    except UsageError:
        return None
    return [
        GroupPages(
            tokens=max(tokens, swap.page_tokens) if swap.page_tokens else None,
            descriptors=swap.blocks,
            descriptor_bytes=swap.block_bytes,
        )
        for swap in swaps
    ]


def notes_of(swaps: Sequence[ModelSwap]) -> list[str]:
    """Return a line for each model that is swapped in smaller blocks than vLLM's, whose pages hold a state."""
    notes = []
    for model in models_of(swaps):
        swap = next(one for one in swaps if one.geometry.name == model.name)
        tokens = state_page_tokens(model, swap.tp, swap.block_tokens)
        if tokens and tokens > swap.block_tokens and swap.layout is KvLayout.PER_LAYER:
            why = f"vLLM enlarges them to {tokens} tokens, so that a page holds a state"
            notes.append(f"{model.name}: no engine swaps blocks of {swap.block_tokens} tokens: {why} (--layout vllm)")
    return notes


def state_page_tokens(model: Model, tp: int, block_tokens: int) -> int | None:
    kinds = {group.part is CachePart.STATES for group in model.groups if group.part is not CachePart.WINDOW}
    return model.vllm_page(tp, block_tokens)[0] if len(kinds) > 1 else None
