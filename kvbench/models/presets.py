"""The model presets, what a config or a command chooses of models, and models for planners, as `--json` prints them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from kvbench.ground.errors import UsageError
from kvbench.ground.files import read_toml, shipped_folder
from kvbench.ground.text import check_keys, convert, hint, located, name_of, quoted
from kvbench.models.caches import Cache
from kvbench.models.families import NO_DRAFT
from kvbench.models.fields import MOST_LAYERS
from kvbench.models.geometry import (
    LMCACHE_CHUNK,
    BlockTokens,
    CachePart,
    KvDtype,
    KvLayout,
    LayerGroup,
    Model,
    ModelSwap,
    Ranks,
    Tokens,
    models_of,
)
from kvbench.models.hf_config import grouped, labelled, model_of, read_config_json
from kvbench.models.steps import StepSizes, step_sizes

USUAL_TOKENS: Final = 2048


class ModelChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The models whose swaps a sweep measures, with their settings; None leaves a setting at its default.

    A model is the name of a preset, the path of a config.json or its folder, or the numbers of its layers; the suffix
    `@tpN` sets its own number of ranks, `@tokensN` behind it its own tokens.
    """

    # fmt: off
    models: Annotated[tuple[str, ...], msgspec.Meta(
        description="names of presets, paths of a config.json or its folder, or numbers such as "
        "`layers=32,kv_heads=8,head_size=128`; `@tpN` gives a model its own ranks, `@tokensN` its own tokens")] = ()
    tp: Annotated[Ranks | None, msgspec.Meta(description="tensor-parallel ranks of a model")] = None
    tokens: Annotated[Tokens | None, msgspec.Meta(description="tokens of a model per swap")] = None
    block_tokens: Annotated[BlockTokens | None, msgspec.Meta(description="tokens of a model per block")] = None
    layout: Annotated[KvLayout | None, msgspec.Meta(
        description=f"memory layout of a model's layers: {', '.join(KvLayout)}")] = None
    chunk_tokens: Annotated[BlockTokens | None, msgspec.Meta(
        description=f"tokens of a chunk of the layout lmcache (default: {LMCACHE_CHUNK})")] = None
    speculative: Annotated[Annotated[int, msgspec.Meta(ge=1, le=64)] | None, msgspec.Meta(
        description="tokens that a model's own layers propose at each step: these layers are cached too")] = None
    kv_dtype: Annotated[KvDtype | None, msgspec.Meta(
        description=f"data type of a model's KV cache: {', '.join(KvDtype)} (default: the model's)")] = None
    # fmt: on

    def over(self, other: "ModelChoice") -> "ModelChoice":
        return ModelChoice(*(getattr(self, name) or getattr(other, name) for name in self.__struct_fields__))

    def with_fewer_tokens(self) -> "ModelChoice":
        """The choice with every model at a sixteenth and a quarter of its tokens too."""
        tokens = self.tokens or USUAL_TOKENS
        whole = [text for text in self.models if "@tokens" not in text]
        fewer = (f"{text}@tokens{max(1, tokens // part)}" for text in whole for part in (16, 4))
        return msgspec.structs.replace(self, models=(*self.models, *fewer))

    def swaps(self) -> tuple[ModelSwap, ...]:
        """The swap of every model without duplicates; raises UsageError, which names the setting."""
        for name in self.__struct_fields__ if not self.models else ():
            if value := getattr(self, name):
                raise UsageError(f"{name}: {quoted(value)} requires a model; choose one with --model")
        return tuple(dict.fromkeys(swap for text in self.models for swap in self._swaps(text)))

    def step_model(self) -> StepSizes | None:
        """The model of steps beside swaps: the first, where its sizes are known."""
        if not self.models:
            return None
        name, tp, _ = _parts(self.models[0])
        return step_sizes(name, int(tp) if tp else self.tp or 1)

    def _swaps(self, text: str) -> tuple[ModelSwap, ...]:
        name, tp, tokens = _parts(text)
        if self.chunk_tokens and self.layout is not KvLayout.LMCACHE:
            raise UsageError(f"chunk_tokens: {self.chunk_tokens} requires the layout {KvLayout.LMCACHE}")
        return find_model(name, self.kv_dtype, self.speculative or 0).swaps(
            tp=convert(int(tp), Ranks, "tp") if tp else self.tp or 1,
            tokens=convert(int(tokens), Tokens, "tokens") if tokens else self.tokens or USUAL_TOKENS,
            block_tokens=self.block_tokens or 16,
            layout=self.layout or KvLayout.PER_LAYER,
            chunk_tokens=self.chunk_tokens or LMCACHE_CHUNK,
        )


class _Numbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The numbers of a group of layers; `row_bytes` are those of a head's row where no type tells them."""

    layers: Annotated[int, msgspec.Meta(ge=1, le=MOST_LAYERS)]
    kv_heads: Annotated[int, msgspec.Meta(ge=1, le=10**6)]
    head_size: Annotated[int, msgspec.Meta(ge=1, le=10**6)]
    parts: Literal[1, 2] = 2
    window: Annotated[int, msgspec.Meta(ge=0, le=10**7)] = 0
    row_bytes: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0
    kv_dtype: KvDtype = KvDtype.BF16


def _parts(text: str) -> tuple[str, str | None, str | None]:
    """The model that a text names, its ranks and its tokens."""
    match = re.fullmatch(r"(.+?)(?:@tp(\d{1,6}))?(?:@tokens(\d{1,9}))?", text)
    return (match[1], match[2], match[3]) if match else (text, None, None)


def _of_numbers(text: str, kv_dtype: KvDtype | None, speculative: int) -> Model:
    """Read groups of layers written as numbers: layers=32,kv_heads=8,head_size=128, joined by "+"."""
    name = name_of(re.sub(r"[a-z_]+=|\s", "", text).replace(",", "x").replace("+", "-"), "custom")
    groups: list[LayerGroup] = []
    with located(f"model {quoted(text)}"):
        for part in text.split("+"):
            pairs = [re.sub(r"\s", "", pair).partition("=") for pair in part.split(",")]
            plain = {key: int(value) if re.fullmatch(r"\d{1,12}", value) else value for key, _, value in pairs}
            check_keys(plain, _Numbers.__struct_fields__)
            if missing := next((key for key in ("layers", "kv_heads", "head_size") if key not in plain), None):
                raise UsageError(f"{missing}: missing; write layers=32,kv_heads=8,head_size=128")
            numbers: _Numbers = convert(plain, _Numbers)
            cache = Cache(numbers.kv_heads, numbers.head_size, numbers.parts, window=numbers.window)
            layers = [[cache._replace(row_bytes=numbers.row_bytes)]] * numbers.layers
            groups += grouped(name, layers, kv_dtype or numbers.kv_dtype, NO_DRAFT if speculative else "")
    return Model(name, labelled(groups))


def presets() -> Mapping[str, Model]:
    tables = read_toml(shipped_folder() / "presets" / "models.toml")
    return {name: model_of(name, table) for name, table in tables.items()}


def find_model(name_or_path: str, kv_dtype: KvDtype | None = None, speculative: int = 0) -> Model:
    """A preset, the model of the config.json at a path (a file ending in .json, or a folder), or of numbers.

    `kv_dtype` replaces the type that the model has; with `speculative` tokens, the layers that propose them are cached
    too. Raises UsageError for an unknown preset, and for a file that is not a supported config.json.
    """
    tables = read_toml(shipped_folder() / "presets" / "models.toml")
    if name_or_path in tables:
        return model_of(name_or_path, tables[name_or_path], kv_dtype, speculative)
    if re.fullmatch(r"[^/=]+=[^/]*(?<!\.json)", name_or_path):
        return _of_numbers(name_or_path, kv_dtype, speculative)
    path = Path(name_or_path)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name_or_path) and path.suffix != ".json" and not path.exists():
        raise UsageError(
            f"model {quoted(name_or_path)}: kvbench does not download models: download its config.json and give "
            f"the path, or {hint(path.name, tables, 'see kvbench list models')}"
        )
    if name_or_path.endswith(".json") or "/" in name_or_path or path.is_dir():
        return read_config_json(path, kv_dtype, speculative)
    otherwise = "list the presets with kvbench list models, or give the path of a config.json"
    near = "a suffix is @tpN or @tokensN" if "@" in name_or_path else hint(name_or_path, tables, otherwise)
    raise UsageError(f"model {quoted(name_or_path)}: kvbench ships no model of that name; {near}")


class GroupFacts(msgspec.Struct, kw_only=True):
    """A group of layers, and the bytes of all its layers on all ranks."""

    geometry: LayerGroup
    bytes_per_token: float
    bytes_per_sequence: int


class GroupPages(msgspec.Struct, kw_only=True):
    """The pages of a group in a layout, on one rank: their tokens (null where a page is for a sequence), and the
    descriptors that copy one, with their bytes. Where a default store copies others than a load, those too: SGLang's
    `page_first` gathers the rows on the GPU, then copies whole pages of the host.
    """

    tokens: int | None
    descriptors: int
    descriptor_bytes: int
    store_descriptors: int | None = None
    store_descriptor_bytes: int | None = None


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
                geometry=group.groups[0],
                bytes_per_token=group.bytes_per_token,
                bytes_per_sequence=group.bytes_per_sequence,
            )
            for group in alone
        ],
        layouts={layout: _pages(model, layout, tp, block_tokens, chunk_tokens) for layout in KvLayout},
    )


def facts_of(swaps: Sequence[ModelSwap]) -> list[ModelFacts]:
    """The models that swaps are of, each once for every number of ranks."""
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
    return [_page(swap, tokens) for swap in swaps]


def _page(swap: ModelSwap, tokens: int) -> GroupPages:
    """The page that a swap of `tokens` tokens copies whole."""
    page = GroupPages(
        tokens=max(tokens, swap.page_tokens) if swap.page_tokens else None,
        descriptors=swap.blocks,
        descriptor_bytes=swap.block_bytes,
    )
    if swap.layout is KvLayout.SGLANG_PAGE_FIRST:
        page.store_descriptors = swap.geometry.kv_parts
        page.store_descriptor_bytes = swap.blocks * swap.block_bytes // swap.geometry.kv_parts
    return page


def notes_of(swaps: Sequence[ModelSwap]) -> list[str]:
    """A line for each model that is swapped in smaller blocks than vLLM's, whose pages hold a state, or in the
    rows of SGLang's `page_first`, which its stores do not copy.
    """
    notes = []
    for model in models_of(swaps):
        swap = next(swap for swap in swaps if swap.geometry.name == model.name)
        tokens = state_page_tokens(model, swap.tp, swap.block_tokens)
        if tokens and tokens > swap.block_tokens and swap.layout is KvLayout.PER_LAYER:
            why = f"vLLM enlarges them to {tokens} tokens, so that a page holds a state"
            notes.append(f"{model.name}: no engine swaps blocks of {swap.block_tokens} tokens: {why} (--layout vllm)")
        if swap.layout is KvLayout.SGLANG_PAGE_FIRST:
            size = (
                swap.block_tokens * swap.geometry.layers * swap.geometry.rank_bytes(swap.tp) // swap.geometry.kv_parts
            )
            why = f"a default store of SGLang gathers them on the GPU and copies whole pages of the host, {size} B each"
            notes.append(f"{model.name}: rows of {swap.block_bytes} B are what its loads copy; {why}")
    return notes


def state_page_tokens(model: Model, tp: int, block_tokens: int) -> int | None:
    kinds = {group.part is CachePart.STATES for group in model.groups if group.part is not CachePart.WINDOW}
    return model.vllm_page(tp, block_tokens)[0] if len(kinds) > 1 else None
