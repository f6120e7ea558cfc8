"""The sentences on top of a report: worked out from what was measured, absent where that does not carry them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import Cell
from kvbench.results import Record, Visit
from tests import synthetic
from tests.reports import findings_of, highlights_of, made_report, part_of, rows_of


def highlights_for(tmp_path: Path, records: Sequence[Record], section: str) -> list[str]:
    """Return the sentences of a section."""
    return highlights_of(made_report(tmp_path, records), section)


def on_paths(visits: Sequence[Visit], path: Callable[[Cell], str]) -> list[Visit]:
    return [msgspec.structs.replace(visit, path=path(visit.cell)) for visit in visits]


def inline_below_24_kib(cell: Cell) -> str:
    idle = cell.stream_state is StreamState.IDLE and cell.direction is Direction.H2D
    return "CPU inline" if idle and cell.backend == "batched" and cell.block_bytes <= 24 * 1024 else "copy engine"


def test_the_highlight_of_a_cliff_has_sizes_height_paths_and_the_other_state(tmp_path: Path) -> None:
    records = on_paths(synthetic.rounds(synthetic.cliff_cells((256, 10_000))), inline_below_24_kib)
    (highlight,) = highlights_for(tmp_path, records, "cliff")
    assert highlight.startswith(
        "batched h2d on an idle stream: 28 KiB blocks reach 5.4x the speed of 24 KiB blocks, of which the size "
        "explains 17% (N = 256 to 10 000);"
    )
    assert "path: copy engine, of the smaller blocks: CPU inline" in highlight
    assert highlight.endswith("; no cliff on a busy stream.")


def test_a_jump_at_few_numbers_of_blocks_is_no_highlight(tmp_path: Path) -> None:
    def rate(cell: Cell) -> float:
        return 5.0 if cell.blocks == 64 and cell.block_bytes <= 8192 else 40.0

    counts = (16, 64, 256)
    cells = [cell for cell in synthetic.cliff_cells(counts) if cell.backend == "batched"]
    highlights = highlights_for(tmp_path, synthetic.rounds(cells, rate), "cliff")
    assert not any("than the size explains" in text for text in highlights)
    assert any(
        text.startswith("batched h2d on an idle stream: ") and "between N = 16 and 64" in text for text in highlights
    )


def test_a_fall_between_the_same_sizes_does_not_count_in_the_highlight_of_a_jump(tmp_path: Path) -> None:
    def rate(cell: Cell) -> float:
        fast = (cell.block_bytes > 24 * 1024) == (cell.blocks != 10_000)
        return 40.0 if fast else 4.0

    cells = [cell for cell in synthetic.cliff_cells((64, 256, 10_000)) if cell.backend == "batched"]
    highlights = highlights_for(tmp_path, synthetic.rounds(cells, rate), "cliff")
    jump = next(text for text in highlights if text.startswith("batched h2d on an idle stream: 28 KiB blocks reach "))
    assert "(N = 64 to 256)" in jump


def test_a_ladder_that_still_rises_has_no_knee(tmp_path: Path) -> None:
    cells = [Cell("triton", Direction.H2D, 16, 4096, sms=count) for count in (1, 2, 4)]
    report = made_report(tmp_path, synthetic.rounds(cells, lambda cell: 5.0 * (cell.sms or 1)))
    (table,) = part_of(report, "sm-ladder").tables
    assert rows_of(table)["knee"] == ["none"]
    assert highlights_of(report, "sm-ladder") == []


def test_the_highlight_of_access_order_says_where_any_changes_nothing(tmp_path: Path) -> None:
    rounds = synthetic.rounds(synthetic.order_cells(), noise=0.2)
    swap, host = findings_of(part_of(made_report(tmp_path, rounds), "access-order"))
    assert swap == "ANY against STREAM, batched on an idle stream: no clear difference of swap time in 16 cells."
    assert "of host time" in host


def test_a_run_without_figures_has_no_highlights(tmp_path: Path) -> None:
    cell = synthetic.order_cells()[0]
    assert made_report(tmp_path, [synthetic.failure(cell)]).summary == {}
