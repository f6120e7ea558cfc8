"""The package of backends that are slower on purpose: what it adds is what it says, and its bytes are right."""

from pathlib import Path

import numpy as np
import pytest

from kvbench.backends.base import SwapRequest
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.faults import FaultPlan
from kvbench.engine.device import STREAM_STATES, Stream, TimedRegion, open_device
from kvbench.measure.layout import lay_out
from kvbench.measure.workload import Pools, Workload
from kvbench.results import load_run
from tests.command import BRIEF, kvbench_here, tiny
from tests.slow_backend import laid_out


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return laid_out(tmp_path / "site")


def test_all_slow_backends_are_measured_and_verified_on_the_host(site: Path, tmp_path: Path) -> None:
    names = ["sm_same", "sm_slow5"]
    cells = tiny(backend=",".join(names), direction="h2d,d2h", stream_state="idle,busy")
    done = kvbench_here("sweep", *cells, *BRIEF, "--out=run", cwd=tmp_path, env={"PYTHONPATH": str(site)})
    assert done.returncode == 0, done.stderr
    frame = load_run(tmp_path / "run").frame()
    assert frame.groupby("backend").size().to_dict() == dict.fromkeys(names, 4)
    assert set(frame.loc[frame["stream_state"] == "idle", "status"]) == {"ok"}
    assert set(frame["status"]) <= {"ok", "no figure"}  # a busy machine may outlast a delay


def test_the_delay_is_part_of_the_swap(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(site))
    from kvbench_slow import Delayed, Same  # type: ignore[import-not-found]

    device = open_device("cpu", FaultPlan())
    stream = Stream(device.driver)
    cell = Cell("sm_same", Direction.H2D, 4, 1024)
    rng = np.random.default_rng(0)
    workload = Workload(Pools(device, stream, 1 << 20), cell, lay_out(cell, 1, rng), rng)
    request = SwapRequest(device, cell, workload.memories[0])
    inner = Same().create(request).swap
    slow = Delayed(request, Same().create(request), share=1000.0)
    region = TimedRegion(device.driver, stream.handle, 1000)
    sample = region.measure_python(slow.submit, STREAM_STATES[StreamState.IDLE])
    assert sample.wall_us >= slow.delay_ns() / 1e3 > 0
    assert slow.calls == inner.calls + 1
