"""Answers for swaps beside a neighbour, from runs whose costs follow from what is wanted."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from kvbench.cells.axes import Direction, Neighbour, Order
from kvbench.cells.cell import Cell
from kvbench.cells.policy import Choice
from kvbench.cli.main import app
from kvbench.errors import UsageError
from kvbench.results import Record, Run
from kvbench.tune.answer import BesideAnswer, answers_beside
from kvbench.tune.text import HEADER_BESIDE, beside_plain, open_beside, row_beside, sentence_beside
from tests import synthetic
from tests.reports import made_run

SM = Cell("sm", Direction.D2H, 4096, 16384, sms=2, neighbour=Neighbour.DECODE)
BATCHED = replace(SM, backend="batched", sms=None, order=Order.STREAM)
TRITON = replace(SM, backend="triton")
# Each with the slowdown of the neighbour and the GB/s beside it.
WAYS = [(SM, 1.2, 40.0), (replace(SM, sms=1), 1.04, 30.0), (TRITON, 1.03, 19.0), (BATCHED, 1.01, 10.0)]


def visits(cell: Cell, slowdowns: list[float], gbps: float) -> list[Record]:
    return [
        msgspec.structs.replace(synthetic.beside(cell, slowdown, gbps, 1)[0], round=number)
        for number, slowdown in enumerate(slowdowns)
    ]


def ladder(rounds: int = 6) -> list[Record]:
    return [record for cell, slowdown, gbps in WAYS for record in visits(cell, [slowdown] * rounds, gbps)]


def anything(_: Choice) -> bool:
    return True


def only(runs: list[Run], max_slowdown: float = 0.05) -> BesideAnswer:
    (answer,) = answers_beside(runs, "decode", max_slowdown, anything)
    return answer


def chosen(answer: BesideAnswer) -> str | None:
    return None if answer.chosen is None else str(answer.chosen.choice)


@pytest.mark.parametrize(
    ("max_slowdown", "choice"),
    [
        (0.3, "sm sms=2"),
        (0.05, "sm sms=1"),
        (0.035, "triton sms=2"),
        (0.02, "batched order=stream"),
        (0.0, None),
    ],
)
def test_the_fastest_that_costs_no_more_is_chosen(tmp_path: Path, max_slowdown: float, choice: str | None) -> None:
    assert chosen(only([made_run(tmp_path, ladder())], max_slowdown)) == choice


def test_what_is_as_fast_with_fewer_sms_and_settings_is_taken(tmp_path: Path) -> None:
    triton = replace(TRITON, sms=1)
    many = replace(SM, sms=12)
    records = [*ladder(), *visits(triton, [1.039] * 6, 30.2), *visits(many, [1.01] * 6, 30.5)]
    assert chosen(only([made_run(tmp_path, records)])) == "sm sms=1"


def test_the_sentence_says_both_sides_the_tail_and_the_gain(tmp_path: Path) -> None:
    assert sentence_beside(only([made_run(tmp_path, ladder())])) == (
        "decode beside d2h swaps of 4096 blocks of 16 KiB: sm (1 SM), 30 GB/s, 4% slower, p99 400% slower, 3x as "
        "fast as batched"
    )


def test_too_few_iterations_have_no_p99(tmp_path: Path) -> None:
    answer = only([made_run(tmp_path, ladder(rounds=4))])
    assert "p99" not in sentence_beside(answer)
    assert all(way["slowdown_p99"] is None for way in beside_plain(answer)["ways"])
    assert {row_beside(answer, way)[HEADER_BESIDE.index("p99")] for way in answer.ways} == {"-"}


def test_where_everything_costs_more_the_least_is_named(tmp_path: Path) -> None:
    assert sentence_beside(only([made_run(tmp_path, ladder())], 0.001)).endswith(
        "no way that was measured costs at most 0.1%; the least is batched, 10 GB/s, 1% slower"
    )


def test_an_interval_that_reaches_beyond_the_limit_is_open(tmp_path: Path) -> None:
    unsure = visits(replace(SM, sms=1), [1.01, 1.03, 1.04, 1.045, 1.06, 1.09], 30.0)
    faster = visits(replace(SM, sms=4), [1.03, 1.05, 1.07, 1.07, 1.09, 1.1], 35.0)
    first, second = open_beside(only([made_run(tmp_path, [*unsure, *faster, *visits(TRITON, [1.03] * 6, 19.0)])]))
    assert "sm (1 SM), 30 GB/s, 4.5% slower (1% to 9%) may cost more than 5%; triton (2 SMs), " in first
    assert "sm (4 SMs), 35 GB/s, 7% slower (3% to 10%) may cost no more than 5%" in second


def test_with_few_visits_everything_is_open(tmp_path: Path) -> None:
    answer = only([made_run(tmp_path, ladder(rounds=5))])
    first, second = open_beside(answer)
    assert "sm (1 SM), 30 GB/s, 4% slower (too few visits for an interval) may cost more than 5%" in first
    assert "sm (2 SMs), 40 GB/s, 20% slower (too few visits for an interval) may cost no more than 5%" in second
    assert "4% slower (open), p99" in sentence_beside(answer)
    assert sentence_beside(answer).endswith("no clear difference from batched")


def test_each_direction_and_size_has_its_answer(tmp_path: Path) -> None:
    others = (replace(SM, direction=Direction.H2D), replace(SM, block_bytes=4096))
    records = [*ladder(), *(record for cell in others for record in visits(cell, [1.01] * 6, 5.0))]
    run = made_run(tmp_path, records)
    answers = answers_beside([run], "decode", 0.05, anything)
    assert len({answer.shape for answer in answers}) == 3


def test_runs_are_taken_together_and_what_is_not_allowed_is_left_out(tmp_path: Path) -> None:
    runs = [made_run(tmp_path, ladder(rounds=3), name=name) for name in ("one", "two")]
    answer = only(runs)
    # An interval takes six visits, which each run has half of.
    assert len(answer.ways) == 4
    assert all(way.slowdown_interval and way.gbps_interval for way in answer.ways)
    for run in runs:
        assert not any(way.slowdown_interval or way.gbps_interval for way in only([run]).ways)
    (allowed,) = answers_beside(runs, "decode", 0.05, lambda choice: choice.backend == "batched")
    assert chosen(allowed) == "batched order=stream"


def test_failed_cells_are_not_chosen(tmp_path: Path) -> None:
    records = [*ladder(), synthetic.failure(replace(SM, sms=1), "the neighbour died")]
    assert chosen(only([made_run(tmp_path, records)])) == "triton sms=2"


def test_a_cell_that_failed_in_one_of_the_runs_counts_as_in_the_others(tmp_path: Path) -> None:
    slow = replace(SM, sms=1)
    broken = [*visits(slow, [1.9] * 6, 1.0), synthetic.failure(slow, "the neighbour died")]
    one = made_run(tmp_path, ladder(), name="one")
    assert only([one, made_run(tmp_path, broken, name="two")]) == only([one])


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (visits(replace(SM, neighbour=Neighbour.GEMM), [1.1] * 6, 20.0), "decode: .* beside gemm"),
        (synthetic.visits([replace(SM, neighbour=Neighbour.NONE)]), "decode: .* without a neighbour"),
    ],
)
def test_runs_without_the_neighbour_are_refused(tmp_path: Path, records: list[Record], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        only([made_run(tmp_path, records)])


def command(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["tune", *map(str, arguments)])
    return done.exit_code, done.stdout if done.exit_code == 0 else str(done.exception)


def test_the_command_shows_the_answer_and_gives_it_as_json(tmp_path: Path) -> None:
    path = made_run(tmp_path, ladder()).path
    code, text = command("beside", "decode", path, "--max-slowdown", "5%")
    assert code == 0
    assert "sm (1 SM), 30 GB/s, 4% slower" in " ".join(text.split())
    (marked,) = [line.split() for line in text.splitlines() if line.startswith("->")]
    assert marked[1:4] == ["d2h", "4096", "16"]
    for limit in ("5%", "0.05"):
        code, text = command("beside", "decode", path, "--max-slowdown", limit, "--json")
        (answer,) = json.loads(text)["answers"]
        assert (answer["choice"], answer["max_slowdown"]) == ("sm sms=1", 0.05)
        assert answer["ways"][1]["slowdown_interval"] == pytest.approx([1.04, 1.04])
    assert command("beside", "decode", path)[0] == 0  # 5% without --max-slowdown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["cat"], "neighbour cat: not one of idle, gemm, decode, swap"),
        (["none"], "neighbour none: not one of"),
        *(
            (
                ["decode", f"--max-slowdown={text}"],
                f"--max-slowdown {text}: write a percentage",
            )
            for text in ("5", "1.05", "-1%", "nan", "x%", "%", "5 %", "\u0665%")
        ),
        (["decode", "--max-sms", "0", "--backends", "sm"], "in a way that is allowed"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, options: list[str], message: str) -> None:
    path = made_run(tmp_path, ladder()).path
    done = CliRunner().invoke(app, ["tune", "beside", *options, str(path)])
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)
