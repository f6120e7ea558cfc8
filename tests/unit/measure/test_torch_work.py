"""The decode step that a neighbour captures is one: it attends over its cache, and every part of a layer counts."""

from typing import Any

import pytest

from kvbench.measure.torch_work import decode_step
from kvbench.models.geometry import LayerGroup

MODEL = LayerGroup(name="small", layers=2, kv_heads=2, head_dim=8)
SIZES: dict[str, int] = {"width": 32, "heads": 4, "mlp_width": 48, "batch": 3, "context": 10}


def test_a_decode_step_gives_a_finite_state_a_sequence_and_the_same_every_time() -> None:
    torch: Any = pytest.importorskip("torch")
    torch.manual_seed(0)
    with torch.inference_mode():
        step = decode_step(torch, "cpu", MODEL, **SIZES)
        first, second = step().float(), step().float()
    assert first.shape == (3, 32)
    assert torch.isfinite(first).all()
    assert torch.equal(first, second)
    assert first.std() > 0.5
