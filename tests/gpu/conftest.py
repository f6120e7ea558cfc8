from collections.abc import Iterator

import pytest

from kvbench.cells.faults import FaultPlan
from kvbench.engine.device import Device, open_device
from kvbench.measure.bench import Bench
from tests.visits import bench_of


@pytest.fixture(scope="session")
def gpu() -> Device:
    device = open_device("cuda:0", FaultPlan())
    device.driver.bind_thread()
    return device


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest, gpu: Device) -> Iterator[Bench]:
    """A bench with pools of the POOL_BYTES of the module."""
    yield (made := bench_of(request.module.POOL_BYTES, 300, gpu))
    for neighbour in made.neighbours.values():
        neighbour.close()
