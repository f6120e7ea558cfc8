"""Loads everything that a sweep can need, in a separate process, and reports what loads; run as a module."""

import ctypes
import errno
import importlib.metadata
import mmap
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from kvbench.engine import nvrtc
from kvbench.ground.errors import KvbenchError
from kvbench.machine.doctor import Component, EngineReport

_PINNED_BYTES: Final = 1 << 16


def inspect() -> EngineReport:
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
    from kvbench.cells.faults import FaultPlan
    from kvbench.engine.device import SOURCE_HASH, EngineError, count_cuda_devices, open_device

    host = open_device("cpu", FaultPlan()).facts()
    report = replace(report, engine_version=SOURCE_HASH, devices=(host,), pinning=_pinning({"mlock": _locked}))
    try:
        names = [f"cuda:{ordinal}" for ordinal in range(count_cuda_devices())]
        opened = [open_device(name, FaultPlan()) for name in names]
    except (EngineError, KvbenchError) as error:
        return replace(report, cuda_error=str(error))
    return replace(
        report,
        pinning=report.pinning | _pinning({device.name: partial(_registered, device.driver) for device in opened}),
        devices=(*report.devices, *(device.facts() for device in opened)),
        pci_bus_ids={device.name: device.driver.info.pci_bus_id for device in opened},
    )


def _pinning(pins: Mapping[str, Callable[[int], str]]) -> dict[str, str]:
    """Return why each of `pins` is refused more than a lowered memlock limit, "" where it is not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    pages = mmap.mmap(-1, _PINNED_BYTES)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, hard))
    try:
        return {name: pin(address) for name, pin in pins.items()}
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))


def _locked(address: int) -> str:
    refused = ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(address), ctypes.c_size_t(_PINNED_BYTES))
    return errno.errorcode[ctypes.get_errno()] if refused else ""


def _registered(driver: Any, address: int) -> str:
    from kvbench.engine.device import EngineError, register_pages, unregister_pages

    try:
        register_pages(driver, address, _PINNED_BYTES)
    except EngineError as error:
        return error.name
    unregister_pages(driver, address)
    return ""


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
