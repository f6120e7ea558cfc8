import pytest

from kvbench.cells.faults import FaultPlan
from kvbench.engine.device import Device, open_device


@pytest.fixture(scope="session")
def gpu() -> Device:
    device = open_device("cuda:0", FaultPlan())
    device.driver.bind_thread()
    return device
