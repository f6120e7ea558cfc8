"""Which swaps of a trace a sweep replays."""

from pathlib import Path

import pytest

from kvbench.ground.errors import UsageError
from kvbench.sweep.swap_file import Header, Swap, choose, chunk, selected, write_trace

HEADER = Header(block_bytes=4 * 4096, descriptors=4)


def trace_of(folder: Path, loads: int, stores: int, header: Header = HEADER) -> Path:
    swaps = [Swap(0.1 * number, "d2h", number, [number], [number]) for number in range(stores)]
    swaps += [Swap(99.0 + number, "h2d", number, [number, number + 1], [7, 8]) for number in range(loads)]
    write_trace(folder / "trace.gz", header, swaps, {})
    return folder / "trace.gz"


def test_every_kth_swap_of_each_direction_is_replayed_in_order(tmp_path: Path) -> None:
    path = trace_of(tmp_path, loads=30, stores=400)
    starts = set()
    for seed in range(12):
        chosen = selected(choose(path, 10, seed))
        for direction, step in (("h2d", 3), ("d2h", 40)):
            numbers = [one.number for one in chosen[direction]]
            assert len(numbers) == 10
            assert numbers == list(range(numbers[0], numbers[0] + 10 * step, step))
            assert [one.swap.job for one in chosen[direction]] == numbers
        starts.add(chosen["d2h"][0].number)
    assert len(starts) > 1


def test_the_choice_keeps_the_sizes_of_the_trace(tmp_path: Path) -> None:
    replay = choose(trace_of(tmp_path, loads=3, stores=5), 100, 0)
    assert (replay.h2d.total, replay.h2d.blocks, replay.h2d.step) == (3, 2, 1)
    assert (replay.d2h.total, replay.d2h.blocks) == (5, 1)
    assert replay.row_bytes == 4096


def test_visits_divide_the_trace_and_repeat_a_short_one(tmp_path: Path) -> None:
    swaps = selected(choose(trace_of(tmp_path, loads=20, stores=2), 20, 0))
    parts = [chunk(swaps["h2d"], number, 6) for number in range(6)]
    assert [one for part in parts for one in part] == swaps["h2d"]
    assert {len(part) for part in parts} == {3, 4}
    again = [[one.number for one in chunk(swaps["d2h"], number, 6)] for number in range(6)]
    assert {len(numbers) for numbers in again} == {1}
    assert {number for numbers in again for number in numbers} == {0, 1}
    assert chunk([], 0, 6) == []


def test_a_file_that_cannot_be_replayed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be divided into 3 equal parts"):
        choose(trace_of(tmp_path, 1, 1, Header(block_bytes=4096, descriptors=3)), 10, 0)
    with pytest.raises(UsageError, match="it has no swaps"):
        choose(trace_of(tmp_path, 0, 0), 10, 0)
    replay = choose(trace_of(tmp_path, 2, 2), 10, 0)
    trace_of(tmp_path, 2, 3)
    with pytest.raises(UsageError, match="is not the one that the run began with"):
        selected(replay)


def test_a_replay_keeps_what_its_trace_was_made_from(tmp_path: Path) -> None:
    origin = {"requests": "day.jsonl", "model": "llama-3-8b", "allocator": "vllm"}
    made = Header(block_bytes=4096, made_from=origin)
    replay = choose(trace_of(tmp_path, loads=22, stores=1, header=made), 10, 0)
    assert replay.origin == "2 min of day.jsonl, llama-3-8b, vllm"
    some = Header(block_bytes=4096, made_from={"model": "llama-3-8b"})
    assert choose(trace_of(tmp_path, loads=22, stores=1, header=some), 10, 0).origin == ""
