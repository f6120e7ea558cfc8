"""The roof: large copies, scattered blocks and their dense twin, from times that follow from the kernel."""

from enum import IntEnum
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from kvbench.cells.axes import Direction
from kvbench.engine.nvrtc import NvrtcError
from kvbench.measure import roof
from kvbench.measure.roof import ControlError, HostControl, open_control, time_copies


@pytest.mark.parametrize(
    ("is_cuda", "backends", "kernels", "loads_triton"),
    [(True, {"sm", "triton"}, {"lanes", "bulk"}, True), (True, {"sm"}, {"lanes", "bulk"}, False),
     (False, {"triton"}, set(), False)],
)  # fmt: skip
def test_what_takes_long_to_load_is_loaded_beside_other_work(
    monkeypatch: pytest.MonkeyPatch, is_cuda: bool, backends: set[str], kernels: set[str], loads_triton: bool
) -> None:
    compiled, loaded = [], []
    device = mock.Mock(is_cuda=is_cuda, arch="sm_90")

    def compile_later(name: str, arch: str, defines: tuple[str, ...]) -> bytes:
        compiled.append((name, arch, defines[0].partition("METHOD=")[2]))
        raise NvrtcError("shown where the roof is measured")

    monkeypatch.setattr(roof, "cached_cubin", compile_later)
    monkeypatch.setattr(roof, "load_and_compile", loaded.append)
    with roof.compiling(device, backends):
        pass
    assert {(name, arch) for name, arch, _ in compiled} == ({("sm_copy", "sm_90")} if is_cuda else set())
    assert {method for *_, method in compiled} == kernels
    assert loaded == [device] * loads_triton


@pytest.mark.parametrize("direction", Direction)
def test_a_host_control_times_a_copy_of_every_byte(monkeypatch: pytest.MonkeyPatch, direction: Direction) -> None:
    monkeypatch.setattr(roof, "time", mock.Mock(perf_counter_ns=mock.Mock(side_effect=[5000, 7500])))
    control = open_control("cpu")
    assert isinstance(control, HostControl)
    source, to = control.host, control.device
    if direction is Direction.D2H:
        source, to = to, source
    source[:] = 7
    assert control.copy_us(direction) == 2.5
    assert to.min() == to.max() == 7


def test_a_control_on_a_gpu_that_is_not_there_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ControlError, match="control copies: "):
        open_control("cuda:0")


class Status(IntEnum):
    FINE, REFUSED = 0, 7


@pytest.mark.parametrize("direction", Direction)
def test_a_control_on_a_gpu_times_one_copy_between_two_events(
    monkeypatch: pytest.MonkeyPatch, direction: Direction
) -> None:
    """Each call returns its name, but for the time and for the events, of which the first one is the start."""
    called, events, status = list[tuple[Any, ...]](), ["end", "start"], Status.FINE

    def call(name: str, *arguments: Any) -> Any:
        called.append((name, *arguments))
        return status, {"cuEventCreate": events.pop, "cuEventElapsedTime": lambda: 0.25}.get(name, lambda: name)()

    class Bindings:
        CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

        def __getattr__(self, name: str) -> Any:
            return mock.Mock(side_effect=partial(call, name), __name__=name)

    monkeypatch.setattr(roof, "_bindings", Bindings)
    control = open_control("cuda:3")
    assert ("cuDeviceGet", 3) in called
    assert {(name, arguments[0]) for name, *arguments in called if name.startswith("cuMem")} == {
        ("cuMemHostAlloc", 64 << 20), ("cuMemAlloc", 64 << 20)
    }  # fmt: skip
    called.clear()
    assert control.copy_us(direction) == 250
    timed = [step for step in called if step[0].startswith(("cuEventRecord", "cuMemcpy", "cuEventSynchronize"))]
    to, source, copy = "cuMemAlloc", "cuMemHostAlloc", "cuMemcpyHtoDAsync"
    if direction is Direction.D2H:
        to, source, copy = source, to, "cuMemcpyDtoHAsync"
    stream = "cuStreamCreate"
    assert timed == [("cuEventRecord", "start", stream), (copy, to, source, 64 << 20, stream),
                     ("cuEventRecord", "end", stream), ("cuEventSynchronize", "end")]  # fmt: skip
    status = Status.REFUSED
    with pytest.raises(ControlError, match="control copies: cuCtxSetCurrent returned REFUSED"):
        control.copy_us(direction)


def test_control_copies_are_timed_behind_two_warm_ups() -> None:
    control = mock.Mock(copy_us=mock.Mock(side_effect=[9.0, 8.0, 1.0, 3.0, 2.0]))
    assert time_copies(control, Direction.D2H, 3) == [1.0, 3.0, 2.0]
    assert control.copy_us.mock_calls == [mock.call(Direction.D2H)] * 5
