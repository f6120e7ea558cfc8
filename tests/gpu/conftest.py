import pytest

from kvbench.engine.device import Device, open_device
from kvbench.engine.faults import FaultPlan


@pytest.fixture(scope="session")
def gpu() -> Device:
    device = open_device("cuda:0", FaultPlan())
    device.driver.bind_thread()
    return device
