"""What a tuning measures: the swap of every shipped model, on a GPU and on the device cpu."""

import pytest

from kvbench.models.presets import ModelChoice, presets
from kvbench.sweep.plan import expand
from kvbench.tune.search import tuning_sweep
from tests.strategies import CPU, CPU_BACKENDS, H200, H200_BACKENDS


@pytest.mark.parametrize("name", presets())
def test_a_tuning_measures_the_swap_of_every_preset(name: str) -> None:
    choice = ModelChoice(models=(name,))
    shapes = {(swap.blocks, swap.block_bytes) for swap in choice.swaps()}
    spec = tuning_sweep(choice, ["direction=h2d"], ["batched", "per_block"])
    for device, backends in ((H200, H200_BACKENDS), (CPU, CPU_BACKENDS)):
        cells = expand(spec, device, backends).cells
        assert {(cell.blocks, cell.block_bytes) for cell in cells} == shapes
        assert {cell.backend for cell in cells} == {"batched", "per_block"}
