"""Rows by their numbers, as gathers take them, and the graph that reads them; torch is not asked for a GPU."""

from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from kvbench.backends import through_torch
from kvbench.backends.through_torch import TorchGather, TorchStream, ids_of_rows, pools_of
from kvbench.engine.device import SwapMemory
from kvbench.ground.errors import KvbenchError

KERNEL_STARTS, HOST_START = ((1 << 47) + 16, 1 << 45), 1 << 40


def request_of(rows: NDArray[np.int64], row_bytes: int, start: int = HOST_START) -> mock.Mock:
    """A swap from and to these rows, shape (2, rows); kernels reach the host's memory elsewhere."""
    offsets = rows.astype(np.uint64) * np.uint64(row_bytes)
    kernel = [side + np.uint64(start) for side, start in zip(offsets, KERNEL_STARTS, strict=True)]
    memory = SwapMemory(
        offsets[0] + np.uint64(start), kernel[1], *kernel, np.full(len(rows[0]), row_bytes), KERNEL_STARTS
    )
    request = mock.Mock(memory=memory, cell=mock.Mock(block_bytes=row_bytes))
    request.device.name = "cuda:2"
    return request


def test_a_stream_is_torch_s_of_its_device_and_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch  # not with this module, which every process of pytest-xdist reads: it takes seconds

    monkeypatch.setattr(torch, "cuda", fake := mock.Mock())
    fake.ExternalStream, fake.stream = mock.Mock(side_effect=lambda handle, device: (handle, device)), lambda one: one
    stream = TorchStream(request_of(np.array([[0], [0]]), 64).device)
    assert [stream(handle) for handle in (9, 8, 9)] == [(9, "cuda:2"), (8, "cuda:2"), (9, "cuda:2")]
    assert fake.ExternalStream.call_count == 2


def test_rows_are_counted_from_the_start_of_their_pool_and_lie_whole_rows_apart() -> None:
    start, rows = KERNEL_STARTS[0], [7, 0, 30_000_000]
    addresses = np.array([start + row * 656 for row in rows], dtype=np.uint64)
    assert ids_of_rows(addresses, start, 656).tolist() == rows
    with pytest.raises(KvbenchError, match="whole rows apart"):
        ids_of_rows(addresses + np.array([0, 0, 8], np.uint64), start, 656)


@pytest.mark.parametrize("requests", [1, 3])
def test_a_gather_stages_the_ids_of_its_rows_on_both_sides(monkeypatch: pytest.MonkeyPatch, requests: int) -> None:
    """The capture sees no rows; what is replayed later, on the stream it is given, reads the ids and the counts that
    are there then.
    """
    import torch

    fake, seen = mock.MagicMock(), list[tuple[object, ...]]()
    fake.zeros = lambda count, dtype, **_: torch.zeros(count, dtype=dtype)
    fake.int64, fake.int32, fake.from_numpy = torch.int64, torch.int32, torch.from_numpy
    fake.of_device.torch = fake
    monkeypatch.setattr(through_torch, "TorchStream", lambda _: fake.of_device)

    def launch(*given: Any) -> None:
        fake.launch()
        seen.append((*given, given[2].tolist()))

    rows = np.array([[7, 0, 5, 9, 2, 4, 3], [1, 8, 6, 0, 3, 2, 11]])
    request = request_of(rows, 656)
    gather = TorchGather(request, launch, ("int64", "int32"), requests)
    fake.cuda.graph.assert_called_once_with(
        fake.cuda.CUDAGraph.return_value, stream=fake.cuda.Stream.return_value, capture_error_mode="thread_local"
    )
    waits = ("cuda.synchronize", "cuda.Stream().synchronize", "launch", "cuda.graph().__enter__")
    made = [name for name, *_ in fake.mock_calls if name in waits]
    assert made == [waits[0], waits[2], waits[1], waits[3], waits[2], waits[0]]
    (*_, warm), (source_ids, destination_ids, count, captured) = seen
    assert warm == captured == [0] * requests
    assert count.tolist() == [7 // requests] * requests
    stage = gather.prepared.stage
    assert stage is not None
    for staged in (1, 2):
        stage()
        assert fake.cuda.current_stream.return_value.synchronize.call_count == staged  # any stream may read them now
        assert [source_ids.tolist(), destination_ids.tolist()] == rows.tolist()
        rows = rows[:, ::-1] + 1
        fresh = request_of(rows, 656).memory
        request.memory.kernel_sources[:], request.memory.kernel_destinations[:] = (
            fresh.kernel_sources,
            fresh.kernel_destinations,
        )
    fake.reset_mock()
    gather.submit(9)
    names = ["of_device", "of_device().__enter__", "cuda.CUDAGraph().replay", "of_device().__exit__"]
    assert [name for name, *_ in fake.mock_calls] == names
    fake.of_device.assert_called_once_with(9)


def test_the_pools_of_a_gather_begin_where_its_rows_are_counted_from(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    memory = np.arange(60, dtype=np.uint8)
    on_device = mock.Mock()
    monkeypatch.setattr(torch, "as_tensor", on_device)
    host, device = pools_of(request_of(np.array([[3, 1], [2, 0]]), 6, memory.ctypes.data), (10, 6))
    assert np.array_equal(host.numpy(), memory.reshape(10, 6))
    assert device is on_device.return_value
    interface = on_device.call_args.args[0].__cuda_array_interface__
    assert on_device.call_args.kwargs == {"device": "cuda:2"}
    assert (interface["data"], interface["shape"]) == ((KERNEL_STARTS[1], False), (10, 6))
