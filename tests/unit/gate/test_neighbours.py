"""The gate on cells beside a neighbour: its slowdown is judged, besides the times of the swaps."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from kvbench.cells.axes import Direction, Neighbour
from kvbench.cells.cell import Cell
from kvbench.errors import ExitCode
from kvbench.gate.judgement import GateVerdict, Judgement, Margins, Row
from kvbench.gate.sheet import name_of_row
from kvbench.results import Control, Record, Run
from tests.synthetic import beside, failure
from tests.unit.gate.gated import DIRECTIONS, judge_runs, made

GEMM = Cell("sm", Direction.D2H, 4096, 16384, sms=2, neighbour=Neighbour.GEMM)
DECODE = replace(GEMM, neighbour=Neighbour.DECODE)
USUAL = {GEMM: 1.2, DECODE: 1.03}


def run_of(which: int, slowdowns: dict[Cell, float], gbps: float = 40.0, rounds: int = 24) -> Run:
    """A run whose visits' slowdowns differ by half a percent."""
    noise = np.random.default_rng(which).normal(0, 0.005, (rounds, len(slowdowns)))
    records: list[Record] = []
    for number in range(rounds):
        for index, (cell, slowdown) in enumerate(slowdowns.items()):
            (visit,) = beside(cell, slowdown * float(np.exp(noise[number, index])), gbps, 1)
            records.append(msgspec.structs.replace(visit, round=number))
        records += [Control(direction=each, round=number, copy_bytes=1 << 28, gpu_us=[5e3]) for each in DIRECTIONS]
    return made(which, records)


def judged(changed: dict[Cell, float], gbps: float = 40.0) -> Judgement:
    return judge_runs(run_of(0, USUAL), run_of(1, USUAL | changed, gbps))


def rows_of(judgement: Judgement) -> dict[Cell, Row]:
    return {row.cells[0]: row for row in judgement.rows if row.kind == "neighbour"}


def test_neighbours_as_slow_as_before_pass() -> None:
    rows = rows_of(judged({}))
    assert {row.verdict for row in rows.values()} == {GateVerdict.SAME}
    assert rows[GEMM].base == pytest.approx(1.2, rel=0.01)


def test_a_neighbour_slower_by_5_percent_is_detected_even_if_swaps_are_unchanged() -> None:
    judgement = judged({DECODE: 1.03 * 1.05})
    rows = rows_of(judgement)
    assert (rows[DECODE].verdict, rows[GEMM].verdict) == (GateVerdict.SLOWER, GateVerdict.SAME)
    assert rows[DECODE].effect.low < 1.05 < rows[DECODE].effect.high
    assert judgement.verdict is GateVerdict.SLOWER
    assert judgement.exit_code is ExitCode.REGRESSION
    cells = {row.cells[0]: row.verdict for row in judgement.rows if row.kind == "cell"}
    assert cells == {GEMM: GateVerdict.SAME, DECODE: GateVerdict.SAME}
    assert name_of_row(judgement.rows[0]) == f"neighbour: {DECODE.label}"
    assert judgement.rows[0].command.endswith("-a neighbour=decode")


def test_a_neighbour_that_is_faster_passes() -> None:
    assert rows_of(judged({GEMM: 1.1}))[GEMM].verdict is GateVerdict.FASTER


def test_slower_swaps_beside_a_neighbour_are_detected() -> None:
    judgement = judged({}, gbps=30.0)
    assert {row.verdict for row in judgement.rows if row.kind == "cell"} == {GateVerdict.SLOWER}
    assert {row.verdict for row in rows_of(judgement).values()} == {GateVerdict.SAME}


def test_a_slower_neighbour_within_a_wider_margin_passes() -> None:
    sides = run_of(0, USUAL), run_of(1, {GEMM: 1.26, DECODE: 1.03})
    assert rows_of(judge_runs(*sides, Margins(margin=0.1)))[GEMM].verdict is GateVerdict.SAME


def test_a_failed_cell_has_no_row_for_its_neighbour() -> None:
    base, cand = run_of(0, USUAL), run_of(1, USUAL)
    broken = Run(cand.path, cand.info, [*cand.records, failure(GEMM, "the neighbour died")], [])
    judgement = judge_runs(base, broken)
    assert judgement.verdict is GateVerdict.FAILED
    assert set(rows_of(judgement)) == {DECODE}
