from dataclasses import replace
from itertools import product
from math import inf, isnan
from pathlib import Path
from statistics import median

import msgspec
import pytest

import kvbench
from kvbench.analysis.margins import MIN_P90, MIN_P99
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import Cell
from kvbench.results.outcomes import Outcome, cost_of, hidden_share, neighbour_figures
from kvbench.results.schema import Beside, Disturbance, EffectivePath, Record, Skip
from tests import synthetic
from tests.synthetic import failure, skip, visit, write_run

CELL = Cell("batched", Direction.H2D, 1000, 16 << 10)
BUSY = replace(CELL, stream_state=StreamState.BUSY)


def outcome_of(tmp_path: Path, *records: Record) -> Outcome:
    (outcome,) = kvbench.load_run(str(write_run(tmp_path / "run", records))).outcomes.values()
    return outcome


def test_a_figure_is_the_median_of_the_visits_medians(tmp_path: Path) -> None:
    """Also of visits in turn, whose pairs are of the time of the swap alone."""
    times_us = (50.0, 52.0, 54.0, 56.0, 58.0, 600.0)
    made = [visit(CELL, us, round_=number) for number, us in enumerate(times_us)]
    outcome = outcome_of(tmp_path, *(msgspec.structs.replace(one, group="one") for one in made))
    assert outcome.us("caller_us") == median(median(one.samples.caller_us) for one in made)
    assert outcome.status == "ok"
    assert outcome.us() == pytest.approx(55, rel=0.02)
    assert outcome.gbps == pytest.approx(CELL.swap_bytes / 55e3, rel=0.02)
    assert outcome.interval_us == pytest.approx((50, 600), rel=0.02)
    assert outcome.times() == pytest.approx(dict(enumerate(times_us)), rel=0.02)


@pytest.mark.parametrize(
    ("records", "status", "reason"),
    [
        ([skip(CELL)], "skipped", "does not fit in memory"),
        ([failure(CELL, "lost"), failure(CELL, "lost")], "failed", "error: lost"),
        ([visit(CELL, 50.0), failure(CELL, "lost", "mismatch")], "failed", "mismatch: lost"),
        ([visit(CELL, 50.0, count=0)], "failed", "no reason recorded"),
    ],
)
def test_a_cell_without_figures_says_why(tmp_path: Path, records: list[Record], status: str, reason: str) -> None:
    outcome = outcome_of(tmp_path, *records)
    assert (outcome.status, outcome.reason) == (status, reason)
    assert outcome.made + len(outcome.failures) == sum(not isinstance(one, Skip) for one in records)
    assert isnan(outcome.us())
    assert isnan(outcome.gbps)
    assert not outcome.times()


def test_a_stream_that_was_not_held_leaves_the_thread_its_figure(tmp_path: Path) -> None:
    """A queue measures the submission, whose time every sample has."""
    for cell, status in ((BUSY, "no figure"), (replace(BUSY, queued=64), "ok")):
        made = visit(cell, 50.0)
        ended = msgspec.structs.replace(made.samples, pending_after=[0] * len(made.samples))
        outcome = outcome_of(tmp_path / status, msgspec.structs.replace(made, samples=ended))
        assert outcome.status == status
        assert isnan(outcome.gbps)
        assert outcome.times("caller_us")


def test_outcomes_stand_in_the_order_of_the_table(tmp_path: Path) -> None:
    shapes = product(("sm", "batched"), (1000, 16), (2, 1))
    cells = [replace(CELL, backend=name, blocks=blocks, devices=devices) for name, blocks, devices in shapes]
    run = kvbench.load_run(write_run(tmp_path / "run", [visit(cell, 50.0) for cell in cells]))
    assert [cell.id for cell in run.outcomes] == run.frame()["cell_id"].tolist()
    first = [(cell.backend, cell.blocks, cell.devices) for cell in run.outcomes][:3]
    assert first == [("batched", 16, 1), ("batched", 16, 2), ("batched", 1000, 1)]


@pytest.mark.parametrize(
    ("cell", "has_rate"),
    [
        (CELL, True),
        (replace(CELL, sequence="trace"), False),  # swaps that differ in size
        (replace(CELL, pause_us=2000), False),  # whose time is that of the host
    ],
)
def test_gigabytes_a_second_are_of_swaps_of_one_size_between_events(
    tmp_path: Path, cell: Cell, *, has_rate: bool
) -> None:
    outcome = outcome_of(tmp_path, visit(cell, 50.0))
    assert outcome.us() == pytest.approx(50, rel=0.02)
    assert isnan(outcome.gbps) is not has_rate
    assert not replace(outcome, path=EffectivePath.NOTHING).has_rate


def test_too_few_visits_have_no_interval_and_the_path_of_most_comes_first(tmp_path: Path) -> None:
    paths = ("copy engine", "CPU inline", "copy engine", "SM kernel", "CPU inline", "CPU inline")
    made = [msgspec.structs.replace(visit(CELL, 50.0, round_=at), path=path) for at, path in enumerate(paths)]
    again = msgspec.structs.replace(made[0], attempt=1, disturbed=[Disturbance.STEP])
    made[0] = msgspec.structs.replace(made[0], verified_bytes=0)
    few, all_of_them = outcome_of(tmp_path / "few", *made[:5]), outcome_of(tmp_path / "all", *made, again)
    assert few.verified_bytes == sum(one.verified_bytes for one in made[1:5]) > 0
    assert all(map(isnan, few.interval_us))
    assert all_of_them.path == "CPU inline; copy engine; SM kernel"
    assert (few.made, all_of_them.made, len(all_of_them.attempts)) == (5, 7, 6)


def test_a_visit_of_a_round_that_was_repeated_counts_though_it_was_disturbed(tmp_path: Path) -> None:
    """The ceiling of its round says more than what disturbed it alone."""
    usual, low = synthetic.ceilings()[0], 1.2
    slow = msgspec.structs.replace(usual, round=1, event_us=[usual.event_us[0] * low])
    again = msgspec.structs.replace(visit(CELL, 50.0, round_=1), attempt=3, disturbed=[Disturbance.STEP])
    fast = msgspec.structs.replace(usual, round=1, attempt=3)
    outcome = outcome_of(tmp_path, usual, visit(CELL, 50.0), slow, visit(CELL, 60.0, round_=1), fast, again)
    assert outcome.attempts == {0: 0, 1: 3}


def test_a_time_that_is_mostly_0_is_not_compared() -> None:
    few, many = (Outcome(CELL, "ok", medians={"cpu_us": {0: 0.0, 1: us, 2: 3.0}}) for us in (0.0, 2.0))
    assert (few.times("cpu_us"), many.times("cpu_us")) == ({}, {1: 2.0, 2: 3.0})


def turns(number: int) -> Beside:
    return Beside(
        neighbour_alone_us=[100.0] * 4, neighbour_beside_us=[120.0, 120.0, 120.0, 240.0], swaps_alone_gbps=[50.0],
        swaps_beside_gbps=[10.0 * (number + 1)] * 2 + [900.0], swaps_alone_us=[1000.0 + number],
        swaps_beside_us=[1300.0], one_block_alone_us=[10.0], one_block_beside_us=[12.0 + number],
    )  # fmt: skip


def test_what_a_neighbour_loses_and_what_swaps_lose_beside_it() -> None:
    figures = neighbour_figures([turns(number) for number in range(6)])
    lost_us = [1e6 / 3 / gbps for gbps in (60, 35, 10)]  # a third of the time
    expected = {
        "neighbour_alone_us": 100, "neighbour_beside_us": 150, "neighbour_p50_us": 120, "neighbour_slowdown": 1.5,
        "neighbour_slowdown_low": 1.5, "neighbour_slowdown_high": 1.5, "neighbour_slowdown_median": 1.2,
        "exposure_us_per_gb_low": lost_us[0], "exposure_us_per_gb_high": lost_us[2], "swaps_alone_gbps": 50,
        "swaps_beside_gbps_low": 10, "swaps_beside_gbps": 35, "swaps_beside_gbps_high": 60, "one_block_alone_us": 10,
        "one_block_beside_us": 14.5, "swap_start_delay_us": 4.5, "swap_delay_us": 297.5,
    }  # fmt: skip
    assert {name: figures[name] for name in expected} == pytest.approx(expected)
    assert lost_us[0] < figures["exposure_us_per_gb"] < lost_us[2] / 2
    for count in (MIN_P90 - 1, MIN_P90, MIN_P99 - 1, MIN_P99):
        tails = neighbour_figures([msgspec.structs.replace(turns(0), neighbour_alone_us=[100.0] * count)])
        known = [not isnan(tails[f"neighbour_p{tail}_alone_us"]) for tail in (90, 99)]
        assert known == [count >= MIN_P90, count >= MIN_P99]
    visits = [msgspec.structs.replace(turns(0), neighbour_alone_us=[us]) for us in (100.0, 110.0, 400.0)]
    assert neighbour_figures(visits)["neighbour_alone_us"] == 110
    assert hidden_share(turns(0)) == pytest.approx(0.98)
    assert hidden_share(msgspec.structs.replace(turns(0), swaps_alone_us=[0.0])) is None


@pytest.mark.parametrize(
    "changes",
    [{"neighbour_alone_us": []}, {"swaps_beside_gbps": []}, {"swaps_beside_gbps": [0.0]}, {"neighbour_alone_us": [inf]},
     {"neighbour_beside_us": [0.0]}, {"swaps_beside_gbps": [inf]}, {"neighbour_beside_us": [0.0, 0.0, 1e-320]}],
)  # fmt: skip
def test_a_neighbour_without_times_has_no_cost(changes: dict[str, list[float]]) -> None:
    assert cost_of(turns(0)) is not None
    assert cost_of(msgspec.structs.replace(turns(0), **changes)) is None
