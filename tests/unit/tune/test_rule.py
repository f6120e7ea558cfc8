"""The smallest rule that is good enough, and the answer that it gives."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from unittest import mock

import msgspec
import pytest
from typer.testing import CliRunner

from kvbench.cells.axes import Direction, Neighbour, Order, Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.cells.policy import Choice, load_policy
from kvbench.cli.main import app
from kvbench.results import Run, load_run
from kvbench.sweep.installed import of_engine
from kvbench.tune.answer import answers_of
from kvbench.tune.figures import TokenLine, closest_call, gains_of
from kvbench.tune.fit import sms_of
from kvbench.tune.rule import WORST, SmallestRule, rule_of
from kvbench.tune.text import ROWS, summary
from tests import synthetic
from tests.command import output
from tests.data.freeze import FOLDER as FROZEN

KIB = 1024
SIZES = tuple(kib * KIB for kib in (1, 4, 16, 64, 256))
COUNTS = (16, 256, 4096)
STATES = (StreamState.IDLE, StreamState.SUSTAINED)
H200, H100 = (FROZEN / card for card in ("h200", "h100"))
Rate = Callable[[Cell], float]


def cells(*directions: Direction, states: tuple[StreamState, ...] = (StreamState.IDLE,)) -> list[Cell]:
    shapes = product(directions or (Direction.H2D,), COUNTS, SIZES, states)
    return [
        replace(cell, reuse=Reuse.FRESH, pool_bytes=1 << 30)
        for shape in shapes
        for cell in (Cell("batched", *shape, order=Order.ANY), *(Cell("sm", *shape, sms=sms) for sms in (1, 2, 4)))
    ]


def crossing(cell: Cell) -> float:
    """A kernel fills the link with two SMs, copies do with large blocks alone."""
    if cell.backend == "batched":
        return 54.0 if cell.block_bytes >= 64 * KIB else 5.0
    return min(50.0, 25.0 * (cell.sms or 1))


def run_of(folder: Path, rate: Rate, made: list[Cell] | None = None, noise: float = 0.001) -> Run:
    records = [*synthetic.ceilings(), *synthetic.rounds(made or cells(), rate, noise=noise)]
    return load_run(synthetic.write_run(folder / "run", records))


def rule_at(folder: Path, rate: Rate, made: list[Cell] | None = None) -> SmallestRule:
    return rule_of(answers_of([run_of(folder, rate, made)], lambda _: True))


def texts(rule: SmallestRule) -> list[tuple[str, tuple[int | None, int | None], tuple[int | None, int | None]]]:
    return [(str(line.choice), line.sizes, line.counts) for lines in rule.lines.values() for line in lines]


def test_a_rule_has_a_line_for_each_change_of_the_best(tmp_path: Path) -> None:
    rule = rule_at(tmp_path, crossing)
    everything = (None, None)
    assert texts(rule) == [
        ("sm sms=2", (None, 16 * KIB), everything),
        ("batched order=any", (64 * KIB, None), everything),
    ]
    assert max(rule.losses.values()) == pytest.approx(0, abs=0.001)


def test_a_rule_is_cut_by_the_number_of_blocks_where_that_decides(tmp_path: Path) -> None:
    def many(cell: Cell) -> float:
        return 20.0 if (cell.backend == "sm") == (cell.blocks > 16) else 10.0

    assert texts(rule_at(tmp_path, many)) == [
        ("batched order=any", (None, None), (None, 16)),
        ("sm sms=1", (None, None), (256, None)),
    ]


@pytest.mark.parametrize(("loss", "lines"), [(0.04, 1), (0.12, 2)])
def test_a_rule_omits_a_line_where_that_loses_little(tmp_path: Path, loss: float, lines: int) -> None:
    def close(cell: Cell) -> float:
        return 20.0 if cell.backend == "batched" else 20.0 * (1 + loss) if cell.block_bytes == KIB else 10.0

    rule = rule_at(tmp_path, close)
    assert len(texts(rule)) == lines
    assert max(rule.losses.values()) <= WORST
    assert sum(rule.losses.values()) / len(rule.losses) <= 0.03


def test_small_losses_everywhere_cost_a_line_too(tmp_path: Path) -> None:
    def close(cell: Cell) -> float:
        return 20.0 * (1.068 if (cell.backend == "sm") == (cell.block_bytes <= 4 * KIB) else 1)

    most = [cell for cell in cells() if cell.block_bytes < 256 * KIB]
    assert len(texts(rule_at(tmp_path, close, most))) == 2


def test_of_equal_rules_the_one_with_the_fewest_sms_is_taken(tmp_path: Path) -> None:
    def level(cell: Cell) -> float:
        return 10.0 if cell.backend == "batched" else 50.0 * (1 + (cell.sms or 1) / 2000)

    assert texts(rule_at(tmp_path, level)) == [("sm sms=1", (None, None), (None, None))]


@pytest.mark.parametrize(
    ("idle_by", "gain", "backend"), [("sm", 1.05, "sm"), ("sm", 1.2, "batched"), ("batched", 1.05, "batched")]
)
def test_a_chain_that_a_kernel_begins_changes_to_copies_only_for_more_than_that_costs(
    tmp_path: Path, idle_by: str, gain: float, backend: str
) -> None:
    def rate(cell: Cell) -> float:
        if cell.stream_state is StreamState.IDLE:
            return 40.0 if cell.backend == idle_by else 20.0
        return 40.0 * gain if cell.backend == "batched" else 40.0

    rule = rule_at(tmp_path, rate, cells(states=STATES))
    assert {choice.backend for answer, choice in rule.choices.items() if answer.state is STATES[1]} == {backend}
    assert max(rule.losses.values()) == pytest.approx(gain - 1 if backend == "sm" else 0, abs=0.01)


def test_a_candidate_that_a_shape_lacks_is_in_no_line_for_it(tmp_path: Path) -> None:
    made = [cell for cell in cells() if cell.backend == "batched" or cell.block_bytes < 64 * KIB]
    for answer, choice in rule_at(tmp_path, lambda cell: 50.0 if cell.backend == "sm" else 5.0, made).choices.items():
        assert choice in answer.arms


@pytest.mark.parametrize(("best", "stands", "lines"), [(4, 2, ["4"]), (2, 4, ["2", "4", "2"])])
def test_a_smaller_sm_count_stands_for_one_that_a_size_lacks_but_no_larger_one(
    tmp_path: Path, best: int, stands: int, lines: list[str]
) -> None:
    made = [cell for cell in cells() if cell.sms != best or cell.block_bytes != 16 * KIB]
    rule = rule_at(tmp_path, lambda cell: {best: 45.0, stands: 40.0}.get(cell.sms or 0, 5.0), made)
    assert [text for text, *_ in texts(rule)] == [f"sm sms={sms}" for sms in lines]
    assert {answer.block_bytes: sms_of(choice) for answer, choice in rule.choices.items()} == {
        size: stands if size == 16 * KIB else best for size in SIZES
    }


READ_ONCE = cache(load_run)  # to read a committed run takes longer than what its answer is made of


@cache
def shown(command: str, *arguments: Path | str, columns: int = 80) -> list[str]:
    """Return the lines that a command prints about runs; those of several widths differ in nothing else."""
    with mock.patch("kvbench.results.load_run", READ_ONCE):
        return output(command, *arguments, columns=columns).splitlines()


def ragged(cell: Cell) -> float:
    """No rule is small: every shape has another best."""
    number = SIZES.index(cell.block_bytes) + COUNTS.index(cell.blocks) * 7
    return 10.0 + 90.0 * (number % 4 == {"batched": 0, "sm": cell.sms or 0}[cell.backend] % 4)


@pytest.mark.parametrize("folder", [H200, H100, None], ids=["H200", "H100", "ragged"])
def test_the_answer_has_every_direction_and_state_in_at_most_fourteen_lines_of_eighty_columns(
    tmp_path: Path, folder: Path | None
) -> None:
    run = folder or run_of(tmp_path, ragged, cells(*Direction, states=tuple(StreamState))).path
    for command in ("tune", "show"):
        lines = shown(command, run)
        assert len(lines) <= ROWS
        assert max(map(len, lines)) <= 80
        kinds = rule_of(answers_of([READ_ONCE(run)], lambda choice: not of_engine(choice.backend))).lines
        said = {kind: use for line in lines for kind, use in uses_of(line)}
        assert said.keys() == kinds.keys()
        for kind, use in said.items():
            choices, _, figures = use.partition("; ")
            assert all(line.choice.backend in choices for line in kinds[kind])
            sms = {str(sms_of(line.choice)) for line in kinds[kind] if sms_of(line.choice)}
            assert sms <= set(re.findall(r"\d+", choices))
            batched = r" \([\d.]+\)" if "batched" not in choices else ".*"
            assert re.fullmatch(rf"[\d.to ]+ us{batched}(?: at .*)?, [\d.to ]+ GB/s{batched}(?: at .*)?", figures)
        assert any("ndecided" in line for line in lines)
        assert any("ost " in line for line in lines)


def uses_of(line: str) -> list[tuple[tuple[Direction, StreamState], str]]:
    """Return the directions and states of a line of the rule, with what it says of them."""
    head, _, use = line.partition(": ")
    direction, _, states = head.partition(" (")[0].partition(" ")
    known = direction in [*Direction] and use
    return [((Direction(direction), StreamState(state)), use) for state in states.split(", ")] if known else []


def test_states_with_the_same_choices_share_a_line_with_the_range_of_their_figures(tmp_path: Path) -> None:
    """Only an opened stream is as free as an idle one, only a gated one as busy as a busy one."""

    def rate(cell: Cell) -> float:
        return crossing(cell) / (2 if cell.stream_state is StreamState.GATED else 1)

    lines = summary([run_of(tmp_path, rate, cells(states=tuple(StreamState)))], rows=60)
    heads = [[kind[1].value for kind, _ in uses_of(line)] for line in lines if uses_of(line)]
    assert sorted(map(sorted, heads)) == [["busy", "gated"], ["idle", "opened"], ["sustained"]]
    (use,) = {use for line in lines for kind, use in uses_of(line) if kind[1] is StreamState.GATED}
    low, high = map(float, re.findall(r"([\d.]+) to ([\d.]+) GB/s", use)[0])
    assert high == pytest.approx(2 * low, rel=0.02)


def test_a_large_shape_is_not_the_small_one_again(tmp_path: Path) -> None:
    made = [replace(cell, blocks=750 * cell.blocks) for cell in cells() if cell.block_bytes == 4 * KIB]
    shapes = json.loads(output("show", run_of(tmp_path, crossing, made).path, "--json"))["shapes"]
    assert [shape["blocks"] for shape in shapes] == [750 * COUNTS[0], 750 * COUNTS[-1]]


def test_the_answer_says_where_even_the_most_choices_lose_too_much(tmp_path: Path) -> None:
    def rate(cell: Cell) -> float:
        return ragged(cell) if cell.stream_state is StreamState.SUSTAINED else crossing(cell)

    lines = summary([run_of(tmp_path, rate, cells(states=STATES))])
    assert any(line.startswith("Cost") and line.endswith("with 4 choices: h2d sustained") for line in lines)
    assert not any("choices: " in line for line in summary([READ_ONCE(H200)]))


@pytest.mark.parametrize(
    ("size", "count", "shape"),
    [(16 * KIB, None, " (16 KiB)"), (None, 256, " (256 blocks)"), (16 * KIB, 256, " (16 KiB, 256 blocks)")],
)
def test_a_line_names_the_only_size_and_number_of_blocks_that_were_measured(
    tmp_path: Path, size: int | None, count: int | None, shape: str
) -> None:
    made = [cell for cell in cells() if size in (None, cell.block_bytes) and count in (None, cell.blocks)]
    assert summary([run_of(tmp_path, crossing, made)])[3].startswith(f"h2d idle{shape}: sm (2 SMs)")


def test_each_use_has_its_figures_at_a_small_and_at_a_large_shape_beside_batched(tmp_path: Path) -> None:
    """At 64 x 4 KiB and 10000 x 4 KiB or, where these were not measured, at the nearest, which are named."""
    known = [replace(cell, blocks={16: 64, 4096: 10_000}.get(cell.blocks, cell.blocks)) for cell in cells()]
    machine, ceiling, figures, use, *_ = summary([run_of(tmp_path / "known", crossing, known)])
    assert "Synthetic H200" in machine
    assert ceiling.startswith("Ceiling 55.5 GB/s h2d, ")
    assert figures == "Figures: 64 x 4 KiB in us, 10000 x 4 KiB in GB/s (batched in parentheses)"
    match = re.fullmatch(r"h2d idle: .*; ([\d.]+) us \(([\d.]+)\), ([\d.]+) GB/s \(([\d.]+)\)", use)
    assert match is not None
    moved_kb = 64 * 4 * KIB / 1e3
    assert [float(text) for text in match.groups()] == pytest.approx([moved_kb / 50, moved_kb / 5, 50, 5], rel=0.01)
    *_, figures, use = summary([run_of(tmp_path / "other", crossing)])[:4]
    assert figures.startswith("Figures: 16 x 4 KiB in us, 4096 x 4 KiB in GB/s")
    assert " at " not in use.partition("; ")[2]


def test_a_state_that_was_measured_at_other_shapes_names_them(tmp_path: Path) -> None:
    made = [cell for cell in cells(*Direction, states=STATES) if cell.direction is Direction.H2D or cell.blocks != 16]
    made = [cell for cell in made if cell.stream_state is StreamState.IDLE or cell.blocks == 256]
    uses = [line for line in summary([run_of(tmp_path, crossing, made)]) if " sustained" in line and "; " in line]
    assert len(uses) == 2
    assert all(re.search(r"GB/s \([\d.]+\) at 256 x 4 KiB", line) for line in uses)


def test_no_gain_is_claimed_where_batched_copies_are_the_choice(tmp_path: Path) -> None:
    run = run_of(tmp_path, lambda cell: 50.0 if cell.backend == "batched" else 5.0)
    assert gains_of(rule_of(answers_of([run], lambda _: True))) == []
    lines = summary([run])
    assert not any("as fast as batched" in line for line in lines)
    assert not any("(" in line.partition("; ")[2] for line in lines if line.startswith("h2d"))


def test_tune_show_and_the_report_give_the_same_answer(tmp_path: Path) -> None:
    run = run_of(tmp_path, crossing)
    answer, tuned = (output(command, run.path) for command in ("show", "tune"))
    assert answer == tuned
    text = " ".join(answer.split())
    assert all(line in text for line in summary([run]))
    assert CliRunner().invoke(app, ["report", str(run.path)]).exit_code == 0
    page = (run.path / "report" / "report.md").read_text().replace("**", "")
    assert all(line in page for line in summary([run]))


def test_json_has_all_that_the_answer_is_made_of(tmp_path: Path) -> None:
    def close(cell: Cell) -> float:
        return {"batched": 10.0, "merged": 53.0}.get(cell.backend, {1: 25.0, 2: 50.0, 4: 40.0}.get(cell.sms or 0, 0.0))

    lengths = [replace(in_runs(cell, 8), backend="merged" if cell.backend == "batched" else "sm") for cell in cells()]
    run = run_of(tmp_path, close, cells() + [cell for cell in lengths if cell.sms in (None, 2)])
    tuned, from_show = (json.loads(output(command, run.path, "--json")) for command in ("tune", "show"))
    assert {name: from_show.get(name, []) for name in tuned} == tuned
    assert (from_show["host_note"], from_show["warnings"]) == ("", [])
    assert tuned["workload"]["words"] in summary([run])[1]
    assert tuned["ceiling_gbps"]["h2d"] == pytest.approx(55.5, rel=0.01)
    small, large = tuned["shapes"]
    assert (small["blocks"], large["blocks"]) == (16, 4096)
    assert large["gbps"] / large["batched_gbps"] == pytest.approx(5, rel=0.01)
    assert tuned["runs"][0]["created"] == run.info.created
    (gain,) = tuned["gains"]
    assert (gain["over"], gain["shapes"]) == ("batched", len(SIZES) * len(COUNTS))
    assert gain["times_as_fast"]["median"] == pytest.approx(5, rel=0.01)
    assert tuned["closest_call"]["other"] == "sm sms=4"
    assert tuned["closest_call"]["slower"] == pytest.approx(0.25, rel=0.01)
    assert tuned["merged_in_runs"]["h2d"]["from_blocks"] == 8
    answer = tuned["answers"][0]
    assert answer["rule"] == {"choice": "sm sms=2", "loss": 0.0}
    times = {one["choice"]: (one["sms"], one["us"]) for one in answer["candidates"]}
    moved = answer["block_bytes"] * answer["blocks"]
    assert times["batched order=any"] == (0, pytest.approx(moved / 10e3, rel=0.01))
    assert times["sm sms=4"] == (4, pytest.approx(moved / 40e3, rel=0.01))
    for one in answer["candidates"]:
        assert one["caller_us"] > 0
        assert one["interval_us"][0] <= one["us"] <= one["interval_us"][1]


NARROW = pytest.mark.parametrize("columns", [40, 60, 80])


@NARROW
@pytest.mark.parametrize("options", [("show",), ("tune",), ("tune", "--open"), ("tune", "--stream", "idle")], ids=str)
def test_lines_fit_the_terminal_and_no_number_is_divided_between_two(columns: int, options: tuple[str, ...]) -> None:
    command, *rest = options
    for run in (H200, H100):
        lines = shown(command, run, *rest, columns=columns)
        assert max(map(len, lines), default=0) <= columns
        for before, after in pairwise(lines):
            assert not (after.startswith("  ") and before[-1:].isdigit()), (before, after)


@NARROW
@pytest.mark.parametrize(
    ("run", "options"),
    [(H200, ["--table"]), (H100, ["--model", "llama-3-8b"]), (None, ["beside", "gemm"])],
    ids=["table", "model", "neighbour"],
)
def test_tables_fit_the_terminal_and_say_all_that_they_say_in_a_wide_one(
    tmp_path: Path, columns: int, run: Path | None, options: list[str]
) -> None:
    if run is None:
        cells = [Cell("sm", Direction.D2H, 4096, 16384, sms=sms, neighbour=Neighbour.GEMM) for sms in (1, 2)]
        visits = [one for cell in cells for one in synthetic.beside(cell, 1.0 + 0.1 * (cell.sms or 0), 25.0)]
        run = synthetic.write_run(tmp_path / "beside", [*synthetic.ceilings(), *visits])
    wide, narrow = (shown("tune", *options, run, columns=width) for width in (1000, columns))
    assert max(map(len, narrow)) <= columns
    narrow_text = " ".join(" ".join(narrow).split())
    for line in wide:
        for text in re.split(r"\s{2,}", line.strip()):
            assert " ".join(text.split()) in narrow_text


def test_gains_are_over_the_code_of_an_engine_if_it_was_measured(tmp_path: Path) -> None:
    assert not any("vllm" in line for line in summary([run_of(tmp_path / "without", crossing)]))
    vllm_cells = [replace(cell, backend="vllm_batch") for cell in cells() if cell.backend == "batched"]
    lines = summary(
        [run_of(tmp_path, lambda cell: 2.5 if cell.backend == "vllm_batch" else crossing(cell), cells() + vllm_cells)]
    )
    assert "Compared with vLLM's code: h2d idle 20x as fast (median; 20x to 22x)" in lines


def test_each_stream_state_has_its_own_gain(tmp_path: Path) -> None:
    def behind(cell: Cell) -> float:
        return 40.0 if cell.backend == "sm" else 20.0 if cell.stream_state is StreamState.GATED else 4.0

    states = StreamState.IDLE, StreamState.GATED
    gains = gains_of(rule_of(answers_of([run_of(tmp_path, behind, cells(states=states))], lambda _: True)))
    assert [(gain.kind[1], pytest.approx(median(gain.ratios), rel=0.01)) for gain in gains] == [
        (StreamState.IDLE, 10),
        (StreamState.GATED, 2),
    ]


def test_only_decided_shapes_have_a_gain(tmp_path: Path) -> None:
    def rate(cell: Cell) -> float:
        return crossing(cell) / (0.97 if cell.block_bytes == KIB and cell.sms == 4 else 1)

    rule = rule_at(tmp_path, rate)
    (gain,) = gains_of(rule)
    assert len(gain.ratios) == len([answer for answer in rule.answers if answer.decided])
    assert len(gain.ratios) < len(rule.answers)


def in_runs(cell: Cell, length: int) -> Cell:
    return replace(cell, pattern=Pattern.parse(f"runs-{length}"))


@pytest.mark.parametrize("directions", [("h2d",), ("h2d", "d2h")])
@pytest.mark.parametrize(("from_blocks", "said"), [(8, 8), (32, 32), (64, None)])
def test_the_answer_says_from_which_runs_on_merged_copies_would_be_the_choice(
    tmp_path: Path, from_blocks: int, said: int | None, directions: tuple[str, ...]
) -> None:
    def rate(cell: Cell) -> float:
        by_merged = cell.backend in ("merged", "auto")
        return (53.0 if cell.pattern.run >= from_blocks else 10.0) if by_merged else crossing(cell)

    ways = [cell for cell in cells() if cell.blocks == 256 and cell.sms in (None, 2)]
    ways = [replace(cell, backend="merged") if cell.backend == "batched" else cell for cell in ways]
    ways += [replace(cell, backend="auto") for cell in ways if cell.backend == "merged"]  # it makes merged copies too
    every = cells() + [in_runs(cell, length) for cell in ways for length in (8, 32)]
    run = run_of(tmp_path, rate, [replace(cell, direction=Direction(name)) for name in directions for cell in every])
    lines = [line for line in summary([run]) if line.startswith("In contiguous runs")]
    of = f"In contiguous runs of at least {said} blocks ({', '.join(directions)}): merged, 53 GB/s, no SMs"
    assert lines == ([of] if said else [])
    assert "; fresh blocks from 1 GiB," in summary([run])[1]


def test_swaps_of_several_layouts_are_not_mixed(tmp_path: Path) -> None:
    """The answer is for one of them, and no time of another is in it."""

    def rate(cell: Cell) -> float:
        return 20.0 if cell.backend == "batched" and cell.pattern.run == 32 else crossing(cell)

    for kept in (8, 32):
        made = [in_runs(cell, length) for length in (8, 32) for cell in cells() if length == kept or cell.blocks < 4096]
        run = run_of(tmp_path / str(kept), rate, made)
        assert f" in the layout runs-{kept} " in summary([run])[1]
        small = [answer for answer in answers_of([run], lambda _: True) if answer.block_bytes == KIB]
        ratios = [answer.ratio(answer.choice, Choice.parse("batched order=any")) for answer in small]
        assert ratios == pytest.approx([50 / (5 if kept == 8 else 20)] * len(COUNTS), rel=0.05)


@pytest.mark.parametrize("states", [STATES[:1], tuple(StreamState)], ids=["one state", "all states"])
def test_the_closest_call_is_the_closest_of_all(tmp_path: Path, states: tuple[StreamState, ...]) -> None:
    """Also where a candidate was measured at some shapes of a choice alone."""

    def close(cell: Cell) -> float:
        near = cell.direction is Direction.D2H and cell.stream_state is states[-1]
        return {"sm": 50.0, "triton": 50.0 / (1.15 if near else 1.3), "batched": 10.0}[cell.backend]

    every = [cell for cell in cells(*Direction, states=states) if cell.sms in (None, 1)]
    few = [cell for cell in every if cell.sms or cell.block_bytes == KIB]
    made = few + [replace(cell, backend="triton", sms=12) for cell in few if cell.sms and cell.block_bytes > KIB]
    (line,) = [line for line in summary([run_of(tmp_path, close, made)], rows=20) if line.startswith("Closest")]
    assert line == f"Closest alternative: triton (12 SMs), 15% slower for d2h {states[-1]}"


@pytest.mark.parametrize(("of_four", "slower"), [(1.004, -0.004), (0.998, 0.002), (0.95, 0.053), (0.1, 9.0)])
def test_the_closest_call_is_said_as_a_person_would(tmp_path: Path, of_four: float, slower: float) -> None:
    """It can be faster: the rule takes the fewest SMs where more of them gain little."""
    made = [cell for cell in cells() if cell.sms != 2]
    run = run_of(tmp_path, lambda cell: 50.0 * {1: 1, 4: of_four}.get(cell.sms or 0, 0.09), made, noise=1e-6)
    call = closest_call(rule_of(answers_of([run], lambda _: True)))
    assert call
    assert call.slower == pytest.approx(slower, rel=0.05)
    (line,) = [line for line in summary([run]) if line.startswith("Closest alternative: sm (4 SMs), ")]
    said = {-0.004: "as fast", 0.002: "as fast", 0.053: "5.3% slower", 9.0: "10 times as long"}
    assert line.endswith(f", {said[slower]} for h2d idle")


def test_the_policy_is_the_rule_and_with_exact_the_best_of_every_shape(tmp_path: Path) -> None:
    def close(cell: Cell) -> float:
        return 20.0 if cell.backend == "batched" else 20.8 if cell.block_bytes == KIB else 10.0

    run = run_of(tmp_path, close)
    chosen = {}
    for option in ("--write-policy", "--write-exact-policy"):
        file = tmp_path / f"policy{option}.toml"
        output("tune", run.path, option, file)
        chosen[option] = {text for row in load_policy(file).tables[0].choices for text in row}
    assert chosen["--write-policy"] == {"batched order=any"}
    assert chosen["--write-exact-policy"] == {"batched order=any", "sm sms=1"}


def test_a_policy_has_only_what_auto_can_run_and_the_answer_beside_it_too(tmp_path: Path) -> None:
    made = cells() + [replace(cell, backend="triton", sms=12) for cell in cells() if cell.sms == 1]
    run = run_of(tmp_path, lambda cell: 80.0 if cell.backend == "triton" else crossing(cell), made)
    assert "h2d idle: triton (12 SMs)" in " ".join(shown("tune", run.path))
    policy = tmp_path / "policy.toml"
    assert "triton" not in output("tune", run.path, "-p", policy).partition("Closest")[0]
    assert {text for row in load_policy(policy).tables[0].choices for text in row} == {"sm sms=2", "batched order=any"}


def test_a_model_is_answered_from_the_nearest_shapes_in_its_unit(tmp_path: Path) -> None:
    run = run_of(tmp_path, crossing)
    (load,) = json.loads(output("tune", run.path, "--model", "llama-3-8b", "--json"))["models"]
    assert (load["tokens"], load["blocks"], load["block_bytes"]) == (2048, 8192, 32 * KIB)
    assert (load["choice"], load["sms"]) == ("sm sms=2", 2)
    assert load["measured"] == {"block_bytes": 16 * KIB, "blocks": 4096}
    assert load["us"] == pytest.approx(8192 * 32 * KIB / 50e3, rel=0.01)
    assert load["gbps"] == pytest.approx(50, rel=0.01)
    assert load["caller_us"] > 0
    table = output("tune", run.path, "--model", "llama-3-8b")
    assert table.startswith("\n".join(shown("tune", run.path)))  # the rule comes first
    assert "\n\nllama-3-8b, 2048 tokens: 8192 blocks of 32 KiB\n" in table


def linear(cell: Cell) -> float:
    """A kernel takes 10 us and 0.5 us a block of 16 KiB, 100 us more after other work; copies take 20 times as long."""
    us = 10 + 0.5 * cell.blocks * cell.block_bytes / (16 * KIB) + (100 if cell.pause_us else 0)
    return cell.swap_bytes / us / 1e3 / (20 if cell.backend == "batched" else 1)


def test_a_model_has_a_line_over_its_tokens_and_says_from_when_on_loading_is_faster(tmp_path: Path) -> None:
    """Of llama-3-8b, 16 tokens are 64 blocks of 32 KiB: 10 us and 4 us a token, here from times of blocks of 16 KiB.

    A call costs as much with blocks of another size. Two measured numbers of blocks tell nothing of the error.
    """
    few = [cell for cell in cells(Direction.H2D, Direction.D2H) if cell.sms in (None, 1)]
    warm = few + [replace(cell, blocks=1024) for cell in few if cell.blocks == 256]
    run = run_of(tmp_path, linear, [*warm, *(replace(cell, pause_us=5000) for cell in few)])
    asked = ("--model", "llama-3-8b", "--prefill-tokens-per-second", "200000")
    lines = json.loads(output("tune", run.path, *asked, "--json"))["token_lines"]
    msgspec.convert(lines, list[TokenLine])
    assert {(line["direction"], line["pause"]) for line in lines} == set(product(("h2d", "d2h"), ("0", "5ms")))
    by_call = {line["pause"]: line for line in lines if line["direction"] == "h2d"}
    for pause, start in (("0", 10), ("5ms", 110)):
        line = by_call[pause]
        assert (line["us"], line["us_per_token"]) == (pytest.approx(start, rel=0.02), pytest.approx(4, rel=0.01))
        assert line["error"] is None if pause == "5ms" else line["error"] < 0.02
        assert line["bytes_per_token"] == 131072
        assert line["faster_than_prefill_from_tokens"] == pytest.approx(start / (5 - 4), abs=2 + start / 20)
    shown = " ".join(output("tune", run.path, *asked).split())
    assert "cold call, after 5ms of other work: loading is faster than prefill at 200000 tokens/s from 1" in shown
    for line in (by_call["0"], by_call["5ms"]):
        hit = line["hit"]
        saved_ms = (hit["prefill_us"] - hit["load_us"]) / 1e3
        assert f"a hit of 2048 tokens saves {saved_ms:.1f} ms" in shown
        assert (hit["tokens"], hit["prefill_us"], hit["extrapolated"]) == (2048, 10240, True)
        assert hit["load_us"] == pytest.approx(2048 * 4 + line["us"], rel=0.01)
    assert shown.count("extrapolated: at most 512 tokens") == 2
    assert not any("hit" in line for line in lines if line["direction"] == "d2h")
    warm_only = run_of(tmp_path / "warm", linear, warm).path
    assert "axis pause=" in output("tune", warm_only, *asked)
    assert "axis pause=" not in shown
    never = output("tune", run.path, *asked[:2], "--prefill-tokens-per-second", "300000")
    assert "loading is never faster than prefill at 300000 tokens/s" in " ".join(never.split())


def test_the_error_of_a_line_is_that_of_the_measured_times(tmp_path: Path) -> None:
    """Between measured times, those of the line are as wrong as these."""
    few = [cell for cell in cells() if cell.sms in (None, 1)]
    made = few + [replace(cell, blocks=1024) for cell in few if cell.blocks == 256]
    run = run_of(tmp_path, lambda cell: linear(cell) / (1.3 if cell.blocks == 1024 else 1), made)
    (line,) = json.loads(output("tune", run.path, "--model", "llama-3-8b", "--json"))["token_lines"]
    us = {blocks: line["us"] + line["us_per_token"] * blocks / 8 for blocks in (256, 1024, 4096)}
    measured = {blocks: (10 + 0.5 * blocks) * (1.3 if blocks == 1024 else 1) for blocks in us}
    assert line["error"] == pytest.approx(max(abs(us[one] / measured[one] - 1) for one in us), abs=0.01)


def test_the_time_of_the_calling_thread_is_that_of_the_number_of_blocks(tmp_path: Path) -> None:
    """Also where the nearest block size was measured with fewer blocks than another."""
    made = [cell for cell in cells() if cell.blocks < 4096 or cell.block_bytes == KIB]
    run = run_of(tmp_path, lambda cell: cell.swap_bytes / cell.blocks**0.5 / 1e3, made)  # the thread takes 0.3 of it
    for tokens, blocks in ((64, 256), (1024, 4096)):
        asked = ("--model", "llama-3-8b", "--tokens", str(tokens), "--json")
        (load,) = json.loads(output("tune", run.path, *asked))["models"]
        assert load["blocks"] == blocks
        assert load["caller_us"] == pytest.approx(0.3 * blocks**0.5, rel=0.05)


def test_the_table_and_what_is_open_are_printed_on_request(tmp_path: Path) -> None:
    run = run_of(tmp_path, crossing)
    table = output("tune", run.path, "--table", columns=200).splitlines()
    _, _, blank, tied, header, *rows = table
    assert blank == ""
    assert "Tied with" in header
    assert "Thread us" in header
    assert "Times as fast as batched" in header
    assert " 10x " in rows[0]
    assert tied.startswith("Tied with: another run")  # said before it is used
    assert len(rows) == len(SIZES) * len(COUNTS)
    opened = output("tune", run.path, "--open")
    assert opened.endswith("by more than 3%\n  nothing\n")
