"""Readers of request traces: formats, sizes of ids, order, and what is left out."""

import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kvbench.errors import UsageError
from kvbench.traces.requests import Requests, check_block, read_requests
from kvbench.traces.simulate import CacheRun, CacheSettings


def line(at: float, ids: list[Any], tokens: int = 0, **more: Any) -> dict[str, Any]:
    return {"timestamp": at, "input_length": tokens or 512 * len(ids), "output_length": 1, "hash_ids": ids, **more}


def read(folder: Path, lines: Iterable[object], **options: Any) -> Requests:
    file = folder / "requests.jsonl"
    file.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines))
    return read_requests(file, **options)


# Tokens of an id


def trace_by(tokens_of_id: int, seed: int = 3) -> list[dict[str, Any]]:
    """Return requests of conversations that grow, with an id for every so many tokens."""
    chance, lines = random.Random(seed), []
    for number in range(60):
        tokens, family = chance.randint(1, 12) * 512, chance.randrange(8)
        ids = [family * 10**6 + at for at in range(-(-tokens // tokens_of_id))]
        lines.append(line(number * 1e3, ids, tokens))
    return lines


@pytest.mark.parametrize("tokens_of_id", [16, 64, 256, 512])
def test_the_same_trace_gives_the_same_blocks_whatever_its_ids_are_for(tmp_path: Path, tokens_of_id: int) -> None:
    made = read(tmp_path, trace_by(tokens_of_id))
    assert made.hash_tokens == tokens_of_id
    run = CacheRun(made.requests, CacheSettings(gpu_blocks=600, host_blocks=4000, block_tokens=16))
    swaps = [(swap.at_s, swap.direction, list(swap.host), list(swap.gpu)) for swap in run]
    again = CacheRun(
        read(tmp_path, trace_by(512)).requests, CacheSettings(gpu_blocks=600, host_blocks=4000, block_tokens=16)
    )
    assert swaps == [(swap.at_s, swap.direction, list(swap.host), list(swap.gpu)) for swap in again]
    assert run.counts == again.counts


def test_ids_of_another_number_of_tokens_are_told_where_the_requests_allow_one(tmp_path: Path) -> None:
    lines = [line(at, list(range(-(-tokens // 784))), tokens) for at, tokens in enumerate((784 * 9, 784 * 8 + 1))]
    assert read(tmp_path, lines).hash_tokens == 784


@pytest.mark.parametrize("header", [{"version": 2, "block_size": 32}, {"metadata": {"hash_block_size": 32}}])
def test_a_header_says_how_many_tokens_an_id_is_for(tmp_path: Path, header: dict[str, Any]) -> None:
    made = read(tmp_path, [header, line(0, [1], 20), line(5, [1], 30)])
    assert (made.hash_tokens, len(made.requests), made.skipped.total()) == (32, 2, 0)


def test_a_time_may_be_a_date(tmp_path: Path) -> None:
    dates = [line(0, [at, at + 9], timestamp=f"2026-11-16T18:15:{40 + at}.5Z") for at in (1, 0)]
    first, second = read(tmp_path, dates).requests
    assert second.arrival_s - first.arrival_s == 1.0


@pytest.mark.parametrize("lines", [[line(0, [1], 9)], [line(0, [1, 2], 20), line(1, [1, 2, 3], 9000)]])
def test_what_cannot_be_told_is_asked_for(tmp_path: Path, lines: list[dict[str, Any]]) -> None:
    with pytest.raises(UsageError, match=r"for how many tokens an id is cannot be told \(.*--hash-tokens"):
        read(tmp_path, lines)
    assert read(tmp_path, lines[:1], hash_tokens=16).hash_tokens == 16


@pytest.mark.parametrize("block_tokens", [784, 3584, 1024])
def test_blocks_that_do_not_divide_an_id_are_refused_with_those_that_do(block_tokens: int) -> None:
    with pytest.raises(UsageError, match=r"choose 8, 16, 32, 64, 128, 256, 512$"):
        check_block(block_tokens, 512)
    check_block(64, 512)


# Forms


def test_ids_are_any_scalars(tmp_path: Path) -> None:
    first, again, other = ([f"{name}{at:x}" for at in range(2)] for name in ("a9f", "a9f", "b"))
    large = [2**64 - 59, 17293822569102704640]
    made = read(tmp_path, [line(at, ids) for at, ids in enumerate((first, again, other, large, large))])
    one, two, three, four, five = (list(request.hash_ids) for request in made.requests)
    assert one == two
    assert four == five
    assert len({*one, *three, *four}) == 6


@pytest.mark.parametrize(
    "names",
    [
        {"timestamp": "created_time", "input_length": "input_tokens", "output_length": "output_tokens"},
        {"timestamp": "arrival_time", "input_length": "prompt_tokens", "output_length": "completion_tokens"},
        {"input_length": "isl", "output_length": "osl", "hash_ids": "block_hashes"},
    ],
)
def test_fields_have_other_names_too(tmp_path: Path, names: dict[str, str]) -> None:
    lines = [line(10, [1, 2]), line(20, [1, 3])]
    renamed = [{names.get(name, name): value for name, value in one.items()} for one in lines]
    assert read(tmp_path, renamed) == read(tmp_path, lines)


def test_a_byte_order_mark_costs_no_request(tmp_path: Path) -> None:
    marked = "\ufeff" + json.dumps(line(0, [1, 2]))
    assert len(read(tmp_path, [marked, line(10, [1, 2])]).requests) == 2


def test_a_line_with_a_chat_id_has_the_units_of_bailian(tmp_path: Path) -> None:
    (one,) = read(tmp_path, [line(2.5, [4, 5, 6], 40, chat_id=1, turn=1)]).requests
    assert (one.arrival_s, one.keys(16), one.keys(32)) == (2.5, [4, 5], [5])


def test_the_ids_of_a_conversation_count_in_it_alone(tmp_path: Path) -> None:
    def asked(at_s: float, ids: list[int]) -> dict[str, Any]:
        return {"t": at_s, "type": "n", "in": 64 * len(ids), "out": 3, "hash_ids": ids, "api_time": 1.0}

    agent = {"t": 2.0, "type": "subagent", "requests": [asked(2.5, [0, 7])]}
    talks = [
        {"id": f"trace-{number}", "block_size": 64, "hash_id_scope": "local", "requests": [*more, agent]}
        for number, more in enumerate(([asked(0.0, [0, 1]), asked(9.0, [0, 1, 2])], [asked(1.0, [0, 1])]))
    ]
    made = read(tmp_path, talks)
    assert [request.arrival_s for request in made.requests] == [0.0, 1.0, 2.5, 2.5, 9.0]
    first, other, of_first, of_other, later = (list(request.hash_ids) for request in made.requests)
    assert later[:2] == first
    assert (of_first[0], of_other[0]) == (first[0], other[0])
    assert not {*first, *later} & {*other, *of_other}


@pytest.mark.parametrize("header", ["TIMESTAMP,ContextTokens,GeneratedTokens", '"2023-11-16 18:15:46.68",374,44'])
def test_a_table_without_prefixes_is_refused(tmp_path: Path, header: str) -> None:
    with pytest.raises(UsageError, match="a CSV has no ids of prefixes, so nothing in it can be found again"):
        read(tmp_path, [header, "2023-11-16 18:15:46.6805900,374,44"])


# Order


def test_requests_are_sorted_by_time(tmp_path: Path) -> None:
    lines = [
        line(at * 100 + session, [session * 100 + one for one in range(at + 1)])
        for session in range(9)
        for at in range(9)
    ]
    by_time = read(tmp_path, sorted(lines, key=lambda one: one["timestamp"]))
    assert read(tmp_path, lines) == by_time
    assert [request.arrival_s for request in by_time.requests] == sorted(one["timestamp"] / 1e3 for one in lines)


def test_a_delay_counts_from_the_end_of_the_turn_before(tmp_path: Path) -> None:
    first, later = line(1000, [1], session_id="a"), line(0, [2], session_id="a", delay=500)
    del later["timestamp"]
    lines = [first, line(1200, [9], session_id="b"), later, later | {"hash_ids": [3]}]
    made = read(tmp_path, lines, hash_tokens=512, turn_s=lambda tokens: 2.0 * tokens)
    assert [(list(one.hash_ids), one.arrival_s) for one in made.requests] == [
        ([1], 1.0),
        ([9], 1.2),
        ([2], 3.5),
        ([3], 6.0),
    ]


# What is left out


def test_up_to_one_request_of_a_hundred_may_be_left_out_and_is_counted(tmp_path: Path) -> None:
    good = [line(at, [at, at + 1000]) for at in range(200)]
    made = read(tmp_path, [*good[:50], line(5, [1, 1]), *good[50:], "{"])
    assert len(made.requests) == 200
    assert made.skipped.total() == 2
    assert made.first_skipped["an id repeats in the request"] == 51


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (line(-1, [1, 2]), "time: not a number from 0"),
        (line(1, [1, 1]), "an id repeats in the request"),
        (line(1, [], 9), "no ids of its prefix"),
        (line(1, [1], 9000), "fewer ids than input tokens / 512"),
        (line(1, [1, 2], 100), "more ids than input tokens / 512 of --hash-tokens"),
        (line(1, [[1], [2]]), "an id is not a number or text"),
        ({**line(1, [1, 2]), "timestamp": None}, "no time of arrival"),
        ({**line(1, [1, 2]), "input_length": "many"}, "input tokens: not a whole number"),
        ("[1]", "not a JSON object"),
    ],
)
def test_more_is_an_error_that_says_which_and_why(tmp_path: Path, bad: object, reason: str) -> None:
    good = [line(at, [at, at + 1000]) for at in range(98)]
    with pytest.raises(UsageError) as caught:
        read(tmp_path, [*good, bad, bad], hash_tokens=512)
    assert f"2 of 100 requests would be left out (2: {reason}" in str(caught.value)
    assert "the first in line 99" in str(caught.value)
    assert str(caught.value).isprintable()


def test_one_request_before_endless_bad_lines_is_not_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(line(5, [1, 2])).encode() + b"\n{}" * 1_000_000))
    with pytest.raises(UsageError, match="1 of 200 lines"):
        read_requests(file)
