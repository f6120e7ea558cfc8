"""What a model's offload swaps, from presets, from a config.json, and on the command line."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvbench.cells.axes import Direction
from kvbench.cells.blocks import misfit
from kvbench.cells.cell import AXES, Cell
from kvbench.cells.pattern import Tensors
from kvbench.ground.errors import UsageError
from kvbench.ground.text import convert
from kvbench.models.geometry import KvDtype, KvLayout, LayerGroup, Model, ModelSwap, models_of, swaps_from_plain
from kvbench.models.hf_config import model_of, read_config_json
from kvbench.models.presets import GroupPages, ModelChoice, facts_of, find_model, model_facts, notes_of, presets
from kvbench.sweep.spec import SweepSpec
from tests.refusals import refused_with

KIB = 1024
DENSE = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
FULL, LINEAR = ["full_attention"] * 32, ["linear_attention"] * 32
LATENT = {"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64}


def choice(models: list[str], **settings: Any) -> ModelChoice:
    made: ModelChoice = convert({"models": models, **settings}, ModelChoice)
    return made


def swap_of(text: str, tokens: int = 8192, **settings: Any) -> ModelSwap:
    (swap,) = choice([text], tokens=tokens, **settings).swaps()
    return swap


# Formulas


@pytest.mark.parametrize(
    ("model", "tokens", "tensors", "block_bytes"),
    [
        # vllm-project/vllm#38460: 64 tensors of 32 KB blocks, 160 of 32 KB, and 160 of 8 KB at TP 4
        ("llama-3-8b", 8192, (Tensors(64, 512),), 32 * KIB),
        ("llama-3-70b@tp4", 8192, (Tensors(160, 512),), 8 * KIB),
        # one tensor a layer, 576 elements a token, the same on every rank
        ("deepseek-v3@tp8", 8192, (Tensors(61, 512),), 16 * 576 * 2),
        # every other layer keeps the last 127 tokens: from the block of the 8066th on, 8 of 512
        ("gpt-oss-120b", 8192, (Tensors(36, 512), Tensors(36, 8)), 16 * KIB),
        # the last 127 begin with a block, which is the first of 8
        ("gpt-oss-120b", 8191, (Tensors(36, 512), Tensors(36, 8)), 16 * KIB),
        # every sixth layer is a full one: 10 of 62
        ("gemma-3-27b", 8192, (Tensors(20, 512), Tensors(104, 64)), 64 * KIB),
        # as long as nothing has left the window, all layers hold the same
        ("gpt-oss-120b", 100, (Tensors(72, 7),), 16 * KIB),
        # more ranks than heads: repeated, not divided further
        ("qwen2.5-7b@tp8", 8192, (Tensors(56, 512),), 4 * KIB),
    ],
)
def test_a_model_has_the_swap_of_vllm(model: str, tokens: int, tensors: tuple[Tensors, ...], block_bytes: int) -> None:
    swap = swap_of(model, tokens)
    assert (swap.tensors, swap.block_bytes) == (tensors, block_bytes)
    assert swap.blocks == sum(kind.blocks for kind in tensors)


def test_a_cross_layer_block_holds_all_layers() -> None:
    apart, together = swap_of("llama-3-8b"), swap_of("llama-3-8b", layout="cross-layer")
    assert (together.tensors, together.block_bytes) == ((Tensors(1, 512),), 64 * apart.block_bytes)
    hybrid = swap_of("gpt-oss-120b", layout="cross-layer")
    assert (hybrid.tensors, hybrid.block_bytes) == ((Tensors(1, 512), Tensors(1, 8)), 18 * 2 * 16 * KIB)


def test_a_cross_layer_block_holds_the_groups_of_one_model_side_by_side() -> None:
    model = find_model("glm-5.2")
    for tp in (1, 8):  # every rank has all of it: latent and index rows are not divided
        (swap,) = model.swaps(tp=tp, tokens=2048, block_tokens=64, layout=KvLayout.CROSS_LAYER)
        assert (swap.tensors, swap.block_bytes) == ((Tensors(1, 32),), 64 * (78 * 576 * 2 + 21 * 132))
        assert swaps_from_plain([msgspec.to_builtins(swap)]) == (swap,)
    (shown,) = models_of([swap])
    assert shown.bytes_per_token == model.bytes_per_token
    assert "78 layers of 1 x 576 and 21 layers of index rows side by side" in shown.text
    facts = model_facts(model).layouts[KvLayout.CROSS_LAYER]
    assert facts == [GroupPages(tokens=16, descriptors=1, descriptor_bytes=swap.block_bytes // 4)]


@pytest.mark.parametrize(("name", "parts", "layers"), [("llama-3-8b", 2, 32), ("deepseek-v3", 1, 61)])
def test_a_store_of_sglang_copies_whole_pages_where_a_load_copies_rows(name: str, parts: int, layers: int) -> None:
    facts = model_facts(find_model(name), block_tokens=64)
    (page,) = facts.layouts[KvLayout.SGLANG_PAGE_FIRST] or []
    assert (page.descriptors, page.store_descriptors) == (64 * parts * layers, parts)
    assert page.store_descriptor_bytes == 64 * layers * page.descriptor_bytes
    assert page.store_descriptor_bytes == 64 * facts.bytes_per_token // parts
    (direct,) = facts.layouts[KvLayout.SGLANG_PAGE_FIRST_DIRECT] or []
    assert direct.store_descriptors is None
    (note,) = notes_of(choice([name], layout="sglang-page-first", block_tokens=64).swaps())
    assert f"{page.store_descriptor_bytes} B each" in note


@pytest.mark.parametrize(
    ("model", "layout", "device", "host", "block_bytes"),
    [
        # K and V of a layer in one block, all 80 layers of a block side by side on the host
        ("llama-3-70b@tp8", "vllm", "tensors-80", "page-first-80", 8 * KIB),
        ("llama-3-70b@tp8", "sglang-layer-first", "tensors-160", "pattern", 4 * KIB),
        # the token is the outermost dimension after K and V: one KV head of 128 elements
        ("llama-3-70b@tp8", "sglang-page-first", "tensors-160/runs-16", "page-first-80+80/runs-16", 256),
        ("llama-3-70b@tp8", "sglang-page-first-direct", "tensors-160", "page-first-80+80", 4 * KIB),
        ("llama-3-70b@tp8", "lmcache", "tensors-160", "page-first-160x16", 4 * KIB),
        # a token's K and V of one head, in a row of 8 ranks; two heads on each of four
        ("llama-3-70b@tp8", "vllm-canonical", "tensors-80/runs-16", "fragments-16x8x80", 512),
        ("llama-3-70b@tp4", "vllm-canonical", "tensors-80/runs-16", "fragments-16x4x80", 1 * KIB),
        ("llama-3-70b", "vllm-canonical", "tensors-80", "page-first-80", 64 * KIB),
        # full and sliding layers share the tensors: 512 ids and 8
        ("gpt-oss-20b", "vllm", "tensors-12", "page-first-12", 32 * KIB),
        ("deepseek-v3", "vllm", "tensors-61", "page-first-61", 16 * 576 * 2),
        ("deepseek-v3", "sglang-page-first", "tensors-61/runs-16", "page-first-61/runs-16", 576 * 2),
    ],
)
def test_an_engine_layout_gives_its_patterns(model: str, layout: str, device: str, host: str, block_bytes: int) -> None:
    swap, usual = (swap_of(model, layout=kind) for kind in (layout, "per-layer"))
    assert (swap.pattern, swap.host_pattern, swap.block_bytes) == (device, host, block_bytes)
    assert swap.blocks * swap.block_bytes == usual.blocks * usual.block_bytes
    fields: dict[str, Any] = {AXES[name].field: AXES[name].parse_one(text) for name, (text,) in swap.axes.items()}
    assert misfit(Cell(backend="any", direction=Direction.H2D, **fields)) is None


@pytest.mark.parametrize(("name", "tp", "lengths"), [("deepseek-v3", 8, [2048, 256]), ("llama-3-8b", 16, [2048, 1024])])
def test_ranks_that_repeat_heads_store_the_pages_of_a_canonical_layout_in_turn(
    name: str, tp: int, lengths: list[int]
) -> None:
    asked = {"tp": tp, "tokens": 2048, "block_tokens": 16}
    loads, stores = find_model(name).swaps(layout=KvLayout.VLLM_CANONICAL, **asked)
    assert [swap.tokens for swap in (loads, stores)] == lengths
    assert loads.blocks == stores.blocks * lengths[0] // lengths[1]
    assert (loads.block_bytes, loads.host_pattern) == (stores.block_bytes, stores.host_pattern)


def test_the_last_chunk_of_lmcache_is_whole() -> None:
    swap = swap_of("llama-3-8b", tokens=300, layout="lmcache")
    assert swap.blocks == 64 * 2 * 16
    assert swap_of("llama-3-8b", tokens=300, block_tokens=256, layout="lmcache").host_pattern == "page-first-64"


@pytest.mark.parametrize(("state_type", "tokens"), [("bfloat16", 272), ("float32", 528)])
def test_planners_see_pages_and_states(state_type: str, tokens: int) -> None:
    """The block of Qwen3.5-4B holds a state: 272 tokens in vLLM, or 528 if states have 32 bits."""
    sizes = {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_conv_kernel_dim": 4}
    dims = {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "head_dim": 256, "num_key_value_heads": 4}
    config = {"model_type": "qwen3_5_text", "num_hidden_layers": 32, "num_attention_heads": 16, **sizes, **dims}
    facts = model_facts(model_of("m", {**config, "mamba_ssm_dtype": state_type}))
    assert (facts.bytes_per_token, facts.state_page_tokens) == (32_768, tokens)
    pages = facts.layouts[KvLayout.VLLM] or []
    assert [(page.tokens, page.descriptors) for page in pages] == [(tokens, 8), (None, 24)]
    assert {page.descriptor_bytes for page in pages} == {tokens * 4 * KIB}
    apart = facts.layouts[KvLayout.PER_LAYER] or []
    assert [(page.tokens, page.descriptors) for page in apart] == [(16, 16), (None, 24)]
    chunk = model_facts(find_model("llama-3-8b"), chunk_tokens=512).layouts[KvLayout.LMCACHE]
    assert chunk == [GroupPages(tokens=512, descriptors=64 * 32, descriptor_bytes=32 * KIB)]


def test_layers_that_do_not_divide_are_padded() -> None:
    """Of 52 layers with a window, groups of 10 are six; a kind that is half as large again is two groups."""
    assert swap_of("gemma-3-27b", tokens=2048, layout="vllm").tensors == (Tensors(10, 128 + 6 * 64),)
    group = LayerGroup(name="m", layers=5, kv_heads=8, head_dim=128, sliding_layers=3, window=128)
    (swap,) = Model("m", (group,)).swaps(tp=1, tokens=2048, block_tokens=16, layout=KvLayout.VLLM)
    assert swap.tensors == (Tensors(2, 128 + 2 * 8),)


def test_a_canonical_layout_shares_tensors_between_kinds_of_which_one_divides_the_other() -> None:
    group = LayerGroup(name="m", layers=12, kv_heads=8, head_dim=128, sliding_layers=8, window=128)
    asked: dict[str, Any] = {"tp": 1, "tokens": 2048, "block_tokens": 16, "layout": KvLayout.VLLM_CANONICAL}
    (swap,) = Model("m", (group,)).swaps(**asked)
    assert swap.tensors == (Tensors(4, 128 + 2 * 8),)
    with refused_with("layout: m has 5 and 7 layers of two kinds"):
        Model("m", (msgspec.structs.replace(group, sliding_layers=7),)).swaps(**asked)


def _changed(**changes: object) -> list[dict[str, object]]:
    return [{**msgspec.to_builtins([swap_of("llama-3-8b")])[0], **changes}]


ONE_LAYER = {"name": "m", "layers": 1, "kv_heads": 1, "head_dim": 1}
UNTRUSTED = [
    {"extra": 1}, {"blocks": -1}, {"blocks": 63}, {"pattern": "tensors-64x"}, {"layout": "diagonal"},
    {"host_pattern": "page-first-63"}, {"geometry": ONE_LAYER | {"name": "<b>"}},
    {"geometry": ONE_LAYER | {"sliding_layers": 2, "window": 3}},
]  # fmt: skip


@pytest.mark.parametrize("plain", [None, {}, [{}], *(_changed(**changes) for changes in UNTRUSTED)])
def test_untrusted_models_are_checked(plain: object) -> None:
    with pytest.raises(UsageError, match=r"^models\b") as caught:
        swaps_from_plain(plain)
    assert str(caught.value).isprintable()


# Presets and choices


def test_each_model_has_its_facts_for_every_number_of_ranks_and_a_note_where_no_engine_has_its_blocks() -> None:
    models = choice(["qwen3.5-397b-a17b", "llama-3-8b", "llama-3-8b@tp2"], tokens=64)
    facts = [(one.model, one.tp) for one in facts_of(models.swaps())]
    assert facts == [("qwen3.5-397b-a17b", 1), ("llama-3-8b", 1), ("llama-3-8b", 2)]
    (note,) = notes_of(models.swaps())
    assert note.startswith("qwen3.5-397b-a17b: no engine swaps blocks of 16 tokens: vLLM enlarges them to 2096 tokens")
    assert notes_of(choice(["qwen3.5-397b-a17b"], layout="vllm").swaps()) == []


@pytest.mark.parametrize(
    ("models", "settings", "message"),
    [
        (["llama-3-8"], {}, 'model "llama-3-8": kvbench ships no model of that name; did you mean llama-3-8b?'),
        (["llama-3-8b"], {"tp": 3}, "tp: 8 KV heads of llama-3-8b cannot be distributed over 3 ranks"),
        (["llama-3-8b"], {"layout": "lmcache", "block_tokens": 48}, "block_tokens: 48 does not divide the 256 tokens"),
        (["gpt-oss-20b"], {"layout": "lmcache"}, "layers of two kinds, whose blocks do not fit into pages of one size"),
        (["glm-5.2"], {"layout": "vllm"}, "layout: glm-5.2 has blocks of 2 sizes, which vllm is not known to place"),
        (["nemotron-3-nano-30b@tp16"], {}, "tp: 8 parts of the states of nemotron-3-nano-30b cannot be distributed"),
        (["llama-3-8b"], {"kv_dtype": "fp8_ds_mla"}, "kv_dtype: fp8_ds_mla is of multi-head latent attention of 576"),
        (
            ["gemma-4-31b"],
            {"layout": "cross-layer"},
            "vLLM lays the pages of layers with a window or a state over those",
        ),
        (["minimax-m3@tp4"], {"layout": "cross-layer"}, "4 ranks divide the heads of its groups, which differ in"),
        (["gemma-3-27b"], {"layout": "cross-layer"}, "layout: gemma-3-27b has 10 and 52 layers of two kinds"),
        (["llama-3-8b"], {"tokens": 10**7, "block_tokens": 1}, "model llama-3-8b: axis blocks=640000000"),
        (["llama-3-8b"], {"chunk_tokens": 512}, "chunk_tokens: 512 requires the layout lmcache"),
        ([], {"tokens": 5}, "tokens: 5 requires a model; choose one with --model"),
        (["layers=8,kv_heads=4"], {}, "head_size: missing; write layers=32,kv_heads=8,head_size=128"),
        (["layers=8,kv_heads=4,head_size=" + "9" * 5000], {}, "head_size: "),
        (["layers=100001,kv_heads=4,head_size=64"], {}, "layers: 100001 is not a whole number from 1 to 100000"),
        (["layers=8,kv_heads=4,head_size=?"], {}, 'head_size: "?" is not a whole number'),
        (["layers=8,kv_heads=4,head_sise=64"], {}, 'unknown key "head_sise"; did you mean head_size?'),
        (["layers=8,kv_heads=4,head_size=24,kv_dtype=nvfp4"], {}, "nvfp4 has a scale for 16 elements, but a head has"),
    ],
)
def test_an_invalid_choice_is_refused_with_the_right_one(
    models: list[str], settings: dict[str, Any], message: str
) -> None:
    with refused_with(message):
        choice(models, **settings).swaps()


# config.json


V4 = {"model_type": "deepseek_v4", "head_dim": 512, "sliding_window": 128}
EXAONE = {"model_type": "exaone4", "num_hidden_layers": 6, "sliding_window": 64}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {"layers": 32, "kv_heads": 8, "head_dim": 128}),
        ({"num_key_value_heads": None}, {"kv_heads": 32}),
        ({"dtype": "float32"}, {"dtype": KvDtype.BF16}),
        (LATENT, {"kv_parts": 1, "kv_heads": 1, "head_dim": 576}),
        ({"multi_query": True, "num_key_value_heads": None}, {"kv_heads": 1}),
        ({"num_key_value_heads": None, "n_head_kv": 4}, {"kv_heads": 4}),
        # sliding windows
        ({"sliding_window": 4096, "model_type": "mistral"}, {"sliding_layers": 32, "window": 4096}),
        ({"sliding_window": 4096, "use_sliding_window": False}, {"sliding_layers": 0, "window": 0}),
        ({"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 28}, {"sliding_layers": 4}),
        (
            {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3},
            {"sliding_layers": 29},
        ),
        ({"sliding_window": 512, "sliding_window_pattern": 6}, {"sliding_layers": 27, "window": 512}),
        (EXAONE | {"sliding_window_pattern": "LLLG"}, {"layers": 6, "sliding_layers": 4}),  # the last layer is full
        ({"model_type": "spark2_5"}, {"sliding_layers": 24, "window": 512}),
        ({"sliding_window": 4096, "model_type": "gemma2"}, {"sliding_layers": 16}),
        ({"sliding_window": 8, "layer_types": FULL[:30] + ["sliding_attention"] * 2}, {"sliding_layers": 2}),
        ({"sliding_window": 8, "layer_types": FULL, "model_type": "gemma2"}, {"sliding_layers": 0, "window": 0}),
        ({"num_kv_shared_layers": 12}, {"layers": 20}),
    ],
)
def test_a_config_json_is_read(config: dict[str, object], expected: dict[str, object]) -> None:
    (group,) = model_of("m", DENSE | config).groups
    assert {name: getattr(group, name) for name in expected} == expected


def test_a_nested_text_model_counts_and_its_type_may_stand_outside() -> None:
    outside, inside = {"torch_dtype": "float16", "hidden_size": 1}, ({}, {"dtype": "bfloat16"})
    groups = [model_of("m", {"text_config": DENSE | fields, **outside}).groups[0] for fields in inside]
    assert [(group.head_dim, group.dtype) for group in groups] == [(128, KvDtype.FP16), (128, KvDtype.BF16)]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers: missing; a config.json of this kind of model must have it"),
        ({"hidden_size": 4097}, "hidden_size 4097 is not a multiple of num_attention_heads 32"),
        ({"kv_lora_rank": 512}, "kv_lora_rank: 512 may change the KV cache"),
        ({**LATENT, "qk_rope_head_dim": None}, "qk_rope_head_dim: missing"),
        ({"n_head_kv": 4}, "num_key_value_heads 8 and n_head_kv 4 contradict each other"),
        ({"sliding_window": 4096}, "sliding_window: 4096, but neither layer_types nor its family says which"),
        ({"layer_types": ["full_attention"]}, "is not a list of 32 items"),
        ({"layer_types": LINEAR}, 'layer_types: "linear_attention" is not a kind of layer'),
        ({"model_type": "gemma4_text", "sliding_window": 8, "layer_types": LINEAR}, "knows for this model_type"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder or is_causal: only decoder-only models"),
        ({"block_types": ["recurrent", "attention"] * 16}, 'block_types: ["recurrent", "attention"'),
        ({"quantization_config": {"kv_cache_scheme": {"type": "int"}}}, '{"type": "int"} is not a type of a cache'),
        ({"model_type": "bert"}, "model_type bert: an encoder has no KV cache"),
        ({"architectures": ["XForMaskedLM"]}, "an encoder has no KV cache"),
        ({"model_type": "falcon_mamba"}, "its layers have states only, and no KV cache"),
        ({"model_type": "lfm2", "conv_dim": 64, "conv_L_cache": 3, "layer_types": ["conv"] * 32}, "no layer has a KV"),
        ({"model_type": "minimax", "layer_types": [None] * 32}, "layer_types: null is not a kind of layer"),
        ({"model_type": "jamba", "attn_layer_offset": 8}, "attn_layer_offset: 8 is not a whole number from 0 to 7"),
        ({"total_ut_steps": 1_000_000}, "32000000 layers are more than 100000"),
        ({"text_config": 3}, "text_config: 3 is not a table"),
        ({"text_config": DENSE, "llm_config": LATENT}, "text_config and llm_config: which of them is the text model"),
        ({"torch_dtype": "int4"}, 'torch_dtype: "int4" is not one of '),
        ({"quantization_config": "fp8"}, 'quantization_config: "fp8" is not a table'),
        ({"quantization_config": {"kv_bits": 4}}, "quantization_config.kv_bits: 4 is not known; choose with"),
        ({"model_type": "longcat_flash", "num_layers": 15}, "num_hidden_layers: 32 is neither num_layers 15 nor twice"),
        ({"model_type": "gemma4_text", "use_bidirectional_attention": True}, "true; an encoder has no KV cache"),
        ({"model_type": "step3p5", "attention_other_setting": {}}, "attention_type: not sliding_attention, the only"),
        ({"model_type": "nemotron-nas"}, "block_configs: missing; a config.json of this kind of model must have it"),
        (
            {"model_type": "nemotron-nas", "block_configs": [{"attention": {"n_heads_in_group": 5}}] * 32},
            "32 heads are",
        ),
        (V4 | {"layer_types": ["odd"] * 32}, 'layer_types: "odd" is not a kind of layer'),
        (V4 | {"compress_ratios": [4]}, "compress_ratios: [4] is not a list of 32 items, one for each layer"),
    ],
)
def test_a_config_json_of_an_unsupported_model_is_refused(config: dict[str, object], message: str) -> None:
    with refused_with(message):
        model_of("m", DENSE | config)


CONFIGS = Path(__file__).parent / "configs"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemma-3-4b", LayerGroup(name="", layers=34, kv_heads=4, head_dim=256, sliding_layers=29, window=1024)),
        ("gemma-3-12b", presets()["gemma-3-12b"].groups[0]),
        ("qwen3-4b", LayerGroup(name="qwen3-4b", layers=36, kv_heads=8, head_dim=128)),
        ("llama-3.1-8b-fp8-kv", msgspec.structs.replace(presets()["llama-3-8b"].groups[0], dtype=KvDtype.FP8)),
        ("minimax-m2", LayerGroup(name="minimax-m2", layers=62, kv_heads=8, head_dim=128)),
    ],
)
def test_absent_fields_have_the_defaults_of_their_model_classes(name: str, expected: LayerGroup) -> None:
    model = find_model(str(CONFIGS / f"{name}.json"))
    assert model == Model(name, (msgspec.structs.replace(expected, name=name),))


def test_states_of_unknown_size_are_left_out_and_said() -> None:
    model = read_config_json(CONFIGS / "minimax-m1.json")
    assert (model.bytes_per_token, model.bytes_per_sequence) == (10 * 2 * 8 * 128 * 2, 0)
    assert "states of its linear layers are left out" in model.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "cannot be read as JSON: "),
        (b"[" * 100_000, "cannot be read as JSON: nested too deeply"),
        (b"[3]", "[3] is not a config.json: it must hold a JSON object"),
        (b'{"num_hidden_layers": ' + b"9" * 5000 + b"}", "cannot be read as JSON: "),
        (b" " * (2**24 + 1), "is not a regular file of up to 16 MiB"),
    ],
)
def test_a_file_that_is_not_a_config_json_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with refused_with(f"{path}: ", message):
        read_config_json(path)


# Configs and the sweep


def test_models_are_groups_of_a_sweep() -> None:
    spec = SweepSpec(name="x", groups=({"backend": ("batched",), "blocks": ("4",)}, {"backend": ("per_block",)}))
    swaps = choice(["llama-3-8b", "mistral-7b", "qwen2.5-7b"], tokens=16).swaps()
    changed = spec.with_models(swaps)
    # the first two are the same swap
    assert [group["blocks"] for group in changed.groups] == [("64",), ("56",)] * 2
    assert changed.models == swaps
    assert changed.with_axes({"backend": "sm"}).groups[0]["backend"] == ("sm",)
    with refused_with("-a block_size: the model sets"):
        changed.with_axes({"backend": "sm", "block_size": "4KiB"})
    assert SweepSpec.from_plain(json.loads(json.dumps(changed.to_plain()))) == changed
