"""The section on engines: every method of their own code beside the best backend of the same run."""

from collections.abc import Sequence
from pathlib import Path

from kvbench.cells.axes import Direction, Order, Reuse
from kvbench.cells.cell import Cell
from kvbench.cells.facts import BackendFacts, EngineSetting
from kvbench.cells.pattern import AS_PATTERN, SHUFFLED, Pattern
from kvbench.report.build import report_of
from kvbench.report.model import DataTable
from kvbench.results import Visit
from tests import synthetic
from tests.reports import made_report, made_run, part_of, said

SIZE = 16 * 1024
SETTINGS = tuple(EngineSetting(*one, "") for one in (("NUM_SMS", 12), ("THRESHOLD_BYTES", 28_672), ("MIN_N", 32)))
VLLM = BackendFacts("vllm_triton", "", frozenset(), package="vllm==0.33.0 (0123)", settings=SETTINGS)
LMCACHE = BackendFacts("lmcache", "", frozenset(), package="lmcache==0.5.3 (0123)")
TENSORS, PAGES = Pattern.parse("tensors-4"), Pattern.parse("page-first-4x8")


def visits(
    backend: str, blocks: int, swap_us: float, sms: int | None = None, *, paged: bool = False, noise: float = 1e-6
) -> list[Visit]:
    order = Order.ANY if "batch" in backend else None
    pattern, host = (TENSORS, PAGES) if paged else (SHUFFLED, AS_PATTERN)
    shape = (backend, Direction.H2D, blocks, SIZE)
    cell = Cell(*shape, order=order, sms=sms, reuse=Reuse.FRESH, pool_bytes=1 << 30, pattern=pattern, host_pattern=host)
    return [synthetic.visit(cell, swap_us * (1 + noise) ** number, noise=1e-6, round_=number) for number in range(6)]


VLLM_RUN = [
    *visits("batched", 64, 300.0), *visits("sm", 64, 40.0, 2),
    *visits("vllm_batch", 64, 303.0), *visits("vllm_triton", 64, 80.0), *visits("vllm_triton", 64, 60.0, 24),
    *visits("batched", 16, 100.0), *visits("vllm_batch", 16, 120.0), *visits("vllm_triton", 16, 90.0, 24),
]  # fmt: skip


def texts(row: Sequence[object]) -> list[str]:
    return [str(text).replace("\xa0", " ") for text in row]


def titles(tables: Sequence[DataTable]) -> list[str]:
    return [said(table.title) for table in tables]


def test_the_table_shows_an_engines_methods_side_by_side_with_caller_times(tmp_path: Path) -> None:
    report = made_report(tmp_path, [*synthetic.ceilings(), *VLLM_RUN], synthetic.info(backends=[VLLM]))
    part = part_of(report, "engines")
    (table,) = part.tables
    few, many = map(texts, table.rows)
    assert table.title == "vllm==0.33.0, h2d, idle stream"
    assert table.header[2:-4] == ("vllm_batch", "vllm_triton", "vllm_triton (24 SMs)")
    assert many[2:5] == ["303 (90.9)", "80.0 (24.0)", "60.0 (18.0)"]
    assert many[5:] == ["vllm_triton", "sm (2 SMs)", "40.0 (12.0)", "2.00"]
    # Below MIN_N vLLM takes its batched copy, although its kernel would be faster.
    assert few[2:] == ["120 (36.0)", "", "90.0 (27.0)", "vllm_batch", "batched", "100 (30.0)", "1.20"]
    assert "vllm_batch takes 1.01 to 1.20 times as long as batched, within 5% of it in 1 of 2 cells" in str(
        part.findings
    )
    assert "time of the calling thread by +3 us in the median" in str(part.findings)


def test_the_ratio_of_two_times_is_that_of_the_medians_beside_it(tmp_path: Path) -> None:
    """An estimate from pairs of visits would be 2.89."""
    records = [*visits("sm", 64, 40.0, 2), *visits("vllm_triton", 64, 60.0, noise=0.3)]
    report = made_report(tmp_path, [*synthetic.ceilings(), *records], synthetic.info(backends=[VLLM]))
    (row,) = part_of(report, "engines").tables[0].rows
    assert texts(row)[-2:] == ["40.0 (12.0)", "2.92"]


def test_every_run_of_the_machine_shows_its_engines(tmp_path: Path) -> None:
    paged = [*visits("lmcache", 64, 90.0, paged=True), *visits("sm", 64, 60.0, 2, paged=True)]
    runs = [
        made_run(tmp_path, [*synthetic.ceilings(), *VLLM_RUN], synthetic.info(backends=[VLLM]), "first"),
        made_run(tmp_path, [*synthetic.ceilings(), *paged], synthetic.info(backends=[LMCACHE]), "second"),
        made_run(tmp_path, [*synthetic.ceilings(), *visits("batched", 64, 9.0)], name="third"),
    ]
    tables = part_of(report_of(runs), "engines").tables
    assert titles(tables) == ["first: vllm==0.33.0, h2d, idle stream", "second: lmcache==0.5.3, h2d, idle stream"]
    assert texts(tables[1].rows[0])[2:] == ["90.0 (27.0)", "lmcache", "sm (2 SMs)", "60.0 (18.0)", "1.50"]
