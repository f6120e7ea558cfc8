"""What a report shows of a run that sweeps the shape of the copy kernel: one shape, named, the others not shown."""

import io
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec
import pandas as pd
import pytest

from kvbench.cells.axes import Direction
from kvbench.cells.axis import Role
from kvbench.cells.cell import AXES, Cell, axes_of
from kvbench.cells.kernel_shape import RULE
from kvbench.cells.pattern import Pattern
from kvbench.models.presets import ModelChoice
from kvbench.report.build import report_files, report_of
from kvbench.report.model import Report
from kvbench.report.view import QUEUE, SERIES, SIDE_AXES, View, pin, views_of
from kvbench.results import Record, Run, RunInfo
from tests import synthetic
from tests.reports import chart_of, made_run, page_of, part_of, rows_of, said, table_of

BULK, LANES = "bulk-8x6x4KiB", "lanes-16x8x4KiB"
# GB/s of a device that does not exist: the rule is the slowest, so that its figures are nobody else's
RATES = {RULE: 20.0, BULK: 30.0, LANES: 40.0}
POINT = ["backend", "direction", "stream_state", "blocks", "block_bytes"]
NOT_SHOWN = f"kernel {RULE} (not shown: {BULK}, {LANES})"


SIZES = tuple(kib * 1024 for kib in (1, 4, 16, 64))
CLIFF_CELLS = synthetic.cliff_cells(kib=(1, 4, 16, 32, 64))


def rate(cell: Cell) -> float:
    return RATES[cell.kernel] if cell.backend == "sm" else synthetic.gbps_of(cell)


def sm_cells(*kernels: str, sms: Iterable[int] = (2,)) -> list[Cell]:
    shapes = [(n, size) for n in (256, 10_000) for size in SIZES]
    return [
        Cell("sm", way, n, size, state, sms=count, kernel=kernel)
        for way in Direction
        for n, size in shapes
        for state in synthetic.STATES
        for count in sms
        for kernel in kernels
    ]


def make(folder: Path, records: Iterable[Record], name: str = "run", info: RunInfo | None = None) -> Run:
    return made_run(folder, [*synthetic.ceilings(), *records], info, name)


def measured(*cells: Cell) -> list[Record]:
    return [*synthetic.rounds(cells, rate, noise=0.001)]


def view_of(run: Run) -> View:
    return views_of([run])[0]


def caption(report: Report, section: str, title: str) -> str:
    return said(table_of(part_of(report, section), title).caption)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Run:
    cells = [*CLIFF_CELLS, *sm_cells(RULE, BULK, LANES)]
    refused = [
        synthetic.skip(replace(cell, kernel=kernel), f"{cell.backend} has no kernel to shape")
        for cell in CLIFF_CELLS
        for kernel in (BULK, LANES)
    ]
    return make(tmp_path_factory.mktemp("swept"), [*measured(*cells), *refused])


@pytest.fixture(scope="module")
def report(swept: Run) -> Report:
    return report_of([swept])


def test_a_report_shows_every_axis() -> None:
    assert set(AXES) == {*SERIES, "blocks", "block_size", *SIDE_AXES, *QUEUE, *axes_of(Role.BESIDE)}


def test_the_kernel_shape_that_the_rule_picks_is_kept_for_each_point(swept: Run) -> None:
    pinned = pin(view_of(swept).frame, shown=())
    assert not pinned.cells.duplicated(POINT).any()
    assert set(pinned.cells.loc[pinned.cells["backend"] == "sm", "kernel"]) == {RULE}
    assert pinned.hidden["kernel"] == {BULK, LANES}


def test_backends_without_the_kernel_axis_keep_all_but_skipped_cells(swept: Run) -> None:
    others = pin(view_of(swept).frame, shown=()).cells
    others = others[others["backend"] != "sm"]
    assert len(others) == len(CLIFF_CELLS)
    assert set(others["status"]) == {"ok"}
    assert others["kernel"].isna().all()


def test_tables_show_the_rule_and_name_the_other_shapes(report: Report) -> None:
    shown = table_of(part_of(report, "cliff"), "h2d, sm, idle stream: GB/s")
    assert NOT_SHOWN in said(shown.caption)
    figures = [row for size, row in rows_of(shown).items() if "KiB" in size]
    assert len(figures) == 4
    assert all(cell.startswith(("19.", "20.")) for row in figures for cell in row)
    for backend in ("batched", "triton"):
        others = table_of(part_of(report, "cliff"), f"h2d, {backend}, idle stream: GB/s")
        text = " ".join(map(said, [others.caption, *others.notes, *(cell for row in others.rows for cell in row)]))
        assert "kernel" not in text
        assert "skipped" not in text
    stages = table_of(part_of(report, "stages"), "h2d: us per swap")
    rows = [tuple(row[:3]) for row in stages.rows if str(row[2]).startswith("sm")]
    assert len(rows) == len(set(rows)) > 0
    assert NOT_SHOWN in said(stages.caption)


def test_charts_show_only_the_shape_of_the_rule(report: Report) -> None:
    points = chart_of(report, "cliff-run").points
    assert not points.duplicated(POINT).any()
    assert points.loc[points["backend"] == "sm", "gbps"].between(19, 20.1).all()
    ratios = chart_of(report, "crossover-map-sm-run").points
    assert not ratios.duplicated(["direction", "stream_state", "blocks", "block_bytes"]).any()
    assert len(ratios) == len(sm_cells(RULE))


def test_an_sm_ladder_shows_one_kernel_shape(tmp_path: Path) -> None:
    report = report_of([make(tmp_path, measured(*sm_cells(RULE, BULK, LANES, sms=(1, 2, 4))))])
    points = chart_of(report, "sm-ladder-run").points
    assert not points.duplicated([*POINT, "sms"]).any()
    assert points["gbps"].between(19, 20.1).all()
    assert NOT_SHOWN in caption(report, "sm-ladder", "sm, idle stream, N = 10 000")


def test_each_model_shows_the_shape_that_the_rule_picks_for_its_swap(tmp_path: Path) -> None:
    swaps = ModelChoice(("llama-3-8b",), tokens=2048).swaps()
    cells = [
        Cell("sm", Direction.H2D, s.blocks, s.block_bytes, pattern=Pattern.parse(s.pattern), sms=2, kernel=kernel)
        for s in swaps
        for kernel in (LANES, BULK, RULE)
    ]
    batched = [replace(cell, backend="batched", sms=None, kernel=RULE) for cell in cells[-1:]]
    info = synthetic.info(spec={"models": msgspec.to_builtins(swaps)})
    report = report_of([make(tmp_path, measured(*cells, *batched), info=info)])
    assert NOT_SHOWN in caption(report, "models", "h2d, idle stream: ms per swap")


def test_a_run_of_a_single_shape_shows_and_names_it(tmp_path: Path) -> None:
    report = report_of([make(tmp_path, measured(*CLIFF_CELLS, *sm_cells(BULK)))])
    shown = caption(report, "cliff", "h2d, sm, idle stream: GB/s")
    assert f"kernel {BULK};" in shown or f"kernel {BULK}." in shown
    assert "not shown" not in shown
    points = chart_of(report, "cliff-run").points
    assert points.loc[points["backend"] == "sm", "gbps"].between(29, 30.1).all()


def test_shapes_that_all_failed_are_not_shown(tmp_path: Path) -> None:
    failed = [synthetic.failure(cell) for cell in sm_cells(BULK)]
    report = report_of([make(tmp_path, [*measured(*sm_cells(RULE)), *failed])])
    shown = table_of(part_of(report, "cliff"), "h2d, sm, idle stream: GB/s")
    assert f"kernel {RULE} (not shown: {BULK})" in said(shown.caption)
    assert not any("failed" in said(note) for note in shown.notes)


def test_a_run_that_did_not_sweep_the_shape_does_not_mention_it(tmp_path: Path) -> None:
    runs = [make(tmp_path, measured(*sm_cells(RULE, sms=(1, 2, 4))), name) for name in ("one", "two")]
    files = report_files(runs)
    text = files["report.md"].decode()
    assert "allocated; sms 4 (not shown: 1, 2)" in text
    assert "kernel rule" not in text.lower()
    assert b"kernel" not in files["comparison-one-two.csv"].splitlines()[0]


def test_two_runs_are_compared_shape_by_shape(tmp_path: Path) -> None:
    one = make(tmp_path, measured(*sm_cells(RULE, BULK)), "one")
    two = make(tmp_path, measured(*sm_cells(BULK, RULE, LANES)), "two")
    report = report_of([one, two])
    part = part_of(report, "comparison")
    cells = pd.read_csv(io.BytesIO(part.files["comparison-one-two.csv"]))
    assert len(cells) == len(sm_cells(RULE, BULK))
    assert cells["change"].abs().max() < 0.05
    assert cells["kernel"].value_counts().to_dict() == dict.fromkeys((RULE, BULK), len(sm_cells(RULE)))
    others = {said(row[5]) for row in table_of(part, "Cell by cell").rows}
    assert others == {f"kernel {RULE}", f"kernel {BULK}"}


def test_runs_of_different_shapes_have_no_cell_in_common(tmp_path: Path) -> None:
    runs = [make(tmp_path, measured(*sm_cells(kernel)), kernel) for kernel in (RULE, BULK)]
    assert [view.base for view in views_of(runs)] == [None, None]


def test_the_look_up_of_the_page_has_the_kernel_shape_of_each_cell(swept: Run) -> None:
    rows = re.findall(r"<tr><td>[^<]*<td>(\w+)(.*)", page_of(report_of([swept])))
    kernels: dict[str, set[str]] = {}
    for backend, rest in rows:
        if "failed: " not in rest and "skipped: " not in rest:
            kernels.setdefault(backend, set()).update(re.findall(r"kernel=([\w-]+)", rest) or [""])
    assert kernels.pop("sm") == {"", BULK, LANES}  # the rule is what is usual
    assert set(map(frozenset, kernels.values())) == {frozenset({""})}
