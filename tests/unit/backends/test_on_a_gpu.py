"""Backends on a GPU that is not there: what they take, what they ask of the driver, and how they say a swap is made."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from kvbench.backends import driver_copies, sm
from kvbench.backends.base import Mechanism, SwapRequest, backend_named
from kvbench.cells.axes import Direction, Order
from kvbench.cells.cell import Cell
from kvbench.cells.facts import CPU_INLINE_UP_TO_BYTES, DeviceFacts
from kvbench.engine.device import ACCESS_ORDERS, DIRECTIONS, SwapMemory
from tests.strategies import CPU, H200

OLD = replace(H200, batch_entry=None)
QUEUE = {"queued", "streams"}
ONE_BY_ONE = {"descriptors_per_call"}


@pytest.mark.parametrize(
    ("name", "device", "axes", "reason"),
    [
        ("per_block", H200, QUEUE | {"memory"}, None), ("per_block", CPU, QUEUE, None),
        ("batched", H200, QUEUE | ONE_BY_ONE | {"memory", "order", "overlap"}, None),
        ("batched", OLD, QUEUE | {"memory"}, None), ("batched", CPU, QUEUE | ONE_BY_ONE, None),
        ("batched", replace(CPU, batch_entry=None), QUEUE, None),
        ("primed", H200, QUEUE | {"memory", "order", "overlap"}, None),
        ("primed", OLD, QUEUE | {"memory"}, "the driver has no batched copy to prime"),
        ("primed", CPU, QUEUE, "the cpu device has no kernels"), ("merged", CPU, QUEUE, None),
        ("merged", OLD, QUEUE | {"memory"}, "the driver has no batched copy"),
        ("sm", H200, {"list", "memory", "pace", "sms"}, None), ("sm", CPU, {"list", "memory", "pace", "sms"}, "no SMs"),
        ("staged", H200, {"memory", "sms"}, None), ("staged", CPU, {"memory", "sms"}, "no SMs"),
        ("triton", CPU, {"list", "memory", "sms"}, "no SMs"), ("empty_torch", CPU, set(), "needs a GPU"),
    ],
)  # fmt: skip
def test_axes_are_of_a_device(name: str, device: DeviceFacts, axes: set[str], reason: str | None) -> None:
    backend = backend_named(name)
    assert backend is not None
    assert backend.axes(device) == axes
    why = backend.unavailable(device)
    assert why is None if reason is None else (why or "").endswith(reason)


@pytest.mark.parametrize("name", ["triton", "copier", "empty_torch"])
def test_a_backend_that_needs_torch_says_so_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    backend = backend_named(name)
    assert backend is not None
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    assert backend.unavailable(H200) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None if package == "torch" else object())
    assert backend.unavailable(H200) == "torch not installed; install kvbench[cuda]"


def request_of(cell: Cell, *, is_cuda: bool = True) -> SwapRequest:
    return SwapRequest(mock.Mock(is_cuda=is_cuda), cell, mock.Mock())


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("name", ["batched", "primed", "merged"])
def test_a_batch_is_as_its_cell_says(monkeypatch: pytest.MonkeyPatch, name: str, direction: Direction) -> None:
    """Only what the driver would copy on the CPU is primed: small blocks to a GPU."""
    driver, backend = mock.Mock(return_value=mock.Mock(fell_back=False)), backend_named(name)
    monkeypatch.setattr(driver_copies, "batched", driver)
    monkeypatch.setattr(driver_copies, "BatchOptions", dict)
    assert backend is not None
    cell = Cell(name, direction, 8, 4096, order=Order.ANY, overlap=True, descriptors_per_call=3)
    wanted = {
        "order": ACCESS_ORDERS[Order.ANY], "prefer_overlap": True, "descriptors_per_call": 3, "prime_ns": 2000,
        "sliced": name != "batched", "by_host_address": name == "merged", "merge": name == "merged",
    }  # fmt: skip
    for is_cuda, mechanism in ((True, Mechanism.BATCHED_COPY), (False, Mechanism.HOST_THREAD)):
        assert backend.create(request_of(cell, is_cuda=is_cuda)).mechanism is mechanism
        primes = name != "batched" and is_cuda and direction is Direction.H2D
        options = wanted | {"prime_up_to_bytes": CPU_INLINE_UP_TO_BYTES if primes else 0}
        assert driver.call_args.args[-2:] == (DIRECTIONS[direction], options)
    backend.create(request_of(replace(cell, order=None, overlap=None, descriptors_per_call=None)))
    usual = {"order": ACCESS_ORDERS[Order.STREAM], "prefer_overlap": False, "descriptors_per_call": 0}
    assert driver.call_args.args[-1].items() >= usual.items()


def test_single_copies_are_by_the_copy_engine_of_a_gpu_or_a_thread_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_copies, "per_block", driver := mock.Mock())
    backend, cell = driver_copies.PerBlock(), Cell("per_block", Direction.D2H, 8, 4096)
    made = [backend.create(request_of(cell, is_cuda=is_cuda)).mechanism for is_cuda in (True, False)]
    assert made == [Mechanism.SINGLE_COPIES, Mechanism.HOST_THREAD]
    assert driver.call_args.args[-1] == DIRECTIONS[Direction.D2H]


@pytest.mark.parametrize(("direction", "bits"), [(Direction.H2D, 4096 | 16), (Direction.D2H, 4096 | 32)])
def test_pages_are_for_blocks_on_the_gpu(monkeypatch: pytest.MonkeyPatch, direction: Direction, bits: int) -> None:
    monkeypatch.setattr(sm, "staged", driver := mock.Mock())
    monkeypatch.setattr(sm, "page_shape", shape := mock.Mock())
    backend, memory = sm.Staged(), SwapMemory(*np.array([[1], [2], [32], [16], [4096]], np.uint64))
    backend._sm = mock.Mock()
    prepared = backend.create(SwapRequest(mock.Mock(), Cell("staged", direction, 1, 4096), memory))
    assert prepared.mechanism is Mechanism.STAGED
    assert shape.call_args.args[-2:] == (4096, bits)
    lists = memory.sources, memory.destinations, memory.sizes
    assert driver.call_args == mock.call(mock.ANY, *lists, DIRECTIONS[direction], sms=4)
