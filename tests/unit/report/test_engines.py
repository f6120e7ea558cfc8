"""The section on engines: their own code beside the best backend of the same run."""

from pathlib import Path

from kvbench.cells.axes import Direction, Order, Reuse
from kvbench.cells.backend_facts import BackendFacts, EngineSetting
from kvbench.cells.cell import Cell
from kvbench.results import Visit
from tests import synthetic
from tests.reports import lines_of, made_report, part_of

SIZE = 16 * 1024


def visits(backend: str, blocks: int, swap_us: float, sms: int | None = None, noise: float = 1e-6) -> list[Visit]:
    order = Order.ANY if "batch" in backend else None
    cell = Cell(backend, Direction.H2D, blocks, SIZE, order=order, sms=sms, reuse=Reuse.FRESH, pool_bytes=1 << 30)
    return [synthetic.visit(cell, swap_us * (1 + noise) ** number, noise=1e-6, round_=number) for number in range(6)]


def test_an_engines_ways_stand_beside_the_best_of_the_run(tmp_path: Path) -> None:
    settings = (EngineSetting("NUM_SMS", 12, ""), EngineSetting("THRESHOLD_BYTES", 28_672, ""))
    facts = BackendFacts("vllm_triton", "", frozenset(), settings=(*settings, EngineSetting("MIN_N", 32, "")))
    report = made_report(
        tmp_path,
        [
            *synthetic.ceilings(),
            *visits("batched", 64, 300.0), *visits("sm", 64, 40.0, 2),
            *visits("vllm_batch", 64, 303.0), *visits("vllm_triton", 64, 80.0), *visits("vllm_triton", 64, 60.0, 24),
            *visits("batched", 16, 100.0), *visits("vllm_batch", 16, 120.0), *visits("vllm_triton", 16, 90.0, 24),
        ],
        synthetic.info(backends=[facts]),
    )  # fmt: skip
    part = part_of(report, "engines")
    (table,) = part.tables
    few, many = ([str(text).replace("\xa0", " ") for text in row] for row in table.rows)
    assert table.title == "vLLM, h2d, idle stream"
    assert many[2:] == ["vllm_triton", "80.0", "vllm_triton sms=24", "60.0", "sm sms=2", "40.0", "2.00"]
    # Below MIN_N vLLM takes its batched copy, although its kernel would be faster.
    assert few[2:] == ["vllm_batch order=any", "120", "vllm_triton sms=24", "90.0", "batched order=any", "100", "1.20"]
    assert "vllm_batch takes 1.01 to 1.20 times as long as batched, within 5% of it in 1 of 2 cells" in str(part.told)
    assert "time of the calling thread by +3 us in the median" in str(part.told)


def test_where_visits_contradict_each_other_an_engines_call_is_not_compared(tmp_path: Path) -> None:
    records = [*visits("batched", 64, 300.0), *visits("vllm_batch", 64, 303.0)]
    records += [*visits("batched", 16, 100.0), *visits("vllm_batch", 16, 80.0, noise=0.1)]
    part = part_of(made_report(tmp_path, [*synthetic.ceilings(), *records]), "engines")
    assert "vllm_batch takes 1.01 times as long as batched, within 5% of it in 1 of 1 cell (1 undecided)" in str(
        part.told
    )


def test_without_an_engines_own_code_the_report_says_what_it_needs(tmp_path: Path) -> None:
    report = made_report(tmp_path, [*synthetic.ceilings(), *visits("batched", 64, 100.0)])
    assert any("it needs cells of an engine's own code" in line for line in lines_of(report.missing))
