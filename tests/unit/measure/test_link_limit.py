"""A visit cannot be faster than the link: what it timed is no swap."""

from types import SimpleNamespace

import pytest

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.cells.units import gigabytes_per_second
from kvbench.measure import visit
from kvbench.measure.workload import VerificationError

CELL = Cell("sm", Direction.H2D, 4096, 64 << 10)
BEST_GBPS = 50.0


@pytest.mark.parametrize(("share", "fails"), [(0.9, False), (1.0, False), (1.1, True), (1.9, True)])
def test_a_gpu_s_visit_is_at_most_as_fast_as_its_large_copies(
    monkeypatch: pytest.MonkeyPatch, share: float, fails: bool
) -> None:
    checked: list[Direction] = []
    monkeypatch.setattr(visit, "measure_ceiling", lambda _bench, direction, *_: checked.append(direction))
    bench = SimpleNamespace(best_gbps={Direction.H2D: BEST_GBPS}, device=SimpleNamespace(kind="cuda"))
    time_us = CELL.swap_bytes / (share * BEST_GBPS * 1e3)
    assert gigabytes_per_second(CELL.swap_bytes, time_us) == pytest.approx(share * BEST_GBPS)
    if fails:
        with pytest.raises(VerificationError, match="faster than the link"):
            visit._check_speed(bench, CELL, [time_us] * 3)
        assert set(checked) == {Direction.H2D}  # the large copies are measured again first
    else:
        visit._check_speed(bench, CELL, [time_us] * 3)
