"""The search of a tuning, on a device that is a formula: few visits, and the choice of a full grid."""

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain, islice
from statistics import mean

import pytest

from kvbench.analysis.compare import MIN_PAIRS
from kvbench.cells.axes import Direction, Order, StreamState
from kvbench.cells.cell import Cell, SwapShape
from kvbench.cells.pattern import Pattern
from kvbench.cells.policy import Choice
from kvbench.models.presets import ModelChoice
from kvbench.sweep.plan import expand
from kvbench.tune.advice import ShapeAnswer, answers_of
from kvbench.tune.candidates import FRESH_FROM, Measured
from kvbench.tune.search import MOST_ROUNDS, Search, trying_overlap, tuning_sweep
from tests import synthetic
from tests.strategies import CPU, CPU_BACKENDS, H200, H200_BACKENDS

KIB = 1024
SIZES = tuple(kib * KIB for kib in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256))
FIRST = tuple(kib * KIB for kib in (1, 4, 16, 64, 256))
COUNTS = (16, 1024)


def cells() -> list[Cell]:
    shapes = [(Direction.H2D, n, size) for n in COUNTS for size in SIZES]
    return [
        cell
        for shape in shapes
        for cell in (
            Cell("batched", *shape, order=Order.ANY),
            *(Cell("sm", *shape, sms=sms) for sms in (1, 2, 4, 8)),
            *(Cell("triton", *shape, sms=sms) for sms in (4, 12, 24)),
        )
    ]


def time_us(cell: Cell) -> float:
    if cell.backend == "batched":
        return 10 + 0.5 * cell.blocks + cell.swap_bytes / 55e3
    width = {"sm": 20e3, "triton": 3e3}[cell.backend]
    return 12 + cell.swap_bytes / min(50e3, width * (cell.sms or 1))


Made = Mapping[Cell, dict[int, float]]


def answers(visits: Made, fresh: Made | None = None) -> list[ShapeAnswer]:
    arms: dict[bool, dict[SwapShape, dict[Choice, dict[int, float]]]] = {False: {}, True: {}}
    for again, made in ((False, visits), (True, fresh or {})):
        for cell, times in made.items():
            arms[again].setdefault(SwapShape.of_cell(cell), {})[Choice.of_cell(cell)] = times
    shapes = [Measured(shape, of, of, arms[True].get(shape, {})) for shape, of in arms[False].items()]
    return answers_of(shapes)


def visited(
    search: Search, us: Callable[[Cell, int], float] = lambda cell, _: time_us(cell), stages: int | None = None
) -> list[tuple[int, Cell, float]]:
    """Visit what a search asks for and return each visit with its time; one that is NaN fails."""
    visits = []
    for number, cell in chain.from_iterable(islice(search.stages(), stages)):
        time = us(cell, number)
        visits.append((number, cell, time))
        if math.isfinite(time):
            search.note(synthetic.visit(cell, time, count=3, noise=0.0, round_=number))
    return visits


def by_cell(visits: Iterable[tuple[int, Cell, float]], *, fresh: bool = False) -> Made:
    made: dict[Cell, dict[int, float]] = {}
    for number, cell, us in visits:
        if (number >= FRESH_FROM) is fresh:
            made.setdefault(cell, {})[number] = us
    return made


def searched(seed: int, noise: float = 0.01, in_time: bool = True) -> tuple[dict[SwapShape, ShapeAnswer], Made]:
    chance = random.Random(seed)
    search = Search(cells(), FIRST, COUNTS, seed, lambda: in_time)
    visits = by_cell(visited(search, lambda cell, _: time_us(cell) * (1 + chance.gauss(0, noise))))
    return {answer.measured.shape: answer for answer in answers(visits)}, visits


def test_the_search_finds_what_the_full_grid_finds() -> None:
    full: dict[SwapShape, list[float]] = {}
    for cell in cells():
        full.setdefault(SwapShape.of_cell(cell), []).append(time_us(cell))
    times = {(SwapShape.of_cell(cell), Choice.of_cell(cell)): time_us(cell) for cell in cells()}
    for shape, answer in searched(0)[0].items():
        assert times[shape, answer.choice] <= 1.05 * min(full[shape])


def test_another_layout_of_some_shapes_is_visited_beside_the_race() -> None:
    """Every way gets the visits of a verdict there, and the race is as it would be without."""
    beside = [replace(cell, pattern=Pattern("runs", 8)) for cell in cells()[:2]]
    search, alone = (Search(candidates, FIRST, COUNTS, 0, lambda: True) for candidates in (cells() + beside, cells()))
    visits = visited(search)
    assert [number for number, cell, _ in visits if cell == beside[0]] == [*range(6)]
    assert [visit for visit in visits if visit[1] not in beside] == visited(alone)
    assert search.expected_visits == alone.expected_visits + 6 * len(beside)


def test_what_may_be_chosen_and_batched_copies_have_six_visits_and_nothing_has_too_many() -> None:
    """The choice is told apart from batched copies, which takes all their visits, however slow they are."""
    found, visits = searched(0)
    finished = {SwapShape.of_cell(cell) for cell, times in visits.items() if len(times) >= MIN_PAIRS}
    assert len(finished) > len(COUNTS)
    for cell, times in visits.items():
        assert len(times) <= MOST_ROUNDS
        if cell.backend == "batched" or found[SwapShape.of_cell(cell)].choice == Choice.of_cell(cell):
            assert len(times) >= MIN_PAIRS


@pytest.mark.parametrize("slow", [{1, 2}, {0, 2, 3}, {1, 3, 4}])
def test_several_slow_visits_drop_nothing_that_was_fast_once(slow: set[int]) -> None:
    search = Search(cells(), FIRST, COUNTS, 0, lambda: True)

    def us(cell: Cell, number: int) -> float:
        return (100.0 if cell.backend == "sm" else 200.0) * (1.25 if cell.sms == 1 and number in slow else 1.0)

    visits = visited(search, us, stages=max(slow) + 2)
    assert 1 in {cell.sms for number, cell, _ in visits if number == max(slow) + 1}


@pytest.mark.parametrize(("counts", "wanted"), [((16,), {16}), ((5,), set(COUNTS))])
def test_sustained_swaps_are_measured_at_a_few_numbers_of_blocks(counts: tuple[int, ...], wanted: set[int]) -> None:
    every = cells()
    every += [replace(cell, stream_state=StreamState.SUSTAINED) for cell in every]
    first = next(Search(every, FIRST, counts, 0, lambda: True).stages())
    visited_counts = {state: {cell.blocks for _, cell in first if cell.stream_state is state} for state in StreamState}
    assert visited_counts[StreamState.IDLE] == set(COUNTS)
    assert visited_counts[StreamState.SUSTAINED] == wanted


@pytest.mark.parametrize(
    ("first", "wanted"),
    [((4 * KIB,), {KIB, 4 * KIB, 256 * KIB}), ((5 * KIB,), set(SIZES)), ((), set(SIZES)), (FIRST, set(FIRST))],
)
def test_the_search_begins_with_some_sizes_and_always_with_both_ends(first: tuple[int, ...], wanted: set[int]) -> None:
    stage = next(Search(cells(), first, COUNTS, 0, lambda: True).stages())
    assert {cell.block_bytes for _, cell in stage} == wanted


def test_the_search_visits_sizes_between_those_where_the_choice_changes() -> None:
    found, _ = searched(0)
    extra = {shape.block_bytes for shape in found} - set(FIRST)
    assert extra
    assert len(extra) < len(SIZES) - len(FIRST)
    late, _ = searched(0, in_time=False)
    assert {shape.block_bytes for shape in late} == set(FIRST)
    for in_time in (True, False):
        _, made = searched(0, noise=0.3, in_time=in_time)
        assert (max(map(len, made.values())) > MIN_PAIRS) == in_time, (
            "what is open gets more than six while there is time"
        )


def test_a_candidate_that_fails_is_dropped() -> None:
    search = Search(cells(), FIRST, COUNTS, 0, lambda: True)
    visits = visited(search, lambda cell, _: math.nan if cell.backend == "sm" else time_us(cell))
    assert {number for number, cell, _ in visits if cell.backend == "sm"} <= {0, 1}


def test_the_interval_of_what_was_chosen_among_equals_holds_the_truth() -> None:
    """The fastest of eleven equal candidates is the one with the luckiest visits; its fresh visits are not."""
    chance, noise = random.Random(0), 0.05
    shapes = [(Direction.H2D, 16, KIB * number) for number in range(1, 21)]
    equals = [Cell("sm", *shape, sms=sms) for shape in shapes for sms in range(1, 12)]
    found: list[ShapeAnswer] = []
    for seed in range(6):
        search = Search([*equals, *(Cell("batched", *shape) for shape in shapes)], (), (), seed, lambda: False)
        visits = visited(
            search, lambda cell, _: (200 if cell.backend == "batched" else 100) * math.exp(chance.gauss(0, noise))
        )
        found += answers(by_cell(visits), by_cell(visits, fresh=True))
    both = [(one, choice) for one in found for choice in (one.choice, Choice("batched"))]
    assert all(len(one.measured.fresh[choice]) >= MIN_PAIRS for one, choice in both)
    intervals = [interval for one in found if (interval := one.measured.interval_of(one.choice))]
    assert len(intervals) == 6 * len(shapes)
    assert mean(low <= 100 <= high for low, high in intervals) >= 0.94
    times = [one.measured.us_of(one.choice) for one in found]
    assert mean(math.log(us / 100) for us in times) == pytest.approx(0, abs=noise / 10)


# What a tuning measures


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt-oss-120b", "deepseek-v3"])
def test_a_tuning_measures_the_swap_of_every_preset(name: str) -> None:
    choice = ModelChoice(models=(name,))
    shapes = {(swap.blocks, swap.block_bytes) for swap in choice.swaps()}
    spec = tuning_sweep(choice, ["direction=h2d"], ["batched", "per_block"])
    for device, backends in ((H200, H200_BACKENDS), (CPU, CPU_BACKENDS)):
        cells = expand(spec, device, backends).cells
        assert {(cell.blocks, cell.block_bytes) for cell in cells} == shapes
        assert {cell.backend for cell in cells} == {"batched", "per_block"}


def test_to_compare_loads_with_prefill_fewer_tokens_and_cold_calls_are_measured_too() -> None:
    choice = ModelChoice(models=("llama-3-8b",), tokens=2048)
    spec = tuning_sweep(choice, ["direction=h2d"], ["batched", "per_block"], by_tokens=True)
    cells = expand(spec, H200, H200_BACKENDS).cells
    assert {cell.blocks for cell in cells} == {8192, 2048, 512}
    calls = {(cell.stream_state.value, cell.pause_us) for cell in cells}
    assert calls == {("idle", 0), ("sustained", 0), ("idle", 5000)}
    named = tuning_sweep(choice, ["pause=2ms", "stream_state=idle"], ["batched"], by_tokens=True)
    assert {cell.pause_us for cell in expand(named, H200, H200_BACKENDS).cells} == {2000}


@pytest.mark.parametrize("driver", [13_000, 13_010])
def test_on_newer_drivers_batched_copies_are_also_measured_with_the_overlap_flag(driver: int) -> None:
    ways = ["batched", "primed", "merged", "per_block", "sm"]
    spec = trying_overlap(tuning_sweep(ModelChoice(), ["blocks=1024"], ways), driver)
    cells = expand(spec, H200, H200_BACKENDS).cells
    expected = {"batched", "merged", "primed"} if driver > 13_000 else set()
    assert {cell.backend for cell in cells if cell.overlap} == expected
    assert "sm" in {cell.backend for cell in cells if cell.pattern.run > 1}
    named = tuning_sweep(ModelChoice(), ["blocks=1024", "overlap=off"], ways)
    assert trying_overlap(named, driver) == named
    kernels = tuning_sweep(ModelChoice(), ["blocks=1024"], ["sm"])
    assert trying_overlap(kernels, driver) == kernels
    on_host = tuning_sweep(ModelChoice(), ["blocks=1024"], ways).with_options(device="cpu")
    assert trying_overlap(on_host, driver) == on_host
