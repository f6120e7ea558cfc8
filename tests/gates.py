"""What tests use in place of a clock: gates that they open themselves, and work counted in CPU time."""

import ctypes
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from kvbench.cells.faults import Fault
from kvbench.engine.device import Buffer, Device, Event, MemoryKind

LONGEST_S = 60.0


class Gate:
    """Holds a stream until it is opened, or its context ends, however long that takes.

    A context opens it after LONGEST_S: who waits in it for the stream, against what a test wants, does not hang.
    """

    def __init__(self, device: Device, stream: int) -> None:
        self._device = device
        if device.is_cuda:
            self._word = Buffer(device.driver, MemoryKind.allocated, 4096)
            self._word.fill_value(4096, 0)
            wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2
            wait.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
            assert wait(stream, self._word.device_address, 1, 0) == 0  # until the word is at least 1
        else:
            device.arm(Fault("closed-gate@wait", 0))
            Event(device.driver).hold(stream)

    def open(self) -> None:
        if self._device.is_cuda:
            self._word.fill_value(4096, 1)
        else:
            self._device.arm(None)

    def __enter__(self) -> None:
        self._timer = threading.Timer(LONGEST_S, self.open)
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self.open()
        # Each refers to the other: collected behind a later gate, a word is freed there, which waits for the device.
        self._timer.join()
        del self._timer


def work_for(cpu_us: int) -> None:
    """Keep this thread at work until it has used this much CPU time."""
    end_ns = time.thread_time_ns() + 1000 * cpu_us
    while time.thread_time_ns() < end_ns:
        pass


def let_another_work(cpu_us: int) -> None:
    """Wait until another thread has used this much CPU time."""
    in_threads(work_for, [cpu_us])


def in_threads(work: Callable[[Any], object], arguments: Iterable[Any]) -> None:
    """Do `work` with each of `arguments` at once, in a thread of its own, and wait for all."""
    threads = [threading.Thread(target=work, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
