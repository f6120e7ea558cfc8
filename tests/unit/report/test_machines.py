"""Machines side by side: the cells that all have, and what only one has."""

from collections.abc import Sequence
from pathlib import Path

from kvbench.cells.axes import Direction
from kvbench.cells.backend_facts import BackendFacts
from kvbench.cells.cell import Cell
from kvbench.report.build import report_of
from kvbench.report.sections.machines import machines_table
from kvbench.report.view import views_of
from kvbench.results import Run
from tests import synthetic
from tests.reports import lines_of, made_run, rows_of, said, sections_of

SWAPS = ((64, 4096), (10_000, 4096), (10_000, 65_536))


def run(folder: Path, title: str, gbps: float, *more: str, swaps: Sequence[tuple[int, int]] = SWAPS) -> Run:
    cells = [Cell(name, Direction.H2D, *swap) for swap in swaps for name in ("batched", *more)]
    cells += [Cell("sm", Direction.H2D, *swap, sms=4) for swap in swaps]
    rates = {"sm": gbps, "mine": 60.0}
    made = synthetic.rounds(cells, lambda cell: rates.get(cell.backend, 5.0), noise=0.001)
    return made_run(folder, [*synthetic.ceilings(), *made], synthetic.info(title), title.replace(" ", "-"))


def test_a_machine_is_a_column_with_the_swaps_that_all_have(tmp_path: Path) -> None:
    runs = [run(tmp_path, "NVIDIA H100", 40.0), run(tmp_path, "NVIDIA H200", 50.0, "merged")]
    table = machines_table(views_of(runs))
    assert table
    assert lines_of(table.header) == ["", "H100", "H200"]
    rows = {name.replace("\N{MULTIPLICATION SIGN}", "x"): texts for name, texts in rows_of(table).items()}
    assert rows["h2d, 10 000 x 4 KiB, GB/s: batched"] == ["5.00", "5.00"]
    assert [text.split(":")[0] for text in rows["h2d, 10 000 x 4 KiB, GB/s: best"]] == ["40.0", "50.0"]
    assert rows["Recommended, h2d, idle"] == ["sm (4 SMs)", "sm (4 SMs)"]
    assert lines_of(table.notes) == ["Only H200 has merged"]


def test_a_swap_that_a_machine_lacks_has_no_row(tmp_path: Path) -> None:
    table = machines_table(
        views_of([run(tmp_path, "NVIDIA H100", 40.0), run(tmp_path, "NVIDIA H200", 50.0, swaps=SWAPS[:1])])
    )
    assert table
    heads = " ".join(rows_of(table))
    assert "h2d, 64" in heads
    assert "h2d, 10" not in heads


def test_the_best_method_is_none_of_another_package(tmp_path: Path) -> None:
    runs = [run(tmp_path, f"NVIDIA {card}", 5.0 if card == "H200" else 4.0, "mine") for card in ("H100", "H200")]
    for one in runs:
        one.info.backends.append(BackendFacts("mine", "", frozenset(), package="mine==1.0"))
    table = machines_table(views_of(runs))
    assert table
    texts = {name.partition(":")[2]: shown for name, shown in rows_of(table).items() if "GB/s" in name}
    assert not any("mine" in text for text in texts[" best"])
    assert " mine (its package's code)" in texts


def test_the_run_that_a_machine_is_shown_by_has_most_of_kvbenchs_own_methods(tmp_path: Path) -> None:
    fuller = run(tmp_path, "NVIDIA H100", 40.0, "merged")
    foreign = run(tmp_path / "foreign", "NVIDIA H100", 30.0, "mine", "yours")
    names = ("mine", "yours")
    foreign.info.backends.extend(BackendFacts(name, "", frozenset(), package=f"{name}==1.0") for name in names)
    table = machines_table(views_of([fuller, foreign, run(tmp_path, "NVIDIA H200", 50.0)]))
    assert table
    best = next(texts for name, texts in rows_of(table).items() if "GB/s" in name and name.endswith("best"))
    assert [text.partition(":")[0] for text in best] == ["40.0", "50.0"]


def test_a_plug_in_is_marked_and_never_best_beside_kvbenchs_own(tmp_path: Path) -> None:
    runs = [run(tmp_path, f"NVIDIA {card}", 5.0, "mine") for card in ("H100", "H200")]
    for one in runs:
        one.info.backends.append(BackendFacts("mine", "", frozenset(), package="mine==1.0", plug_in=True))
    table = machines_table(views_of(runs))
    assert table
    rows = rows_of(table)
    assert "h2d, 64 x 4 KiB, us: mine (plug-in)" in {name.replace("\N{MULTIPLICATION SIGN}", "x") for name in rows}
    assert not any("mine" in text for name, texts in rows.items() if name.endswith("best") for text in texts)
    assert rows["Recommended, h2d, idle"] == ["mine (plug-in)"] * 2


def test_drivers_of_one_card_are_machines_too(tmp_path: Path) -> None:
    old, new = run(tmp_path, "NVIDIA H200", 50.0), run(tmp_path / "new", "NVIDIA H200", 50.0)
    new.info.identity["driver_version"] = "590.1"
    table = machines_table(views_of([old, new]))
    assert table
    assert [said(head) for head in table.header[1:]] == ["H200, driver 580.159", "H200, driver 590.1"]


def test_one_machine_has_no_such_section(tmp_path: Path) -> None:
    assert "machines" not in sections_of(report_of([run(tmp_path, "NVIDIA H200", 50.0)]))
