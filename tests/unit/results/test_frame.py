from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from kvbench.cells.axes import Direction, Order, Reuse
from kvbench.cells.cell import Cell
from kvbench.ground.errors import RunDirectoryError, UsageError
from kvbench.results import load_run
from kvbench.results.columns import TYPES
from kvbench.results.schema import Ceiling, Record
from tests.synthetic import ceilings, cliff_cells, failure, info, loaded, roofs, visit, visits, write_run

FAR = Cell("sm", Direction.H2D, 1000, 1024, sms=4, pool_bytes=1 << 30, reuse=Reuse.FRESH)


def frame_of(tmp_path: Path, *records: Record):  # type: ignore[no-untyped-def]  # a DataFrame
    return loaded(tmp_path / "run", [*ceilings(), *records]).table.set_index("cell_id")


def test_the_roof_of_scattered_small_blocks_is_the_translation_limit(tmp_path: Path) -> None:
    large, dense, engine = replace(FAR, block_bytes=1 << 16), replace(FAR, pool_bytes=1 << 29), replace(FAR, sms=None)
    dense_engine = replace(dense, sms=None)
    visits = [visit(cell, 40.0) for cell in (FAR, large, dense, engine, dense_engine)]
    frame = frame_of(tmp_path, *roofs(1000.0, 300.0), *visits)
    assert frame["limit_blocks_per_s"].unique() == pytest.approx([28e6])
    ceiling = frame["ceiling_gbps"].iloc[0]
    reached = frame["roof_gbps"]
    assert reached[FAR.id] == pytest.approx(28e6 * 1024 / 1e9)
    assert reached[large.id] == reached[dense.id] == pytest.approx(50)  # what large SM copies reach
    assert reached[engine.id] == pytest.approx(min(ceiling, 28e6 * 1024 / 1e9))
    assert reached[dense_engine.id] == ceiling != pytest.approx(50)
    assert (frame["roof_share"] == frame["gbps"] / frame["roof_gbps"]).all()


def test_scattered_blocks_that_take_a_fifth_longer_than_dense_ones_show_a_limit(tmp_path: Path) -> None:
    frame = frame_of(tmp_path, *roofs(1200.0, 1000.0), visit(FAR, 40.0))
    assert frame["limit_blocks_per_s"].unique() == pytest.approx([28e6 / 1.2])


def test_a_row_says_what_its_cell_is_held_against(tmp_path: Path) -> None:
    loads, saves = (Cell("batched", way, 16, 4096, order=Order.ANY) for way in Direction)
    rates = [Ceiling(direction=way.value, round=number, swap_bytes=60_000_000, event_us=[us])
             for way in Direction for number, us in enumerate((6000.0, 3000.0, 1000.0))]  # fmt: skip
    failed = msgspec.structs.replace(failure(FAR), command="kvbench sweep odd")
    records = [*rates, visit(loads, 40.0), visit(saves, 40.0), failed, *roofs(1090.0, 1000.0)]
    path = write_run(tmp_path / "run", records, info(device={"name": "cuda:12345", "kind": "cuda"}))
    frame = load_run(path).table.set_index("cell_id").loc[[loads.id, saves.id, FAR.id]]
    assert frame["order_note"].fillna("").tolist() == ["", "any on d2h", ""]
    assert frame["ceiling_gbps"].tolist() == pytest.approx([20.0] * 3)
    assert (frame["ceiling_share"] == frame["gbps"] / frame["ceiling_gbps"]).tolist() == [True, True, False]
    assert (frame["command"].iloc[2], frame["device"].unique().tolist()) == ("kvbench sweep odd", ["unknown"])
    assert frame["limit_blocks_per_s"].isna().all()  # scattered blocks are nearly as fast as dense ones


def test_a_roof_of_six_rounds_has_an_interval(tmp_path: Path) -> None:
    rounds = [roofs(1000.0 + 10 * n, 300.0)[n] for n in range(6)]
    row = frame_of(tmp_path, *rounds, visit(FAR, 40.0)).loc[FAR.id]
    rates = [28_000 * 1024 / (1000.0 + us) / 1e3 for us in (25, 50, 0)]
    assert row[["roof_gbps", "roof_gbps_low", "roof_gbps_high"]].tolist() == pytest.approx(rates)
    of_no_time = msgspec.structs.replace(rounds[5], dense_us=[0.0])  # which is no round of them
    row = frame_of(tmp_path / "five", *rounds[:5], of_no_time, visit(FAR, 40.0)).loc[FAR.id]
    assert row[["roof_gbps_low", "roof_gbps_high"]].isna().all()


@pytest.mark.parametrize("name", ["copy_us", "scattered_us", "dense_us"])
def test_a_roof_without_a_figure_is_refused(tmp_path: Path, name: str) -> None:
    path = write_run(tmp_path / "run", [msgspec.structs.replace(roofs(1000.0, 300.0)[0], **{name: []})])
    with pytest.raises(RunDirectoryError, match=f"journal line 1 is not a record of this schema: .*{name}"):
        load_run(path)


# In a notebook


def test_a_table_for_reading_has_at_most_sixty_columns_and_the_rest_by_name(tmp_path: Path) -> None:
    run = loaded(tmp_path / "run", visits(cliff_cells((64,), (4, 28))))
    frame = run.frame()
    assert len(frame.columns) <= 60
    assert {"backend", "block_bytes", "gbps", "gbps_low", "status", "cell_id", "command"} <= {*frame}
    more = run.frame("gbps_q1", "roof_gbps")
    assert [name for name in more if name not in frame] == ["gbps_q1", "roof_gbps"]
    assert list(run.frame(*run.table)) == list(run.table) == list(TYPES)
    with pytest.raises(UsageError, match='unknown key "gbps_q2"; did you mean gbps_q'):
        run.frame("gbps_q2")


def test_samples_carry_the_axes_of_their_cell(tmp_path: Path) -> None:
    cells = cliff_cells((64,), (4, 28))
    run = loaded(tmp_path / "run", visits(cells, count=7))
    samples = run.samples()
    own = samples[(samples.backend == "triton") & (samples.direction == "d2h") & (samples.block_bytes == 28 * 1024)]
    assert {*own.sms} == {12}
    assert [samples[name].dtype == "category" for name in ("backend", "direction", "blocks", "sms")] == [1, 1, 0, 0]
    assert {*own.cell_id} == {
        cell.id for cell in cells if cell.sms and (cell.direction, cell.block_bytes) == ("d2h", 28 * 1024)
    }
    by_cell = run.table.set_index("cell_id")
    for row in samples.groupby("cell_id").first().itertuples():
        assert (row.backend, row.blocks) == (by_cell.loc[row.Index, "backend"], by_cell.loc[row.Index, "blocks"])


def test_a_run_is_one_line_and_its_visits_do_not_fill_a_screen(tmp_path: Path) -> None:
    run = loaded(tmp_path / "run", visits(cliff_cells((64,), (4,)), count=100))
    assert repr(run).isprintable()
    assert len(repr(run)) < 200 + len(str(run.path))
    assert "Synthetic H200" in repr(run)
    assert len(repr(run.visits[0])) < 2500


def test_every_column_is_written_by_one_call(tmp_path: Path) -> None:
    run = loaded(tmp_path / "run", visits(cliff_cells((64,), (4,))))
    path = run.to_csv(tmp_path / "mine.csv")
    assert path.read_text().splitlines()[0].split(",") == list(TYPES)
    assert path.read_bytes() == run.write_summary().read_bytes()
