"""The gate on cells beside a neighbour: its slowdown is judged, besides the times of the swaps."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from kvbench.cells.axes import Direction, Neighbour
from kvbench.cells.cell import Cell
from kvbench.errors import ExitCode
from kvbench.gate.judgement import GateVerdict, Judgement, Margins, Row
from kvbench.gate.output.sheet import name_of_row
from kvbench.results import Control, Record, Run, load_run
from tests.synthetic import beside, failure, info, write_run
from tests.unit.gate.gated import DIRECTIONS, judge

GEMM = Cell("sm", Direction.D2H, 4096, 16384, sms=2, neighbour=Neighbour.GEMM)
DECODE = replace(GEMM, neighbour=Neighbour.DECODE)
USUAL = {GEMM: 1.2, DECODE: 1.03}


def run_of(folder: Path, slowdowns: dict[Cell, float], gbps: float = 40.0, rounds: int = 8) -> Run:
    """A run whose visits' slowdowns differ by half a percent."""
    noise = np.random.default_rng(int.from_bytes(folder.name.encode())).normal(0, 0.005, (rounds, len(slowdowns)))
    records: list[Record] = []
    for number in range(rounds):
        for index, (cell, slowdown) in enumerate(slowdowns.items()):
            (visit,) = beside(cell, slowdown * float(np.exp(noise[number, index])), gbps, 1)
            records.append(msgspec.structs.replace(visit, round=number))
        records += [Control(direction=each, round=number, copy_bytes=1 << 28, gpu_us=[5e3]) for each in DIRECTIONS]
    created = f"2026-11-20T1{'01'[folder.name == 'cand']}:00:00Z"
    return load_run(write_run(folder, records, info(created=created)))


def judged(tmp_path: Path, changed: dict[Cell, float], gbps: float = 40.0) -> Judgement:
    return judge([run_of(tmp_path / "base", USUAL)], [run_of(tmp_path / "cand", USUAL | changed, gbps)])


def rows_of(judgement: Judgement) -> dict[Cell, Row]:
    return {row.cells[0]: row for row in judgement.rows if row.kind == "neighbour"}


def test_neighbours_as_slow_as_before_pass(tmp_path: Path) -> None:
    rows = rows_of(judged(tmp_path, {}))
    assert {row.verdict for row in rows.values()} == {GateVerdict.SAME}
    assert rows[GEMM].base == pytest.approx(1.2, rel=0.01)


def test_a_neighbour_slower_by_5_percent_is_detected_even_if_swaps_are_unchanged(tmp_path: Path) -> None:
    judgement = judged(tmp_path, {DECODE: 1.03 * 1.05})
    rows = rows_of(judgement)
    assert (rows[DECODE].verdict, rows[GEMM].verdict) == (GateVerdict.SLOWER, GateVerdict.SAME)
    assert rows[DECODE].estimate.ratios[1] < 1.05 < rows[DECODE].estimate.ratios[2]
    assert judgement.verdict is GateVerdict.SLOWER
    assert judgement.exit_code() is ExitCode.REGRESSION
    cells = {row.cells[0]: row.verdict for row in judgement.rows if row.kind == "cell"}
    assert cells == {GEMM: GateVerdict.SAME, DECODE: GateVerdict.SAME}
    assert name_of_row(judgement.rows[0]) == f"neighbour: {DECODE.label}"
    assert judgement.rows[0].command.endswith("-a neighbour=decode")


def test_a_neighbour_that_is_faster_passes(tmp_path: Path) -> None:
    assert rows_of(judged(tmp_path, {GEMM: 1.1}))[GEMM].verdict is GateVerdict.FASTER


def test_slower_swaps_beside_a_neighbour_are_detected(tmp_path: Path) -> None:
    judgement = judged(tmp_path, {}, gbps=30.0)
    assert {row.verdict for row in judgement.rows if row.kind == "cell"} == {GateVerdict.SLOWER}
    assert {row.verdict for row in rows_of(judgement).values()} == {GateVerdict.SAME}


def test_a_slower_neighbour_within_a_wider_margin_passes(tmp_path: Path) -> None:
    sides = [run_of(tmp_path / "base", USUAL)], [run_of(tmp_path / "cand", {GEMM: 1.26, DECODE: 1.03})]
    assert rows_of(judge(*sides, margins=Margins(margin=0.1)))[GEMM].verdict is GateVerdict.SAME


def test_a_failed_cell_has_no_row_for_its_neighbour(tmp_path: Path) -> None:
    base, cand = run_of(tmp_path / "base", USUAL), run_of(tmp_path / "cand", USUAL)
    broken = Run(cand.path, cand.info, [*cand.records, failure(GEMM, "the neighbour died")], [])
    judgement = judge([base], [broken])
    assert judgement.verdict is GateVerdict.FAILED
    assert set(rows_of(judgement)) == {DECODE}
