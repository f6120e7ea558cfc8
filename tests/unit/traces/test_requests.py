"""Request traces: the one format, its units, and what other files are refused as."""

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from kvbench.ground.errors import UsageError
from kvbench.traces.requests import Request, RequestHeader, TimeUnit, check_block, read_requests, share_nothing
from kvbench.traces.simulate import CacheRun, CacheSettings

CONVERT = Path(__file__).parents[3] / "docs/how-to/convert_traces.py"


def line(at: float, ids: list[Any], tokens: int = 0, **more: Any) -> dict[str, Any]:
    return {"timestamp": at, "input_length": tokens or 512 * len(ids), "output_length": 1, "hash_ids": ids, **more}


def read(folder: Path, lines: Iterable[object], given: RequestHeader | None = None) -> list[Request]:
    file = folder / "requests.jsonl"
    file.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines))
    return read_requests(file, given)


def refused(folder: Path, lines: Iterable[object]) -> str:
    with pytest.raises(UsageError) as caught:
        read(folder, lines)
    assert str(caught.value).isprintable()
    return str(caught.value)


def conversations(per_id: int = 512, *, apart: float = 6000, times: Callable[[float], float] = int) -> list[Any]:
    """Ten conversations of six turns, each of which adds 2 048 tokens."""
    return [
        line(times((turn * 10 + talk) * apart), [talk * 10**6 + at for at in range(tokens // per_id)], tokens)
        for talk in range(10)
        for turn in range(6)
        for tokens in [2048 * (turn + 1)]
    ]


# Tokens of an id


@pytest.mark.parametrize("per_id", [16, 64, 512])
def test_a_header_says_how_many_tokens_an_id_is_for(tmp_path: Path, per_id: int) -> None:
    made = read(tmp_path, [{"hash_tokens": per_id}, *conversations(per_id)])
    run = CacheRun(made, CacheSettings(gpu_blocks=60_000, host_blocks=64, block_tokens=16))
    list(run)
    assert (run.counts["blocks"], run.counts["blocks found on the GPU"]) == (26_880, 19_200)


def test_ids_of_512_tokens_are_assumed_only_if_their_numbers_agree(tmp_path: Path) -> None:
    assert {one.hash_tokens for one in read(tmp_path, [line(0, [1, 2], 513), line(1, [1], 512)])} == {512}
    assert "--hash-tokens 64" in refused(tmp_path, conversations(64))
    assert "--hash-tokens N" in refused(tmp_path, [line(0, [1, 2, 3], 512), line(1, [1, 2], 9000)])
    assert "--hash-tokens 512" in refused(tmp_path, [line(0, [1], 700)])
    for size in (8, 4096, 16):
        full_only = [line(0, [*range(130)], 130 * size + 5)]
        assert f" {size} would fit all lines" in refused(tmp_path, full_only)
    (one,) = read(tmp_path, full_only, RequestHeader(hash_tokens=16))
    assert len(one.keys(16)) == 130


@pytest.mark.parametrize("block_tokens", [784, 3584, 1024])
def test_blocks_that_do_not_divide_an_id_are_refused_with_those_that_do(block_tokens: int) -> None:
    with pytest.raises(UsageError, match=r"choose 8, 16, 32, 64, 128, 256, 512$"):
        check_block(block_tokens, 512)
    check_block(64, 512)


# Times


def in_s(ms: float) -> float:
    return ms / 1000


@pytest.mark.parametrize(
    ("unit", "lasts_s", "times"),
    [("s", 3540, in_s), ("s", 3540, lambda ms: round(ms / 1000)), ("us", 3540, lambda ms: int(ms * 1000)),
     ("s", 3540, lambda ms: 1_760_000_000 + round(ms / 1000)), ("s", 354, lambda ms: int(ms / 1e4)),
     ("ns", 3540, lambda ms: int((1_760_000_000_000 + ms) * 1e6))],
)  # fmt: skip
def test_times_that_may_not_be_in_ms_are_refused_with_both_readings(
    tmp_path: Path, unit: str, lasts_s: int, times: Callable[[float], float]
) -> None:
    said = refused(tmp_path, conversations(apart=60_000, times=times))
    assert re.search(r"60 requests come within [\d.e+-]+ s \(.* a second\) in ms or ", said)
    reading = f"{lasts_s} s ({60 / lasts_s:.3g} a second) in {unit}"
    assert f" in ms or {reading}: choose with --time-unit ms or {unit}, " in said


@pytest.mark.parametrize(
    ("times", "unit"),
    [
        ([number * 210 for number in range(99)], "ms"),
        ([number * 200 for number in range(102)], "s"),  # five a second
        ([number * 200 for number in range(5002)], "ms"),  # for a thousand seconds
        (range(9), "ms"), (range(10), "s"),
        ([number * 288_000_000 for number in range(10)], "ms"),  # a month
        ([number * 288_000_001 for number in range(10)], "us"),
        ([10**11, 10**11 + 1.5], "ms"), ([10**11 - 1, 10**11], "s"),
    ],
)  # fmt: skip
def test_times_are_in_ms_only_where_a_server_could_get_requests_so(
    tmp_path: Path, times: Iterable[float], unit: str
) -> None:
    lines = [line(at, [number]) for number, at in enumerate(times)]
    if unit == "ms":
        assert len(read(tmp_path, lines)) == len(lines)
    else:
        assert f"choose with --time-unit ms or {unit}, " in refused(tmp_path, lines)


@pytest.mark.parametrize("first", [0, 1_760_000_000_000])
def test_times_are_in_ms_if_they_can_be_nothing_else_or_in_the_unit_that_is_said(tmp_path: Path, first: int) -> None:
    made = read(tmp_path, conversations(times=lambda ms: first + int(ms)))
    assert made[-1].arrival_s - made[0].arrival_s == 354
    in_seconds = read(tmp_path, [{"time_unit": "s"}, *conversations(times=in_s)])
    assert [one.arrival_s for one in in_seconds] == [one.arrival_s - first / 1000 for one in made]
    given = RequestHeader(time_unit=TimeUnit.SECONDS)
    assert read(tmp_path, [{"time_unit": "us"}, *conversations(times=in_s)], given) == in_seconds


# Forms


def test_a_byte_order_mark_costs_no_request_and_ids_have_64_bits(tmp_path: Path) -> None:
    large = [2**64 - 59, 17293822569102704640]
    made = read(tmp_path, ["\ufeff" + json.dumps(line(0, large)), line(10, large[:1])])
    assert not share_nothing(made)
    assert [*made[0].hash_ids] == large


def test_a_csv_with_ids_is_read_as_the_same_lines_of_json(tmp_path: Path) -> None:
    requests = [line(at, [0, *range(10**16 * at, 10**16 * at + 9_000)], session_id="a") for at in (1, 2)]
    columns = [*requests[0], "of_no_meaning"]
    rows = [",".join(f'"{one.get(name, "")}"' for name in columns) for one in requests]
    assert read(tmp_path, [",".join(columns), *rows]) == read(tmp_path, requests)


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([{"session_id": "a", "turns": [{"text": "x", "delay": 4}]}], "line 1: not a request trace but sessions of"),
        ([line(0, [1]), {"session_id": "a", "delay": 9, "hash_ids": [2]}], "line 2: not a request trace but sessions"),
        ([{"id": "t", "block_size": 64, "requests": [{"t": 0, "in": 64}]}], "Weka's (AgentX's) conversations"),
        ([{"timestamp": 1, "event": {"event_type": "request_end"}}], "dynamo's request log"),
        ([{"ts": 0.0, "events": [{"type": "BlockStored"}]}], "KV-cache events"),
        ([{"backend": "x", "completed": 64, "input_lens": [1]}], "a benchmark's result"),
        ([{"created_at": "2026-10-01", "usage": {"prompt_tokens": 3}}], "a usage log"),
        ([{"conversations": []}], "texts"),
        ([{"kvbench_trace": 1, "block_bytes": 1}], "swaps, which kvbench trace show"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16,374,44"], "a CSV without a column hash_ids"),
        ([{"traceId": "0", "spanId": "1", "attributes": [{"key": "gen_ai.usage.input_tokens"}]}], "spans of OpenTele"),
        ([{"start_time": 0.0, "end_time": 2.0, "request": "{}", "info": {"input_tokens": 3}}], "a load generator's"),
        ([{"timestamp": 0, "prompt_token_ids": [1, 2], "prompt": "x"}], "prompts as tokens; Prefixes in docs"),
        (["\0\0\0)\x13$type&header%magicLMCT.format_version\0"], "LMCache's trace of its storage or events"),
        (["timestamp,hash_ids", "0,[1],3"], "line 2: 3 cells, but the first line names 2 columns"),
        (["timestamp,hash_ids", '0,"[1]"'], "line 2: no input_length, output_length but timestamp, hash_ids"),
        (["timestamp,input_length,output_length,hash_ids", "0,9,x,[1]"], 'line 2: output_length: "x" is not'),
        (["[1, 2]"], "line 1: an array, not a JSON object"),
        (["[]"], "line 1: an array, not a JSON object"),
        (["{", '"a": 1}'], "line 1: not a JSON object but the beginning of a document"),
        (["PAR1\x15\x04"], "line 1: not a JSON object but Parquet"),
        (["INFO 10:00 engine started"], 'line 1: not a JSON object but "INFO 10:00 engine started"'),
        ([""], "the file is empty"),
        ([{"hash_tokens": 16}], "no request follows the header"),
        ([{"created_time": 0, "isl": 1, "hash_ids": [1]}], "line 1: no timestamp, input_length, output_length but"),
        ([line(0, ["a9f1"])], 'line 1: hash_ids[0]: "a9f1" is not a whole number'),
        ([line(0, [1]), line(1, [1, 1])], "line 2: an id repeats"),
        ([line(0, [1]), "{"], "line 2: not a JSON object"),
        ([line(at, [at], session_id="a") for at in (0, 1, 2, 2)], "2 of 3 later turns of sessions begin with another"),
    ],
)  # fmt: skip
def test_a_file_of_another_format_is_refused_by_what_it_is(tmp_path: Path, lines: list[object], what: str) -> None:
    assert what in refused(tmp_path, lines)


def test_turns_that_repeat_their_prompt_are_no_additions(tmp_path: Path) -> None:
    grown = [line(at, [*range(at + 1)], session_id="a") for at in range(5)]
    begun = [line(at + 9, [100 + at], 40, session_id="b") for at in range(4)]  # no id of theirs is of a full block
    assert len(read(tmp_path, grown + begun)) == 9


def test_endless_lines_that_are_no_requests_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(line(5, [1, 2])).encode() + b"\n{}" * 1_000_000))
    with pytest.raises(UsageError, match="line 2: no timestamp"):
        read_requests(file)


# The script beside the page


# A file of each format; of its requests the time, input tokens, and the blocks of 16 that an earlier request has too.
SAMPLES = {
    "aiperf.jsonl": [(0.0, 1024, 0), (0.5, 512, 32), (0.2 + 32 * 0.02 + 2, 1024 + 32 + 512, 64)],
    "weka.jsonl": [(0.0, 128, 0), (1.0, 128, 0), (2.0, 64, 4), (9.0, 192, 8)],
    "dynamo.jsonl": [(1_760_000_000.0, 40, 0), (1_760_000_000.5, 40, 1)],
    "lmcache.jsonl": [(5.0, 600, 0), (9.0, 511, 16)],
    "burstgpt.csv": [(5.0, 64, 0), (8.0, 64, 0), (9.0, 160, 4), (12.0, 32, 0)],
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_script_of_the_page_converts_a_format(tmp_path: Path, name: str) -> None:
    source, made = Path(__file__).parent / "samples" / name, tmp_path / "trace.jsonl"
    with pytest.raises(UsageError):
        read_requests(source)
    subprocess.run([sys.executable, CONVERT, source.stem, source, made], check=True)
    found, seen = [], set[int]()
    for request in read_requests(made):
        keys = request.keys(16)
        found.append((request.arrival_s, request.input_tokens, len(seen.intersection(keys))))
        seen.update(keys)
    assert found == [(pytest.approx(at_s), tokens, shared) for at_s, tokens, shared in SAMPLES[name]]
