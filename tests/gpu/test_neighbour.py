"""Swaps beside every neighbour and of both directions at once on a GPU: all move and are right; a host's health."""

import json
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from kvbench.cells.axes import Direction, Neighbour, Reuse
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.cli.main import app
from kvbench.engine.device import Device
from kvbench.ground.errors import ExitCode
from kvbench.measure.bench import Bench
from kvbench.measure.neighbour import open_neighbour
from kvbench.results import Visit
from kvbench.results.schema import EffectivePath
from kvbench.sweep.spec import Sampling
from tests.visits import load_backends, measure

pytestmark = pytest.mark.gpu

POOL_BYTES = 1 << 28
SAMPLING = Sampling(warmups=1, cell_seconds=0.1, min_iterations=5)
CELL = Cell("sm", Direction.D2H, 1024, 16384, reuse=Reuse.FRESH, pool_bytes=POOL_BYTES)
NEIGHBOURS = [Neighbour.IDLE, Neighbour.DECODE, Neighbour.PREFILL, Neighbour("prefill", 512)]


def measured(bench: Bench, backend: str, direction: Direction, **axes: Any) -> Visit:
    sms = 2 if backend in ("sm", "triton") else None
    cell = replace(CELL, backend=backend, direction=direction, sms=sms, **axes)
    visit = measure(bench, load_backends()[backend], cell, SAMPLING, 3, None)
    assert visit.verified_bytes > 2 * cell.swap_bytes
    return visit


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("backend", ["per_block", "batched", "primed", "sm", "triton"])
@pytest.mark.parametrize("neighbour", NEIGHBOURS, ids=str)
def test_every_neighbour_runs_beside_every_backend(
    bench: Bench, neighbour: Neighbour, backend: str, direction: Direction
) -> None:
    turns = measured(bench, backend, direction, neighbour=neighbour).beside
    assert turns is not None
    assert len(turns.neighbour_beside_us) >= SAMPLING.min_iterations
    assert turns.neighbour_alone_us
    reads_back = neighbour == Neighbour.DECODE
    assert len(turns.readback_us) == len(turns.neighbour_beside_us) * reads_back
    assert len(turns.readback_alone_us) == len(turns.neighbour_alone_us) * reads_back
    assert all(0 < us < step_us for us, step_us in zip(turns.readback_us, turns.neighbour_beside_us, strict=False))


@pytest.mark.parametrize("direction", Direction)
def test_the_copy_engine_makes_batched_copies_beside_a_step(bench: Bench, direction: Direction) -> None:
    """An idle stream would have the CPU make those of loads."""
    visit = measured(bench, "batched", direction, neighbour=Neighbour.PREFILL)
    assert visit.path in (EffectivePath.COPY_ENGINE, EffectivePath.ENGINE_OR_SMS)


@pytest.mark.parametrize("tokens", [64, 512, 65_536])
def test_a_prefill_of_any_length_is_captured(gpu: Device, tokens: int) -> None:
    neighbour = open_neighbour(gpu, Neighbour("prefill", tokens))
    try:
        with neighbour.running():
            first, last = neighbour.run_for(0.0, 2)
        assert all(us > 0 for us in neighbour.times_us(first, last))
    finally:
        neighbour.close()


def test_small_copies_are_in_order_with_the_steps(gpu: Device) -> None:
    """An iteration lasts at least as long as the step alone in its graph, and ends with its readback."""
    neighbour = open_neighbour(gpu, Neighbour.DECODE)
    try:
        with neighbour.running():
            first, last = neighbour.run_for(0.0, 10)
        step_us, readback_us = neighbour.times_us(first, last), neighbour.readbacks_us(first, last)
        assert len(step_us) == len(readback_us) >= 10
        assert all(0 < back < 0.1 * step for back, step in zip(readback_us, step_us, strict=True))
        assert neighbour.dry == 0
    finally:
        neighbour.close()


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("backend", ["per_block", "batched", "merged", "primed", "sm", "staged", "triton", "auto"])
def test_both_directions_move_at_once_and_are_right(bench: Bench, backend: str, direction: Direction) -> None:
    visit = measured(bench, backend, direction, opposite=True, host_pattern=Pattern.parse("runs-64"))
    assert visit.opposite is not None
    assert visit.opposite.at_once_gbps[0] > 0
    assert visit.opposite.opposite_at_once_gbps[0] > 0


def test_the_doctor_answers_with_every_figure() -> None:
    result = CliRunner().invoke(app, ["doctor", "--measure", "--json"])
    assert result.exit_code in (ExitCode.DONE, ExitCode.REGRESSION), result.output
    health = json.loads(result.stdout)["health"]
    assert health["answer"] in ("yes", "no", "unknown")
    assert None not in health["reached"].values()
