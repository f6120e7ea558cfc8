"""The section on locality: the four arms of a swap, what scattered blocks cost, and GB/s against the pool."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from kvbench.cells.axes import Direction, Reuse
from kvbench.cells.cell import Cell
from kvbench.report.charts.plot import LinePlot
from kvbench.report.model import Part
from kvbench.report.numbers import TIMES
from kvbench.report.sections.locality import make
from kvbench.report.view import views_of
from kvbench.results import Record
from tests.reports import lines_of, made_run, said
from tests.synthetic import ceilings, failure, visit

GIB = 1 << 30
SWAP = Cell("sm", Direction.D2H, 1024, 4096, sms=2)
FAR = replace(SWAP, pool_bytes=16 * GIB, reuse=Reuse.FRESH, sms=4)


def part_of(tmp_path: Path, times_us: dict[Cell, float]) -> Part | str:
    visits = [
        visit(cell, us, count=5, noise=0.001, round_=number) for number in range(6) for cell, us in times_us.items()
    ]
    return made(tmp_path, visits)


def made(tmp_path: Path, records: Sequence[Record]) -> Part | str:
    part = make(views_of([made_run(tmp_path, [*ceilings(), *records])])[0])
    return part if isinstance(part, str) else part()


def test_the_table_compares_scattered_blocks_with_hot_ones(tmp_path: Path) -> None:
    arms = {SWAP: 100.0, replace(SWAP, reuse=Reuse.FRESH): 110.0, replace(FAR, reuse=Reuse.SAME): 120.0, FAR: 300.0}
    part = part_of(tmp_path, arms)
    assert isinstance(part, Part)
    (table,) = part.tables
    ((swap, backend, *rates, cost),) = table.rows
    assert (backend, "4\N{NO-BREAK SPACE}KiB" in str(swap)) == ("sm", True)
    assert [str(rate).split()[0] for rate in rates] == ["41.9", "38.1", "34.9", "14.0"]
    assert ["(2" in str(rate) for rate in rates] == [True, True, False, False]
    assert str(cost).endswith("3.00")
    assert len(part.highlights) == 1
    assert not part.charts


def test_a_swap_that_scattering_does_not_slow_is_marked_unclear(tmp_path: Path) -> None:
    part = part_of(tmp_path, {SWAP: 100.0, FAR: 100.5})
    assert isinstance(part, Part)
    assert str(part.tables[0].rows[0][-1]).startswith("≈")


def test_the_swap_that_scattering_slows_most_is_one_that_visits_agree_on(tmp_path: Path) -> None:
    few, many = (replace(SWAP, blocks=blocks) for blocks in (64, 4096))
    records = [
        visit(cell, us, count=5, noise=0.001, round_=number)
        for number in range(6)
        for cell, us in (
            (few, 10.0),
            (replace(FAR, blocks=64), 90.0 if number % 2 else 5.0),
            (many, 400.0),
            (replace(FAR, blocks=4096), 800.0),
        )
    ]
    part = made(tmp_path, records)
    assert isinstance(part, Part)
    (highlight,) = part.highlights
    assert f"4 096 {TIMES} 4 KiB takes 2x as long" in said(highlight.text)


def test_a_failed_arm_does_not_change_the_caption_and_has_a_footnote(tmp_path: Path) -> None:
    records = [visit(cell, 100.0, count=5, round_=number) for number in range(6) for cell in (SWAP, FAR)]
    failed = failure(replace(SWAP, reuse=Reuse.FRESH), "error 719")
    part = made(tmp_path, [*records, failed])
    assert isinstance(part, Part)
    (table,) = part.tables
    assert " · 30 samples per cell" in said(table.caption)
    assert lines_of(table.notes)[-1] == "¹ failed: error: error 719"
    assert not any("visits only" in note for note in lines_of(table.notes))


def test_swaps_that_all_failed_are_not_compared(tmp_path: Path) -> None:
    failed = [failure(cell, "error 719") for cell in (SWAP, FAR)]
    part = made(tmp_path, failed)
    assert isinstance(part, str)


def test_a_highlight_says_when_priming_did_not_stop_the_cpu_from_copying(tmp_path: Path) -> None:
    primed = [replace(cell, backend="primed", sms=None) for cell in (SWAP, FAR)]
    visits = [
        msgspec.structs.replace(
            visit(cell, 100.0, round_=number), path="CPU inline" if cell.pool_bytes else "copy engine"
        )
        for number in range(6)
        for cell in primed
    ]
    part = made(tmp_path, visits)
    assert isinstance(part, Part)
    assert "primed took the path CPU inline, in some visits or all, in 1 of 2 cells." in [
        one.text for one in part.highlights
    ]


def test_three_pool_sizes_make_a_chart(tmp_path: Path) -> None:
    part = part_of(tmp_path, {replace(FAR, pool_bytes=size * GIB): 100.0 * size for size in (1, 2, 4)})
    assert isinstance(part, Part)
    (chart,) = part.charts
    assert isinstance(chart.plot, LinePlot)
    (line,) = chart.plot.lines
    assert list(line.x) == [GIB, 2 * GIB, 4 * GIB]
    assert list(line.y) == sorted(line.y, reverse=True)


def test_a_run_of_hot_swaps_only_says_what_the_section_needs(tmp_path: Path) -> None:
    part = part_of(tmp_path, {SWAP: 100.0})
    assert isinstance(part, str)
    assert "large pool" in part


def test_other_sections_prefer_fresh_scattered_blocks(tmp_path: Path) -> None:
    hot = {replace(SWAP, block_bytes=size): 50.0 for size in (1024, 2048, 4096, 8192)}
    far = {replace(FAR, block_bytes=size): 200.0 for size in (1024, 4096)}
    run = made_run(tmp_path, [visit(cell, us) for cell, us in (hot | far).items()])
    shown = views_of([run])[0].pinned
    assert set(shown.cells["reuse"]) == {"fresh"}
    assert set(shown.cells["pool"]) == {"16GiB"}
    assert shown.hidden["pool"] == {"dense"}
