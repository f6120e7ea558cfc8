"""Answers from finished runs whose times come from formulas."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvbench.cells.axes import Direction, Order, Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.cells.policy import Choice, load_policy
from kvbench.cli.main import app
from kvbench.errors import UsageError
from kvbench.results import Record, Run, load_run
from kvbench.tune.answer import Answer, answers_of
from kvbench.tune.text import open_points, workload_text
from tests import synthetic
from tests.command import output

KIB = 1024
SIZES = tuple(kib * KIB for kib in (4, 16, 64))
COUNTS = (16, 1024)
IDLE = StreamState.IDLE


def cells(states: tuple[StreamState, ...] = (IDLE,)) -> list[Cell]:
    shapes = [(way, n, size, state) for way in Direction for n in COUNTS for size in SIZES for state in states]
    return [
        cell
        for shape in shapes
        for cell in (
            Cell("batched", *shape, order=Order.ANY, reuse=Reuse.FRESH, pool_bytes=1 << 30),
            *(Cell("sm", *shape, sms=sms, reuse=Reuse.FRESH, pool_bytes=1 << 30) for sms in (1, 2, 4)),
            *(Cell("triton", *shape, sms=sms, reuse=Reuse.FRESH, pool_bytes=1 << 30) for sms in (4, 12, 24)),
        )
    ]


def gbps(cell: Cell) -> float:
    """Kernels fill the link from 2 and from 24 SMs on; batched copies do with large blocks alone."""
    if cell.backend == "batched":
        return 54.0 if cell.block_bytes == 64 * KIB else 5.0
    return min(50.0, {"sm": 25.0, "triton": 2.0}[cell.backend] * (cell.sms or 1))


def run_of(folder: Path, made: list[Cell] | None = None, rate: Callable[[Cell], float] = gbps) -> Run:
    records: list[Record] = [*synthetic.ceilings(), *synthetic.rounds(made or cells(), rate, noise=0.001)]
    return load_run(synthetic.write_run(folder / "run", records))


def anything(_: Choice) -> bool:
    return True


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("answer"))


def with_wide_kernel(ratio: float) -> Callable[[Cell], float]:
    """Return rates at which four SMs take so much of the time of two for the smallest blocks."""
    return lambda cell: (
        gbps(cell) / (ratio if cell.block_bytes == 4 * KIB and (cell.backend, cell.sms) == ("sm", 4) else 1)
    )


def at(answers: list[Answer], size: int, blocks: int, way: Direction = Direction.H2D) -> Answer:
    (answer,) = [one for one in answers if (one.block_bytes, one.blocks, one.direction) == (size, blocks, way)]
    return answer


def test_the_choice_is_the_cheapest_of_the_fastest_with_its_gains(run: Run) -> None:
    answers = answers_of([run], anything)
    small = at(answers, 4 * KIB, 16)
    assert str(small.choice) == "sm sms=2"
    assert small.gbps_of(small.choice) == pytest.approx(50.0, rel=0.01)
    assert small.interval_of(small.choice) is not None
    assert small.decided
    assert small.gain_over("batched") == pytest.approx(10.0, rel=0.01)
    assert at(answers, 64 * KIB, 16).choice.backend == "batched"


def test_an_open_shape_has_no_gain_and_names_both_and_the_cost(tmp_path: Path) -> None:
    answers = answers_of([run_of(tmp_path, rate=with_wide_kernel(0.97))], anything)
    assert {answer.block_bytes for answer in answers if not answer.decided} == {4 * KIB}
    assert [answer.gain_over("batched") is not None for answer in answers] == [answer.decided for answer in answers]
    lines = open_points(answers)
    assert len(lines) == 4
    assert all(("sm (2 SMs)" in line) and ("sm (4 SMs)" in line) and "%" in line for line in lines)


def test_what_is_not_allowed_is_not_chosen(run: Run) -> None:
    without = answers_of([run], lambda choice: choice.backend == "batched")
    assert {answer.choice.backend for answer in without} == {"batched"}
    with pytest.raises(UsageError, match="nothing to choose from"):
        answers_of([run], lambda _: False)


def test_what_differs_by_no_more_than_a_tie_is_tied_and_not_open(tmp_path: Path) -> None:
    answers = answers_of([run_of(tmp_path, rate=with_wide_kernel(0.985))], anything)
    assert open_points(answers) == []
    answer = at(answers, 4 * KIB, 16)
    assert [str(choice) for choice in (answer.choice, *answer.tied)] == ["sm sms=2", "sm sms=4"]
    (tied,) = answer.to_plain()["tied"]
    assert (tied["choice"], tied["ratio"]) == ("sm sms=4", pytest.approx(0.985, abs=0.01))
    assert tied["low"] <= tied["ratio"] <= tied["high"]


def test_the_layout_that_is_answered_for_is_named(tmp_path: Path) -> None:
    runs = [replace(cell, pattern=Pattern.parse("runs-8")) for cell in cells()]
    run = run_of(tmp_path, runs)
    assert workload_text([run]) == "fresh blocks in the layout runs-8 from 1 GiB, tight C++ loop"
    shown = " ".join(output("tune", run.path).split())
    assert shown.index("runs-8") < shown.index("h2d idle")


def test_answers_are_of_one_workload_whatever_the_order_of_the_runs(run: Run, tmp_path: Path) -> None:
    hot = [replace(cell, reuse=Reuse.SAME, pool_bytes=2 << 30) for cell in cells()]
    others = run_of(tmp_path / "hot", hot, lambda cell: 3 * gbps(cell))
    expected = answers_of([run], anything)
    for runs in ([run, others], [others, run]):
        answers = answers_of(runs, anything)
        assert [answer.gbps_of(answer.choice) for answer in answers] == pytest.approx(
            [answer.gbps_of(answer.choice) for answer in expected]
        )
        assert workload_text(runs).startswith("fresh blocks from 1 GiB,")


def test_swaps_after_a_pause_are_answered_for_where_most_have_one_and_the_answer_says_so(tmp_path: Path) -> None:
    """Swaps after a gap, as between an engine's steps, and swaps in a tight loop are not mixed."""
    paused = [replace(cell, pause_us=200) for cell in cells()]

    def rate(cell: Cell) -> float:
        return gbps(cell) / (4 if cell.pause_us and cell.backend == "sm" else 1)

    tight = answers_of([run_of(tmp_path / "both", [*cells(), *paused[:24]], rate)], anything)
    small = at(tight, 4 * KIB, 16)
    assert small.gbps_of(small.choice) == pytest.approx(50.0, rel=0.01)
    after = run_of(tmp_path / "after", paused, rate)
    assert at(answers_of([after], anything), 4 * KIB, 16).choice.backend == "triton"
    assert "after 200us of other work each" in " ".join(output("tune", after.path).split())
    assert "tight C++ loop" in " ".join(output("tune", run_of(tmp_path / "tight").path).split())
    policy = tmp_path / "after.toml"
    output("tune", after.path, "-p", policy)
    assert load_policy(policy).workload["pause"] == "200us"


def test_the_command_answers_in_json(run: Run) -> None:
    answers = json.loads(output("tune", run.path, "--json", "--max-sms", "1"))["answers"]
    assert len(answers) == len(Direction) * len(SIZES) * len(COUNTS)
    assert {answer["choice"] for answer in answers} == {"sm sms=1", "batched order=any"}
    assert answers[0]["quantity"] == "latency"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--backends", "bogus"], "--backends bogus: these runs measured only batched, sm, triton"),
        (["--max-sms", "0", "--backends", "sm"], "nothing to choose from"),
        (["--out", "somewhere"], "RUN: nothing is measured"),
        (["--max-sms", "-1"], "max_sms"),
        (["--model", "llama-3-8b", "--prefill-tokens-per-second", "0"], "must be from 1 to 1e9"),
        (["--prefill-tokens-per-second", "100"], "tokens are those of a model; add --model"),
    ],
)
def test_bad_input_is_one_clear_line(run: Run, options: list[str], message: str) -> None:
    error = CliRunner().invoke(app, ["tune", str(run.path), *options]).exception
    assert isinstance(error, UsageError)
    assert message in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(("api", "batched"), [("13.0", "batched order=any"), ("13.1", "batched order=any overlap=on")])
def test_with_a_limit_of_sms_no_copy_is_chosen_that_the_driver_may_make_with_sms(
    tmp_path: Path, api: str, batched: str
) -> None:
    flagged = [replace(cell, overlap=True) for cell in cells() if cell.backend == "batched"]
    records = [*synthetic.ceilings(), *synthetic.rounds([*cells(), *flagged], gbps, noise=0.001)]
    identity = {**synthetic.info().identity, "cuda_driver_api": api}
    path = synthetic.write_run(tmp_path / "run", records, synthetic.info(identity=identity))
    answers = json.loads(output("tune", path, "--json", "--max-sms", "0"))["answers"]
    assert {answer["choice"] for answer in answers} == {batched}
    said = "batched: this driver may copy with SMs"
    assert (said in output("tune", path)) is (api == "13.1")
    assert said not in output("tune", path, "--max-sms", "0")
