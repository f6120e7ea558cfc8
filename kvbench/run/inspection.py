"""Loads everything that a sweep may need, in a process of its own, and tells what loads; run as a module."""

import importlib.metadata
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from kvbench.doctor import Component, EngineReport
from kvbench.environment import observe
from kvbench.errors import KvbenchError
from kvbench.facts import CEILING_BYTES
from kvbench.protocol import MeasureCeiling
from kvbench.results import Ceiling
from kvbench.spec import SweepSpec
from kvbench.worker_process import WorkerSlot

_DEADLINE_S: Final = 180.0
_LOAD_SAMPLES: Final = 40
_SETTLE_S: Final = 0.3


def describe() -> EngineReport:
    """Return what loads here and which devices there are; a crash while looking is an answer too."""
    command = (sys.executable, "-P", "-m", "kvbench.inspection")
    try:
        done = subprocess.run(command, capture_output=True, timeout=_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        return EngineReport(engine_error=f"no answer within {_DEADLINE_S:g} s")
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return EngineReport(engine_error=f"the process ended with {done.returncode}: {''.join(last)}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=EngineReport)


def observe_under_load(device: str) -> Mapping[str, Any]:
    """Return `kvbench.environment.observe` of `device` while a worker copies over its link. Raises KvbenchError."""
    with WorkerSlot(SweepSpec(name="doctor", device=device)) as slot:
        opened = slot.start()
        slot.reserve(CEILING_BYTES[opened.device.kind])
        request = MeasureCeiling(direction="h2d", round=0, samples=_LOAD_SAMPLES)
        copying = threading.Thread(target=lambda: slot.ask(request, Ceiling, _DEADLINE_S))
        copying.start()
        try:
            copying.join(_SETTLE_S)
            return observe(opened.device.name, opened.pci_bus_id, own_pids=slot.pids)
        finally:
            copying.join()


def inspect() -> EngineReport:
    """Load everything in this process."""
    report = EngineReport(
        engine_error=None,
        nvrtc=_component(_nvrtc_version),
        triton=_component(lambda: _import_version("triton")),
        torch=_component(lambda: _import_version("torch")),
        pids=frozenset({os.getpid()}),
    )
    try:
        return _with_devices(report)
    except Exception as error:  # whatever stops the engine is the finding
        return replace(report, engine_error=f"{type(error).__name__}: {error}")


def _with_devices(report: EngineReport) -> EngineReport:
    from kvbench import engine
    from kvbench.faults import FaultPlan

    report = replace(
        report, engine_version=engine.SOURCE_HASH, devices=(engine.open_device("cpu", FaultPlan()).facts(),)
    )
    try:
        names = [f"cuda:{ordinal}" for ordinal in range(engine.count_cuda_devices())]
        opened = [engine.open_device(name, FaultPlan()) for name in names]
    except (engine.EngineError, KvbenchError) as error:
        return replace(report, cuda_error=str(error))
    return replace(
        report,
        devices=(*report.devices, *(device.facts() for device in opened)),
        pci_bus_ids={device.name: device.driver.info.pci_bus_id for device in opened},
    )


def _nvrtc_version() -> str:
    from kvbench import nvrtc

    return nvrtc.version()


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
