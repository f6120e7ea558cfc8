"""Read a model from its `config.json`, as written by Hugging Face's transformers.

The text model may be nested under another name. `families` reads what its layers cache; here are the door, the type of
the cache, and the groups of layers with equal blocks. The type is read as by vLLM: from `quantization_config`, or
where that is absent from the file `hf_quant_config.json` beside, else it is the model's.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from kvbench.ground.errors import UsageError
from kvbench.ground.files import read_as
from kvbench.ground.text import NAME_PATTERN, counted, located, name_of, printable_tree, quoted, short
from kvbench.models.caches import Cache, Layers
from kvbench.models.families import is_plain, layers_of
from kvbench.models.fields import (
    NUMBERS,
    FieldError,
    Fields,
    Table,
    changed_by,
    family_tables,
    head_size,
    kv_heads,
    layer_count,
)
from kvbench.models.geometry import KvDtype, LayerGroup, Model

# A table of the quantized layers makes some files several MiB long.
MOST_BYTES: Final = 2**24
# The names under which multimodal models nest their text model.
_NESTED: Final = re.compile(r"(text|llm|language|thinker|lm)(_model)?(_config|_cfg)?|(text|language)_model")
_OTHER_MODELS: Final = re.compile(r"vision|visual|vit|image|video|audio|speech|talker|code|encoder|draft|mtp|qformer")
_LAYER_COUNTS: Final = re.compile(r"num_(hidden_)?layers|n_layers?|layers_block_type|hybrid_override_pattern")
_ENCODERS: Final = re.compile(r"(?i)(?!.*decoder).*bert.*|electra|ernie|.*clip.*|vit|xlm|mpnet|t5.*|mt5|bart|whisper")
# By default engines run 32-bit checkpoints in 16 bits; vLLM's dtype "auto" does too.
_DTYPES: Final = {"bfloat16": KvDtype.BF16, "float16": KvDtype.FP16, "float32": KvDtype.BF16}
# The types of a cache by name, in lower case.
_CACHE_TYPES: Final = {
    "fp8": KvDtype.FP8, "fp8_e4m3": KvDtype.FP8, "float8_e4m3fn": KvDtype.FP8, "fp8_e5m2": KvDtype.FP8_E5M2,
    "nvfp4": KvDtype.NVFP4, "bf16": KvDtype.BF16, "bfloat16": KvDtype.BF16, "fp16": KvDtype.FP16,
    "float16": KvDtype.FP16, "fp8_ds_mla": KvDtype.FP8_DS_MLA, "nvfp4_ds_mla": KvDtype.NVFP4_DS_MLA,
}  # fmt: skip
_UNSET: Final = (None, "auto", "none")
_CACHE_TYPE_FIELDS: Final = ("kv_cache_scheme", "kv_cache_quant_algo")
# Nested text models of these types leave out what their class has.
_NESTED_DEFAULTS: Final = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}


def read_config_json(path: Path, kv_dtype: KvDtype | None = None, speculative: int = 0) -> Model:
    """The model whose `config.json` is at or in `path`, named after its folder.

    Raises UsageError, which names the file, the field and what would be right.
    """
    path = path / "config.json" if path.is_dir() else path
    stem = path.absolute().parent.name if path.name == "config.json" else path.stem
    with located(str(path)):
        config = object_in(path)
        beside = path.with_name(path.name.removesuffix("config.json") + "hf_quant_config.json")
        says_none = not any(level.get("quantization_config") for level in levels_of(config))
        if kv_dtype is None and says_none and beside.is_file():
            with located(beside.name):
                config = {**config, "quantization_config": object_in(beside)}
        return model_of(name_of(stem, "model"), config, kv_dtype, speculative)


def model_of(name: str, config: Table, kv_dtype: KvDtype | None = None, speculative: int = 0) -> Model:
    """The model of a configuration, with `kv_dtype` in place of the file's type.

    With `speculative` tokens it has the layers that propose them too.

    Raises UsageError that names the field, and the numbers as far as they are known, for `--model` to take instead.
    """
    assert re.fullmatch(NAME_PATTERN, name)
    levels = list(levels_of(config))
    model_type = next((str(level["model_type"]) for level in reversed(levels) if level.get("model_type")), "unknown")
    is_short = len(levels) > 1 and model_type in ("llama", "mistral", "qwen2")
    text: Table = {
        **(_NESTED_DEFAULTS if is_short else {}),
        **family_tables().defaults.get(model_type, {}),
        **levels[-1],
    }
    if any(level.get("is_encoder_decoder") is True or level.get("is_causal") is False for level in levels):
        raise UsageError("is_encoder_decoder or is_causal: only decoder-only models are supported")
    if _ENCODERS.fullmatch(model_type) or _is_encoder(text.get("architectures") or config.get("architectures")):
        raise UsageError(f"model_type {model_type}: an encoder has no KV cache; only decoders are supported")
    if re.fullmatch(r"(falcon_)?mamba2?|rwkv\w*|xlstm", model_type):
        raise UsageError(f"model_type {model_type}: its layers have states only, and no KV cache")
    fields, dtype = Fields(text), kv_dtype or _dtype(levels)
    try:
        layers, left_out = layers_of(fields, model_type, with_draft=speculative > 0)
    except FieldError as error:
        numbers = _numbers_known(fields, error.field, plain=is_plain(model_type))
        raise UsageError(f"{error}; or give the numbers: --model {numbers}") from None
    return Model(name, grouped(name, layers, dtype, left_out))


def grouped(name: str, layers: Layers, dtype: KvDtype, left_out: str) -> tuple[LayerGroup, ...]:
    """Groups of layers with equal blocks; layers with a window join the full ones of the same size."""
    counts: dict[Cache, dict[tuple[int, bool], int]] = {}
    for cache in (cache for layer in layers for cache in layer):
        windows = counts.setdefault(cache._replace(window=0, chunked=False), {})
        key = cache.window, cache.chunked and bool(cache.window)
        windows[key] = windows.get(key, 0) + 1
    groups = []
    for cache, windows in counts.items():
        full = windows.pop((0, False), 0)
        for (window, chunked), sliding in windows.items() or [((0, False), 0)]:
            fields: dict[str, Any] = {**cache._asdict(), "window": window, "chunked": chunked, "left_out": left_out}
            groups.append(LayerGroup(name=name, layers=full + sliding, sliding_layers=sliding, dtype=dtype, **fields))
            full = 0  # layers with other windows are groups of their own
    return labelled(sorted(groups, key=lambda group: group.is_of_sequence))


def labelled(groups: Sequence[LayerGroup]) -> tuple[LayerGroup, ...]:
    """The groups of a model with labels that tell them apart; a single one needs none."""
    if len(groups) == 1:
        return tuple(groups)
    shapes = [group.part.value or f"{group.kv_heads} x {group.head_dim}" for group in groups]
    return tuple(
        replace(group, label=f"{counted(group.layers, 'layer')} of {shape}{' with a window' if group.window else ''}")
        for group, shape in zip(groups, shapes, strict=True)
    )


def object_in(path: Path) -> dict[str, object]:
    """The JSON object in a file; raises UsageError."""
    with read_as("JSON"):
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise UsageError("is not a regular file of up to 16 MiB" if path.exists() else "file not found")
        table = printable_tree(json.loads(path.read_bytes()))
    if not isinstance(table, dict):
        raise UsageError(f"{quoted(table)} is not a config.json: it must hold a JSON object")
    return table


def levels_of(config: Table) -> Iterator[Table]:
    """Yield the configuration and the text models nested in it, from the outermost to the innermost."""
    yield config
    names = [name for name, value in config.items() if _NESTED.fullmatch(name) and value is not None]
    if not names and not any(map(_LAYER_COUNTS.fullmatch, config)):
        inner_models = [
            name for name, value in config.items() if isinstance(value, dict) and "num_hidden_layers" in value
        ]
        names = [name for name in inner_models if not _OTHER_MODELS.match(name)]
    # Some files have one text model under two names.
    if len({json.dumps(config[name], sort_keys=True, default=str) for name in names}) > 1:
        raise UsageError(f"{' and '.join(names)}: which of them is the text model is not known")
    if names:
        inner = config[names[0]]
        if not isinstance(inner, dict):
            raise UsageError(f"{names[0]}: {quoted(inner)} is not a table")
        yield from levels_of(inner)


def _is_encoder(architectures: object) -> bool:
    names = architectures if isinstance(architectures, list) else []
    tasks = r".*For(MaskedLM|TokenClassification|QuestionAnswering|ImageClassification|PreTraining)"
    return bool(names) and all(re.fullmatch(tasks, str(name)) for name in names)


def _dtype(levels: Sequence[Table]) -> KvDtype:
    """The type that the quantization sets for the cache, or the model's own; bf16 if the config names none."""
    configs = [level["quantization_config"] for level in levels if level.get("quantization_config") is not None]
    for config in configs:
        if (dtype := _quantized(config)) is not None:
            return dtype
    named = (level.get(field) for level in reversed(levels) for field in ("dtype", "torch_dtype"))
    name = next((name for name in named if name is not None), "bfloat16")
    if not isinstance(name, str) or name.removeprefix("torch.") not in _DTYPES:
        raise UsageError(f"torch_dtype: {quoted(name)} is not one of {', '.join(_DTYPES)}; choose with --kv-dtype")
    return _DTYPES[name.removeprefix("torch.")]


def _quantized(config: object) -> KvDtype | None:
    """The type of the cache in a quantization config, as compressed-tensors and ModelOpt write it."""
    if not isinstance(config, dict):
        raise UsageError(f"quantization_config: {quoted(config)} is not a table")
    inner = config.get("quantization")
    tables = [inner, config] if isinstance(inner, dict) else [config]
    for field in _CACHE_TYPE_FIELDS:
        for value in (table.get(field) for table in tables):
            if isinstance(value, str) and value.lower() in _CACHE_TYPES:
                return _CACHE_TYPES[value.lower()]
            if isinstance(value, dict) and value.get("num_bits") == 8 and value.get("type") == "float":
                return KvDtype.FP8
            if (value.lower() if isinstance(value, str) else value) not in _UNSET:
                raise UsageError(
                    f"quantization_config.{field}: {quoted(value)} is not a type of a cache that kvbench knows; choose "
                    "it with --kv-dtype"
                )
    for table in tables:
        for field, value in table.items():
            if value and field not in _CACHE_TYPE_FIELDS and re.search(r"(?i)(^|_)kv(_|$)", field):
                raise UsageError(f"quantization_config.{field}: {quoted(value)} is not known; choose with --kv-dtype")
    return None


def _numbers_known(fields: Fields, refused: str, *, plain: bool) -> str:
    """The numbers of `--model`, with a question mark for each that the refused field, or one not read, decides.

    Where a family's layers are not all alike (`plain` says that they are), no number of its file is known to be right.
    """
    texts = {}
    for name, read in {"layers": layer_count, "kv_heads": kv_heads, "head_size": head_size}.items():
        try:
            texts[name] = str(read(fields))
        except UsageError:
            texts[name] = "?"
    names = dict.fromkeys([refused, *(name for name, _ in fields.unread() if plain)])
    unknown = set().union(*map(changed_by, names)) if plain else {*NUMBERS}
    named = {*texts, *(NUMBERS if plain else changed_by(refused))}
    texts |= {name: "?" for name in NUMBERS if name in unknown & named}
    numbers = ",".join(f"{name}={text}" for name, text in texts.items())
    decide = f"{', '.join(names)} {'decide' if len(names) > 1 else 'decides'} the ?"
    return f"{numbers} ({short(decide, 200)})" if "?" in numbers else numbers
