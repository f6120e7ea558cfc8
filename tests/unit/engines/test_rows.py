"""The rows that vLLM's handler and SGLang's kernels are given for the blocks of a swap, and what is refused."""

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from kvbench.backends import triton
from kvbench.cells.axes import Direction, ListPlace, Reuse
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.engines import sglang, vllm
from kvbench.engines.sglang import TokenPages, base_of, ids_of, row_of
from kvbench.engines.vllm import Rows, built
from kvbench.ground.errors import KvbenchError
from kvbench.measure.layout import lay_out


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


@pytest.mark.parametrize("rows_of", [Rows, base_of])
def test_blocks_off_the_grid_of_rows_are_refused(rows_of: Callable[..., object]) -> None:
    with pytest.raises(KvbenchError, match="must be a row"):
        rows_of(np.array([0, 4096, 4097], np.uint64), 4096)


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


@pytest.mark.parametrize(("blocks", "requests"), [(1, 1), (2048, 1), (2050, 2), (4098, 3), (2049, 0), (4100, 0)])
def test_the_rows_of_a_decode_step_are_those_of_equal_requests(blocks: int, requests: int) -> None:
    host, device, ids, count = (mock.Mock() for _ in range(4))
    made = {"load_sparse": mock.Mock(), "TorchGather": mock.Mock(), "pools_of": mock.Mock(return_value=(host, device))}
    cell = Cell("vllm_hisparse", Direction.H2D, blocks, 576, list_place=ListPlace.GPU)
    rows = cell.dense_bytes // 576 if requests == 2 else 9000
    cell = replace(cell, pool_bytes=0 if requests == 2 else 576 * 9000 + 575)
    with mock.patch.multiple(vllm, **made), nullcontext() if requests else pytest.raises(KvbenchError, match="2048"):
        vllm.VllmHiSparse().create(request := mock.Mock(cell=cell))
    if requests:
        made["pools_of"].assert_called_once_with(request, (rows, 576))
        assert made["TorchGather"].call_args.kwargs == {"types": ("int32", "int32"), "requests": requests}
        made["TorchGather"].call_args.args[1](ids.source, ids.destination, count)
        made["load_sparse"].return_value.assert_called_once_with(
            host, device.unsqueeze.return_value, ids.source.view.return_value, ids.destination.view.return_value, count
        )
        assert ids.source.view.call_args == ids.destination.view.call_args == mock.call(requests, -1)


# SGLang's, and our own in Triton


@pytest.mark.parametrize("sms", [None, 7])
def test_gathers_are_launched_from_pool_to_pool_on_the_asked_grid(sms: int | None) -> None:
    ids, request, kernel, module = mock.Mock(), mock.Mock(), mock.MagicMock(), mock.Mock()
    request.cell, request.memory.starts = Cell("sm", Direction.H2D, 9, 576, list_place=ListPlace.GPU, sms=sms), (5, 7)
    in_triton = mock.patch("kvbench.backends.triton_kernel.gather_rows", kernel)
    with mock.patch.object(triton, "TorchGather") as gather, in_triton:
        triton.Triton().create(request)
        gather.call_args.args[1](ids.source, ids.destination, "rows")
    kernel.__getitem__.assert_called_once_with((sms or 1,))
    assert kernel[0].call_args.args == (5, 7, ids.source, ids.destination, "rows")
    here, gather = mock.Mock(return_value=mock.Mock(device="cpu")), mock.Mock()
    made = {"load_hisparse": lambda: module, "pools_of": lambda *_: ("host", "gpu"), "TorchGather": gather}
    with mock.patch.multiple(sglang, TorchStream=here, **made):
        sglang.SglangHiSparse().create(request)
    gather.call_args.args[1](ids.source, ids.destination, "rows")
    given = module.copy_cache_planned_mla.call_args.kwargs
    assert given.pop("num_real_reqs").tolist() == [1]
    ends = {"miss_src": ids.source.view(), "miss_dst": ids.destination.view(), "host_cache": "host"}
    ends |= {"device_buffer": "gpu", "miss_count": "rows", "item_size_bytes": 576, "num_blocks": sms or 4}
    assert given == ends


KIB = 1024


def store_of(pattern: str, host: str) -> Cell:
    sides = {"pattern": Pattern.parse(pattern), "host_pattern": Pattern.parse(host)}
    return replace(Cell("sglang_store", Direction.D2H, 6 * 40, 256, pool_bytes=1 << 20), **sides)


@pytest.mark.parametrize(("regions", "host"), [(2, "page-first-3+3/runs-4"), (1, "page-first-6/runs-4")])
def test_a_store_of_pages_names_every_row_of_the_list(regions: int, host: str) -> None:
    cell = store_of("tensors-6/runs-4", host)
    pages = TokenPages.of_cell(cell)
    assert pages == TokenPages(regions, 6 // regions, 4, 256)
    for layout in lay_out(replace(cell, reuse=Reuse.FRESH), 3, np.random.default_rng(1)):
        sources, destinations = (1 << 46) + 256 * layout.source_rows, (1 << 45) + 256 * layout.destination_rows
        base, tokens = pages.tokens(sources, 1 << 46, 256)
        tables = pages.tensors(sources, base, 6)
        assert [at + 256 * token for at in tables for token in tokens.tolist()] == sources.tolist()
        base, numbers = pages.tokens(destinations, 1 << 45, pages.token_bytes)
        rows = [
            at + pages.token_bytes * number + 256 * layer
            for at in pages.tensors(destinations, base, regions)
            for layer in range(pages.layers)
            for number in numbers.tolist()
        ]
        assert rows == destinations.tolist()
        for one in (tokens, numbers):  # SGLang looks at the first token of each page alone
            assert (one == np.repeat(one[::4], 4) + np.tile(np.arange(4, dtype=np.uint64), 10)).all()


@pytest.mark.parametrize(
    ("pattern", "host", "direction", "sizes"),
    [
        ("tensors-6/runs-4", "page-first-6/runs-4", Direction.H2D, "equal"),
        ("tensors-6/runs-4", "page-first-6/runs-4", Direction.D2H, "last-2"),
        ("tensors-6/runs-4", "page-first-6/runs-8", Direction.D2H, "equal"),
        ("tensors-6/runs-7", "page-first-6/runs-7", Direction.D2H, "equal"),
        ("tensors-6", "page-first-6", Direction.D2H, "equal"),
        ("tensors-6/runs-4", "page-first-6x4/runs-4", Direction.D2H, "equal"),
        ("shuffled", "shuffled", Direction.D2H, "equal"),
    ],
)
def test_other_swaps_than_stores_of_whole_pages_are_refused(
    pattern: str, host: str, direction: Direction, sizes: str
) -> None:
    cell = replace(store_of(pattern, host), direction=direction, sizes=sizes)
    with pytest.raises(KvbenchError, match="copies whole pages of the host, d2h: name pattern=tensors-T/runs-B"):
        TokenPages.of_cell(cell)


@pytest.mark.parametrize(("block_kib", "row_kib"), [(4, 4), (32, 32), (48, 24), (256, 32), (80, 20)])
def test_a_block_is_the_fewest_equal_rows_that_the_kernel_takes(block_kib: int, row_kib: int) -> None:
    assert row_of(block_kib * KIB, 32 * KIB) == row_kib * KIB


@pytest.mark.parametrize("rows", [1, 3])
def test_base_and_ids_of_rows_give_every_byte_of_the_blocks_in_their_order(rows: int) -> None:
    row_bytes, start = 24 * KIB, (1 << 46) + 512
    blocks = np.array([start + block * rows * row_bytes for block in (7, 0, 3)], np.uint64)
    addresses = base_of(blocks, row_bytes) + ids_of(blocks, row_bytes, rows).astype(object) * row_bytes
    assert addresses.tolist() == [int(block) + row * row_bytes for block in blocks for row in range(rows)]
