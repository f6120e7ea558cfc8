"""The rule of an answer, and what is said of it."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import msgspec
import pytest

from kvbench.cells.axes import Direction, Order, Reuse, StreamState
from kvbench.cells.cell import Cell, SwapShape
from kvbench.cells.facts import BackendFacts, EngineSetting
from kvbench.cells.pattern import Pattern
from kvbench.cells.policy import Choice, load_policy
from kvbench.ground.errors import UsageError
from kvbench.ground.text import convert
from kvbench.models.presets import ModelChoice
from kvbench.report.build import report_of
from kvbench.report.model import plain
from kvbench.results import Record, Run
from kvbench.tune.advice import ShapeAnswer, answers_of
from kvbench.tune.candidates import KeptArms, Measured, pick, typical
from kvbench.tune.evidence import shapes_of
from kvbench.tune.page import rows_of, state_table, typical_shapes
from kvbench.tune.planner import Hit, TokenLine
from kvbench.tune.rule import Rule, costs_of, rule_of
from kvbench.tune.situations import Question
from tests import synthetic
from tests.answers import advice_of, summary
from tests.command import output, refused
from tests.reports import part_of
from tests.unit.tune.test_exports import VLLM

KIB = 1024
SIZES = tuple(kib * KIB for kib in (1, 4, 16, 64, 256))
COUNTS = (16, 256, 4096)
IDLE, SUSTAINED = StreamState.IDLE, StreamState.SUSTAINED
Rate = Callable[[Cell], float]


def cells(*directions: Direction, states: tuple[StreamState, ...] = (IDLE,)) -> list[Cell]:
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


def run_of(folder: Path, rate: Rate, made: list[Cell] | None = None, noise: float = 0.001, *more: Record) -> Run:
    records = [*synthetic.ceilings(), *synthetic.rounds(made or cells(), rate, noise=noise), *more]
    return synthetic.loaded(folder / "run", records)


def rule_at(folder: Path, rate: Rate, made: list[Cell] | None = None, noise: float = 0.001) -> Rule:
    return rule_of(shapes_of([run_of(folder, rate, made, noise)], lambda _: True))


def texts(rule: Rule) -> list[tuple[str, tuple[int | None, int | None]]]:
    return [(str(part.choice), part.sizes) for parts in rule.parts.values() for part in parts]


def saves_the_most(cell: Cell) -> float:
    """Copies are three times as fast from 16 KiB on: a split below 4 KiB saves too, and so does one above 16 KiB."""
    return 20.0 if cell.backend == "sm" else 60.0 if cell.block_bytes >= 16 * KIB else 10.0


def small_needs_more(cell: Cell) -> float:
    """Blocks of 1 KiB need four SMs, others two, and large blocks none."""
    return 12.5 * cell.sms if cell.sms and cell.block_bytes == KIB else crossing(cell)


def large_needs_a_kernel(cell: Cell) -> float:
    """Blocks of 16 KiB and more need two SMs, and copies are as fast as the kernel up to 16 KiB."""
    if cell.sms is None:
        return 54.0 if cell.block_bytes <= 16 * KIB else 5.0
    return min(50.0, 12.5 * cell.sms * (1 if cell.block_bytes <= 4 * KIB else 2))


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (crossing, [("sm sms=2", (None, 16 * KIB)), ("batched order=any", (64 * KIB, None))]),
        (saves_the_most, [("sm sms=1", (None, 4 * KIB)), ("batched order=any", (16 * KIB, None))]),
        (small_needs_more, [("sm sms=4", (None, KIB)), ("sm sms=2", (4 * KIB, 16 * KIB)),
                            ("batched order=any", (64 * KIB, None))]),
        (large_needs_a_kernel, [("batched order=any", (None, 16 * KIB)), ("sm sms=2", (64 * KIB, None))]),
    ],
)  # fmt: skip
def test_a_rule_is_split_where_that_saves_the_most_and_the_sms_of_a_size_end_with_it(
    tmp_path: Path, rate: Rate, expected: list[tuple[str, tuple[int | None, int | None]]]
) -> None:
    rule = rule_at(tmp_path, rate)
    assert texts(rule) == expected
    assert max(costs_of(rule).values()) == pytest.approx(0, abs=0.001)


def test_a_size_without_a_choice_of_counts_follows_the_size_that_is_nearest_in_ratio(tmp_path: Path) -> None:
    """A shape of 24 KiB has one count. 4 KiB, which need four SMs, are nearer in bytes than 64 KiB, which need two."""
    by_number = {16: 1, 256: 2, 4096: 1}
    sizes = {KIB: KIB, 4 * KIB: 4 * KIB, 16 * KIB: 24 * KIB, 64 * KIB: 64 * KIB, 256 * KIB: 256 * KIB}
    resized = [replace(cell, block_bytes=sizes[cell.block_bytes]) for cell in cells()]
    made = [cell for cell in resized if cell.block_bytes != 24 * KIB or cell.sms in (None, by_number[cell.blocks])]

    def rate(cell: Cell) -> float:
        return 5.0 if cell.sms is None else min(50.0, 12.5 * cell.sms * (1 if cell.block_bytes <= 4 * KIB else 2))

    assert texts(rule_at(tmp_path, rate, made)) == [("sm sms=4", (None, 4 * KIB)), ("sm sms=2", (24 * KIB, None))]


def test_counts_are_alike_for_some_sizes_where_they_are_at_each(tmp_path: Path) -> None:
    """Four SMs are as fast as two up to 4 KiB, and lose 20% of larger blocks."""

    def rate(cell: Cell) -> float:
        most = 40.0 if cell.sms == 4 and cell.block_bytes > 4 * KIB else 50.0
        return 5.0 if cell.sms is None else min(most, 25.0 * cell.sms)

    ((part,),) = rule_at(tmp_path, rate).parts.values()
    assert (str(part.choice), part.counts) == ("sm sms=2", [2])


@pytest.mark.parametrize(("gain", "parts"), [(1.05, 1), (1.3, 2)])
def test_a_split_that_saves_little_is_not_made(tmp_path: Path, gain: float, parts: int) -> None:
    def close(cell: Cell) -> float:
        return 20.0 if cell.backend == "sm" else 20.0 * gain if cell.block_bytes == KIB else 10.0

    assert len(texts(rule_at(tmp_path, close))) == parts


@pytest.mark.parametrize(("loss", "sms"), [(0.04, 1), (0.07, 4)])
def test_the_fewest_sms_are_taken_that_lose_no_more_than_5_percent(tmp_path: Path, loss: float, sms: int) -> None:
    def rate(cell: Cell) -> float:
        return 10.0 if cell.backend == "batched" else 50.0 / (1.0 if cell.sms == 4 else 1 + loss)

    rule = rule_at(tmp_path, rate)
    assert texts(rule) == [(f"sm sms={sms}", (None, None))]
    (counts,) = (part.counts for parts in rule.parts.values() for part in parts)
    assert counts == ([1, 2, 4] if loss < 0.05 else [4])


def test_batched_copies_are_the_answer_where_nothing_is_told_apart_from_them(tmp_path: Path) -> None:
    level = rule_at(tmp_path / "level", lambda cell: 20.0 if cell.backend == "batched" else 20.4)
    assert {text for text, _ in texts(level)} == {"batched order=any"}

    def doubtful(cell: Cell, number: int) -> float:
        return (1.3 if number % 2 else 0.9) if cell.backend == "sm" else 1.0

    visits = synthetic.timed(cells(), lambda cell, number: cell.swap_bytes / 20e3 / doubtful(cell, number), 0.02)
    noisy = synthetic.loaded(tmp_path / "noisy", [*synthetic.ceilings(), *visits])
    assert {text for text, _ in texts(advice_of([noisy]).alone.rule)} == {"batched order=any"}
    assert any(line.startswith("No method is told apart from batched: h2d idle.") for line in summary([noisy]))


def test_a_cost_is_judged_on_rounds_that_did_not_choose(tmp_path: Path) -> None:
    """Of twelve equal methods the luckiest is the fastest; in other rounds it gains nothing."""
    made = [cell for cell in cells() if cell.blocks == 256]
    equals = [replace(cell, sms=sms) for cell in made if cell.sms == 1 for sms in range(1, 13)]
    batched = [cell for cell in made if cell.backend == "batched"]
    rule = rule_at(tmp_path, lambda cell: 5.0 if cell.backend == "batched" else 40.0, equals + batched, noise=0.2)
    costs = costs_of(rule)
    assert len(costs) == len(SIZES)
    assert -0.02 < sum(costs.values()) / len(costs) < 0.01


@pytest.mark.parametrize(("best", "stands", "measured"), [(4, 2, {1, 2}), (2, 1, {1, 4}), (4, 1, {1})])
def test_a_size_takes_a_count_that_was_measured_there(
    tmp_path: Path, best: int, stands: int, measured: set[int]
) -> None:
    made = [cell for cell in cells() if cell.block_bytes != 16 * KIB or cell.sms in {None, *measured}]
    rates = {best: 45.0, stands: 40.0}
    rule = rule_at(tmp_path, lambda cell: rates.get(cell.sms or 0, 5.0), made)
    assert texts(rule) == [
        (f"sm sms={best}", (None, 4 * KIB)),
        (f"sm sms={stands}", (16 * KIB, 16 * KIB)),
        (f"sm sms={best}", (64 * KIB, None)),
    ]


MANY_COUNTS = (16, 64, 256, 1024, 10_000)


def at_counts(*counts: int) -> list[Cell]:
    """Return the cells of swaps of these numbers of blocks of 16 KiB."""
    of_size = [cell for cell in cells() if (cell.blocks, cell.block_bytes) == (16, 16 * KIB)]
    return [replace(cell, blocks=blocks) for blocks in counts for cell in of_size]


def two_sms_for_large(cell: Cell) -> float:
    """Two SMs lose 2% of large swaps, and 20% of others."""
    lost = {1: 0.5, 2: 0.98 if cell.blocks >= 1024 else 0.8}
    return 5.0 if cell.backend == "batched" else 50.0 * lost.get(cell.sms or 0, 1.0)


def test_a_kernel_takes_fewer_sms_from_a_number_of_blocks_on(tmp_path: Path) -> None:
    run = run_of(tmp_path, two_sms_for_large, at_counts(*MANY_COUNTS))
    (parts,) = advice_of([run]).alone.rule.parts.values()
    assert [(str(part.choice), part.blocks, part.counts) for part in parts] == [
        ("sm sms=4", (None, 256), [4]),
        ("sm sms=2", (1024, None), [2, 4]),
    ]
    (table,) = advice_of([run]).policy().tables
    chosen = {blocks: str(table.choose(blocks, 16 * KIB)) for blocks in MANY_COUNTS}
    assert chosen == {16: "sm sms=4", 64: "sm sms=4", 256: "sm sms=4", 1024: "sm sms=2", 10_000: "sm sms=2"}
    assert state_table(advice_of([run])).rows[0][2] == "sm: 4 SMs up to 256 blocks, 2 SMs from 1024 blocks"


def test_a_kernel_takes_more_sms_up_to_a_number_of_blocks_where_that_surely_saves_time(tmp_path: Path) -> None:
    """Two SMs lose 9% of swaps of 64 blocks or fewer: 4% on average, so that they are as good as four over all."""

    def rate(cell: Cell) -> float:
        lost = {None: 0.1, 1: 0.5, 2: 0.91 if cell.blocks <= 64 else 0.99}
        return 50.0 * lost.get(cell.sms, 1.0)

    (parts,) = rule_at(tmp_path, rate, at_counts(*MANY_COUNTS)).parts.values()
    assert [(part.choice.sms, part.blocks) for part in parts] == [(4, (None, 64)), (2, (256, None))]


def test_a_count_that_was_measured_at_large_swaps_alone_does_not_stand_for_small_ones(tmp_path: Path) -> None:
    """A ladder of SM counts adds large swaps, at which three SMs suffice: that decides nothing of small ones."""
    three = [replace(cell, sms=3) for cell in at_counts(5000, 10_000, 50_000) if cell.sms == 1]
    made = [*at_counts(*MANY_COUNTS), *three, *at_counts(5000, 50_000)]
    (parts,) = rule_at(tmp_path, two_sms_for_large, made).parts.values()
    assert [(str(part.choice), part.blocks) for part in parts] == [
        ("sm sms=4", (None, 256)),
        ("sm sms=2", (1024, None)),
    ]


def test_a_count_that_no_shape_has_beside_another_is_the_default_rule(tmp_path: Path) -> None:
    """Small swaps have four SMs, others two: fewer may stand for more, but decide nothing between them."""
    by_rule = [cell for cell in cells() if cell.sms in (None, 4 if cell.blocks == 16 else 2)]
    run = run_of(tmp_path, crossing, by_rule)
    rule = advice_of([run]).alone.rule
    (low, high) = next(iter(rule.parts.values()))
    assert (str(low.choice), low.label) == ("sm", "sm (2 to 4 SMs, default rule)")
    assert str(high.choice) == "batched order=any"
    assert {rule.choices[one].sms for one in low.shapes} == {2, 4}
    (table,) = advice_of([run]).policy().tables
    assert {table.choose(blocks, 4 * KIB) for blocks in COUNTS} == {Choice("sm")}


def test_a_method_that_failed_or_is_not_allowed_is_not_chosen(tmp_path: Path) -> None:
    failed = [synthetic.failure(cell) for cell in cells() if cell.sms == 2]
    run = run_of(tmp_path, crossing, None, 0.001, *failed)
    small = {str(choice) for one, choice in advice_of([run]).alone.rule.choices.items() if one.shape.block_bytes == KIB}
    assert small == {"sm sms=4"}
    batched = [cell for cell in cells() if cell.backend == "batched"]
    skipped = [synthetic.skip(cell, "no GPU") for cell in cells() if cell.sms]
    with pytest.raises(UsageError, match="batched alone was measured"):
        shapes_of([run_of(tmp_path / "skipped", crossing, batched, 0.001, *skipped)], lambda _: True)
    limited = rule_of(shapes_of([run], lambda choice: choice.sms <= 1))
    assert {str(choice) for one, choice in limited.choices.items() if one.shape.block_bytes == KIB} == {"sm sms=1"}


@pytest.mark.parametrize(("times", "decided"), [(6.0, True), (1.2, False)])
def test_two_runs_with_a_backend_each_are_compared_by_more_than_starts_differ(
    tmp_path: Path, times: float, decided: bool
) -> None:
    """Starts differ by half at most; no round has both, and that makes nothing equal."""
    copies, kernels = ([cell for cell in cells() if (cell.sms is None) is of_copies] for of_copies in (True, False))
    runs = [run_of(tmp_path / "copies", lambda _: 5.0, copies), run_of(tmp_path / "sm", lambda _: 5.0 * times, kernels)]
    (part,) = (part for parts in advice_of(runs).alone.rule.parts.values() for part in parts)
    assert str(part.choice) == ("sm sms=1" if decided else "batched order=any")
    assert [other.backend for other in part.pick.compared] == ["batched" if decided else "sm"]
    assert bool(part.pick.open) is not decided
    answers = answers_of(shapes_of(runs, lambda _: True))
    assert {answer.decided for answer in answers} == {decided}
    undecided = f"{0 if decided else len(answers)} of {len(answers)} shapes undecided"
    assert any(undecided in line for line in summary(runs))
    assert decided or any("batched, undecided against sm" in line for line in summary(runs))
    (table, *_) = part_of(report_of(runs), "answer").tables
    assert re.search(r"runs copies-run \(\w+\), sm-run \(", plain(table.caption))


def arms_with(**visits: tuple[int, float]) -> KeptArms:
    """Return a shape where each method, by its backend and SM count, has a number of visits of some microseconds."""
    arms = {}
    for name, (count, us) in visits.items():
        backend, _, sms = name.rpartition("_")
        arms[Choice(backend, (("sms", sms),))] = dict.fromkeys(range(count), us)
    return KeptArms(arms, Measured(SwapShape(Direction.H2D, IDLE, 64, 16 * KIB), arms, arms))


@pytest.mark.parametrize(
    ("shapes", "chosen"),
    [
        ([arms_with(sm_4=(6, 3.0), sm_2=(6, 1.0))] * 2 + [arms_with(sm_4=(6, 3.0))] * 2, "sm sms=4"),
        ([arms_with(sm_4=(6, 3.0), sm_2=(6, 1.0))] * 2, "sm sms=2"),
        ([arms_with(sm_4=(6, 3.0), triton_4=(2, 1.0))], "sm sms=4"),
        ([arms_with(sm_4=(6, 3.0), triton_4=(5, 1.0))], "triton sms=4"),
        ([arms_with(sm_4=(6, 1.0), triton_2=(6, 1.0))], "triton sms=2"),
        # They leave everything open, and the simpler of two kernels could be twice as slow.
        ([arms_with(sm_4=(3, 2.0), triton_4=(3, 1.0))], "triton sms=4"),
    ],
    ids=["at few shapes", "at all", "dropped by a search", "five visits", "equal, with fewer SMs", "too few visits"],
)
def test_a_method_is_chosen_by_what_was_measured_of_it_at_enough_shapes_and_by_enough_visits(
    shapes: Sequence[KeptArms], chosen: str
) -> None:
    assert str(pick(shapes).choice) == chosen


def test_methods_that_no_shape_has_both_of_are_open() -> None:
    made = pick([arms_with(sm_4=(6, 1.0), triton_4=(6, 9.0)), arms_with(sglang_jit_4=(6, 1.0), vllm_triton_4=(6, 9.0))])
    assert made.choice.backend == "sm"
    assert {other.backend for other in made.open} == {"sglang_jit", "vllm_triton"}
    assert [other.backend for other, compared in made.compared.items() if compared] == ["triton"]
    few = pick([arms_with(sm_4=(3, 2.0), triton_4=(3, 1.0))])
    assert [other.backend for other in few.open] == ["sm"], "it is not decided"


def test_the_time_of_the_thread_is_the_median_of_the_runs(tmp_path: Path) -> None:
    made = [cell for cell in cells() if (cell.blocks, cell.block_bytes) == (256, 4 * KIB) and cell.sms in (None, 2)]
    runs = []
    for us in (10.0, 90.0, 20.0):
        visits = [synthetic.with_samples(visit, {"caller_us": [us] * 5}) for visit in synthetic.rounds(made, crossing)]
        runs.append(synthetic.loaded(tmp_path / f"{us:.0f}", visits))
    (measured,) = shapes_of(runs, lambda _: True)
    assert {*measured.caller_us.values()} == {20.0}


@pytest.mark.parametrize(
    ("shapes", "typical"),
    [
        # Of 64 blocks of 32 KiB: three times the blocks are nearer than half the block size.
        ([(64, 16), (192, 32), (1024, 16), (1200, 32)], [(192, 32), (1200, 32)]),
        # The large swap has the block size of the small one.
        ([(64, 16), (1024, 16), (4096, 32)], [(64, 16), (1024, 16)]),
        # Where the choice, two SMs, was measured: not at 64 blocks of 32 KiB, but at fewer.
        ([(16, 32), (64, 32), (80, 32), (1024, 32)], [(80, 32), (1024, 32)]),
    ],
)
def test_a_small_and_a_large_swap_of_usual_blocks_stand_for_a_kind(
    tmp_path: Path, shapes: Sequence[tuple[int, int]], typical: Sequence[tuple[int, int]]
) -> None:
    one_shape = [cell for cell in cells() if (cell.blocks, cell.block_bytes) == (16, KIB)]
    every = [replace(cell, blocks=blocks, block_bytes=kib * KIB) for blocks, kib in shapes for cell in one_shape]
    made = [cell for cell in every if (cell.blocks, cell.block_bytes, cell.sms) != (64, 32 * KIB, 2)]
    rule = rule_at(tmp_path, lambda cell: min(50.0, 25.0 * cell.sms) if cell.sms else 5.0, made)
    (kind,) = rule.parts
    stand = [(measured.shape.blocks, measured.shape.block_bytes // KIB) for measured in typical_shapes(rule, kind)]
    assert stand == typical


def test_fresh_visits_alone_say_what_a_choice_gains() -> None:
    """Those that chose the winner flatter it."""
    one, other = Choice("batched"), Choice("sm", (("sms", "2"),))
    shape = SwapShape(Direction.H2D, IDLE, 64, 16 * KIB)
    decided, fresh = ({one: dict.fromkeys(range(6), 100.0), other: dict.fromkeys(range(6), us)} for us in (50.0, 80.0))
    searched, swept = Measured(shape, decided, decided, fresh), Measured(shape, decided, decided)
    assert searched.us_of(one) / searched.us_of(other) == pytest.approx(1.25)
    assert swept.us_of(one) / swept.us_of(other) == pytest.approx(2)
    longer = replace(swept, methods={**decided, one: decided[one] | dict.fromkeys(range(6, 99), 300.0)})
    assert (longer.us_of(one), longer.us_of(one, other)) == (300, 100), "of the rounds that have both"


def test_what_copies_nothing_is_no_second_backend(tmp_path: Path) -> None:
    copies = [cell for cell in cells() if cell.backend == "batched"]
    run = run_of(tmp_path, crossing, [*copies, *(replace(cell, backend="empty", order=None) for cell in copies)])
    with pytest.raises(UsageError, match="batched alone was measured"):
        shapes_of([run], lambda _: True)


def test_a_method_with_another_order_of_access_stands_for_none() -> None:
    either, fewer = Choice("batched", (("order", "any"),)), Choice("sm", (("sms", "2"),))
    made = {Choice("batched", (("order", "stream"),)): {0: 1.0}, fewer: {0: 1.0}}
    measured = Measured(SwapShape(Direction.H2D, IDLE, 64, 16 * KIB), made, made)
    assert measured.standing_for(either) is None
    counts = {text: measured.standing_for(Choice.parse(text)) for text in ("sm sms=4", "sm sms=1", "sm")}
    assert counts == {"sm sms=4": fewer, "sm sms=1": None, "sm": fewer}, "the default rule has the fewest"


def test_a_line_over_tokens_begins_at_no_negative_time_and_within_what_was_measured(tmp_path: Path) -> None:
    """Of llama-3-8b, 128 blocks of 16 KiB are 16 tokens."""
    places = {"reuse": Reuse.FRESH, "pool_bytes": 1 << 30}
    shapes = [(Direction.H2D, blocks, 16 * KIB) for blocks in (150, 700, 3001)]
    copies = [Cell("batched", *shape, order=Order.ANY, **places) for shape in shapes]
    kernels = [Cell("sm", *shape, sms=1, **places) for shape in shapes]
    run = run_of(tmp_path, lambda cell: cell.swap_bytes / (0.01 * cell.blocks**1.5) / 1e3, [*copies, *kernels])
    asked: ModelChoice = convert({"models": ["llama-3-8b"], "tokens": 375}, ModelChoice)
    (line,) = advice_of([run], Question(swaps=asked.swaps(), prefill_tokens_per_s=1e5)).models.lines
    assert (line.us, line.tokens) == (0, (19, 375))
    # The least relative errors through zero, where each number of blocks has another time per token: 1, 2.1 and 4.4 us.
    assert (line.us_per_token, line.error) == (pytest.approx(1.605, rel=0.005), pytest.approx(0.638, abs=0.005))
    moved = msgspec.structs.replace(line, us=400.0, us_per_token=2.0)
    assert [moved.tokens_within(ms) for ms in (0.1, 1, 5)] == [0, 300, 2300]
    hits = [line.beside_prefill(1e5, tokens).hit for tokens in (375, 376)]
    assert [isinstance(hit, Hit) and hit.extrapolated for hit in hits] == [False, True]
    # A prefill of 10 us a token takes as long as this load at 20 tokens.
    equal_at_20 = msgspec.structs.replace(line, us=100.0, us_per_token=5.0)
    assert equal_at_20.beside_prefill(1e5, 20).faster_than_prefill_from_tokens == 21


def test_of_too_few_visits_a_slow_one_counts_for_nothing() -> None:
    """A disturbance only slows: the lower middle of a few visits is nearer to what a swap takes."""
    for visits, us in (([10.0, 30.0], 10.0), ([30.0, 10.0, 11.0, 40.0], 11.0), ([10.0] * 3 + [30.0] * 3, 20.0)):
        assert typical(visits) == us


def test_the_answer_is_a_table_of_directions_and_states(tmp_path: Path) -> None:
    """States with one choice share a row; figures are those of the shapes nearest to a model's swaps."""
    run = run_of(tmp_path, crossing, cells(*Direction, states=(IDLE, SUSTAINED)))
    table = state_table(advice_of([run]))
    assert [row[:2] for row in table.rows] == [["h2d", "idle, sustained"], ["d2h", "idle, sustained"]]
    assert table.rows[0][2] == "sm (2 SMs) up to 16 KiB; batched from 64 KiB"
    assert table.header[3:7] == ["16 x 16 KiB, us", "batched", "256 x 16 KiB, us", "batched"]
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert row["of ceiling"] == "90%"
    small, batched = (float(text.split(" to ")[0]) for text in table.rows[0][3:5])
    assert (small, batched) == pytest.approx((16 * 16 * KIB / 50e3, 16 * 16 * KIB / 5e3), rel=0.02)
    uneven = [cell for cell in cells(*Direction) if cell.direction is Direction.H2D or cell.blocks == 16]
    run = run_of(tmp_path / "uneven", crossing, uneven)
    assert state_table(advice_of([run])).rows[1][5:7] == ["-", "-"], "no large swap"


def test_an_engine_is_compared_by_what_it_takes_at_every_shape(tmp_path: Path) -> None:
    """Its kernel with 12 SMs for small blocks of h2d, its batched copy for all else."""

    def rate(cell: Cell) -> float:
        return {"vllm_batch": 25.0, "vllm_triton": 10.0}.get(cell.backend, 50.0 if cell.sms else 5.0)

    both = cells(*Direction)
    copies = [replace(cell, backend="vllm_batch") for cell in both if cell.backend == "batched"]
    kernels = [replace(cell, backend="vllm_triton", sms=12) for cell in both if cell.sms == 1]
    records = [*synthetic.ceilings(), *synthetic.rounds([*both, *copies, *kernels], rate, noise=0.001)]
    run = synthetic.loaded(tmp_path / "run", records, synthetic.info(backends=[VLLM]))
    of_vllm = {gain.kind.direction: gain for gain in advice_of([run]).alone.gains if gain.over == "vllm"}
    assert sorted(of_vllm[Direction.D2H].ratios) == pytest.approx([2.0] * 15, rel=0.01)
    assert sorted(of_vllm[Direction.H2D].ratios) == pytest.approx([2.0] * 6 + [5.0] * 9, rel=0.01)
    plain = of_vllm[Direction.H2D].to_plain()["times_as_fast"]
    assert plain == {name: pytest.approx(times, rel=0.01) for name, times in (("median", 5), ("low", 2), ("high", 5))}
    (line,) = (line for line in summary([run]) if line.startswith("Against engines' code"))
    assert line.endswith(": vLLM d2h idle 2x (2x, 15 shapes), h2d idle 5x (2x to 5x, 15 shapes)")


def test_a_store_that_is_not_the_default_of_its_engine_is_named(tmp_path: Path) -> None:
    both = cells(*Direction)
    kernels = [replace(cell, backend="sglang_jit", sms=4) for cell in both if cell.sms == 1]
    quota = EngineSetting("TMA_BLOCK_QUOTA", 4, "hicache.py:1")
    facts = BackendFacts("sglang_jit", "", frozenset({"sms"}), default_sms=(), settings=(quota,))
    records = [
        *synthetic.ceilings(),
        *synthetic.rounds([*both, *kernels], lambda cell: 10.0 if cell.sms == 4 else 50.0),
    ]
    run = synthetic.loaded(tmp_path / "run", records, synthetic.info(backends=[facts]))
    caption = state_table(advice_of([run])).caption
    assert "SGLang: the method it takes there. SGLang d2h: its kernel (layer_first)." in caption
    (line,) = (line for line in summary([run]) if line.startswith("Against engines' code"))
    assert "SGLang d2h idle against its kernel (layer_first) 5x" in line
    assert ", h2d idle 5x" in line
    stores = [replace(cell, backend="sglang_store", sms=None) for cell in both if cell.sms == 1]
    records = [*synthetic.ceilings(), *synthetic.rounds([*both, *stores], lambda cell: 50.0 if cell.sms else 10.0)]
    run = synthetic.loaded(tmp_path / "store", records, synthetic.info(backends=[replace(facts, name="sglang_store")]))
    assert "layer_first" not in str([*summary([run]), state_table(advice_of([run])).caption])
    assert "SGLang d2h idle 5x" in " ".join(summary([run]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--backends", "zzz"], "--backends zzz: these runs measured only batched, sm"),
        (["--backends", "sm", "--max-sms", "0"], "nothing to choose from: no swap was measured with the allowed"),
        (
            ["--model", "llama-3-8b", "--prefill-tokens-per-second", "0"],
            "--prefill-tokens-per-second 0: must be from 1",
        ),
        (["--prefill-tokens-per-second", "9000"], "--prefill-tokens-per-second: tokens are those of a model"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, options: list[str], message: str) -> None:
    assert refused("show", run_of(tmp_path, crossing).path, *options, cwd=tmp_path).startswith(message)


def test_a_gain_over_an_engine_is_of_the_run_that_measured_both(tmp_path: Path) -> None:
    """Another run has the SM count that is the choice; its rates are of another start."""
    both = [cell for cell in cells() if cell.blocks == 256]
    shipped = [replace(cell, backend="vllm_batch") for cell in both if cell.backend == "batched"]
    with_engine = [cell for cell in both if cell.sms in (None, 1)] + shipped
    others = [cell for cell in both if cell.sms != 1]
    rates = {"vllm_batch": 10.0, "batched": 5.0}
    runs = [
        synthetic.loaded(
            tmp_path / name,
            synthetic.rounds(made, lambda cell, sm=sm: rates.get(cell.backend, sm), noise=0.001),
            synthetic.info(backends=[VLLM]),
        )
        for name, made, sm in (("engine", with_engine, 20.0), ("other", others, 45.0))
    ]
    gains = [gain for gain in advice_of(runs).alone.gains if gain.over == "vllm"]
    assert [ratio for gain in gains for ratio in gain.ratios] == pytest.approx([2.0] * 2, rel=0.01), "where it copies"


def test_a_gain_is_of_the_shapes_where_the_choice_is_another_method(tmp_path: Path) -> None:
    (gain,) = (gain for gain in advice_of([run_of(tmp_path, crossing)]).alone.gains if gain.over == "batched")
    assert gain.ratios == [pytest.approx(10, rel=0.01)] * 3 * len(COUNTS), "not from 64 KiB on"


def test_the_policy_is_the_rule_of_what_auto_can_run(tmp_path: Path) -> None:
    made = cells() + [replace(cell, backend="triton", sms=12) for cell in cells() if cell.sms == 1]
    run = run_of(tmp_path, lambda cell: 80.0 if cell.backend == "triton" else crossing(cell), made)
    assert "h2d alone: triton (12 SMs)" in " ".join(summary([run]))
    file = tmp_path / "policy.toml"
    assert "triton" not in output("show", run.path, "--policy", file).partition("Medians")[0]
    (table,) = load_policy(file).tables
    for size in SIZES:
        assert str(table.choose(1000, size)) == ("batched order=any" if size >= 64 * KIB else "sm sms=2")


def test_a_policy_has_the_ceiling_of_which_a_pace_is_a_share(tmp_path: Path) -> None:
    paced = [replace(cell, pace="85%" if cell.sms else "none") for cell in cells() if cell.sms in (None, 2)]
    file = tmp_path / "policy.toml"
    run = run_of(tmp_path, lambda cell: 5.0 * (cell.sms or 1), paced)
    output("show", run.path, "--policy", file)
    made = load_policy(file)
    (table,) = made.tables
    assert str(table.choose(1000, 4096)) == "sm sms=2 pace=85%"
    assert dict(made.choose(table, 1000, 4096).axes)["pace"] == f"{round(0.85 * synthetic.CEILING_GBPS, 2):g}GB/s"


def test_show_and_the_report_give_the_same_answer(tmp_path: Path) -> None:
    run = run_of(tmp_path, crossing)
    output("report", run.path)
    page = (run.path / "report" / "report.md").read_text().replace("**", "").replace("\N{NO-BREAK SPACE}", " ")
    shown = output("show", run.path)
    assert all(cell in page and cell in shown for row in rows_of(advice_of([run]).answers) for cell in row)


@pytest.mark.parametrize(
    ("thread_us", "of_8192"),
    [(lambda blocks: blocks / 8, 8192 / 8), (lambda blocks: 1000 - blocks / 8, 1000 - 4096 / 8)],
)
def test_a_model_is_answered_from_the_nearest_shapes_in_its_unit(
    tmp_path: Path, thread_us: Callable[[int], float], of_8192: float
) -> None:
    run = run_of(tmp_path, crossing)
    timed = []
    for visit in run.visits:
        us = thread_us(visit.cell.blocks) * (1 if visit.cell.block_bytes == 16 * KIB else 3)
        timed.append(synthetic.with_samples(visit, {"caller_us": [us] * len(visit.samples)}))
    run = synthetic.loaded(tmp_path / "timed", [*synthetic.ceilings(), *timed])
    (load,) = json.loads(output("show", run.path, "--model", "llama-3-8b", "--json"))["models"]
    assert (load["tokens"], load["blocks"], load["block_bytes"]) == (2048, 8192, 32 * KIB)
    assert (load["choice"], load["sms"]) == ("sm sms=2", 2)
    assert load["measured"] == {"block_bytes": 16 * KIB, "blocks": 4096}
    assert load["us"] == pytest.approx(8192 * 32 * KIB / 50e3, rel=0.01)
    assert load["caller_us"] == pytest.approx(of_8192)  # twice the blocks of the largest swap
    shown = output("show", run.path, "--model", "llama-3-8b")
    assert ("\n\nllama-3-8b, 2048 tokens: 8192 blocks of 32 KiB\n" in shown, "groups" in shown) == (True, False)


def test_a_model_of_several_groups_takes_what_all_its_bytes_take(tmp_path: Path) -> None:
    """Rows of 576 elements and of an index, each at 50 GB/s."""
    run, token_bytes = run_of(tmp_path, lambda cell: 50.0 if cell.sms else 5.0), 92_628
    asked: ModelChoice = convert({"models": ["glm-5.2@tokens512", "glm-5.2@tokens64"]}, ModelChoice)
    models = advice_of([run], Question(swaps=asked.swaps())).models
    for (swap, groups, times_us), tokens in zip(models.totals, (512, 64), strict=True):
        assert (swap.tokens, groups) == (tokens, 2)
        assert [*times_us.values()] == [pytest.approx(tokens * token_bytes / 50e3, rel=0.01)]
    ((largest, prompt_gb),) = models.prompts
    assert (largest.tokens, prompt_gb) == (512, pytest.approx(8192 * token_bytes / 1e9))
    (line,) = models.lines
    assert (line.us_per_token, line.measured) == (pytest.approx(token_bytes / 50e3, rel=0.01), [])


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
    lines = json.loads(output("show", run.path, *asked, "--json"))["token_lines"]
    msgspec.convert(lines, list[TokenLine])
    assert {(line["direction"], line["pause"]) for line in lines} == set(product(("h2d", "d2h"), ("0", "5ms")))
    by_call = {line["pause"]: line for line in lines if line["direction"] == "h2d"}
    for pause, start in (("0", 10), ("5ms", 110)):
        line = by_call[pause]
        assert (line["us"], line["us_per_token"]) == (pytest.approx(start, rel=0.02), pytest.approx(4, rel=0.01))
        assert line["error"] is None if pause == "5ms" else line["error"] < 0.02
        assert line["measured"] == ([32, 512] if pause == "5ms" else [32, 128, 512])
        assert line["faster_than_prefill_from_tokens"] == pytest.approx(start / (5 - 4), abs=2 + start / 20)
    shown = " ".join(output("show", run.path, *asked).split())
    assert "measured at 32, 128, 512, within " in shown
    assert "cold call, after 5ms of other work: loading is faster than prefill at 200000 tokens/s from 1" in shown
    assert shown.count("extrapolated: at most 512 tokens") == 2
    never = output("show", run.path, *asked[:2], "--prefill-tokens-per-second", "300000")
    assert "loading is never faster than prefill at 300000 tokens/s" in " ".join(never.split())


def run_with_runs(folder: Path, rate: Rate, shuffled: Sequence[Cell]) -> Run:
    """Return a run of shuffled blocks, and of blocks in runs of 8 and of 32 by the kernel and merged copies."""
    ways = [replace(cell, backend="merged") if cell.backend == "batched" else cell for cell in shuffled]
    in_runs = [replace(cell, pattern=Pattern("runs", length)) for cell in ways for length in (8, 32)]
    return run_of(folder, rate, [*shuffled, *(cell for cell in in_runs if cell.sms in (None, 2))])


@pytest.mark.parametrize(("from_blocks", "named"), [(8, 8), (32, 32), (64, None)])
def test_the_answer_says_from_which_runs_on_merged_copies_would_be_the_choice(
    tmp_path: Path, from_blocks: int, named: int | None
) -> None:
    def rate(cell: Cell) -> float:
        if cell.backend != "merged" or cell.pattern.run < from_blocks or cell.direction is Direction.D2H:
            return crossing(cell) / 2
        return 53.0 if cell.blocks == 16 else 54.0

    run = run_with_runs(tmp_path, rate, cells(*Direction))
    found = [line for line in summary([run]) if line.startswith("In contiguous runs of at least")]
    assert found == (
        [f"In contiguous runs of at least {named} blocks (h2d): merged, 53 to 54 GB/s, no SMs"] if named else []
    )
    plain = json.loads(output("show", run.path, "--json"))["merged_in_runs"]
    assert plain == ({"h2d": {"from_blocks": named, "gbps": pytest.approx([53, 54], abs=0.4)}} if named else {})


@pytest.mark.parametrize(
    "wins",
    [
        lambda cell: (cell.blocks, cell.block_bytes, cell.stream_state) == (16, KIB, IDLE),
        lambda cell: cell.pattern.run == 8 and cell.stream_state is SUSTAINED,
        lambda _: True,
    ],
    ids=["at one shape alone", "behind others alone", "of shuffled blocks too"],
)
def test_merged_copies_are_not_named_for_runs_where_they_are_no_other_choice(
    tmp_path: Path, wins: Callable[[Cell], bool]
) -> None:
    def rate(cell: Cell) -> float:
        return 54.0 if cell.backend == "merged" and wins(cell) else crossing(cell) / 2

    shuffled = cells(states=(IDLE, SUSTAINED))
    shuffled += [replace(cell, backend="merged") for cell in shuffled if cell.backend == "batched"]
    run = run_with_runs(tmp_path, rate, shuffled)
    assert not any("In contiguous runs" in line for line in summary([run]))


def test_a_policy_is_as_new_as_the_newest_of_its_runs(tmp_path: Path) -> None:
    times = ("2026-03-02T10:00:00+00:00", "2026-01-02T10:00:00+00:00")
    runs = [
        synthetic.loaded(tmp_path / time[:7], synthetic.rounds(cells(), crossing), synthetic.info(created=time))
        for time in times
    ]
    assert advice_of(runs).policy().made == advice_of(runs[::-1]).policy().made == times[0]


def test_the_table_and_what_is_open_are_printed_on_request(tmp_path: Path) -> None:
    run = run_of(tmp_path, crossing)
    *_, alike, header, _ = output("show", run.path, "--table").splitlines()[:5]
    assert alike.startswith("Not told apart: within 3%")
    assert "Thread us" in header
    rows = output("show", run.path, "--table").splitlines()[4:]
    assert len(rows) == len(SIZES) * len(COUNTS)
    assert output("show", run.path, "--open").endswith("in another run\n  nothing\n")
    noisy = run_of(tmp_path / "noisy", lambda cell: 20.0 if cell.sms else 19.5, noise=0.5)
    assert re.search(r"h2d idle, \d+ x \d+ KiB: batched, or sm", output("show", noisy.path, "--open"))
    assert "add --open to this command" in " ".join(output("show", noisy.path).split())


@pytest.mark.parametrize(("api", "batched"), [("13.0", "batched order=any"), ("13.1", "batched order=any overlap=on")])
def test_with_a_limit_of_sms_no_copy_is_chosen_that_the_driver_may_make_with_sms(
    tmp_path: Path, api: str, batched: str
) -> None:
    flagged = [replace(cell, overlap=True) for cell in cells() if cell.backend == "batched"]
    records = synthetic.rounds(cells() + flagged, lambda cell: 5.0 if cell.sms else 30.0 if cell.overlap else 40.0)
    info = synthetic.info(identity={"cuda_driver_api": api})
    run = synthetic.write_run(tmp_path / "run", records, info)
    (part,) = json.loads(output("show", run, "--max-sms", "0", "--json"))["rule"]
    assert part["choice"] == batched


def test_methods_that_took_turns_share_what_moves_the_machine(tmp_path: Path) -> None:
    """A machine that moves by a half within each visit hides 8% between visits, and nothing between methods in turn."""
    shape = (Direction.H2D, 256, 4 * KIB)
    arms = {Cell("sm", *shape, sms=sms): us for sms, us in ((2, 108.0), (4, 100.0))}
    others = synthetic.timed([Cell("batched", *shape)], lambda *_: 500.0)
    choices = []
    for group in (None, "sms"):
        visits = list(others)
        for number, (cell, us) in product(range(6), arms.items()):
            made = synthetic.visit(cell, us, count=40, noise=0.0, round_=number)
            moved = [us * (1 + 0.5 * ((at // 10 + number + (cell.sms or 0) * (group is None)) % 3)) for at in range(40)]
            visits.append(synthetic.with_samples(made, {"event_us": moved}, group=group and f"{group}-{number}"))
        run = synthetic.loaded(tmp_path / str(group), visits)
        choices.append(str(next(iter(advice_of([run]).alone.rule.choices.values()))))
    assert choices == ["sm sms=2", "sm sms=4"]


def test_swaps_of_several_layouts_are_not_mixed(tmp_path: Path) -> None:
    """The answer is for one of them, and no time of another is in it."""

    def rate(cell: Cell) -> float:
        return 20.0 if cell.backend == "batched" and cell.pattern.run == 32 else crossing(cell)

    ways = [
        replace(cell, backend="merged" if cell.backend == "sm" and cell.sms == 4 else cell.backend) for cell in cells()
    ]
    for kept in (8, 32):
        made = [
            replace(cell, pattern=Pattern("runs", length))
            for length in (8, 32)
            for cell in ways
            if length == kept or cell.blocks < 4096
        ]
        run = run_of(tmp_path / str(kept), rate, made)
        assert f" in the layout runs-{kept} " in summary([run])[1]
        small = [one for one in shapes_of([run], lambda _: True) if one.shape.block_bytes == KIB]
        copies = [one.gbps_of(method) for one in small if (method := one.best_of("batched"))]
        assert copies == pytest.approx([5 if kept == 8 else 20] * len(COUNTS), rel=0.05)
        assert not any("In contiguous runs" in line for line in summary([run])), "the answer is for runs already"


def test_a_shape_at_which_only_more_sms_could_gain_is_decided(tmp_path: Path) -> None:
    """The kernel is the answer either way; not so one that another backend could beat, or that a count did beat."""
    shape = (Direction.H2D, 256, 4 * KIB)

    def answer(other: Cell, name: str, us: float = 98.0) -> ShapeAnswer:
        times = {Cell("batched", *shape): 500.0, Cell("sm", *shape, sms=2): 100.0}
        records = synthetic.timed(times, lambda cell, number: times[cell] * (1 + 0.1 * (number % 3)))
        records += synthetic.timed([other], lambda _, number: us * (1 + 0.1 * (-number % 3)))
        (made,) = answers_of(shapes_of([synthetic.loaded(tmp_path / name, records)], lambda _: True))
        assert made.choice == Choice("sm", (("sms", "2"),))
        assert made.open
        assert "batched" not in {choice.backend for choice in made.others}, "which is clearly slower"
        return made

    assert answer(Cell("sm", *shape, sms=4), "sms").decided
    assert not answer(Cell("sm", *shape, sms=4), "faster", 95.0).decided
    assert not answer(Cell("triton", *shape, sms=4), "methods").decided


@pytest.mark.parametrize(("visits", "decided"), [(5, False), (6, True)])
def test_a_method_alone_at_a_shape_is_decided_by_six_visits(visits: int, decided: bool) -> None:
    (made,) = answers_of([arms_with(sm_4=(visits, 1.0)).measured])
    assert (made.decided, made.measured.interval_of(made.choice) is not None) == (decided, decided)
