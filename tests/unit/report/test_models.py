"""The table of models: its rows, its figures, and what a stranger's run may say of models."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvbench.cells.axes import Direction, Order, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.models.geometry import ModelSwap
from kvbench.models.presets import ModelChoice
from kvbench.report.document import render_report
from kvbench.report.model import DataTable, Report
from kvbench.report.numbers import TIMES
from kvbench.results import Record
from tests import synthetic
from tests.markdown import tokens
from tests.reports import highlights_of, is_bold, lines_of, made_report, part_of, rows_of, table_of

MODELS = ("llama-3-8b", "mistral-7b", "llama-3-70b@tp4", "gpt-oss-20b", "deepseek-v3")
# GB/s of a device that does not exist
RATES = {
    ("per_block", "idle"): 4.0,
    ("per_block", "busy"): 5.0,
    ("batched", "idle"): 8.0,
    ("batched", "busy"): 20.0,
    ("sm", "idle"): 40.0,
}


def swaps_of(*models: str, **settings: Any) -> tuple[ModelSwap, ...]:
    return msgspec.convert({"models": models, "tokens": 2048, **settings}, ModelChoice).swaps()


def cell_of(swap: ModelSwap, backend: str, state: StreamState = StreamState.IDLE, **axes: Any) -> Cell:
    order = Order.ANY if backend == "batched" else None
    return Cell(
        backend, Direction.H2D, swap.blocks, swap.block_bytes, state, Pattern.parse(swap.pattern), order=order, **axes
    )


def cells_of(swaps: tuple[ModelSwap, ...]) -> list[Cell]:
    pairs = [
        cell_of(swap, backend, state)
        for swap in swaps
        for backend in ("per_block", "batched")
        for state in synthetic.STATES
    ]
    return list(dict.fromkeys(pairs))


def rate(cell: Cell) -> float:
    return RATES[cell.backend, cell.stream_state.value]


def report(folder: Path, records: list[Record], models: object) -> Report:
    return made_report(folder, records, synthetic.info(spec={"models": msgspec.to_builtins(models)}))


@pytest.fixture(scope="module")
def of_models(tmp_path_factory: pytest.TempPathFactory) -> Report:
    swaps = swaps_of(*MODELS)
    return report(tmp_path_factory.mktemp("models"), synthetic.rounds(cells_of(swaps), rate, noise=0.001), swaps)


def table(made: Report, title: str) -> DataTable:
    return table_of(part_of(made, "models"), title)


def test_the_table_has_a_row_for_every_model_in_the_order_of_the_sweep(of_models: Report) -> None:
    rows = rows_of(table(of_models, "h2d, idle stream: per_block against batched, 2 048 tokens in blocks of 16"))
    geometry = {name: [text.replace(TIMES, "x") for text in row[:4]] for name, row in rows.items()}
    # KV heads x size, tensors, N, block
    assert geometry == {
        "llama-3-8b": ["8 x 128", "64", "8 192", "32 KiB"],
        "mistral-7b": ["8 x 128", "64", "8 192", "32 KiB"],
        "llama-3-70b, TP 4": ["2 x 128", "160", "20 480", "8 KiB"],
        "gpt-oss-20b": ["8 x 64", "24 + 24", "3 264", "16 KiB"],
        "deepseek-v3": ["MLA x 576", "61", "7 808", "18 KiB"],
    }
    assert list(rows) == list(geometry)


def test_times_and_speed_ups_come_from_the_cells_of_each_model(of_models: Report) -> None:
    for state, times in (("idle", 2), ("busy", 4)):
        rows = rows_of(table(of_models, f"h2d, {state} stream: per_block against batched"))
        for swap, row in zip(swaps_of(*MODELS), rows.values(), strict=True):
            single, batched, ratio, gbps = row[4:]
            rates = [RATES[backend, state] for backend in ("per_block", "batched")]
            ms = [swap.blocks * swap.block_bytes / rate / 1e6 for rate in rates]
            assert [float(text) for text in (single, batched, gbps)] == pytest.approx([*ms, rates[1]], rel=0.01)
            assert ratio == f"{TIMES}{times}.00"
    sentence = "By model, batched h2d on an idle stream has 2x the speed of per_block."
    assert any(text.startswith(sentence) for text in highlights_of(of_models, "models"))


def test_a_second_table_has_all_backends_with_the_fastest_in_bold(tmp_path: Path) -> None:
    """A kernel may take other SMs for another model: each model shows the one that it was measured with."""
    swaps = swaps_of("llama-3-8b", "llama-3-70b@tp4")
    kernels = [cell_of(swap, "sm", sms=number) for number, swap in enumerate(swaps, start=2)]
    records = synthetic.rounds([*cells_of(swaps), *kernels], rate, noise=0.001)
    made = report(tmp_path, records, swaps)
    shown = table(made, "h2d, idle stream: ms per swap, by model and backend")
    rows = rows_of(shown)
    assert set(rows) == {"llama-3-8b", "llama-3-70b, TP 4"}
    for _, _, _, *others, kernel in shown.rows:
        assert is_bold(kernel)
        assert not any(map(is_bold, others))
    assert not any(one.title.startswith("h2d, busy stream: ms per swap") for one in part_of(made, "models").tables)


@pytest.mark.parametrize(
    ("models", "reason"),
    [
        ([], "it needs a sweep of models"),
        ([{"geometry": {"name": "[x](javascript:alert(1))"}}], "its run.json describes models that cannot be"),
        ({"<script>": 1}, "its run.json describes models that cannot be"),
        (swaps_of("deepseek-v3"), "none of the models of a run has a measured cell"),
    ],
)
def test_the_report_says_why_a_run_has_no_table_of_models(tmp_path: Path, models: object, reason: str) -> None:
    made = report(tmp_path, synthetic.rounds(cells_of(swaps_of("llama-3-8b")), rate), models)
    assert any(reason in line for line in lines_of([*made.missing.values()]))
    text = render_report(made)
    assert "<script>" not in text
    assert not any(token.attrGet("href") == "javascript:alert(1)" for token in tokens(text))
