"""Verdicts on runs whose truth is known: slower, faster, the same, unclear, disturbed, broken, not comparable."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from kvbench.analysis.compare import Floats, Verdict
from kvbench.cells.axes import Direction, Neighbour, StreamState
from kvbench.cells.cell import Cell
from kvbench.gate.judgement import PLAN, GateVerdict, Judgement, Row, judge
from kvbench.gate.outputs import message, name_of_row
from kvbench.gate.pairs import Pairs
from kvbench.ground.errors import ExitCode
from kvbench.results import Control, Record, Run, Visit
from tests.synthetic import beside, failure, skip, with_samples
from tests.unit.gate.gated import CELLS, DIRECTIONS, Side, compared, judge_runs, made, paired

VICTIM = CELLS[4]


def only_victim(factor: float) -> Side:
    return Side(factor=lambda cell: factor if cell == VICTIM else 1.0)


def row_of(judgement: Judgement, cell: Cell) -> Row:
    return next(row for row in judgement.rows if row.kind == "cell" and row.cells[0] == cell)


def victim_pairs(
    count: int = 24, us: float = 100.0, cand: float | Sequence[float] | Floats = 1.0, **fields: Any
) -> Pairs:
    """Return pairs of one cell that took as long in every visit, on the candidate's side `cand` times as long."""
    times = np.full((1, count), us)
    return paired([VICTIM], times, times * np.asarray(cand), **fields)


SICK = Side(extra=[failure(VICTIM, "byte 7 differs", "mismatch")], control=1.5)  # judged also where a machine moved


@pytest.mark.parametrize(
    ("cand", "more", "verdict", "code", "of_cell", "reason"),
    [
        (Side(), {}, "SAME", ExitCode.DONE, "SAME", ""),
        (only_victim(1.05), {}, "SLOWER", ExitCode.REGRESSION, "SLOWER", ""),
        (only_victim(0.9), {}, "SAME", ExitCode.DONE, "FASTER", ""),
        (only_victim(1.05), {"second_slot": 0.02}, "SLOWER", ExitCode.REGRESSION, "SLOWER", ""),
        (only_victim(1.03), {"noise": 0.008}, "UNDECIDED", ExitCode.INCONCLUSIVE, "UNDECIDED", ""),
        (only_victim(1.1), {"rounds": 5}, "UNDECIDED", ExitCode.INCONCLUSIVE, "UNDECIDED", "5 pairs are too few"),
        (only_victim(2.0), {"rounds": 5}, "UNCONFIRMED", ExitCode.INCONCLUSIVE, "UNCONFIRMED",
         "5 pairs are too few for an interval, but far above the margin"),
        (only_victim(19.5), {"rounds": 1}, "UNCONFIRMED", ExitCode.INCONCLUSIVE, "UNCONFIRMED", "1 pair is too few"),
        (SICK, {"rounds": 6}, "FAILED", ExitCode.FAILED_CELLS, "FAILED", "cand: failed: mismatch: byte 7 differs"),
        (Side(without=[VICTIM]), {"rounds": 6}, "FAILED", ExitCode.FAILED_CELLS, "FAILED", "cand: missing"),
        (Side(extra=[skip(VICTIM, "does not fit")]), {"rounds": 6}, "FAILED", ExitCode.FAILED_CELLS, "FAILED",
         "cand: skipped: does not fit"),
    ],
    ids=["same", "slower", "faster", "second", "noise", "few pairs", "few, twice as slow", "one pair", "wrong bytes",
         "missing", "skipped"],
)  # fmt: skip
def test_a_cell_is_judged_and_decides(
    cand: Side, more: dict[str, Any], verdict: str, code: ExitCode, of_cell: str, reason: str
) -> None:
    judgement = judge_runs(*compared(Side(), cand, **more))
    row = row_of(judgement, VICTIM)
    assert (judgement.verdict, judgement.exit_code, row.verdict) == (verdict, code, of_cell)
    assert [one.verdict for one in judgement.rows].count(GateVerdict.SLOWER) == (of_cell == "SLOWER")
    assert row.settled is (of_cell not in ("UNDECIDED", "UNCONFIRMED"))
    assert judgement.may_pass is (verdict == "UNDECIDED")
    assert row.reason.startswith(reason)
    if of_cell == "SLOWER":
        assert judgement.rows[0] == row
        assert 1.03 < row.effect.low < 1.05 < row.effect.high
        assert row.command == VICTIM.command()
    if "second_slot" in more:  # the cost of running second is charged to neither side
        assert judgement.slot_bias == pytest.approx(1.02, abs=0.003)
        assert all(control.steady for control in judgement.controls)
    if of_cell == "FAILED":
        assert np.isnan(row.base)


@pytest.mark.parametrize("which", [0, 1], ids=["base", "cand"])
def test_a_cell_that_a_side_does_not_visit_because_the_other_failed_names_the_failure_alone(which: int) -> None:
    sick, none = Side(extra=[failure(VICTIM, "byte 7 differs", "mismatch")]), Side(without=[VICTIM])
    base, cand = compared(*((sick, none) if which == 0 else (none, sick)), rounds=6)
    assert (
        row_of(judge_runs(base, cand), VICTIM).reason == f"{('base', 'cand')[which]}: failed: mismatch: byte 7 differs"
    )


BUSY = replace(VICTIM, stream_state=StreamState.BUSY)


@pytest.mark.parametrize(
    ("without", "verdict", "code"),
    [((0,), "UNDECIDED", 0), ((1,), "UNDECIDED", 3), ((0, 1), "UNDECIDED", 0), ((), "SAME", 0)],
)
def test_a_cell_without_a_figure_does_not_fail_but_passes_only_if_the_base_has_none_either(
    without: tuple[int, ...], verdict: str, code: int
) -> None:
    both = compared(Side(), Side(), cells=[*CELLS, BUSY])
    judgement = judge_runs(*(without_figure(run, BUSY) if side in without else run for side, run in enumerate(both)))
    row = row_of(judgement, BUSY)
    assert (row.verdict, row.settled, judgement.exit_code) == (verdict, True, code)
    assert not (without and "not slower" in message(row))
    assert all(name in row.reason for side, name in enumerate(("base", "cand")) if side in without)


def test_a_cell_without_a_figure_is_measured_until_the_first_look() -> None:
    base, cand = compared(Side(), Side(), rounds=4, cells=[BUSY])
    first = judge_runs(without_figure(base, BUSY), cand)
    assert first.missing(12)[BUSY] == 12
    assert row_of(judge_runs(base, cand, earlier=first), BUSY).verdict is not GateVerdict.FAILED


def test_a_row_that_is_settled_stays_as_it_is() -> None:
    first = judge_runs(*compared(Side(), only_victim(1.2)))
    assert row_of(first, VICTIM).settled
    assert row_of(judge_runs(*compared(Side(), Side()), earlier=first), VICTIM) == row_of(first, VICTIM)


def without_figure(run: Run, cell: Cell) -> Run:
    """Return the run as if no delay had outlasted a submission of the cell."""

    def ended(record: Record) -> Record:
        if not isinstance(record, Visit) or record.cell != cell:
            return record
        return with_samples(record, {"pending_after": [0] * len(record.samples)})

    return replace(run, records=[ended(record) for record in run.records])


def test_two_rounds_with_other_traffic_on_the_link_are_outvoted() -> None:
    moved = np.array([[0.0, 0.06, 0.0, 0.0, 0.0, 0.0, 0.05, 0.0]])
    calm = np.zeros((1, 16))
    always = np.full((1, 8), 0.04)
    for seen, steady, sure in ((moved, True, False), (np.hstack([moved, calm]), True, True), (always, False, True)):
        order = np.resize([1.0, -1.0], seen.shape[1])
        nothing = np.empty((0, seen.shape[1]))
        (control,) = judge(paired([], nothing, nothing, order, controls={"h2d": seen[0]})).controls
        assert control.steady is steady
        assert (control.unsure == 0) is sure


def test_unsure_controls_widen_the_margin() -> None:
    order, unsure = np.resize([1.0, -1.0], 24), np.resize([-0.08, 0.08, 0.0], 24)
    for slower, verdict in ((0.04, GateVerdict.UNCONFIRMED), (0.15, GateVerdict.SLOWER), (0.0, GateVerdict.SAME)):
        judgement = judge(victim_pairs(cand=1 + slower, order=order, controls={"d2h": np.zeros(24), "h2d": unsure}))
        assert [control.unsure > 0.01 for control in judgement.controls] == [False, True]
        assert judgement.verdict is verdict
        assert ("not by more than the controls may have moved" in judgement.rows[0].reason) is (slower == 0.04)


@pytest.mark.parametrize(("base_us", "verdict"), [(10.0, GateVerdict.SAME), (100.0, GateVerdict.SLOWER)])
def test_less_than_a_microsecond_is_no_slowdown(base_us: float, verdict: GateVerdict) -> None:
    assert judge(victim_pairs(us=base_us, cand=1.08)).verdict is verdict


def test_a_microsecond_is_no_margin_of_a_neighbour_s_slowdown() -> None:
    """A slowdown is a ratio, however short the swaps are."""
    pairs = victim_pairs(us=10.0)
    for name, usual in (("caller_us", 8.0), ("slowdown", 1.2)):
        pairs.visits[name][0], pairs.visits[name][1] = usual, usual * 1.08
    verdicts = {row.kind: row.verdict for row in judge(pairs).rows}
    assert verdicts == {"cell": GateVerdict.SAME, "caller_us": GateVerdict.SAME, "neighbour": GateVerdict.SLOWER}


@pytest.mark.parametrize(("margin", "moved", "steady"), [(0.03, 0.1, False), (0.3, 0.1, True), (0.01, 0.015, True)])
def test_a_wider_margin_of_the_cells_lets_large_copies_move_more(margin: float, moved: float, *, steady: bool) -> None:
    (control,) = judge(victim_pairs(controls={"h2d": np.full(24, moved)}), margin).controls
    assert control.steady is steady


def test_an_undecided_row_passes_only_if_it_excludes_a_slowdown() -> None:
    faster = np.resize([0.90, 1.0, 1.01], 24)
    for times, code in ((faster, ExitCode.DONE), (1 / faster, ExitCode.INCONCLUSIVE)):
        judgement = judge(victim_pairs(cand=times))
        assert {row.verdict for row in judgement.rows} == {judgement.verdict} == {GateVerdict.UNDECIDED}
        assert judgement.exit_code is code


@pytest.mark.parametrize("name", ["caller_us", "slowdown"])
def test_an_undecided_row_of_a_caller_or_neighbour_fails_if_it_may_be_slower(name: str) -> None:
    pairs = victim_pairs()
    pairs.visits[name][0] = 100.0
    pairs.visits[name][1] = 100.0 / np.resize([0.90, 1.0, 1.01], 24)
    judgement = judge(pairs)
    assert {row.kind: row.verdict for row in judgement.rows}["cell"] is GateVerdict.SAME
    assert judgement.verdict is GateVerdict.UNDECIDED
    assert judgement.exit_code is ExitCode.INCONCLUSIVE


def doubled(cell: Cell, every: Sequence[int], count: int = 15) -> Callable[[Record], Record]:
    """Return a change of a record: the swaps at these places of each visit of `cell` take twice as long."""

    def changed(record: Record) -> Record:
        if not isinstance(record, Visit) or record.cell != cell:
            return record
        times = [us * (1 + (index in every)) for index, us in enumerate([record.samples.wall_us[0]] * count)]
        filled = {
            name: [values[0]] * count for name, values in msgspec.structs.asdict(record.samples).items() if values
        }
        return with_samples(record, filled | {"wall_us": times})

    return changed


@pytest.mark.parametrize("every", [range(1, 15, 2), range(0, 15, 2), range(8, 15)], ids=["odd", "even", "second half"])
def test_a_build_is_slower_if_half_of_its_swaps_take_twice_as_long(every: Sequence[int]) -> None:
    base, cand = compared(Side(), Side(), noise=0.01)
    slow = replace(cand, records=[doubled(VICTIM, every)(record) for record in cand.records])
    same = replace(base, records=[doubled(VICTIM, ())(record) for record in base.records])
    judgement = judge_runs(same, slow)
    row = row_of(judgement, VICTIM)
    assert (judgement.verdict, row.verdict) == (GateVerdict.SLOWER, GateVerdict.SLOWER)
    assert row.effect.verdict is Verdict.SAME
    assert row.upper is not None
    assert row.upper.ratio == pytest.approx(2, rel=0.03)
    assert "upper half" in row.reason
    assert row_of(judge_runs(slow, same), VICTIM).verdict is GateVerdict.SAME


def test_the_upper_half_prevents_same_only_beyond_its_margin() -> None:
    scattered = np.random.default_rng(2).normal(0, 0.2, 24)
    for upper, verdict in ((1.15, GateVerdict.SAME), (1.5, GateVerdict.SLOWER), (np.exp(scattered), GateVerdict.SAME)):
        pairs = victim_pairs()
        pairs.visits["upper_us"][1] *= upper
        assert judge(pairs).verdict is verdict


def test_few_upper_halves_far_above_are_a_burst_of_other_work() -> None:
    pairs = victim_pairs(5)
    pairs.visits["upper_us"][1] *= 5
    assert judge(pairs).verdict is GateVerdict.UNDECIDED
    assert judge(victim_pairs(5, cand=[1, 9, 9, 9, 9])).verdict is GateVerdict.UNDECIDED  # not all are


def test_a_slower_upper_half_is_unconfirmed_until_a_second_process_confirms_it() -> None:
    pairs = 2 * PLAN[0].pairs
    for processes, expected in ((np.zeros(pairs), "UNCONFIRMED"), (np.arange(pairs) >= PLAN[0].pairs, "SLOWER")):
        made = victim_pairs(pairs, processes=np.asarray(processes, dtype=float))
        made.visits["upper_us"][1] *= 2
        judgement = judge(made)
        (row,) = judgement.rows
        assert (row.verdict, row.settled, row.passes) == (expected, expected == "SLOWER", False)
        assert bool(judgement.missing(PLAN[-1].pairs)) is (expected == "UNCONFIRMED")


@pytest.mark.parametrize("control", [1.03, 0.97])
def test_nothing_is_judged_if_the_machine_became_faster_or_slower(control: float) -> None:
    judgement = judge_runs(*compared(Side(), Side(factor=lambda _: 1.1, control=control), rounds=24))
    assert judgement.verdict is GateVerdict.CONTAMINATED
    assert {row.verdict for row in judgement.rows} == {GateVerdict.CONTAMINATED}
    assert judgement.exit_code is ExitCode.INCONCLUSIVE
    assert judgement.missing(40) == dict.fromkeys(CELLS, 16)


PREFILL = Cell("sm", Direction.D2H, 4096, 16384, sms=2, neighbour=Neighbour.PREFILL)
DECODE = replace(PREFILL, neighbour=Neighbour.DECODE)
USUAL = {PREFILL: 1.2, DECODE: 1.03}


def run_beside(which: int, slowdowns: dict[Cell, float]) -> Run:
    """Return the run of a side whose visits' slowdowns differ by half a percent."""
    noise = np.random.default_rng(which).normal(0, 0.005, (24, len(slowdowns)))
    records: list[Record] = []
    for number in range(24):
        for index, (cell, slowdown) in enumerate(slowdowns.items()):
            (visit,) = beside(cell, slowdown * float(np.exp(noise[number, index])), 40.0, 1)
            records.append(msgspec.structs.replace(visit, round=number))
        records += [Control(direction=each, round=number, copy_bytes=1 << 28, event_us=[5e3]) for each in DIRECTIONS]
    return made(which, records)


def neighbours_of(judgement: Judgement) -> dict[Cell, Row]:
    return {row.cells[0]: row for row in judgement.rows if row.kind == "neighbour"}


def test_a_neighbour_slower_by_5_percent_is_detected_even_if_swaps_are_unchanged() -> None:
    judgement = judge_runs(run_beside(0, USUAL), run_beside(1, USUAL | {DECODE: 1.03 * 1.05}))
    rows = neighbours_of(judgement)
    assert (rows[DECODE].verdict, rows[PREFILL].verdict) == (GateVerdict.SLOWER, GateVerdict.SAME)
    assert rows[DECODE].effect.low < 1.05 < rows[DECODE].effect.high
    assert (judgement.verdict, judgement.exit_code) == (GateVerdict.SLOWER, ExitCode.REGRESSION)
    assert {row_of(judgement, cell).verdict for cell in USUAL} == {GateVerdict.SAME}
    assert name_of_row(judgement.rows[0]) == f"neighbour: {DECODE.label}"
    assert judgement.rows[0].command.endswith("-a neighbour=decode")


def test_a_failed_cell_has_no_row_for_its_neighbour() -> None:
    cand = run_beside(1, USUAL)
    broken = replace(cand, records=[*cand.records, failure(PREFILL, "the neighbour died")])
    judgement = judge_runs(run_beside(0, USUAL), broken)
    assert judgement.verdict is GateVerdict.FAILED
    assert set(neighbours_of(judgement)) == {DECODE}
