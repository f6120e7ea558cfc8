"""The cache of each family of models: small made-up configurations, and the bytes of a token and of a state."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.cells.pattern import Tensors
from kvbench.ground.errors import UsageError
from kvbench.models.geometry import KvDtype, KvLayout
from kvbench.models.hf_config import model_of, read_config_json
from kvbench.models.presets import ModelChoice, find_model

PLAIN: dict[str, Any] = {"num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64}
# Bytes of a layer of PLAIN for a token.
LAYER = 2 * 4 * 64 * 2
LINEAR = {
    "linear_num_key_heads": 4, "linear_num_value_heads": 6, "linear_key_head_dim": 16, "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
CLASSES = json.loads((Path(__file__).parent / "configs" / "families.json").read_text())
each_class = pytest.mark.parametrize("case", CLASSES, ids=[case["what"] for case in CLASSES])


@each_class
def test_a_family_has_the_bytes_of_its_cache(case: dict[str, Any]) -> None:
    model = model_of("m", case["config"])
    assert model.bytes_per_token == case["token_bytes"]
    assert model.bytes_per_sequence == case.get("sequence_bytes", model.bytes_per_sequence)
    swaps = model.swaps(tp=1, tokens=32, block_tokens=16, layout=KvLayout.PER_LAYER)
    kept = sum(swap.blocks * swap.block_bytes for swap in swaps if not swap.geometry.is_of_sequence)
    assert kept == 32 * model.bytes_per_token


@each_class
def test_a_field_that_may_shape_the_cache_is_refused_by_name(case: dict[str, Any]) -> None:
    config = case["config"]
    for field in ("cla_share_factor", "kv_rank", "memory_layers", "attn_state_dim", "head_types"):
        with pytest.raises(UsageError, match=f"^{field}: 2 may change the KV cache.*--model layers="):
            model_of("m", {**config, field: 2})
        assert model_of("m", {**config, field: None}) == model_of("m", config)


RATIOS = [128, 4, 4, 0]
V4 = {"num_hidden_layers": 4, "head_dim": 512, "qk_rope_head_dim": 64, "sliding_window": 128, "index_head_dim": 128}
TYPES = ["heavily_compressed_attention", *["compressed_sparse_attention"] * 2, "sliding_attention"]


@pytest.mark.parametrize("fields", [{"compress_ratios": [*RATIOS, 4]}, {"layer_types": TYPES}])
def test_a_row_may_stand_for_several_tokens(fields: dict[str, Any]) -> None:
    model = model_of("m", {"model_type": "deepseek_v4", **V4, **fields})
    assert model.bytes_per_token == 576 / 128 + 2 * (576 + 132) / 4
    assert model.bytes_per_sequence == 4 * 128 * 576
    swaps = model.swaps(tp=8, tokens=256, block_tokens=16, layout=KvLayout.PER_LAYER)
    # blocks of 16 tokens have 4 rows; those of rows for 128 tokens have one; the last 128 rows are one block
    one, two, four = (Tensors(1, 2),), (Tensors(2, 16),), (Tensors(4, 1),)
    expected = [(one, 576), (two, 4 * 576), (two, 4 * 132), (four, 128 * 576)]
    assert [(swap.tensors, swap.block_bytes) for swap in swaps] == expected


def test_a_said_period_must_agree_with_the_kinds_of_layers() -> None:
    kinds = ["full_attention", "sliding_attention"] * 4
    config = {"model_type": "afmoe", **PLAIN, "sliding_window": 64, "layer_types": kinds}
    assert model_of("m", config).groups[0].sliding_layers == 4
    with pytest.raises(UsageError, match="global_attn_every_n_layers: 4 contradicts layer_types"):
        model_of("m", {**config, "global_attn_every_n_layers": 4})


def test_states_have_a_block_for_each_layer_and_sequence() -> None:
    model = model_of("m", {"model_type": "qwen3_next", **PLAIN, **LINEAR, "mamba_ssm_dtype": "float32"})
    # of the convolution the last 3 inputs of 16 bits; of the recurrence a matrix of 32 bits for each of 6 heads
    state = 3 * (2 * 4 * 16 + 6 * 32) * 2 + 6 * 16 * 32 * 4
    assert model.bytes_per_sequence == 6 * state
    attention, states = model.swaps(tp=2, tokens=64, block_tokens=16, layout=KvLayout.PER_LAYER)
    assert (attention.tensors, attention.block_bytes) == ((Tensors(4, 4),), LAYER // 4 * 16)
    assert (states.tensors, states.block_bytes) == ((Tensors(6, 1),), state // 2)
    with pytest.raises(UsageError, match="2 parts of the states of m cannot be distributed over 4 ranks"):
        model.swaps(tp=4, tokens=64, block_tokens=16, layout=KvLayout.PER_LAYER)


def test_a_chunk_is_kept_until_the_next_begins() -> None:
    config = {"model_type": "llama4_text", **PLAIN, "attention_chunk_size": 64}
    (swap,) = model_of("m", config).swaps(tp=1, tokens=160, block_tokens=16, layout=KvLayout.PER_LAYER)
    assert swap.tensors == (Tensors(4, 10), Tensors(12, 2))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"use_sliding_window": True}, "sliding_window: 64, but neither layer_types nor its family says which layers"),
        (
            {"use_sliding_window": True, "first_layers_types": ["full_attention"], "model_type": "iquest_q1"},
            "sliding_window: 64, but neither",
        ),
        # vLLM's class of it lets all layers slide, those of SGLang and transformers all but every sixth and the last
        ({"model_type": "beam"}, "sliding_window: 64, but neither"),
        # vLLM's class of it lets every other layer slide, that of Step 3.5 none
        ({"model_type": "step5"}, "sliding_window: layer_types is missing"),
    ],
)
def test_a_window_is_refused_where_the_layers_that_slide_are_not_known(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        model_of("m", {**PLAIN, "sliding_window": 64, **fields})
    assert str(caught.value).startswith(reason)
    assert "window=?" in str(caught.value)
    assert "max_window_layers" not in str(caught.value)


ZAYA = {"model_type": "zaya", **PLAIN, "hidden_size": 512}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "cca: missing, and so are layer_types and router_hidden_size: which layers attend is open"),
        ({"cca": True, "num_query_groups": 2}, "num_query_groups: .* contradict each other"),
        ({"cca": True, "zaya_layers": ["a", 16] * 4}, "zaya_layers: .* may change the KV cache"),
        ({"router_hidden_size": 8, "layer_types": ["hybrid_sliding"] * 8}, "layer_types: .* is not a kind of layer"),
    ],
)
def test_other_forms_of_zaya_are_refused_and_no_number_is_proposed(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=f"^{reason}.*layers=[?],kv_heads=[?],head_size=[?]"):
        model_of("m", {**ZAYA, **fields})


def test_a_state_that_ranks_repeat_in_part_is_refused_for_several_ranks() -> None:
    with pytest.raises(UsageError, match="parts of the states of m cannot be distributed over 2 ranks"):
        model_of("m", {**ZAYA, "cca": True}).swaps(tp=2, tokens=64, block_tokens=16, layout=KvLayout.PER_LAYER)


TEXT = {"model_type": "qwen3", **PLAIN}


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "x_vl", "text_config": TEXT, "vision_config": PLAIN},
        {"llm_config": TEXT, "hidden_size": 3},
        {"language_config": TEXT},
        {"thinker_config": {"text_config": TEXT, "audio_config": PLAIN}, "talker_config": PLAIN},
        {"thinker_config": {"llm_config": {"language_model": TEXT}}},
        {"backbone_of_text": TEXT, "vision_tower": PLAIN},
    ],
)
def test_a_nested_text_model_is_found(config: dict[str, Any]) -> None:
    assert model_of("m", config) == model_of("m", TEXT)


@pytest.mark.parametrize(("model_type", "heads"), [("llama", 32), ("mistral", 8), ("qwen2", 32)])
def test_a_nested_text_model_has_the_numbers_of_its_class_where_it_leaves_them_out(model_type: str, heads: int) -> None:
    (group,) = model_of("m", {"text_config": {"model_type": model_type, "vocab_size": 8}}).groups
    assert (group.layers, group.kv_heads, group.head_dim) == (32, heads, 128)
    with pytest.raises(UsageError, match=": missing; a config"):
        model_of("m", {"model_type": model_type, "vocab_size": 8})


def test_layers_that_propose_tokens_are_cached_too_or_left_out_with_a_word() -> None:
    config = {"model_type": "qwen3_next", **PLAIN, **LINEAR, "mtp_num_hidden_layers": 1}
    model, usual = (model_of("m", config, speculative=tokens) for tokens in (3, 0))
    assert model.bytes_per_token == usual.bytes_per_token + LAYER
    assert model.bytes_per_sequence == usual.bytes_per_sequence
    kinds = {"layer_types": ["sliding_attention", "full_attention"] * 4, "sliding_window": 64}
    (group,) = model_of(
        "m", {"model_type": "gpt_oss", **PLAIN, **kinds, "num_nextn_predict_layers": 1}, speculative=1
    ).groups
    assert (group.layers, group.sliding_layers) == (9, 4), "they are as the last layer"
    none = model_of("m", PLAIN, speculative=3)
    assert none.bytes_per_token == 8 * LAYER
    assert "the layers that propose tokens are left out" in none.text
    assert "left out" not in model.text + usual.text
    assert "left out" in find_model("layers=8,kv_heads=4,head_size=64", speculative=1).text


# Types


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, KvDtype.FP8),
        ({"kv_cache_scheme": "FP8"}, KvDtype.FP8),
        ({"kv_cache_quant_algo": "FP8"}, KvDtype.FP8),
        ({"kv_cache_quant_algo": "NVFP4"}, KvDtype.NVFP4),
        ({"kv_cache_scheme": None, "kv_cache_quant_algo": "auto"}, KvDtype.BF16),
        ({"quantization": {"kv_cache_quant_algo": "fp8_e5m2"}}, KvDtype.FP8_E5M2),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, KvDtype.BF16),
    ],
)
def test_the_type_of_the_cache_is_read(quantization: dict[str, Any], dtype: KvDtype) -> None:
    model = model_of("m", {**PLAIN, "quantization_config": quantization})
    assert {group.dtype for group in model.groups} == {dtype}


def test_a_type_that_is_given_wins_over_the_file() -> None:
    config = {**PLAIN, "torch_dtype": "int8", "quantization_config": {"kv_cache_scheme": {"num_bits": 4}}}
    with pytest.raises(UsageError, match="choose it with --kv-dtype"):
        model_of("m", config)
    assert model_of("m", config, KvDtype.NVFP4).bytes_per_token == 8 * 2 * 4 * 36


def test_a_type_beside_the_config_counts_where_the_config_has_none(tmp_path: Path) -> None:
    beside = {"quantization": {"kv_cache_quant_algo": "FP8"}}
    for name, config in (("config", PLAIN), ("own_config", {**PLAIN, "quantization_config": {"quant_method": "fp8"}})):
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    for name in ("hf_quant_config", "own_hf_quant_config"):
        (tmp_path / f"{name}.json").write_text(json.dumps(beside))
    assert read_config_json(tmp_path).bytes_per_token == 8 * LAYER // 2
    assert read_config_json(tmp_path / "own_config.json").bytes_per_token == 8 * LAYER
    assert read_config_json(tmp_path, KvDtype.FP32).bytes_per_token == 8 * LAYER * 2


# Numbers in place of a file


@pytest.mark.parametrize(
    ("text", "token_bytes"),
    [
        ("layers=8,kv_heads=4,head_size=64", 8 * LAYER),
        ("layers=8,kv_heads=4,head_size=64,kv_dtype=fp8", 4 * LAYER),
        ("layers=8,kv_heads=1,head_size=576,parts=1,kv_dtype=fp8_ds_mla", 8 * 656),
        ("layers=8, kv_heads=4, head_size=64 + layers=4, kv_heads=1, head_size=128, window=64", 8 * LAYER + 4 * 512),
        ("layers=3,kv_heads=1,head_size=128,parts=1,row_bytes=132", 3 * 132),
    ],
)
def test_a_model_can_be_given_by_its_numbers(text: str, token_bytes: int) -> None:
    assert find_model(text).bytes_per_token == token_bytes
    assert len(ModelChoice((f"{text}@tokens64",)).swaps()) == text.count("+") + 1


@pytest.mark.parametrize(
    ("fields", "numbers"),
    [
        ({"odd_layers": 2}, "layers=?,kv_heads=4,head_size=64 (odd_layers decides the ?)"),
        ({"kv_groups_of": 2, "odd_dim": 3}, "head_size=?,window=? (kv_groups_of, odd_dim decide the ?)"),
        ({"n_query_heads_x": 2}, "layers=8,kv_heads=?,head_size=64"),
        ({"n_query_heads_x": 2, "layer_period": 3}, "layers=?,kv_heads=?,head_size=64"),
        ({"odd_dim": 2}, "layers=8,kv_heads=4,head_size=?"),
        ({"sliding_window": 64}, "layers=8,kv_heads=4,head_size=64,window=? (sliding_window decides the ?)"),
        ({"layer_types": ["odd"] * 8}, "layers=?,kv_heads=4,head_size=64"),
        ({"num_hidden_layers": None}, "layers=?,kv_heads=4,head_size=64"),
        ({"model_type": "jamba", "mamba_d_conv": 4, "mamba_d_state": 8, "odd_dim": 2}, "layers=?,kv_heads=?,head_"),
        ({"attention_method": "odd"}, "layers=?,kv_heads=?,head_size=?,window=?"),
        ({"layer_types": ["full_attention", "mlp"] * 4, "n_recurrent_loops": 1, "model_type": "dory"}, "layers=?,"),
        ({"num_loops": 2, "model_type": "nanbeige"}, "layers=?,"),
        ({"mixer_types": ["minicpm4"] * 8, "lightning_head_dim": 64, "model_type": "minicpm_sala"}, "layers=?,"),
        ({"kv_lora_rank": 128, "linear_num_key_heads": 2, "model_type": "gigachat3_5"}, "layers=?,"),
    ],
)
def test_a_refusal_leaves_open_what_the_refused_field_could_change(fields: dict[str, Any], numbers: str) -> None:
    with pytest.raises(UsageError, match="or give the numbers: --model ") as caught:
        model_of("m", {**PLAIN, "hidden_size": 1024, **fields})
    assert numbers in str(caught.value)
    assert str(caught.value).partition(":")[0] in fields
