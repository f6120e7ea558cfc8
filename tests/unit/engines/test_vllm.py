"""What vLLM's handler is given, and the forms of it that are refused."""

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvbench.engines.vllm import Rows, built
from kvbench.errors import KvbenchError


def test_ids_give_the_addresses_of_each_list_below_and_above_the_first() -> None:
    row_bytes, start = 4096, 1 << 46
    addresses = np.array([start + 7 * row_bytes, start + 9 * row_bytes], np.uint64)
    rows = Rows(addresses, row_bytes)
    base, writable = rows.__cuda_array_interface__["data"]
    for blocks in ((7, 9), (0, 8), (3, 1 << 20)):
        addresses[:] = [start + block * row_bytes for block in blocks]
        assert (base + rows.ids() * row_bytes).tolist() == addresses.tolist()
    assert writable is False


def test_host_rows_are_the_memory_itself() -> None:
    memory = (ctypes.c_int8 * 16)(*range(16))
    rows = Rows(np.array([ctypes.addressof(memory)], np.uint64), 8)
    assert rows.array().tolist() == [[*range(8)], [*range(8, 16)]]


def test_blocks_off_the_grid_of_rows_are_refused() -> None:
    with pytest.raises(KvbenchError, match="must be a row"):
        Rows(np.array([0, 4096, 4097], np.uint64), 4096)


def test_a_handler_is_given_what_it_takes_and_another_form_is_named() -> None:
    def handler(gpu_tensors: int, canonical: bool = False) -> Any:
        return SimpleNamespace(
            transfer_async=(gpu_tensors, canonical), get_finished=0, _stream_pool=[], _transfer_events={}
        )

    assert built(handler, gpu_tensors=7, blocks_per_chunk=1).transfer_async == (7, False)
    with pytest.raises(KvbenchError, match="needs gpu_tensors, which kvbench does not know"):
        built(handler, blocks_per_chunk=1)
    with pytest.raises(KvbenchError, match="has no transfer_async and no get_finished"):
        built(lambda: SimpleNamespace(_stream_pool=[], _transfer_events={}))
