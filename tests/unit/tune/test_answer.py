"""Answers and exports from finished runs whose times come from formulas."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvbench.cells.axes import Direction, Order, Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.kernel_shape import VLLM
from kvbench.cli.main import app
from kvbench.errors import UsageError
from kvbench.results import Record, Run, load_run
from kvbench.tune.answer import Answer, answers_of, open_points, sentences, workload_of
from kvbench.tune.exports import EXPORTS, Export
from kvbench.tune.table import Choice, load_policy
from tests import synthetic

KIB = 1024
SIZES = tuple(kib * KIB for kib in (4, 16, 64))
COUNTS = (16, 1024)
IDLE, SUSTAINED = StreamState.IDLE, StreamState.SUSTAINED


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


def at(answers: list[Answer], size: int, blocks: int, way: Direction = Direction.H2D) -> Answer:
    (found,) = [one for one in answers if (one.block_bytes, one.blocks, one.direction) == (size, blocks, way)]
    return found


def test_the_choice_is_the_cheapest_of_the_fastest_with_its_gains(tmp_path: Path) -> None:
    answers = answers_of([run_of(tmp_path)], anything)
    small = at(answers, 4 * KIB, 16)
    assert str(small.choice) == "sm sms=2"
    assert small.gbps == pytest.approx(50.0, rel=0.01)
    assert small.interval_us is not None
    against_batched, against_vllm = (small.gain_over(of) for of in (small.best_of("batched"), small.of_vllm()))
    assert against_batched is not None
    assert against_vllm is not None
    assert (against_batched.ratio, against_vllm.ratio) == pytest.approx((10.0, 50 / 24), rel=0.01)
    assert at(answers, 64 * KIB, 16).choice.backend == "batched"


def test_a_sentence_says_what_to_use_where_and_what_it_gains(tmp_path: Path) -> None:
    lines = sentences(answers_of([run_of(tmp_path)], anything))
    assert lines[:2] == [
        "h2d latency, 16 to 1024 blocks of 4 KiB to 16 KiB: sm with 2 SMs, 50 GB/s, 10 times batched, 2.1 times vLLM's "
        "current setting",
        "h2d latency, 16 to 1024 blocks of 64 KiB: batched, 54 GB/s",
    ]
    assert len(lines) == 4


def test_every_quantity_of_a_run_is_answered(tmp_path: Path) -> None:
    made = cells((IDLE, SUSTAINED))
    said = {line.partition(",")[0] for line in sentences(answers_of([run_of(tmp_path, made)], anything))}
    assert said == {"h2d latency", "h2d sustained", "d2h latency", "d2h sustained"}


def test_what_is_not_allowed_is_not_chosen(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    without = answers_of([run], lambda choice: choice.backend == "batched")
    assert {answer.choice.backend for answer in without} == {"batched"}
    with pytest.raises(UsageError, match="nothing to choose from"):
        answers_of([run], lambda _: False)


def test_a_point_that_is_open_names_both_and_the_cost(tmp_path: Path) -> None:
    def close(cell: Cell) -> float:
        return gbps(cell) / (0.97 if (cell.backend, cell.sms) == ("sm", 4) and cell.block_bytes == 4 * KIB else 1.0)

    lines = open_points(answers_of([run_of(tmp_path, rate=close)], anything))
    assert len(lines) == 4
    assert all(("sm with 2 SMs" in line) and ("sm with 4 SMs" in line) and "%" in line for line in lines)


def test_what_differs_by_no_more_than_a_tie_is_tied_and_not_open(tmp_path: Path) -> None:
    def close(cell: Cell) -> float:
        return gbps(cell) / (0.985 if (cell.backend, cell.sms) == ("sm", 4) and cell.block_bytes == 4 * KIB else 1.0)

    answers = answers_of([run_of(tmp_path, rate=close)], anything)
    assert open_points(answers) == []
    answer = at(answers, 4 * KIB, 16)
    assert [str(choice) for choice in (answer.choice, *answer.tied)] == ["sm sms=2", "sm sms=4"]
    assert answer.to_plain()["tied"] == ["sm sms=4"]


def test_the_hot_end_is_left_out_where_there_are_fresh_blocks(tmp_path: Path) -> None:
    hot = [Cell("batched", Direction.H2D, 16, 4 * KIB), Cell("sm", Direction.H2D, 16, 4 * KIB, sms=1)]
    run = run_of(tmp_path, [*cells(), *hot], lambda cell: 500.0 if cell.hot else gbps(cell))
    assert at(answers_of([run], anything), 4 * KIB, 16).gbps == pytest.approx(50.0, rel=0.01)


def values(made: Export) -> dict[str, str]:
    return {setting.name: setting.value for setting in made.settings}


def test_the_exports_follow_from_the_times(tmp_path: Path) -> None:
    answers = answers_of([run_of(tmp_path)], anything)
    assert values(EXPORTS["vllm"](answers)) == {
        "NUM_SMS": "24",
        "THRESHOLD_BYTES": str(28 * KIB),
        "MIN_N": "16",
        "VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS": "0",
    }
    assert values(EXPORTS["sglang"](answers)) == {"SGLANG_HICACHE_BLOCK_QUOTA": "2"}
    flexkv = values(EXPORTS["flexkv"](answers))
    # Two SMs would do; the default stays.
    assert {flexkv[f"FLEXKV_TRANSFER_NUM_CTA_{way}"] for way in ("H2D", "D2H")} == {"4"}
    assert {flexkv[f"FLEXKV_USE_CE_TRANSFER_{way}"] for way in ("H2D", "D2H")} == {"0"}
    lmcache = values(EXPORTS["lmcache"](answers))
    assert lmcache["--transfer-copy-mode"] == "auto"
    assert lmcache["--direct-copy-min-block-bytes"] == str(128 * KIB)  # as it is without a reason


def test_an_export_says_what_its_constants_lose(tmp_path: Path) -> None:
    def uneven(cell: Cell) -> float:
        return 100.0 if (cell.backend, cell.sms, cell.blocks) == ("sm", 4, 16) else gbps(cell)

    text = EXPORTS["sglang"](answers_of([run_of(tmp_path, rate=uneven)], anything)).text("a card")
    assert "at 12 of 12 measured shapes, at worst 8% (d2h latency, 1024 x 64 KiB)" in text
    assert "SGLANG_HICACHE_BLOCK_QUOTA=4\n" in text
    num_sms, *_ = EXPORTS["vllm"](answers_of([run_of(tmp_path / "b", rate=uneven)], anything)).settings
    assert "at worst 108%" in num_sms.gives


def test_a_loss_that_rounds_to_zero_has_no_sign(tmp_path: Path) -> None:
    def level(cell: Cell) -> float:
        # The default of SGLang, two SMs, wins by less than a tie nearly everywhere, and loses at one shape.
        if cell.backend == "sm" and cell.sms == 2:
            return 47.5 if (cell.block_bytes, cell.blocks) == (4 * KIB, 16) else 50.6
        return {"sm": 50.0, "batched": 50.0, "triton": 10.0}[cell.backend]

    text = EXPORTS["sglang"](answers_of([run_of(tmp_path, rate=level)], anything)).text("a card")
    assert "SGLANG_HICACHE_BLOCK_QUOTA=2\n" in text
    assert "takes 0% more time than the free choice on average at " in text


@pytest.mark.parametrize("name", EXPORTS)
def test_no_export_claims_a_kernel_that_was_not_measured(tmp_path: Path, name: str) -> None:
    made = EXPORTS[name](answers_of([run_of(tmp_path)], anything))
    assert "not measured" in made.measured
    head = made.text("a card").splitlines()
    assert "2026" in head[0]
    assert head[1] == "# a card"


def test_an_export_says_at_how_many_shapes_it_compared(tmp_path: Path) -> None:
    def measured(cell: Cell) -> bool:  # sm with a single count at one of the three sizes
        return cell.backend != "sm" or cell.sms == 2 or cell.block_bytes < 64 * KIB

    run = run_of(tmp_path, [cell for cell in cells() if measured(cell)])
    made = EXPORTS["sglang"](answers_of([run], anything))
    assert "at 8 of 12 measured shapes" in made.settings[0].gives


def test_vllms_launch_shape_is_claimed_only_if_every_sm_count_had_it(tmp_path: Path) -> None:
    own = [cell if (cell.backend, cell.sms) != ("triton", 12) else replace(cell, kernel=VLLM) for cell in cells()]
    some = EXPORTS["vllm"](answers_of([run_of(tmp_path / "some", own)], anything))
    assert "launch shape" not in some.measured
    every = [replace(cell, kernel=VLLM) if cell.backend == "triton" else cell for cell in cells()]
    assert "launch shape" in EXPORTS["vllm"](answers_of([run_of(tmp_path / "every", every)], anything)).measured


def test_answers_are_of_one_workload_whatever_the_order_of_the_runs(tmp_path: Path) -> None:
    fresh = run_of(tmp_path / "fresh")
    hot = [replace(cell, reuse=Reuse.SAME, pool_bytes=2 << 30) for cell in cells()]
    others = run_of(tmp_path / "hot", hot, lambda cell: 3 * gbps(cell))
    expected = [answer.gbps for answer in answers_of([fresh], anything)]
    for runs in ([fresh, others], [others, fresh]):
        assert [answer.gbps for answer in answers_of(runs, anything)] == pytest.approx(expected)
        assert workload_of(runs) == workload_of([fresh])


@pytest.mark.parametrize(("name", "needed"), [("vllm", "triton"), ("sglang", "sm"), ("lmcache", "batched and sm")])
def test_an_export_without_what_it_rests_on_says_so(tmp_path: Path, name: str, needed: str) -> None:
    copies = [cell for cell in cells() if cell.backend == "batched"]
    more = [Cell("per_block", c.direction, c.blocks, c.block_bytes, reuse=c.reuse, pool_bytes=1 << 30) for c in copies]
    run = run_of(tmp_path, [*copies, *more], lambda _: 10.0)
    with pytest.raises(UsageError, match=f"--export {name}: requires .*{needed}"):
        EXPORTS[name](answers_of([run], anything))


def test_the_command_writes_policy_and_exports(tmp_path: Path) -> None:
    run = run_of(tmp_path).path
    policy, settings = tmp_path / "policy.toml", tmp_path / "vllm.env"
    done = CliRunner().invoke(app, ["tune", str(run), "-p", str(policy), "--export", f"vllm={settings}"])
    assert done.exit_code == 0, done.output
    assert "h2d latency, 16 to 1024 blocks of 64 KiB: batched, 54 GB/s" in done.output
    assert "NUM_SMS=24" in settings.read_text()
    assert load_policy(policy).tables[0].choices[0] == ("sm sms=2", "sm sms=2")


def test_the_command_answers_in_json(tmp_path: Path) -> None:
    run = run_of(tmp_path).path
    done = CliRunner().invoke(app, ["tune", str(run), "--json", "--budget-sms", "1"])
    answers = json.loads(done.output)["answers"]
    assert len(answers) == len(Direction) * len(SIZES) * len(COUNTS)
    assert {answer["choice"] for answer in answers} == {"sm sms=1", "batched order=any"}
    assert answers[0]["quantity"] == "latency"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--export", "nothing"], "--export nothing: not an export; write vllm, sglang, flexkv, lmcache or json"),
        (["--backends", "bogus"], "--backends bogus: these runs measured only batched, sm, triton"),
        (["--model", "llama-3-8b"], "nothing to choose from"),
        (["--json", "--export", "vllm"], "only one can go to standard output"),
        (["--export", "vllm", "--export", "json"], "only one can go to standard output"),
        (["--out", "somewhere"], "RUN: nothing is measured"),
        (["--budget-sms", "-1"], "budget_sms"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, options: list[str], message: str) -> None:
    error = CliRunner().invoke(app, ["tune", str(run_of(tmp_path).path), *options]).exception
    assert isinstance(error, UsageError)
    assert message in str(error)
    assert "\n" not in str(error)
