"""Tests marked `gpu` are skipped, with the reason, where the CUDA driver finds no device."""

import ctypes
import importlib.util
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes depends on who else uses the machine.
settings.register_profile("kvbench", deadline=None, max_examples=40)
settings.load_profile("kvbench")

# pytest-xdist exports the width of its terminal to its workers; commands that tests start write to pipes, which have
# no width but in the log of a CI.
os.environ.pop("COLUMNS", None)
os.environ.pop("CI", None)

# `python -m pytest` puts the checkout first on the path. Where kvbench is installed and not editable, that copy lacks
# the compiled module: the checkout goes last, for what tests import from each other.
_CHECKOUT = str(Path(__file__).resolve().parents[1])
if importlib.util.find_spec("kvbench._engine") is None:
    sys.modules.pop("kvbench", None)
    sys.path[:] = [path for path in sys.path if str(Path(path).resolve()) != _CHECKOUT]
sys.path.append(_CHECKOUT)


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
