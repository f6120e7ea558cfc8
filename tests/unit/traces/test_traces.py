"""Traces: what the block cache of an engine makes of requests, and what a hostile file is answered with."""

import gzip
import json
import tracemalloc
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.ground.errors import UsageError
from kvbench.sweep.swap_file import Header, Swap, TraceReader, ids_of, runs_of, write_trace
from kvbench.traces.requests import Request, read_requests
from kvbench.traces.simulate import Allocator, CacheRun, CacheSettings
from kvbench.traces.statistics import TraceStatistics


def request(at_s: float, first: int, ids: int = 2, output: int = 1) -> Request:
    return Request(at_s, ids * 512, output, list(range(first, first + ids)), 512)


def settings(**more: object) -> CacheSettings:
    return CacheSettings(**{"gpu_blocks": 129, "host_blocks": 1024, "block_tokens": 16, **more})  # type: ignore[arg-type]


def swaps_of(requests: list[Request], **more: object) -> list[Swap]:
    return list(CacheRun(requests, settings(**more)))


@given(st.lists(st.integers(0, 20), min_size=1))
def test_runs_restore_the_ids_in_their_order(ids: list[int]) -> None:
    assert ids_of(runs_of(np.array(ids))).tolist() == ids


def test_a_prefix_evicted_from_the_gpu_is_loaded_from_the_host() -> None:
    requests = [request(at_s, first) for at_s, first in ((0, 0), (10, 10), (20, 20), (30, 0))]
    swaps = swaps_of(requests)
    assert [swap.direction for swap in swaps] == ["d2h", "d2h", "d2h", "h2d"]
    assert [swap.at_s for swap in swaps[:3]] == [0.2, 10.2, 20.2]  # behind the prefill
    # the last token is always computed: the last block is not loaded
    assert list(swaps[3].host) == list(swaps[0].host)[:63]


def test_a_store_takes_no_chunk_on_the_host_that_its_own_request_uses() -> None:
    requests = [Request(0, 3 * 512, 1, [0, 1, 2], 512), Request(10, 4 * 512, 1, [9, 8, 1, 2], 512)]
    assert [swap.at_s for swap in swaps_of(requests, host_blocks=96)] == [0.2]
    assert len(swaps_of(requests, host_blocks=128)) == 2


def test_sorted_ids_leave_fewer_copies_than_the_order_of_vllm() -> None:
    requests = [request(at, 3 * (at * 7 % 23), 3) for at in range(200)]
    more = {"gpu_blocks": 400, "host_blocks": 4096}

    def left(allocator: Allocator) -> int:
        return TraceStatistics(swaps_of(requests, allocator=allocator, **more)).by_direction["h2d"].runs["both"].total()

    assert 0 < left(Allocator.VLLM_SORTED) < left(Allocator.VLLM)


def test_runs_are_counted_on_each_side_and_on_both_by_run_and_by_block() -> None:
    one_run = Swap(0.0, "h2d", 0, [*range(4)], [*range(10, 14)])
    on_the_host = Swap(2.0, "h2d", 1, [*range(20, 32)], [*range(100, 124, 2)])
    summary = TraceStatistics([one_run, on_the_host]).summary(4096)
    runs = summary["h2d"].pop("runs")
    assert summary["mean_in_flight"] is None, "no swap says when it was done"
    sizes = {"p10": 4, "p50": 4, "p90": 12, "p99": 12}
    assert [*summary["h2d"].values()] == [2, 16, 1.0, 16 * 4096 / 2.0 / 1e9, sizes, 13 / 16]
    seconds = [TraceStatistics([one_run, one_run._replace(at_s=at_s)]).most_in_a_second for at_s in (0.9, 1.0)]
    late = [one_run._replace(at_s=at_s) for at_s in (5.0, 8.0)]  # a trace begins with its first swap
    assert TraceStatistics(late).span_s == 3.0
    assert seconds == [2, 1]
    assert runs["host"]["by_run"] == {"p10": 4, "p50": 4, "p90": 12, "p99": 12}
    assert runs["host"]["by_block"] == {"p10": 4, "p50": 12, "p90": 12, "p99": 12}
    assert runs["gpu"] == runs["both"]
    on_the_gpu = Swap(0.0, "h2d", 0, [0, 5], [7, 8])
    assert TraceStatistics([on_the_gpu]).by_direction["h2d"].runs["both"] == {1: 2}
    assert runs["both"]["by_block"] == {"p10": 1, "p50": 1, "p90": 4, "p99": 4}


@pytest.mark.parametrize("allocator", Allocator)
def test_swaps_are_in_order_and_have_no_block_twice(allocator: Allocator) -> None:
    swaps = swaps_of([request(at / 10, at * 5 % 31, 1 + at % 3, 40) for at in range(200)], allocator=allocator)
    assert swaps
    assert all(earlier.at_s <= later.at_s for earlier, later in pairwise(swaps))
    assert all(len(set(ids)) == len(swap.host) for swap in swaps for ids in (swap.host, swap.gpu))


def test_a_request_larger_than_the_pool_is_counted_and_omitted() -> None:
    run = CacheRun([request(0, 0, 20), request(1, 50)], settings())
    assert len(list(run)) == 1
    assert run.counts["requests larger than the GPU pool"] == 1


def test_ids_beyond_the_input_of_a_request_have_no_keys() -> None:
    assert Request(0.0, 40, 1, [7, 8, 9], 16).keys(8) == [14, 15, 16, 17, 18]
    tracemalloc.start()
    try:
        assert Request(0.0, 600, 1, [*range(100_000)], 512).keys(16) == [*range(37)]
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00" * 99, b"{}\n" * 500, gzip.compress(b"0" * (9 << 20)), gzip.compress(b"{}\n" * 99)[:-9]],
    ids=["empty", "zeros", "other lines", "bomb", "broken"],  # a packed file holds the time at which it was packed
)
def test_files_of_other_formats_bombs_and_damaged_files_are_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "bad"
    file.write_bytes(data)
    for read in (read_requests, lambda file: [*TraceReader(file)]):
        with pytest.raises(UsageError, match="bad"):
            read(file)


def test_a_trace_is_read_as_written_and_a_bad_swap_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "trace.gz"
    swaps = swaps_of([request(0, 0), request(10.000123, 10), request(20, 20), request(30, 0)])
    write_trace(file, Header(block_bytes=4096), swaps, {"requests": 4})
    reader = TraceReader(file)
    found, written = ([(round(one[0], 6), one.job, *map(list, one[3:5])) for one in every] for every in (reader, swaps))
    assert found == written
    assert reader.end == {"requests": 4}
    for runs in ([0, 2**22], [0, 0], [1, -5], [0]):
        line = {"t": 0, "d": "h2d", "job": 1, "host": runs, "gpu": [0, 1]}
        file.write_text(json.dumps({"kvbench_trace": 1, "block_bytes": 1}) + "\n" + json.dumps(line))
        with pytest.raises(UsageError, match="line 2"):
            list(TraceReader(file))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"t": 1.5}, "line 3: earlier than the line before"),
        ({"done": 2.5}, "line 3: done before it began"),
        ({"host": [0, 2, 1, 1]}, "line 3: an id repeats in the swap"),
        ({"gpu": [7, 2, 8, 1]}, "line 3: an id repeats in the swap"),
        ({"gpu": [7, 2]}, "line 3: 3 host ids and 2 GPU ids"),
        ({}, ""),
    ],
)
def test_swaps_that_cannot_follow_each_other_or_hold_a_block_twice_are_refused(
    tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    file = tmp_path / "trace"
    usual: dict[str, object] = {"t": 3, "d": "h2d", "job": 1, "host": [0, 3], "gpu": [7, 3], "done": 3.5}
    lines = [{"kvbench_trace": 1, "block_bytes": 1}, usual | {"t": 2}, usual | changes]
    file.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UsageError, match=why) if why else nullcontext():
        assert len([*TraceReader(file)]) == 2
