"""Machines side by side: the cells that all have, and what only one has."""

from collections.abc import Sequence

from kvbench.cells.axes import Direction, Neighbour
from kvbench.cells.cell import Cell
from kvbench.cells.facts import BackendFacts
from kvbench.report.build import report_of
from kvbench.report.document import snippet
from kvbench.report.numbers import ABSENT, TIMES
from kvbench.report.sections.answer import machines_table
from kvbench.report.view import views_of
from kvbench.results import Run
from tests import synthetic
from tests.reports import lines_of, part_in, rows_of, run_of, sections_of

SWAPS = ((64, 4096), (10_000, 4096), (10_000, 65_536))


def run(title: str, gbps: float, *more: str, swaps: Sequence[tuple[int, int]] = SWAPS) -> Run:
    cells = [Cell(name, Direction.H2D, *swap) for swap in swaps for name in ("batched", *more)]
    cells += [Cell("sm", Direction.H2D, *swap, sms=4) for swap in swaps]
    rates = {"sm": gbps, "mine": 60.0}
    made = synthetic.rounds(cells, lambda cell: rates.get(cell.backend, 5.0), noise=0.001)
    return run_of([*synthetic.ceilings(), *made], synthetic.info(title), title.replace(" ", "-"))


def rows_side_by_side(runs: Sequence[Run]) -> dict[str, list[str]]:
    table = machines_table(views_of(runs))
    assert table
    assert lines_of(table.header) == ["", "H100", "H200"]
    return {name.replace(TIMES, "x"): texts for name, texts in rows_of(table).items()}


def test_a_machine_is_a_column_with_the_swaps_that_all_have() -> None:
    runs = [run("NVIDIA H100", 40.0, swaps=SWAPS[1:]), run("NVIDIA H200", 50.0, "merged")]
    rows = rows_side_by_side(runs)
    assert rows["h2d 10 000 x 4 KiB, GB/s: batched"] == ["5.00", "5.00"]
    assert [text.split(":")[0] for text in rows["h2d 10 000 x 4 KiB, GB/s: best"]] == ["40.0", "50.0"]
    assert not any(" 64 x" in name for name in rows)
    assert rows["Recommended, h2d alone"] == ["sm (4 SMs)", "sm (4 SMs)"]


def test_the_first_page_has_a_column_with_the_answer_of_each_machine() -> None:
    """Beside a step too, where that was measured: an answer is that of one machine."""
    decode = Cell("sm", Direction.D2H, 4096, 16_384, sms=2, neighbour=Neighbour.DECODE)
    open_cells = [Cell(name, Direction.H2D, 64, 4096) for name in ("batched", "per_block")]
    beside = run_of(synthetic.beside(decode, 1.25, 40.0), synthetic.info("NVIDIA H200"), "beside")
    runs = [run("NVIDIA H100", 40.0), run("NVIDIA H200", 50.0), beside]
    (table,) = part_in("answer", runs).tables
    assert lines_of(table.header) == ["Swap", "H100", "H200"]
    assert rows_of(table) == {
        "h2d alone": ["sm (4 SMs), 40 GB/s", "sm (4 SMs), 50 GB/s"],
        "d2h beside decode": [ABSENT, "sm (2 SMs), 40 GB/s, 1.25x"],
    }
    few = [run_of(synthetic.visits(open_cells), synthetic.info(card)) for card in "CD"]
    assert all(texts[0].startswith("? ") for texts in rows_of(part_in("answer", few).tables[0]).values())
    assert lines_of(table.notes)[:2] == ["H100: 10000 blocks of 4 KiB", "H200: 4096 to 10000 blocks of 4 KiB to 16 KiB"]
    unanswered = run_of(synthetic.visits(open_cells[:1]), synthetic.info("NVIDIA T4"), "batched-alone")
    (table,) = part_in("answer", [*runs, unanswered]).tables
    assert rows_of(table)["h2d alone"][2] == ABSENT
    alike = [run_of(synthetic.beside(decode, 1.25, 40.0), synthetic.info(card)) for card in "AB"]
    assert [view.label for view in views_of(alike)] == ["A-run", "B-run"]


def test_a_plug_in_is_marked_and_never_best_beside_kvbenchs_own() -> None:
    runs = [run(f"NVIDIA {card}", 5.0, "mine") for card in ("H100", "H200")]
    for one in runs:
        one.info.backends.append(BackendFacts("mine", "", frozenset(), package="mine==1.0", plug_in=True))
    rows = rows_side_by_side(runs)
    assert "h2d 64 x 4 KiB, us: mine (plug-in)" in rows
    assert not any("mine" in text for name, texts in rows.items() if name.endswith("best") for text in texts)
    assert rows["Recommended, h2d alone"] == ["mine (plug-in)"] * 2


def test_the_best_is_of_all_sm_counts_and_takes_the_fewest_of_those_as_fast() -> None:
    swap = (64, 4096)
    cells = [Cell("batched", Direction.D2H, *swap)]
    cells += [Cell("sm", Direction.D2H, *swap, sms=sms) for sms in (2, 4, 8, 16)]
    # most cells have 4 SMs, which is what the other sections show
    cells += [Cell("sm", Direction.D2H, blocks, 4096, sms=4) for blocks in (16, 256, 1024)]
    runs = []
    for card, rates in (
        ("H100", {2: 10.0, 4: 20.0, 8: 30.0, 16: 40.0}),
        ("H200", {2: 9.0, 4: 20.0, 8: 41.0, 16: 41.1}),
    ):
        made = synthetic.rounds(cells, lambda cell, rates=rates: rates.get(cell.sms or 0, 5.0), noise=0.001)
        runs.append(run_of([*synthetic.ceilings(), *made], synthetic.info(card), card))
    (best,) = (texts for name, texts in rows_side_by_side(runs).items() if name.endswith("best"))
    assert [text.partition(": ")[2] for text in best] == ["sm (16 SMs)", "sm (8 SMs)"]


def test_a_report_of_several_machines_names_them_everywhere_and_compares_no_runs() -> None:
    report = report_of([run("NVIDIA H100", 40.0), run("NVIDIA H200", 50.0)])
    assert "machines" in sections_of(report)
    assert "comparison" not in sections_of(report)
    assert all(card in lines_of(report.headline)[0] for card in ("H100", "H200"))
    assert [view.label.partition("-")[0] for view in report.views] == ["H100", "H200"]
    assert report.findings
    assert all(line.startswith(("H100: ", "H200: ")) for line in lines_of(report.findings))
    chat = snippet(report, "chat")
    assert all(line in chat for line in lines_of(report.headline))


def test_an_engine_stands_beside_another_machine_as_it_is_shipped_alone() -> None:
    """A ladder of SM counts of its kernel has cells that are not what the engine does."""
    shipped = run("NVIDIA H100", 40.0, "vllm_triton")
    alone = run("NVIDIA H200", 50.0)
    cells = [Cell(name, Direction.H2D, *SWAPS[0], sms=4) for name in ("vllm_triton", "sm")]
    ladder = run_of(synthetic.rounds(cells, lambda _: 4.0), synthetic.info("NVIDIA H200"))
    for made in (shipped, ladder):
        made.info.backends.append(BackendFacts("vllm_triton", "", frozenset(), package="vllm==1.0"))
    rows = rows_side_by_side([shipped, alone, ladder])
    assert [text == ABSENT for text in rows["h2d 64 x 4 KiB, us: vllm_triton"]] == [False, True]


def test_the_run_that_a_machine_is_shown_by_has_most_of_kvbenchs_own_methods() -> None:
    fuller = run("NVIDIA H100", 40.0, "merged")
    foreign = run("NVIDIA H100", 30.0, "mine", "yours")
    names = ("mine", "yours")
    foreign.info.backends.extend(BackendFacts(name, "", frozenset(), package=f"{name}==1.0") for name in names)
    runs = [fuller, foreign, run("NVIDIA H200", 50.0)]
    rows = rows_side_by_side(runs)
    best = next(texts for name, texts in rows.items() if ", GB/s: best" in name)
    assert [text.partition(":")[0] for text in best] == ["40.0", "50.0"]
    table = machines_table(views_of(runs))
    assert table
    notes = lines_of(table.notes)
    assert [note.partition(":")[0] for note in notes] == ["Best", "The code of their own packages"]
    assert notes[1].endswith(": mine, yours")
