"""The roof: large copies, scattered blocks and their dense twin, from times that follow from the kernel."""

from unittest import mock

import pytest

from kvbench.cells.axes import Direction
from kvbench.engine.nvrtc import NvrtcError
from kvbench.measure import roof
from kvbench.measure.roof import ControlError, HostControl, open_control


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
def test_a_host_control_copies_every_byte_the_way_it_says(direction: Direction) -> None:
    control = HostControl()
    source, to = control.host, control.device
    if direction is Direction.D2H:
        source, to = to, source
    source[:] = 7
    assert control.copy_us(direction) > 0
    assert to.min() == to.max() == 7


def test_a_control_on_a_gpu_that_is_not_there_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ControlError, match="control copies: "):
        open_control("cuda:0")
