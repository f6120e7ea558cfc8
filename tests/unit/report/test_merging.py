"""The table of what merging adjacent descriptors costs and saves."""

from pathlib import Path

from kvbench.cells.axes import Direction, Order
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.results import Visit
from tests import synthetic
from tests.reports import lines_of, made_report, part_of, rows_of


def visits(pattern: str, coalesce: bool, swap_us: float) -> list[Visit]:
    cell = Cell(
        "batched", Direction.H2D, 10_000, 4096,
        pattern=Pattern.parse(pattern), order=Order.ANY, descriptors_per_call=0, coalesce=coalesce, overlap=False,
    )  # fmt: skip
    return [synthetic.visit(cell, swap_us, noise=0.001, round_=number) for number in range(6)]


def test_the_table_shows_how_much_merging_changes_the_time_of_a_swap(tmp_path: Path) -> None:
    report = made_report(
        tmp_path,
        [
            *synthetic.ceilings(),
            *visits("runs-16", False, 1000.0), *visits("runs-16", True, 150.0),
            *visits("shuffled", False, 1000.0), *visits("shuffled", True, 1060.0),
            *visits("runs-2", False, 1000.0), *visits("runs-2", True, 1000.0),
            *visits("contiguous", False, 1000.0),
        ],
    )  # fmt: skip
    (table,) = part_of(report, "merging").tables
    saved = {pattern: row[-1] for pattern, row in rows_of(table).items()}
    assert saved["runs-16"].startswith("-85.0%")
    assert saved["shuffled"].startswith("+6.0%")
    assert saved["runs-2"].startswith("≈")
    assert "contiguous" not in saved


def test_the_report_says_when_a_run_has_no_pairs_to_compare(tmp_path: Path) -> None:
    report = made_report(tmp_path, [*synthetic.ceilings(), *visits("shuffled", True, 100.0)])
    needed = "it needs cells measured with coalesce=off and with coalesce=on that are otherwise equal"
    assert any(needed in line for line in lines_of(report.missing))
