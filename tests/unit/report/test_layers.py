"""The section on layers: times of layers, the hidden share of every method, and the sentence on the first page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from kvbench.cells.axes import Direction, Neighbour
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.models.presets import ModelChoice
from kvbench.report.model import Report
from kvbench.results import RunInfo, Visit
from tests import synthetic
from tests.reports import highlights_of, made_report, made_run, part_of, rows_of, sections_of, table_of

MODELS = ModelChoice(models=("llama-3-8b@tokens512", "llama-3-8b@tokens2048", "llama-3-8b@tokens4096"))
TITLE = "llama-3-8b, h2d beside decode"


def info() -> RunInfo:
    return synthetic.info(spec={"models": msgspec.to_builtins(MODELS.swaps())})


def cell(tokens: int, backend: str = "batched", sequence: str = "layers-32") -> Cell:
    (swap,) = (swap for swap in MODELS.swaps() if swap.tokens == tokens)
    made = Cell(backend, Direction.H2D, swap.blocks, swap.block_bytes, neighbour=Neighbour.DECODE, sequence=sequence)
    return replace(made, pattern=Pattern.parse(swap.pattern), sms=4 if backend == "sm" else None)


def visits(of: Cell, hidden: Sequence[float]) -> list[Visit]:
    return synthetic.beside_step(of, 2000.0, hidden)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    made = [
        *visits(cell(2048), [0.80, 0.81, 0.82, 0.80, 0.81, 0.82]),
        *visits(cell(2048, "sm"), [0.97, 0.98, 0.97, 0.98, 0.97, 0.98]),
        *visits(cell(2048, sequence="at-once-32"), [0.0, 0.01, 0.02, 0.0, 0.01, 0.02]),
        *visits(cell(4096), [0.5] * 6),
        *visits(cell(512), [0.9] * 6),
    ]
    return made_report(tmp_path_factory.mktemp("layers"), made, info())


def test_the_table_has_the_times_of_layers_and_what_is_hidden(report: Report) -> None:
    table = table_of(part_of(report, "layers"), TITLE)
    by_method = {(row[0].replace("\N{NO-BREAK SPACE}", " "), row[1]): row[2:] for row in table.rows}
    first, last, gap, caller, step, both, hidden = by_method["2 048", "batched"]
    assert (first, last, gap) == ("60.0", "2000", "90.0")
    assert caller == "18.8"  # 0.3 of 2000 us over 32 layers
    assert (step, both) == ("4000", "4380")
    assert hidden == "81% (80% to 82%)"
    assert by_method["2 048", "sm (4 SMs)"][-1] == "98% (97% to 98%)"
    assert by_method["2 048", "batched, at once"][-1] == "1% (0% to 2%)"
    assert len(rows_of(table)) == 3  # of tokens


def test_the_first_page_names_the_backend_that_hides_the_loads_of_2048_tokens(report: Report) -> None:
    (highlight,) = highlights_of(report, "layers")
    assert highlight.startswith(
        "llama-3-8b, h2d beside decode, 2 048 tokens: sm (4 SMs) hides at least 95% of the loads;"
    )
    assert "submission alone takes 18.8 us a layer" in highlight


def test_the_first_page_says_when_no_backend_certainly_hides_the_loads(tmp_path: Path) -> None:
    hidden = [0.96, 0.97, 0.94, 0.97, 0.96, 0.97]  # the interval holds less
    (highlight,) = highlights_of(made_report(tmp_path, visits(cell(2048), hidden), info()), "layers")
    assert "no backend clearly hides 95% of the loads; batched hides most, " in highlight


def test_loads_of_one_length_make_a_table_and_no_chart(tmp_path: Path) -> None:
    made = made_report(tmp_path, [*visits(cell(2048), [0.5] * 6), *visits(cell(2048, "sm"), [0.8] * 6)], info())
    part = part_of(made, "layers")
    assert part.charts == []
    assert len(part.tables[0].rows) == 2


def test_swaps_by_layers_stay_out_of_other_sections(report: Report) -> None:
    assert "neighbour" not in sections_of(report)
    assert "models" not in sections_of(report)


def test_loads_without_a_step_have_times_but_no_hidden_share(tmp_path: Path) -> None:
    alone = [msgspec.structs.replace(one, beside=None) for one in visits(cell(2048), [0.5] * 6)]
    report = made_report(tmp_path, alone, info())
    assert highlights_of(report, "layers") == []
    assert rows_of(table_of(part_of(report, "layers"), "llama-3-8b"))
    (row,) = made_run(tmp_path, alone, info(), "again").frame().to_dict("records")
    assert row["first_layer_us"] == 60.0
    assert row["hidden_share"] != row["hidden_share"]
