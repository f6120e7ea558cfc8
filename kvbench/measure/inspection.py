"""Loads everything that a sweep can need, in a separate process, and reports what loads; run as a module."""

import importlib.metadata
import sys
from collections.abc import Callable
from dataclasses import replace

import msgspec

from kvbench.engine import nvrtc
from kvbench.errors import KvbenchError
from kvbench.machine.doctor import Component, EngineReport


def inspect() -> EngineReport:
    """Load everything in this process."""
    report = EngineReport(
        engine_error=None,
        nvrtc=_component(nvrtc.version),
        triton=_component(lambda: _import_version("triton")),
        torch=_component(lambda: _import_version("torch")),
    )
    try:
        return _with_devices(report)
    except Exception as error:  # any error of the engine is a finding
        return replace(report, engine_error=f"{type(error).__name__}: {error}")


def _with_devices(report: EngineReport) -> EngineReport:
    from kvbench.engine.device import SOURCE_HASH, EngineError, count_cuda_devices, open_device
    from kvbench.engine.faults import FaultPlan

    report = replace(report, engine_version=SOURCE_HASH, devices=(open_device("cpu", FaultPlan()).facts(),))
    try:
        names = [f"cuda:{ordinal}" for ordinal in range(count_cuda_devices())]
        opened = [open_device(name, FaultPlan()) for name in names]
    except (EngineError, KvbenchError) as error:
        return replace(report, cuda_error=str(error))
    return replace(
        report,
        devices=(*report.devices, *(device.facts() for device in opened)),
        pci_bus_ids={device.name: device.driver.info.pci_bus_id for device in opened},
    )


def _import_version(package: str) -> str:
    __import__(package)
    return importlib.metadata.version(package)


def _component(load: Callable[[], str]) -> Component:
    try:
        return Component(version=load())
    except Exception as error:  # a package can fail to load in any way
        return Component(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(inspect()) + b"\n")
