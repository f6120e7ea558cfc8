"""A policy fitted to runs whose times come from formulas: crossovers where they belong, and noise decides nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.analysis.compare import Visits, compare_visits
from kvbench.analysis.margins import IN_TURN, TIED
from kvbench.cells.axes import Direction, Order, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.policy import Choice, Policy
from kvbench.errors import UsageError
from kvbench.results import Record, Run, load_run
from kvbench.text import convert
from kvbench.tune.fit import Arms, Point, candidates, contests_of, decide_all, policy_of, typical
from tests import synthetic

KIB = 1024
SIZES = tuple(kib * KIB for kib in (1, 4, 16, 64, 256))
COUNTS = (16, 1024, 10_000)
H2D, IDLE, BUSY = Direction.H2D, StreamState.IDLE, StreamState.BUSY
BATCHED, KERNEL, WIDE, TRITON = map(Choice.parse, ("batched order=any", "sm sms=2", "sm sms=4", "triton sms=12"))
PER_BLOCK = Choice("per_block")


def fit_policy(runs: Sequence[Run]) -> Policy:
    chosen = {
        kind: {point: decision.choice for point, decision in decide_all(times).items()}
        for kind, times in contests_of(candidates(runs)).items()
    }
    return policy_of(runs, chosen)


def cell_of(backend: str, size: int, count: int, state: StreamState = IDLE, sms: int = 2) -> Cell:
    if backend == "sm":
        return Cell(backend, H2D, count, size, state, sms=sms)
    return Cell(backend, H2D, count, size, state, order=Order.ANY, descriptors_per_call=0, overlap=False)


def time_us(cell: Cell) -> float:
    """A batched copy pays for descriptors, a kernel for bytes: they cross between 16 and 64 KiB."""
    if cell.backend == "sm":
        return 10 + cell.swap_bytes / 50e3
    return 10 + 0.5 * cell.blocks + cell.swap_bytes / 100e3


def run_of(folder: Path, records: list[Record], **info: object) -> Run:
    return load_run(synthetic.write_run(folder, records, synthetic.info(**info)))  # type: ignore[arg-type]


def grid(rate: Callable[[Cell], float] = time_us, state: StreamState = IDLE) -> list[Record]:
    cells = [
        cell_of(backend, size, count, state) for backend in ("batched", "sm") for size in SIZES for count in COUNTS
    ]
    return [synthetic.visit(cell, rate(cell), noise=0.0) for cell in cells]


def choice_at(policy: Policy, size: int, count: int, state: StreamState = IDLE) -> Choice | None:
    table = policy.table(H2D, state)
    return None if table is None else table.choose(count, size)


def test_the_crossover_lies_where_the_times_cross(tmp_path: Path) -> None:
    policy = fit_policy([run_of(tmp_path / "run", grid())])
    for count in (1024, 10_000):
        assert [choice_at(policy, size, count) for size in SIZES] == [KERNEL] * 3 + [BATCHED] * 2
    assert policy.device == "Synthetic H200"
    assert policy.driver == "580.159"
    assert policy.runs == ("kvbench sweep configs/cliff.toml",)


def test_each_stream_state_has_its_own_table(tmp_path: Path) -> None:
    def other_way(cell: Cell) -> float:
        return 100.0 if cell.backend == "sm" else 50.0

    policy = fit_policy([run_of(tmp_path / "run", [*grid(), *grid(other_way, BUSY)])])
    assert choice_at(policy, KIB, 10_000) == KERNEL
    assert choice_at(policy, KIB, 10_000, BUSY) == BATCHED


def test_a_failed_cell_is_no_candidate(tmp_path: Path) -> None:
    records = [*grid(), synthetic.failure(cell_of("sm", KIB, 10_000))]
    policy = fit_policy([run_of(tmp_path / "run", records)])
    assert choice_at(policy, KIB, 10_000) == BATCHED
    assert choice_at(policy, 4 * KIB, 10_000) == KERNEL


def test_a_point_of_one_backend_alone_is_left_out(tmp_path: Path) -> None:
    alone: list[Record] = [synthetic.visit(cell_of("batched", 16 * KIB, 100_000), 1.0)]
    policy = fit_policy([run_of(tmp_path / "run", [*grid(), *alone])])
    assert policy.tables[0].blocks == COUNTS


def test_several_runs_of_one_machine_go_together(tmp_path: Path) -> None:
    wide: list[Record] = [synthetic.visit(cell_of("sm", size, 10_000, sms=4), 5.0, noise=0.0) for size in SIZES]
    runs = [run_of(tmp_path / "a", grid()), run_of(tmp_path / "b", wide)]
    policy = fit_policy(runs)
    assert {choice_at(policy, size, 10_000) for size in SIZES} == {WIDE}
    assert choice_at(policy, KIB, 1024) == KERNEL
    assert len(policy.runs) == 2


def test_each_visit_of_several_runs_counts_once(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / name, grid()) for name in ("a", "b")]
    one, both = contests_of(candidates(runs[:1])), contests_of(candidates(runs))
    for kind, points in one.items():
        for point, arms in points.items():
            assert {choice: 2 * len(visits) for choice, visits in arms.items()} == {
                choice: len(visits) for choice, visits in both[kind][point].items()
            }


def test_runs_of_two_machines_are_refused(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / "a", grid()), run_of(tmp_path / "b", grid(), title="Other GPU")]
    with pytest.raises(
        UsageError, match=r"runs must be of one device and driver; these are of Other GPU with driver 580.159;"
    ):
        fit_policy(runs)


def test_a_run_without_a_contest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to choose from: sm alone was measured;"):
        fit_policy([run_of(tmp_path / "run", [synthetic.visit(cell_of("sm", KIB, 16), 1.0)])])


def test_untrusted_text_is_read_back_as_text(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", grid(), title='x"\n[[tables]]\x1b[2J', command=["kvbench", '"""\nrm'])
    policy = fit_policy([run])
    assert policy.device == 'x"\ufffd[[tables]]\ufffd[2J'
    assert convert(msgspec.to_builtins(policy), Policy) == policy


def choose_all(times: dict[Point, Arms]) -> dict[Point, Choice]:
    return {point: decision.choice for point, decision in decide_all(times).items()}


def others_at(arms: Arms) -> set[Choice]:
    return set(decide_all({(KIB, 16): arms})[KIB, 16].others)


def steady(times: dict[Choice, float]) -> dict[Choice, Visits]:
    return {choice: dict.fromkeys(range(6), time) for choice, time in times.items()}


def noisy(time_us: float, noise: float) -> Visits:
    return {number: time_us * (1 + noise * off) for number, off in enumerate((-1.0, 0.7, -0.4, 0.4, -0.7, 1.0))}


def test_of_equals_the_one_with_the_fewest_sms_is_taken_then_the_simplest_way() -> None:
    times = {TRITON: 100.0, WIDE: 100.5, KERNEL: 101.0, PER_BLOCK: 101.4, BATCHED: 101.5}
    for expected in (BATCHED, PER_BLOCK, KERNEL, WIDE, TRITON):
        assert choose_all({(KIB, 16): steady(times)}) == {(KIB, 16): expected}
        del times[expected]


def test_between_equal_ways_the_neighbours_choice_goes_on() -> None:
    off, on = map(Choice.parse, ("batched overlap=off", "batched overlap=on"))
    times = {
        (KIB, 16): steady({off: 100.0, on: 50.0}),
        (KIB, 64): steady({off: 100.0, on: 100.5}),
        (4 * KIB, 64): steady({off: 100.5, on: 100.0}),
        (4 * KIB, 128): steady({off: 90.0, on: 100.0}),
    }
    assert list(choose_all(times).values()) == [on, on, on, off]


def test_what_another_run_could_choose_is_named() -> None:
    clear = steady({KERNEL: 90.0, BATCHED: 100.0})
    equal = steady({KERNEL: 100.0, BATCHED: 100.0})
    at_the_margin = {KERNEL: noisy(100.0, 0.005), BATCHED: dict.fromkeys(range(6), 103.0)}
    noise = {KERNEL: noisy(100.0, 0.2), BATCHED: dict.fromkeys(range(6), 120.0)}
    assert others_at(clear) == set()
    for arms in (equal, at_the_margin, noise):
        decision = decide_all({(KIB, 16): arms})[KIB, 16]
        assert {decision.choice, *decision.others} == {KERNEL, BATCHED}


def test_the_scatter_of_visits_decides_what_another_run_could_choose() -> None:
    """The difference is that of twelve percent in each; what the run itself adds does not reach that far."""
    for noise, expected in ((0.001, set()), (0.1, {BATCHED})):
        assert others_at({KERNEL: noisy(100.0, noise), BATCHED: noisy(115.0, noise)}) == expected


def test_few_visits_leave_more_open_than_a_normal_error_would() -> None:
    few = {choice: dict(list(noisy(us, 0.05).items())[:3]) for choice, us in ((KERNEL, 100.0), (BATCHED, 130.0))}
    assert others_at(few) == {BATCHED}
    assert others_at({KERNEL: noisy(100.0, 0.05), BATCHED: noisy(130.0, 0.05)}) == set()


def test_what_an_interrupted_sweep_visited_once_less_can_be_chosen() -> None:
    arms = {TRITON: dict.fromkeys(range(6), 100.0), KERNEL: dict.fromkeys(range(5), 50.0)}
    assert choose_all({(KIB, 16): arms})[KIB, 16] == KERNEL
    arms[KERNEL] = dict.fromkeys(range(4), 50.0)  # a search dropped it
    assert choose_all({(KIB, 16): arms})[KIB, 16] == TRITON


def test_too_few_visits_do_not_make_everything_possible() -> None:
    assert others_at({KERNEL: {0: 100.0}, BATCHED: {0: 150.0}}) == set()
    assert others_at({KERNEL: {0: 100.0}, BATCHED: {0: 104.0}}) == {BATCHED}


some_arms = st.dictionaries(
    st.sampled_from([BATCHED, KERNEL, WIDE, TRITON]),
    st.tuples(st.floats(1, 1e6), st.floats(0, 0.3)).map(lambda drawn: noisy(*drawn)),
    min_size=1,
)


@given(st.dictionaries(st.tuples(st.sampled_from(SIZES), st.sampled_from(COUNTS)), some_arms, min_size=1))
def test_no_choice_is_more_than_a_little_slower_than_the_fastest(
    times: dict[tuple[int, int], dict[Choice, Visits]],
) -> None:
    chosen = choose_all(times)
    assert set(chosen) == set(times)
    for point, choice in chosen.items():
        chosen_visits = times[point][choice]
        for other in times[point].values():
            if median(other.values()) == min(median(visits.values()) for visits in times[point].values()):
                assert compare_visits(other, chosen_visits, IN_TURN).ratio <= (1 + TIED.fraction) * (1 + 1e-12)


def test_of_too_few_visits_a_slow_one_counts_for_nothing() -> None:
    """A disturbance only slows: the lower middle of a few visits is nearer to what a swap takes."""
    for visits, us in (([10.0, 30.0], 10.0), ([30.0, 10.0, 11.0, 40.0], 11.0), ([10.0] * 3 + [30.0] * 3, 20.0)):
        assert typical(visits) == us
