"""The sentences on top of a report: worked out from what was measured, absent where that does not carry them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import msgspec
import pytest

from kvbench.cells.axes import Direction, Neighbour, Order, StreamState
from kvbench.cells.cell import Cell
from kvbench.report.charts.plot import LinePlot
from kvbench.results import Record, Visit
from tests import synthetic
from tests.reports import findings_of, highlights_of, is_bold, lines_of, made_report, part_of, rows_of, said


def highlights_for(tmp_path: Path, records: Sequence[Record], section: str) -> list[str]:
    """Return the sentences of a section."""
    return highlights_of(made_report(tmp_path, records), section)


def on_paths(visits: Sequence[Visit], path: Callable[[Cell], str]) -> list[Visit]:
    return [msgspec.structs.replace(visit, path=path(visit.cell)) for visit in visits]


def inline_below_24_kib(cell: Cell) -> str:
    idle = cell.stream_state is StreamState.IDLE and cell.direction is Direction.H2D
    return "CPU inline" if idle and cell.backend == "batched" and cell.block_bytes <= 24 * 1024 else "copy engine"


def test_the_finding_of_a_cliff_has_sizes_height_and_paths(tmp_path: Path) -> None:
    records = on_paths(synthetic.rounds(synthetic.cliff_cells((256, 10_000), synthetic.FEW_KIB)), inline_below_24_kib)
    assert highlights_for(tmp_path, records, "cliff") == [
        "batched h2d on an idle stream: 28 KiB blocks move 5.4 times as fast as 24 KiB blocks (CPU inline below, copy "
        "engine above), at N = 256 to 10 000; the cliff does not deepen with N."
    ]


@pytest.mark.parametrize(("most", "deepens"), [(1.0, False), (2.0, True)])
def test_a_cliff_that_is_higher_with_more_blocks_deepens(tmp_path: Path, most: float, deepens: bool) -> None:
    def rate(cell: Cell) -> float:
        height = most if cell.blocks == 10_000 else 1.0
        return 10.0 * height if cell.block_bytes > 24 * 1024 else 2.0

    cells = [cell for cell in synthetic.cliff_cells((64, 256, 10_000)) if cell.backend == "batched"]
    (text,) = highlights_for(tmp_path, synthetic.rounds(cells, rate, noise=0.001), "cliff")
    assert ("the cliff deepens with N" in text) == deepens


def test_a_ladder_is_the_median_over_numbers_of_blocks_and_shows_what_a_decode_step_loses(tmp_path: Path) -> None:
    cells = [
        Cell("sm", Direction.H2D, blocks, 4096, sms=sms) for blocks in (5_000, 50_000, 200_000) for sms in (2, 4, 8)
    ]
    rates = {5_000: 20.0, 50_000: 30.0, 200_000: 50.0}
    beside = Cell("sm", Direction.H2D, 4096, 16384, sms=4, neighbour=Neighbour.DECODE)
    records = [
        *synthetic.rounds(cells, lambda cell: rates[cell.blocks] * (0.5 if cell.sms == 2 else 1.0), noise=0.001),
        *synthetic.beside(beside, 1.4, 30.0),
    ]
    part = part_of(made_report(tmp_path, records), "sm-ladder")
    (table,) = part.tables
    assert lines_of(table.header) == ["SMs", "h2d 4 KiB", "decode, h2d"]
    assert rows_of(table) == {"2": ["15.0", ""], "4": ["30.0", "1.40x"], "8": ["30.0", ""]}
    assert [said(row[1]) for row in table.rows if is_bold(row[1])] == ["30.0"]
    assert findings_of(part) == ["sm, idle stream: 4 SMs are enough."]
    plot = part.charts[0].plot
    assert isinstance(plot, LinePlot)
    assert plot.second
    assert [line.second for line in plot.lines] == [False, True]


def test_a_crossover_is_the_size_from_which_batched_copies_stay_faster(tmp_path: Path) -> None:
    sizes = [kib * 1024 for kib in (4, 8, 16, 32)]
    kernels = [Cell("triton", Direction.H2D, 10_000, size, sms=sms) for size in sizes for sms in (12, 16)]
    mixed = [
        Cell(name, Direction.H2D, 10_000, 16_384, sms=sms, sizes="alternate-8")
        for name, sms in (("batched", None), ("triton", 12))
    ]
    cells = [Cell("batched", Direction.H2D, 10_000, size) for size in sizes] + kernels + mixed
    cells = [replace(cell, stream_state=StreamState.SUSTAINED) for cell in cells]

    def rate(cell: Cell) -> float:
        if cell.backend == "batched":
            return cell.block_bytes / 1024
        return 10.0 if cell.sms == 12 else 20.0

    table = part_of(made_report(tmp_path, synthetic.rounds(cells, rate, noise=0.001)), "threshold").tables[0]
    assert said(table.title).startswith("Back to back, N = 10 000")
    rows = {said(row[1]): [said(text) for text in row[2:]] for row in table.rows}
    assert [float(text) for text in rows["16 KiB, alternate-8"]] == pytest.approx([16, 10], rel=0.01)
    assert [rows[f"crossover, {sms} SMs"][-1] for sms in (12, 16)] == ["from 16 KiB", "from 32 KiB"]


def test_arms_that_were_measured_in_turn_are_compared_sample_by_sample(tmp_path: Path) -> None:
    """In each visit the machine becomes slower, to twice its time in the last: medians of visits could not tell."""
    cells = [cell for cell in synthetic.order_cells() if cell.direction is Direction.H2D and cell.blocks == 64][:3]
    visits = []
    for cell, made in product(cells, range(6)):
        slower = [1 + (made + 1) / 6 * number / 40 for number in range(40)]
        drift = [100.0 * times * (0.99 if cell.order is Order.ANY else 1.0) for times in slower]
        visit = synthetic.visit(cell, 100.0, count=40)
        samples = msgspec.structs.replace(visit.samples, event_us=drift, wall_us=drift)
        in_turn = {"samples": samples, "group": "one", "round": made, "span_ns": (made, made + 1)}
        visits.append(msgspec.structs.replace(visit, **in_turn))
    table = part_of(made_report(tmp_path, visits), "order").tables[0]
    assert [said(row[5]) for row in table.rows] == ["-1.0% (-1.0 to -1.0)"]
