"""The section on pages of the host: directly by a kernel, or through a buffer on the device."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from kvbench.cells.axes import Direction, Reuse
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.units import KIB, MIB
from tests import synthetic
from tests.reports import highlights_of, is_bold, made_report, part_of, rows_of, said, sections_of, table_of

GBPS = {"sm": 50.0, "staged": 40.0, "batched": 5.0}


def cell(backend: str, size: int = 4 * KIB) -> Cell:
    pages = Pattern.parse("page-first-8")
    tensors = Cell(backend, Direction.H2D, 1024, size, pattern=Pattern.parse("tensors-8"), host_pattern=pages)
    return replace(tensors, pool_bytes=1 << 30, reuse=Reuse.FRESH, sms=4 if backend == "sm" else None)


def test_the_table_compares_swaps_with_pages_and_shows_the_costs_of_staging(tmp_path: Path) -> None:
    cells = [cell(backend, size) for backend in GBPS for size in (2 * KIB, 4 * KIB)]
    made = synthetic.rounds(cells, lambda one: GBPS[one.backend], noise=0.001)
    made = [
        msgspec.structs.replace(one, staging_bytes=16 * MIB, sm_us=700.0) if one.cell.backend == "staged" else one
        for one in made
    ]
    report = made_report(tmp_path, [*synthetic.ceilings(), *made])
    (highlight,) = highlights_of(report, "pages")
    assert (
        highlight == "h2d, pages on the host: sm is the fastest in 2 of 2 swaps; staged reaches 80% of its throughput."
    )
    table = table_of(part_of(report, "pages"), "h2d")
    heads = [said(head) for head in table.header]
    assert heads[2:5] == ["batched", "sm (4 SMs)", "staged"]
    small, _ = table.rows
    assert [float(said(rate)) for rate in small[2:5]] == pytest.approx([5.0, 50.0, 40.0], rel=0.01)
    assert [is_bold(rate) for rate in small[2:5]] == [False, True, False]
    assert dict(zip(heads, map(said, small), strict=True))["staged: buffer, MiB"] == "16.0"
    assert list(rows_of(table)) == ["page-first-8"]


def test_the_section_needs_pages_and_two_backends(tmp_path: Path) -> None:
    plain = [replace(cell(backend), host_pattern=Pattern("pattern")) for backend in GBPS]
    for number, cells in enumerate((plain, [cell("sm")])):
        report = made_report(tmp_path / str(number), synthetic.rounds(cells, lambda one: GBPS[one.backend]))
        assert "pages" not in sections_of(report)
