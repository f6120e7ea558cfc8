"""Controls: large plain copies made without the engine, in every round of cells.

A change of the engine changes what the engine measures, but not these copies. If they are slower in one of two runs,
the machine is the cause. On a GPU they use NVIDIA's Python bindings, on the device cpu numpy.
"""

import time
from typing import Any, Final

import numpy as np

from kvbench.cells.axes import Direction
from kvbench.errors import KvbenchError

COPY_BYTES: Final = {"cuda": 1 << 28, "cpu": 1 << 24}
WARMUPS: Final = 2


class ControlError(KvbenchError):
    """The control copies cannot be made; the message says which call failed."""


class HostControl:
    """Copies between two numpy arrays, on the calling thread."""

    copy_bytes = COPY_BYTES["cpu"]

    def __init__(self) -> None:
        # Written, so that the pages are mapped before anything is timed.
        self.host = np.ones(self.copy_bytes, dtype=np.uint8)
        self.device = np.ones(self.copy_bytes, dtype=np.uint8)

    def copy_us(self, direction: Direction) -> float:
        """Make one copy and return its time in microseconds."""
        to, source = (self.device, self.host) if direction is Direction.H2D else (self.host, self.device)
        start_ns = time.perf_counter_ns()
        np.copyto(to, source)
        return (time.perf_counter_ns() - start_ns) / 1e3


class CudaControl:
    """`cuMemcpyHtoDAsync` and `cuMemcpyDtoHAsync` between events, on a stream of its own.

    It shares the primary context of the device with the engine, so that the GPU has only one context. Its resources are
    released when the worker ends.
    """

    copy_bytes = COPY_BYTES["cuda"]

    def __init__(self, ordinal: int) -> None:
        self._cuda = cuda = _bindings()
        self._context = _call(cuda.cuDevicePrimaryCtxRetain, _call(cuda.cuDeviceGet, ordinal))
        _call(cuda.cuCtxSetCurrent, self._context)
        self._host = _call(cuda.cuMemHostAlloc, self.copy_bytes, 0)
        self._device = _call(cuda.cuMemAlloc, self.copy_bytes)
        self._stream = _call(cuda.cuStreamCreate, int(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self._start, self._end = _call(cuda.cuEventCreate, 0), _call(cuda.cuEventCreate, 0)

    def copy_us(self, direction: Direction) -> float:
        """Make one copy and return its time in microseconds; raises ControlError."""
        cuda = self._cuda
        _call(cuda.cuCtxSetCurrent, self._context)
        _call(cuda.cuEventRecord, self._start, self._stream)
        if direction is Direction.H2D:
            _call(cuda.cuMemcpyHtoDAsync, self._device, self._host, self.copy_bytes, self._stream)
        else:
            _call(cuda.cuMemcpyDtoHAsync, self._host, self._device, self.copy_bytes, self._stream)
        _call(cuda.cuEventRecord, self._end, self._stream)
        _call(cuda.cuEventSynchronize, self._end)
        return float(_call(cuda.cuEventElapsedTime, self._start, self._end)) * 1e3


# Two buffers of `copy_bytes`, one on each side, and a function that times a copy between them.
ControlCopies = HostControl | CudaControl


def open_control(device_name: str) -> ControlCopies:
    """Return the control of "cpu" or "cuda:N"; raises ControlError."""
    kind, _, ordinal = device_name.partition(":")
    return HostControl() if kind == "cpu" else CudaControl(int(ordinal))


def time_copies(control: ControlCopies, direction: Direction, samples: int) -> list[float]:
    """Return the times of `samples` copies in one direction in microseconds, without warm-ups; raises ControlError."""
    return [control.copy_us(direction) for _ in range(WARMUPS + samples)][WARMUPS:]


def _bindings() -> Any:  # the bindings have no types
    try:
        from cuda.bindings import driver

        _call(driver.cuInit, 0)
    except (ImportError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise ControlError(f"control copies: NVIDIA's bindings do not load ({why}); install kvbench[cuda]") from None
    return driver


def _call(function: Any, *arguments: Any) -> Any:
    status, *results = function(*arguments)
    if int(status) != 0:
        raise ControlError(f"control copies: {function.__name__} returned {status.name}")
    return results[0] if results else None
