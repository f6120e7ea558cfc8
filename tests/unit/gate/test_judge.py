"""Verdicts on runs whose truth is known: slower, faster, the same, unclear, disturbed, broken, not comparable."""

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from kvbench.analysis.compare import Verdict
from kvbench.cells.axes import StreamState
from kvbench.cells.cell import Cell
from kvbench.errors import ExitCode, MismatchError, UsageError
from kvbench.gate.judge import Judge, without_slot_bias
from kvbench.gate.judgement import GateVerdict, Judgement, Margins, Row
from kvbench.gate.looks import PLAN
from kvbench.gate.output.formats import as_json, judgement_data
from kvbench.report.build import report_files
from kvbench.results import Record, Run, Visit, load_run
from kvbench.results.schema import EffectivePath
from tests.synthetic import ceilings, failure, info, rounds, skip, write_run
from tests.unit.gate.gated import CELLS, Side, compared, floors, judge, paired

VICTIM = CELLS[4]


def only_victim(factor: float) -> Side:
    return Side(factor=lambda cell: factor if cell == VICTIM else 1.0)


def row_of(judgement: Judgement, cell: Cell) -> Row:
    return next(row for row in judgement.rows if row.kind == "cell" and row.cells[0] == cell)


def test_the_same_build_passes() -> None:
    judgement = judge(*compared(Side(), Side()))
    assert judgement.verdict is GateVerdict.SAME
    assert {row.verdict for row in judgement.rows} == {GateVerdict.SAME}
    assert judgement.exit_code() is ExitCode.DONE
    assert judgement.geometric_mean == pytest.approx(1, abs=0.005)
    assert not judgement.warnings


def test_a_slower_cell_is_named_and_comes_first() -> None:
    judgement = judge(*compared(Side(), only_victim(1.05)))
    assert judgement.verdict is GateVerdict.SLOWER
    assert judgement.exit_code() is ExitCode.REGRESSION
    worst = judgement.rows[0]
    assert (worst.verdict, worst.cells) == (GateVerdict.SLOWER, [VICTIM])
    _, low, high = worst.estimate.ratios
    assert 1.03 < low < 1.05 < high
    assert worst.command == VICTIM.command()
    assert [row.verdict for row in judgement.rows].count(GateVerdict.SLOWER) == 1


def test_a_faster_cell_is_reported_and_passes() -> None:
    judgement = judge(*compared(Side(), only_victim(0.9)))
    assert judgement.verdict is GateVerdict.SAME
    assert row_of(judgement, VICTIM).verdict is GateVerdict.FASTER


def test_a_cell_without_a_figure_fails_until_a_visit_has_one() -> None:
    busy = replace(VICTIM, stream_state=StreamState.BUSY)
    base, cand = compared(Side(), Side(), cells=[*CELLS, busy])
    first = judge([without_figure(run, busy) for run in base], cand)
    row = row_of(first, busy)
    assert (row.verdict, row.settled) == (GateVerdict.FAILED, False)
    assert first.missing(12)[busy] == 12
    assert row_of(Judge().judge(base, cand, first), busy).verdict is GateVerdict.SAME


def without_figure(run: Run, cell: Cell) -> Run:
    """Return the run as if no delay had outlasted a submission of the cell."""

    def ended(record: Record) -> Record:
        if not isinstance(record, Visit) or record.cell != cell:
            return record
        samples = msgspec.structs.replace(record.samples, pending_after=[0] * len(record.samples))
        return msgspec.structs.replace(record, samples=samples)

    return replace(run, records=[ended(record) for record in run.records])


def test_a_difference_within_the_noise_is_undecided_and_unsettled() -> None:
    judgement = judge(*compared(Side(), only_victim(1.03), noise=0.008))
    assert judgement.verdict is GateVerdict.UNDECIDED
    assert not row_of(judgement, VICTIM).settled
    assert judgement.exit_code() is ExitCode.INCONCLUSIVE
    assert judgement.exit_code(inconclusive_passes=True) is ExitCode.DONE


def test_later_rounds_can_measure_only_the_undecided_cells() -> None:
    base, cand = compared(Side(), only_victim(1.06), noise=0.02)
    more = compared(Side(), only_victim(1.06), noise=0.02, cells=[VICTIM])
    judgement = judge([*base, *more[0]], [*cand, *more[1]])
    assert row_of(judgement, VICTIM).estimate.pairs == 16
    assert row_of(judgement, CELLS[0]).estimate.pairs == 8
    assert GateVerdict.FAILED not in {row.verdict for row in judgement.rows}


def test_a_difference_within_the_floor_of_a_cell_passes() -> None:
    runs = compared(Side(), only_victim(1.05))
    judgement = judge(*runs, floors=floors(VICTIM, 0.08, runs[0][0]))
    assert row_of(judgement, VICTIM).verdict is GateVerdict.SAME
    assert row_of(judgement, VICTIM).margin == pytest.approx(0.08)
    assert judge(*runs, floors=floors(VICTIM, 0.01, runs[0][0])).verdict is GateVerdict.SLOWER


def test_cells_without_a_floor_cause_a_warning_and_floors_of_other_cells_are_refused() -> None:
    base, cand = compared(Side(), Side(), cells=CELLS[:3])
    (warning,) = (text for text in judge(base, cand, floors=floors(CELLS[1], 0.1, base[0])).warnings if "floor" in text)
    assert "2 cells of 3 without a floor" in warning
    assert CELLS[0].label in warning
    for forced in (False, True):
        with pytest.raises(MismatchError, match="none of its 1 floor is for a cell of this comparison"):
            judge(base, cand, floors=floors(CELLS[5], 0.1, base[0]), forced=forced)


def test_runs_without_a_common_cell_are_refused() -> None:
    base, _ = compared(Side(), Side(), cells=CELLS[:2])
    _, cand = compared(Side(), Side(), cells=CELLS[2:4])
    with pytest.raises(MismatchError, match="no cell in common") as caught:
        judge(base, cand)
    assert CELLS[0].label in str(caught.value)
    assert CELLS[2].label in str(caught.value)


def test_a_difference_below_the_absolute_margin_does_not_count() -> None:
    runs = compared(Side(), only_victim(1.2), time_us=lambda cell: 4.5 + cell.block_bytes / 1e9)
    assert judge(*runs).verdict is GateVerdict.SAME
    assert judge(*runs, margins=Margins(absolute_us=0.5)).verdict is GateVerdict.SLOWER


def test_the_cost_of_running_second_is_charged_to_neither_side() -> None:
    judgement = judge(*compared(Side(), only_victim(1.05), second_slot=0.02))
    assert judgement.slot_bias == pytest.approx(1.02, abs=0.003)
    assert row_of(judgement, VICTIM).verdict is GateVerdict.SLOWER
    assert [row.verdict for row in judgement.rows].count(GateVerdict.SLOWER) == 1
    assert all(control.steady for control in judgement.controls)


def test_two_rounds_with_other_traffic_on_the_link_are_outvoted() -> None:
    moved = np.array([[0.0, 0.06, 0.0, 0.0, 0.0, 0.0, 0.05, 0.0]])
    calm = np.zeros((1, 16))
    always = np.full((1, 8), 0.04)
    for seen, steady, sure in ((moved, True, False), (np.hstack([moved, calm]), True, True), (always, False, True)):
        order = np.resize([1.0, -1.0], seen.shape[1])
        nothing = np.empty((0, seen.shape[1]))
        (control,) = Judge().assess(paired([], nothing, nothing, order, controls={"h2d": seen[0]})).controls
        assert control.steady is steady
        assert (control.unsure == 0) is sure


def test_unsure_controls_widen_the_margin() -> None:
    order, unsure = np.resize([1.0, -1.0], 24), np.resize([-0.08, 0.08, 0.0], 24)
    for slower, verdict in ((0.04, GateVerdict.UNDECIDED), (0.15, GateVerdict.SLOWER), (0.0, GateVerdict.SAME)):
        base = np.full((1, 24), 100.0)
        pairs = paired([VICTIM], base, base * (1 + slower), order, controls={"h2d": unsure})
        judgement = Judge().assess(pairs)
        assert judgement.controls[0].unsure > 0.01
        assert judgement.verdict is verdict


def test_an_undecided_row_passes_only_if_it_excludes_a_slowdown() -> None:
    faster = np.resize([0.90, 1.0, 1.01], 24)
    for times, code in ((faster, ExitCode.DONE), (1 / faster, ExitCode.INCONCLUSIVE)):
        base = np.full((1, 24), 100.0)
        judgement = Judge().assess(paired([VICTIM], base, base * times))
        assert {row.verdict for row in judgement.rows} == {judgement.verdict} == {GateVerdict.UNDECIDED}
        assert judgement.exit_code() is code


@pytest.mark.parametrize("name", ["caller_us", "slowdown"])
def test_an_undecided_row_of_a_caller_or_neighbour_fails_if_it_may_be_slower(name: str) -> None:
    times = np.full((1, 24), 100.0)
    pairs = paired([VICTIM], times, times)
    pairs.visits[name][0] = 100.0
    pairs.visits[name][1] = 100.0 / np.resize([0.90, 1.0, 1.01], 24)
    judgement = Judge().assess(pairs)
    assert {row.kind: row.verdict for row in judgement.rows}["cell"] is GateVerdict.SAME
    assert judgement.verdict is GateVerdict.UNDECIDED
    assert judgement.exit_code() is ExitCode.INCONCLUSIVE


def doubled(cell: Cell, every: Sequence[int], count: int = 15) -> Callable[[Record], Record]:
    """Return a change of a record: the swaps at these places of each visit of `cell` take twice as long."""

    def changed(record: Record) -> Record:
        if not isinstance(record, Visit) or record.cell != cell:
            return record
        times = [us * (1 + (index in every)) for index, us in enumerate([record.samples.wall_us[0]] * count)]
        filled = {
            name: [values[0]] * count for name, values in msgspec.structs.asdict(record.samples).items() if values
        }
        samples = msgspec.structs.replace(record.samples, **filled | {"wall_us": times})
        return msgspec.structs.replace(record, samples=samples)

    return changed


@pytest.mark.parametrize("every", [range(1, 15, 2), range(0, 15, 2), range(8, 15)], ids=["odd", "even", "second half"])
def test_a_build_is_slower_if_half_of_its_swaps_take_twice_as_long(every: Sequence[int]) -> None:
    base, cand = compared(Side(), Side(), noise=0.01)
    slow = [replace(run, records=[doubled(VICTIM, every)(record) for record in run.records]) for run in cand]
    same = [replace(run, records=[doubled(VICTIM, ())(record) for record in run.records]) for run in base]
    judgement = judge(same, slow)
    row = row_of(judgement, VICTIM)
    assert (judgement.verdict, row.verdict) == (GateVerdict.SLOWER, GateVerdict.SLOWER)
    assert row.estimate.verdict is Verdict.SAME
    assert row.upper is not None
    assert row.upper.ratios[0] == pytest.approx(2, rel=0.03)
    assert "upper half" in row.reason
    assert row_of(judge(slow, same), VICTIM).verdict is GateVerdict.SAME


def test_the_upper_half_prevents_same_only_beyond_its_margin() -> None:
    times = np.full((1, 24), 100.0)
    scattered = np.random.default_rng(2).normal(0, 0.2, 24)
    for upper, verdict in ((1.15, GateVerdict.SAME), (1.5, GateVerdict.SLOWER), (np.exp(scattered), GateVerdict.SAME)):
        pairs = paired([VICTIM], times, times)
        pairs.visits["upper_us"][1] *= upper
        assert Judge().assess(pairs).verdict is verdict


def test_a_slower_upper_half_is_undecided_until_a_second_process_confirms_it() -> None:
    pairs = 2 * PLAN[0].pairs
    times = np.full((1, pairs), 100.0)
    for processes, expected in ((np.zeros(pairs), "UNDECIDED"), (np.arange(pairs) >= PLAN[0].pairs, "SLOWER")):
        made = paired([VICTIM], times, times, in_turn=True, processes=np.asarray(processes, dtype=float))
        made.visits["upper_us"][1] *= 2
        judgement = Judge().assess(made)
        (row,) = judgement.rows
        assert (row.verdict, row.settled, row.passes) == (expected, expected == "SLOWER", False)
        assert bool(judgement.missing(PLAN[-1].pairs)) is (expected == "UNDECIDED")


def test_too_few_rounds_leave_every_row_undecided() -> None:
    judgement = judge(*compared(Side(), only_victim(2.0), rounds=5))
    assert judgement.verdict is GateVerdict.UNDECIDED
    assert "5 pairs are too few" in row_of(judgement, VICTIM).reason


def test_too_few_rounds_do_not_contaminate_a_comparison() -> None:
    judgement = judge(*compared(Side(), Side(control=1.5), rounds=5))
    assert judgement.verdict is GateVerdict.UNDECIDED
    assert {(control.steady, control.unsure) for control in judgement.controls} == {(True, math.inf)}


@pytest.mark.parametrize("control", [1.03, 0.97])
@pytest.mark.parametrize("controls", [True, False])
def test_nothing_is_judged_if_the_machine_became_faster_or_slower(control: float, controls: bool) -> None:
    disturbed = Side(factor=lambda _: 1.1, control=control, controls=controls)
    judgement = judge(*compared(Side(controls=controls), disturbed))
    assert judgement.verdict is GateVerdict.CONTAMINATED
    assert {row.verdict for row in judgement.rows} == {GateVerdict.CONTAMINATED}
    assert judgement.exit_code() is ExitCode.INCONCLUSIVE
    assert judgement.missing(20) == dict.fromkeys(CELLS, 12)
    assert (
        any("the ceilings, which are copies by the engine, are used instead" in text for text in judgement.warnings)
        is not controls
    )


@pytest.mark.parametrize(
    ("side", "reason"),
    [
        (Side(extra=[failure(VICTIM, "byte 7 differs", "mismatch")]), "failed: mismatch: byte 7 differs"),
        (Side(without=[VICTIM]), "missing"),
        (Side(extra=[skip(VICTIM, "does not fit")]), "skipped: does not fit"),
    ],
)
def test_a_failed_or_missing_cell_is_a_failure_and_no_timing(side: Side, reason: str) -> None:
    judgement = judge(*compared(Side(), replace(side, control=1.5), rounds=6))
    row = row_of(judgement, VICTIM)
    assert judgement.verdict is GateVerdict.FAILED  # also on a machine that moved
    assert judgement.exit_code(inconclusive_passes=True) is ExitCode.FAILED_CELLS
    assert row.verdict is GateVerdict.FAILED
    assert f"cand: {reason}" in row.reason
    assert np.isnan(row.base)


def test_cells_that_both_sides_skip_have_no_row() -> None:
    both = Side(extra=[skip(VICTIM)])
    judgement = judge(*compared(both, both))
    assert judgement.verdict is GateVerdict.SAME
    assert VICTIM not in {cell for row in judgement.rows for cell in row.cells}


def test_an_incomplete_run_is_a_failure() -> None:
    judgement = judge(*compared(Side(changes={"status": "interrupted"}), Side(), rounds=6))
    assert judgement.verdict is GateVerdict.FAILED
    assert "interrupted, not complete" in judgement.faults[0]


def test_runs_of_two_machines_are_refused_unless_forced() -> None:
    identity = {"gpu_name": "another", "driver_version": "580.159", "cuda_driver_api": "13.0"}
    runs = compared(Side(), Side(changes={"identity": identity}))
    with pytest.raises(MismatchError, match=r'gpu_name: "Synthetic H200" against "another".*--force') as caught:
        judge(*runs)
    assert caught.value.exit_code is ExitCode.MISMATCH
    judgement = judge(*runs, forced=True)
    assert judgement.verdict is GateVerdict.SAME
    assert any(text.startswith("forced: ") and "another" in text for text in judgement.warnings)


def test_two_builds_may_differ_in_the_engine_and_only_between_the_sides() -> None:
    def engine(name: str) -> Side:
        return Side(changes={"identity": {"gpu_name": "one", "engine_hash": name}})

    base, cand = compared(engine("old"), engine("new"))
    assert judge(base, cand).verdict is GateVerdict.SAME
    with pytest.raises(MismatchError, match="engine_hash"):
        judge([*base[:-1], cand[-1]], cand)


def test_sides_with_different_numbers_of_rounds_are_refused() -> None:
    base, cand = compared(Side(), Side(), rounds=2)
    with pytest.raises(UsageError, match="2 rounds of the base and 1 of the candidate"):
        judge(base, cand[:1])
    with pytest.raises(UsageError, match="0 rounds"):
        judge([], [])


def test_impossible_times_do_not_crash_the_judge() -> None:
    judgement = judge(*compared(Side(factor=lambda _: 1e-300), Side(factor=lambda _: 1e290), noise=0.0))
    assert judgement.verdict is GateVerdict.SLOWER
    assert {row.estimate.ratios[0] for row in judgement.rows} == {np.inf}


@pytest.mark.parametrize(("slower", "verdict"), [(1.04, GateVerdict.SAME), (1.15, GateVerdict.SLOWER)])
def test_possible_drift_is_not_a_regression_if_one_side_always_ran_last(slower: float, verdict: GateVerdict) -> None:
    late = Side(factor=lambda _: slower, changes={"created": "2026-11-21T10:00:00Z"})
    judgement = judge(*compared(Side(), late, noise=0.001))
    assert {row.verdict for row in judgement.rows if row.kind == "cell"} == {verdict}
    assert (judgement.slot_bias, judgement.statistic) == (1, "median")
    assert any("not made in turn" in text for text in judgement.warnings)
    alternating = judge(*compared(Side(), Side(factor=lambda _: slower), noise=0.001))
    assert {row.verdict for row in alternating.rows if row.kind == "cell"} == {GateVerdict.SLOWER}


@pytest.mark.parametrize(("rounds", "settled"), [(1, False), (5, False), (6, True)])
def test_too_few_visits_settle_nothing_where_one_side_came_last(rounds: int, *, settled: bool) -> None:
    """After its first pair, a gate that measures in turn looks the same."""
    late = Side(changes={"created": "2026-11-21T10:00:00Z"})
    judgement = judge(*compared(Side(), late, rounds=rounds))
    assert {row.settled for row in judgement.rows} == {settled}
    json.loads(as_json(judgement_data(judgement, 0)))


@pytest.mark.parametrize("inline", [False, True])
def test_two_stored_runs_have_the_verdicts_of_their_report(tmp_path: Path, *, inline: bool) -> None:
    """The lower tenth of a visit, by which visits made in turn are judged, is not its median."""
    slower = dict(zip(CELLS, (0.7, 1.0, 1.04, 1.1, 1.2, 1.5), strict=False))
    runs = []
    for number, name in enumerate(("before", "after")):
        records = rounds(CELLS, lambda cell, scale=number: 10 / slower.get(cell, 1.0) ** scale)
        if inline:
            records = [msgspec.structs.replace(one, path=EffectivePath.CPU_INLINE) for one in records]
        about = info(created=f"2026-11-2{number}T10:00:00Z")
        runs.append(load_run(write_run(tmp_path / name, [*ceilings(), *records], about)))
    judged = {row.cells[0].id: row.verdict.value for row in judge(runs[:1], runs[1:]).rows if row.kind == "cell"}
    compared_cells = pd.read_csv(io.BytesIO(report_files(runs)["comparison-before-after.csv"]))
    assert judged == dict(zip(compared_cells["cell_id"], compared_cells["verdict"], strict=True))
    assert judged[CELLS[4].id] == ("SAME" if inline else "SLOWER")
    assert {judged[CELLS[0].id], judged[CELLS[5].id]} == {"FASTER", "SLOWER"}


def test_slot_bias_is_corrected_only_after_two_rounds_of_each_order() -> None:
    ratios = np.array([[0.02, -0.02, 0.02, -0.02], [0.12, 0.08, 0.12, 0.08]])
    corrected, bias = without_slot_bias(ratios, np.array([1.0, -1.0, 1.0, -1.0]))
    assert bias == pytest.approx(0.02)
    assert corrected == pytest.approx(np.array([[0.0] * 4, [0.1] * 4]))
    corrected, bias = without_slot_bias(ratios, np.ones(4))
    assert (bias, corrected is ratios) == (0.0, True)
