"""Sections that put the values of one axis side by side: their lines, comparisons and findings."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kvbench.cells.axes import Direction, ListPlace, Order, Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.cells.units import KIB
from kvbench.report.model import Text
from kvbench.report.numbers import ABSENT, TIMES
from kvbench.results import Visit
from tests import synthetic
from tests.reports import highlights_of, is_bold, lines_of, made_report, part_of, said, sections_of

GIB = 1 << 30
HOT = Cell("sm", Direction.D2H, 1024, 4 * KIB, sms=2)
FAR = replace(HOT, pool_bytes=16 * GIB, reuse=Reuse.FRESH, sms=4)
IN_RUNS = Cell("batched", Direction.H2D, 1504, 16 * KIB, order=Order.ANY, pool_bytes=16 * GIB, reuse=Reuse.FRESH)
GATHER = Cell("sm", Direction.H2D, 16, 656, list_place=ListPlace.GPU, pool_bytes=16 * GIB, reuse=Reuse.FRESH)
GATED = Cell("batched", Direction.H2D, 256, 16 * KIB, StreamState.GATED, order=Order.ANY)


def in_runs(backend: str, run: int) -> Cell:
    pattern = Pattern("runs", run) if run > 1 else Pattern("shuffled")
    return replace(IN_RUNS, backend=backend, pattern=pattern, order=None if backend == "sm" else Order.ANY,
                   sms=2 if backend == "sm" else None)  # fmt: skip


def fragments_of(backend: str, ranks: int, size: int) -> Cell:
    """As vLLM's layout vllm-canonical has them: 16 fragments a block, in tensors."""
    pattern = Pattern.of_fragments(16, ranks)
    return replace(in_runs(backend, 1), block_bytes=size, pattern=pattern.on_device, host_pattern=pattern)


def gather_us(cell: Cell) -> float:
    """6 us and 41 M rows a second up to some ten thousand rows, 28 M beyond; a fifth of it with one thread block."""
    rate = 41.0 if cell.blocks < 100_000 else 28.0
    return 6.0 + cell.blocks / rate * {1: 4.0, 4: 1.025}.get(cell.sms or 0, 1.0)


def plain_text(text: Text) -> str:
    return said(text).replace("†", "").replace(TIMES, "x")


def by_run(cell: Cell) -> float:
    """Merged copies overtake the kernel between runs of 8 and 32."""
    if cell.backend == "sm":
        return 49.0
    return 5.0 if cell.backend == "batched" else {1: 4.9, 8: 45.7, 32: 51.6, 128: 53.5}[cell.pattern.run]


@dataclass(frozen=True)
class Case:
    """A section, the cells and rates of a run, and what its first table and findings say.

    `line` is one line of the table, `bold` its texts that stand out; the cells that are `too_little` make no section.
    """

    section: str
    cells: Sequence[Cell]
    gbps: Callable[[Cell], float]
    header: Sequence[str]
    line: Sequence[str]
    finding: str
    too_little: Callable[[Cell], bool]
    bold: Sequence[str] = ()


CASES = (
    Case(
        "extents",
        [in_runs(backend, run) for backend in ("batched", "merged", "sm") for run in (1, 8, 32, 128)],
        by_run,
        ["Swap", "Extent", "batched", "merged", "sm (2 SMs)"],
        ["1 504 x 16 KiB", "32", "5.00", "51.6", "49.0"],
        "h2d on an idle stream, 1 504 x 16 KiB: sm (2 SMs) is fastest at an extent of 1 to 8, merged at 32 to 128.",
        lambda cell: cell.pattern.run <= 8,
        bold=["51.6"],
    ),
    Case(
        "locality",
        [HOT, replace(HOT, reuse=Reuse.FRESH), replace(FAR, reuse=Reuse.SAME), FAR],
        lambda cell: 14.0 if cell == FAR else 42.0 if cell == HOT else 35.0,
        ["Swap", "Backend", "hot, dense", "fresh, dense", "same, scattered", "fresh, scattered", "Cost"],
        ["1 024 x 4 KiB", "sm", "42.0 (2 SMs)", "35.0 (2 SMs)", "35.0 (4 SMs)", "14.0 (4 SMs)", "x3.00"],
        "d2h of fresh, scattered blocks against hot, dense ones: sm of 1 024 x 4 KiB takes 3x as long.",
        lambda cell: cell.pool_bytes > 0,
    ),
    Case(
        "stream-states",
        [replace(GATED, stream_state=state) for state in (StreamState.GATED, StreamState.OPENED)],
        lambda cell: 28.0 if cell.stream_state is StreamState.GATED else 4.0,
        ["Method", "Blocks", "Block size", "Opened us", "Gated us"],
        ["batched", "256", "16 KiB", "1049", "150"],
        "batched h2d: a swap takes up to 7 times as long if the event it waits for has already fired",
        lambda cell: cell.stream_state is StreamState.OPENED,
    ),
    Case(
        "order",
        synthetic.order_cells(),
        lambda cell: 20.0 if cell.order is Order.ANY and cell.direction is Direction.H2D else 10.0,
        ["Dir", "Blocks", "Block size", "STREAM med ms", "ANY med ms", "Delta (95%)", "Submission STREAM us", "ANY us"],
        ["h2d", "64", "4 KiB", "0.0262", "0.0131", "-50.0%"],
        "ANY against STREAM, batched on an idle stream: swap time differs in 8 of 16 cells",
        lambda cell: cell.order is Order.STREAM,
    ),
    Case(
        "queue",
        synthetic.queue_cells(),
        synthetic.queue_gbps,
        ["Queued", f"per_block, 1 {TIMES} 32 KiB, 1 stream", f"per_block, 1 {TIMES} 32 KiB, 8 streams"],
        ["256", "2.10", "2.10", "30.0"],
        "per_block, 1 x 32 KiB, 1 stream, h2d: a submission behind 1 024 queued swaps takes 50x as long",
        lambda cell: cell.queued <= 4,
    ),
    Case(
        "threshold",
        [cell for cell in synthetic.cliff_cells((10_000,)) if cell.stream_state is StreamState.IDLE],
        synthetic.gbps_of,
        ["Dir", "Block size", "batched", "per_block", "triton (12 SMs)"],
        ["h2d", "16 KiB", "4.50", "5.46", "49.0"],
        "h2d and d2h on an idle stream, N = 10 000: triton (12 SMs) is fastest at 1 KiB to 32 KiB, batched at 64 KiB",
        lambda cell: cell.backend != "batched",
        bold=["49.0"],
    ),
    Case(
        "fragments",
        [fragments_of(backend, ranks, size) for backend in ("batched", "sm") for ranks, size in ((8, 256), (2, 1024))],
        lambda cell: 35.0 if cell.backend == "sm" else cell.block_bytes / 1000,
        ["Ranks", "Block size", "batched", "sm (2 SMs)"],
        ["8", "256 B", "0.256", "35.0"],
        "h2d of fragments of 256 B, 8 ranks: sm (2 SMs) moves 35.0 GB/s, batched 0.256 (137x)",
        lambda cell: cell.backend == "sm",
        bold=["35.0"],
    ),
    Case(
        "registrations",
        [
            replace(in_runs(backend, 1), blocks=10_000, block_bytes=4 * KIB, memory=memory, pool_bytes=GIB)
            for backend in ("batched", "sm")
            for memory in ("shared", "slots-256KiBx2")
        ],
        lambda cell: 50.0 if cell.backend == "sm" else 2.0 if cell.memory == "shared" else 1.0,
        ["Blocks", "Registrations", "batched", "sm (2 SMs)"],
        ["10 000", "4 096", "4.10", "0.0819"],
        "h2d of 4 KiB, in 4 096 registrations in place of 1: batched takes 2x as long; sm (2 SMs) is not slower.",
        lambda cell: cell.memory == "shared",
    ),
    Case(
        "gathers",
        [replace(GATHER, blocks=rows, sms=ctas) for rows in (16, 64, 2048, 110_592) for ctas in (1, 4, 132)],
        lambda cell: cell.swap_bytes / 1e3 / gather_us(cell),
        ["Rows", "1 CTA", "4 CTAs", "132 CTAs", "M rows/s", "CTAs that suffice"],
        ["2 048", "206", "57.2", "56.0", "36.6", "4"],
        "sm gathers rows of 656 B in 6.00 us + n / 41.0 M; 4 CTAs are within 5% of the best.",
        lambda cell: cell.blocks > 64,
    ),
    Case(
        "call",
        [
            Cell(backend, Direction.H2D, 64, 4 * KIB, sms=sms, pause_us=pause)
            for backend, sms in (("sm", 2), ("empty", None))
            for pause in (0, 5000)
        ],
        lambda cell: 4.0 if cell.pause_us else 16.0,
        ["Blocks", "Block size", "Method", "Thread us, tight", "Completion us, tight", "Thread us, after a step"],
        ["64", "4 KiB", "sm (2 SMs)", "4.92", "16.4", "19.7", "65.5", "x4.00"],
        "sm (2 SMs) h2d, 64 x 4 KiB: the call takes 4.92 us of the thread in a tight loop and 19.7 us after a step",
        lambda cell: cell.pause_us == 0,
    ),
    Case(
        "devices",
        [Cell("sm", Direction.H2D, 64, 4 * KIB, sms=2, devices=devices) for devices in (1, 2)],
        lambda cell: 50.0 if cell.devices == 1 else 40.0,
        ["Method", "Swap", "Stream", "Device", "GB/s alone", "GB/s at once", "Share"],
        ["sm (2 SMs)", "64 x 4 KiB", "idle", "cuda:0", "50.0", "40.0", "80%"],
        "h2d on 2 devices at once: 80% of the rate alone at worst (sm (2 SMs), 64 x 4 KiB: 40.0 of 50.0 GB/s).",
        lambda cell: cell.devices == 1,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.section)
def test_a_contrast_shows_its_arms_side_by_side_and_says_what_differs(case: Case, tmp_path: Path) -> None:
    report = made_report(tmp_path, synthetic.rounds(case.cells, case.gbps, noise=0.0))
    table = part_of(report, case.section).tables[0]
    assert [said(head) for head in table.header][: len(case.header)] == list(case.header)
    rows = [([plain_text(text) for text in row], row) for row in table.rows]
    keys = table.left if case.section != "devices" else 4
    ((line, row),) = [pair for pair in rows if pair[0][:keys] == list(case.line[:keys])]
    assert [text.split(" (-")[0] for text in line[: len(case.line)]] == list(case.line)
    assert [said(text) for text in row if is_bold(text)] == list(case.bold)
    assert (
        any(text.replace(TIMES, "x").startswith(case.finding) for text in highlights_of(report, case.section))
        or not case.finding
    )


def test_gathers_say_how_long_a_step_waits_in_all_of_its_layers(tmp_path: Path) -> None:
    cells = [replace(GATHER, blocks=rows, sms=4) for rows in (16, 3277, 16_384)]
    report = made_report(tmp_path, synthetic.rounds(cells, lambda cell: cell.swap_bytes / 1e3 / cell.blocks, noise=0.0))
    (finding,) = [text for text in highlights_of(report, "gathers") if "a step" in text]
    assert "wait 0.999 / 200 / 999 ms a step with 0.1 / 20 / 100% of the rows missing" in finding  # 1 us a row


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.section)
def test_without_an_arm_the_report_says_what_the_section_needs(case: Case, tmp_path: Path) -> None:
    cells = [cell for cell in case.cells if case.too_little(cell)]
    report = made_report(tmp_path, synthetic.rounds(cells, case.gbps, noise=0.0))
    assert case.section not in sections_of(report)
    asked = case.section in ("order", "queue", "threshold")
    assert (case.section in report.missing) == asked


def test_a_difference_within_the_noise_is_marked_unclear(tmp_path: Path) -> None:
    report = made_report(tmp_path, synthetic.rounds([HOT, FAR], lambda cell: 40.0 if cell == HOT else 39.8))
    assert said(part_of(report, "locality").tables[0].rows[0][-1]).startswith("≈")
    assert "sm are not slower" not in " ".join(highlights_of(report, "locality"))


def test_a_failed_arm_has_a_footnote_and_does_not_change_the_caption(tmp_path: Path) -> None:
    failed = synthetic.failure(replace(HOT, reuse=Reuse.FRESH), "error 719")
    report = made_report(tmp_path, [*synthetic.rounds([HOT, FAR], lambda _: 40.0), failed])
    table = part_of(report, "locality").tables[0]
    assert f"{ABSENT}¹" in [said(text) for text in table.rows[0]]
    assert lines_of(table.notes)[-1] == "¹ failed: error: error 719"
    assert "; 30 samples a cell" in said(table.caption)


def test_gathers_stay_out_of_other_sections(tmp_path: Path) -> None:
    cells = [replace(GATHER, blocks=rows, sms=ctas) for rows in (16, 64, 2048) for ctas in (1, 4, 8, 132)]
    report = made_report(tmp_path, synthetic.rounds(cells, lambda _: 10.0))
    assert sections_of(report) == ["gathers"]


def test_depths_that_the_queue_did_not_hold_are_marked_and_the_knee_stands_below(tmp_path: Path) -> None:
    report = made_report(tmp_path, synthetic.rounds(synthetic.queue_cells(), synthetic.queue_gbps))
    (table,) = part_of(report, "queue").tables
    rows = {said(row[0]): [said(text) for text in row[1:]] for row in table.rows}
    assert not any("†" in text for text in rows["256"])
    assert all("†" in text for text in rows["1 024"])
    assert [bool(re.fullmatch(r"1 024 \(\D\d+\.\d\)", text)) for text in rows["knee"]] == [True, False, False, False]


def test_queued_cells_stay_out_of_other_sections(tmp_path: Path) -> None:
    """More cells with a queue than without must not move the cliff's tables to the cells with one."""
    plain = [cell for cell in synthetic.cliff_cells((256,)) if cell.backend == "batched"]
    busy = [cell for cell in plain if cell.stream_state is StreamState.BUSY]
    queued = [replace(cell, queued=depth, streams=n) for cell in busy for depth, n in ((4, 1), (16, 1), (4, 8))]
    visits: list[Visit] = synthetic.rounds(plain)
    alone = made_report(tmp_path / "alone", visits)
    both = made_report(tmp_path / "both", visits + synthetic.rounds(queued, lambda _: 1.0))
    assert part_of(both, "cliff").tables == part_of(alone, "cliff").tables


@pytest.mark.parametrize("exception", [False, True])
def test_lines_of_which_the_same_is_true_share_a_sentence(tmp_path: Path, *, exception: bool) -> None:
    cells = [
        replace(in_runs(name, run), block_bytes=size)
        for size in (4 * KIB, 8 * KIB)
        for run in (1, 8, 32)
        for name in ("sm", "merged")
    ]

    def rate(cell: Cell) -> float:
        other = exception and cell.block_bytes == 8 * KIB
        return 50.0 if (cell.backend == "merged") == other else 40.0

    report = made_report(tmp_path, synthetic.rounds(cells, rate, noise=0.001))
    sentences = [text.replace(TIMES, "x") for text in highlights_of(report, "extents")]
    every = "h2d on an idle stream, 1 504 x 4 KiB and 1 504 x 8 KiB: sm (2 SMs) is fastest at an extent of 1 to 32."
    assert sentences == [every] if not exception else len(sentences) == 2
