"""Swaps of both directions at once on a GPU: both move and both are right; and whether this host is healthy."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from kvbench.cells.axes import Direction, Reuse
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.cli.main import app
from kvbench.engine.device import Device
from kvbench.ground.errors import ExitCode
from kvbench.measure.bench import Bench
from kvbench.sweep.spec import Sampling
from tests.visits import bench_of, load_backends, measure

pytestmark = pytest.mark.gpu

SAMPLING = Sampling(warmups=1, cell_seconds=0.1)
CELL = Cell("sm", Direction.D2H, 1024, 16384, sms=2, reuse=Reuse.FRESH, pool_bytes=1 << 28, opposite=True,
            host_pattern=Pattern.parse("runs-64"))  # fmt: skip


@pytest.fixture(scope="module")
def bench(gpu: Device) -> Bench:
    return bench_of(1 << 28, 300, gpu)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("backend", ["per_block", "batched", "merged", "primed", "sm", "staged", "triton", "auto"])
def test_both_directions_move_at_once_and_are_right(bench: Bench, backend: str, direction: Direction) -> None:
    sms = CELL.sms if backend in ("sm", "triton") else None
    visit = measure(
        bench, load_backends()[backend], replace(CELL, backend=backend, direction=direction, sms=sms), SAMPLING, 3, None
    )
    assert visit.verified_bytes > 2 * CELL.swap_bytes
    assert visit.opposite is not None
    assert visit.opposite.at_once_gbps[0] > 0
    assert visit.opposite.opposite_at_once_gbps[0] > 0


def test_the_doctor_answers_with_every_figure() -> None:
    result = CliRunner().invoke(app, ["doctor", "--measure", "--json"])
    assert result.exit_code in (ExitCode.DONE, ExitCode.REGRESSION), result.output
    health = json.loads(result.stdout)["health"]
    assert health["answer"] in ("yes", "no", "unknown")
    assert None not in health["reached"].values()
