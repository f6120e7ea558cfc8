"""What a report costs in CPU time, as a multiple of `import pandas`."""

from pathlib import Path
from typing import Final

from tests.bench_report import COMMITTED, pandas_s, report_s

# Measured; the test allows half as much again.
USUAL: Final = 10.0


def test_a_report_takes_no_more_cpu_time_than_it_used_to(tmp_path: Path) -> None:
    runs = [run for run in COMMITTED if run.name in ("quick-first", "quick-again")]
    assert len(runs) == 2
    ratios = (report_s(runs, tmp_path) / pandas_s() for _ in range(3))
    assert any(ratio < 1.5 * USUAL for ratio in ratios)
