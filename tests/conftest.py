"""Tests marked `gpu` are skipped, with the reason, where the CUDA driver finds no device."""

import ctypes

import pytest


def _no_gpu_because() -> str | None:
    """Return why CUDA cannot be used in this process, None where it can."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver (libcuda.so.1) on this machine"
    if error := driver.cuInit(0):
        return f"the CUDA driver does not start: cuInit gives error {error}"
    count = ctypes.c_int()
    if error := driver.cuDeviceGetCount(ctypes.byref(count)):
        return f"the CUDA driver counts no devices: cuDeviceGetCount gives error {error}"
    return None if count.value else "the CUDA driver sees no GPU"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    reason = _no_gpu_because() if on_gpu else None
    if reason is not None:
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason=reason))
