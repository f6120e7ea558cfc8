"""The decode step that a neighbour captures is one: it attends over its cache, and every part of a layer counts."""

import inspect
from typing import Any
from unittest import mock

import pytest

from kvbench.measure.torch_work import decode_step, prefill_layer
from kvbench.models.steps import StepSizes

MODEL = StepSizes(name="small", layers=2, width=32, heads=4, kv_heads=2, head_dim=8, mlp_width=48)


def test_a_decode_step_gives_a_finite_state_a_sequence_and_the_same_every_time() -> None:
    torch: Any = pytest.importorskip("torch")
    torch.manual_seed(0)
    with torch.inference_mode():
        step = decode_step(torch, "cpu", MODEL, batch=3, context=10)
        first, second = step().float(), step().float()
    assert first.shape == (3, 32)
    assert torch.isfinite(first).all()
    assert torch.equal(first, second)
    assert first.std() > 0.5


def test_a_rank_of_a_decode_step_adds_up_its_hidden_states_twice_a_layer() -> None:
    torch: Any = pytest.importorskip("torch")
    add_up = mock.Mock(side_effect=lambda part: part.zero_())
    with torch.inference_mode():
        step: Any = decode_step(torch, "cpu", MODEL, batch=3, context=10, add_up=add_up)
        assert torch.equal(step(), inspect.getclosurevars(step).nonlocals["entered"])
    assert [call.args[0].shape for call in add_up.mock_calls] == [(3, MODEL.width)] * 2 * MODEL.layers


def test_a_prefill_attends_to_the_tokens_before_and_to_no_later_one() -> None:
    torch: Any = pytest.importorskip("torch")
    torch.manual_seed(0)
    with torch.inference_mode():
        layer: Any = prefill_layer(torch, "cpu", MODEL, 70)
        held, last = inspect.getclosurevars(layer).nonlocals, 69
        entered, whole = held["entered"], held["layer"]
        states = whole(entered).float()
        assert states.shape == (70, 32)
        assert torch.isfinite(states).all()
        changed = entered.clone()
        changed[last] += 1.0
        assert torch.equal(whole(changed).float()[:last], states[:last])
        changed = entered.clone()
        changed[0] += 1.0
        assert not torch.allclose(whole(changed).float()[last], states[last])
