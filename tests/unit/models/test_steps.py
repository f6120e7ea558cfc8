"""The model of steps beside swaps: its sizes on one rank, from a preset or a config.json."""

import json
from pathlib import Path

import pytest

from kvbench.cells.units import KIB
from kvbench.models.presets import ModelChoice, presets
from kvbench.models.steps import OF_70B, USUAL, StepSizes, step_sizes

DENSE = {
    "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 1536,
}  # fmt: skip


def test_the_usual_model_and_that_of_eight_ranks_are_presets() -> None:
    assert step_sizes("llama-3-8b", 1) == USUAL
    assert step_sizes("llama-3-70b", 8) == OF_70B
    assert USUAL.layers * USUAL.layer_bytes == 2 * 32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14_336)
    assert USUAL.decode_bytes - USUAL.layers * USUAL.layer_bytes == 16 * 2048 * 128 * KIB, "16 requests of 2048 tokens"


def test_the_layers_of_a_preset_with_widths_are_those_of_its_cache() -> None:
    known = {name: sizes for name in presets() if (sizes := step_sizes(name, 1))}
    assert {"llama-3-8b", "llama-3-70b", "qwen3-32b"} <= known.keys()
    for name, sizes in known.items():
        (group,) = presets()[name].groups
        assert (sizes.layers, sizes.kv_heads, sizes.head_dim) == (group.layers, group.kv_heads, group.head_dim)


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({}, True), ({"num_experts": 8}, False), ({"kv_lora_rank": 512}, False), ({"hidden_size": None}, False),
        ({"intermediate_size": [1, 2]}, False),
    ],
)  # fmt: skip
def test_sizes_come_from_a_config_json_of_equal_dense_layers(
    tmp_path: Path, changes: dict[str, object], known: bool
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"text_config": DENSE | changes}))
    wanted = StepSizes(name="mine", layers=4, width=512, heads=4, kv_heads=1, head_dim=64, mlp_width=768)
    assert step_sizes(str(folder), 2) == (wanted if known else None)


@pytest.mark.parametrize(
    ("models", "tp", "layers", "heads"),
    [(("qwen3-8b",), None, 36, 32), (("qwen3-8b@tp2", "llama-3-8b"), None, 36, 16), (("qwen3-8b",), 4, 36, 8)],
)
def test_steps_are_of_the_first_model_that_is_named(
    models: tuple[str, ...], tp: int | None, layers: int, heads: int
) -> None:
    sizes = ModelChoice(models=models, tp=tp).step_model()
    assert sizes is not None
    assert (sizes.layers, sizes.heads) == (layers, heads)


def test_without_a_model_or_its_widths_steps_are_of_the_usual_one() -> None:
    choices = [
        ModelChoice(),
        ModelChoice(models=("mixtral-8x7b",)),
        ModelChoice(models=("layers=2,kv_heads=1,head_size=8",)),
    ]
    assert [choice.step_model() for choice in choices] == [None] * 3
