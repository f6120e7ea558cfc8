"""What a report costs in CPU time, as a multiple of `import pandas`."""

from pathlib import Path
from typing import Final

import pytest

from tests.bench_report import COMMITTED, pandas_s, report_s, write

# Measured; the test allows half as much again.
USUAL: Final = {"two committed runs": 10.0, "40 runs of 8 cells": 11.0}


@pytest.mark.parametrize("subject", USUAL)
def test_a_report_takes_no_more_cpu_time_than_it_used_to(subject: str, tmp_path: Path) -> None:
    runs = [run for run in COMMITTED if run.name in ("quick-first", "quick-again")]
    assert len(runs) == 2
    if subject != "two committed runs":
        runs = [write(tmp_path / f"small-{number}", 8, 6, 7) for number in range(40)]
    ratios = (report_s(runs, tmp_path / "report") / pandas_s() for _ in range(3))
    assert any(ratio < 1.5 * USUAL[subject] for ratio in ratios)
