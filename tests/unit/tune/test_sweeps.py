"""What a tuning measures: the swaps of models, on a GPU and on the device cpu."""

import pytest

from kvbench.models.presets import ModelChoice
from kvbench.sweep.plan import expand
from kvbench.tune.search import trying_overlap, tuning_sweep
from tests.strategies import CPU, CPU_BACKENDS, H200, H200_BACKENDS


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt-oss-120b", "deepseek-v3"])
def test_a_tuning_measures_the_swap_of_every_preset(name: str) -> None:
    choice = ModelChoice(models=(name,))
    shapes = {(swap.blocks, swap.block_bytes) for swap in choice.swaps()}
    spec = tuning_sweep(choice, ["direction=h2d"], ["batched", "per_block"])
    for device, backends in ((H200, H200_BACKENDS), (CPU, CPU_BACKENDS)):
        cells = expand(spec, device, backends).cells
        assert {(cell.blocks, cell.block_bytes) for cell in cells} == shapes
        assert {cell.backend for cell in cells} == {"batched", "per_block"}


def test_to_compare_loads_with_prefill_fewer_tokens_and_cold_calls_are_measured_too() -> None:
    choice = ModelChoice(models=("llama-3-8b",), tokens=2048)
    spec = tuning_sweep(choice, ["direction=h2d"], ["batched", "per_block"], by_tokens=True)
    cells = expand(spec, H200, H200_BACKENDS).cells
    assert {cell.blocks for cell in cells} == {8192, 2048, 512}
    calls = {(cell.stream_state.value, cell.pause_us) for cell in cells}
    assert calls == {("idle", 0), ("sustained", 0), ("idle", 5000)}


@pytest.mark.parametrize("driver", [13_000, 13_010])
def test_on_newer_drivers_batched_copies_are_also_measured_with_the_overlap_flag(driver: int) -> None:
    ways = ["batched", "primed", "merged", "per_block", "sm"]
    spec = trying_overlap(tuning_sweep(ModelChoice(), ["blocks=1024"], ways), driver)
    cells = expand(spec, H200, H200_BACKENDS).cells
    expected = {"batched", "merged", "primed"} if driver > 13_000 else set()
    assert {cell.backend for cell in cells if cell.overlap} == expected
    assert "sm" in {cell.backend for cell in cells if cell.pattern.run > 1}
    named = tuning_sweep(ModelChoice(), ["blocks=1024", "overlap=off"], ways)
    assert trying_overlap(named, driver) == named
    kernels = tuning_sweep(ModelChoice(), ["blocks=1024"], ["sm"])
    assert trying_overlap(kernels, driver) == kernels
