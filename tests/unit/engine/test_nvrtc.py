"""Every CUDA source that is shipped compiles, for every GPU generation that is supported; compilations are cached."""

import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvbench.backends.sm import shape_for
from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.engine import nvrtc
from kvbench.engine.nvrtc import NvrtcError, cached_cubin, compile_cubin, kernel_source

pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)

SOURCES = sorted((Path(__file__).parents[3] / "csrc" / "kernels").glob("*.cu"))
ELF = b"\x7fELF"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kvbench"


def refuse_to_compile(source: str, name: str, arch: str) -> bytes:
    raise AssertionError(f"{name} was compiled for {arch} ({len(source)} characters)")


def test_there_are_sources_to_compile() -> None:
    assert SOURCES


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_shipped_source_compiles(path: Path, arch: str) -> None:
    assert compile_cubin(kernel_source(path.name), path.stem, arch).startswith(ELF)


def test_a_broken_source_is_refused_with_the_compiler_s_log() -> None:
    with pytest.raises(NvrtcError) as caught:
        compile_cubin('extern "C" __global__ void broken() { undeclared_name = 3; }', "broken", "sm_90")
    message = str(caught.value)
    assert message.startswith("NVRTC failed to compile broken.cu for sm_90: ")
    assert 'identifier "undeclared_name" is undefined' in message


def test_an_architecture_that_nvrtc_does_not_know_is_refused_with_its_name() -> None:
    with pytest.raises(NvrtcError, match="sm_1"):
        compile_cubin(kernel_source("delay.cu"), "delay", "sm_1")


def test_a_kernel_is_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cached_cubin("delay", "sm_90")
    assert first == compile_cubin(kernel_source("delay.cu"), "delay", "sm_90")
    assert [path.read_bytes() for path in cache.iterdir()] == [first]
    monkeypatch.setattr(nvrtc, "compile_cubin", refuse_to_compile)
    assert cached_cubin("delay", "sm_90") == first


@pytest.mark.parametrize("changed", ["delay.cu", *nvrtc.HEADERS, "architecture", "NVRTC"])
def test_whatever_the_machine_code_depends_on_makes_another_entry(
    cache: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    cached_cubin("delay", "sm_90")
    texts = {file: kernel_source(file) for file in ("delay.cu", *nvrtc.HEADERS)}
    if changed in texts:
        texts[changed] += "\n// changed\n"
    monkeypatch.setattr(nvrtc, "kernel_source", texts.__getitem__)
    if changed == "NVRTC":
        monkeypatch.setattr(nvrtc, "version", lambda: "99.9")
    assert cached_cubin("delay", "sm_100" if changed == "architecture" else "sm_90").startswith(ELF)
    assert len(list(cache.iterdir())) == 2


def test_a_cache_that_cannot_be_written_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_the_way))
    for _ in range(2):
        assert cached_cubin("delay", "sm_90").startswith(ELF)
    assert in_the_way.read_text() == "not a folder"


def no_library() -> None:
    raise RuntimeError("no library\nin two lines")


@pytest.mark.parametrize(
    ("bindings", "why"),
    [
        (None, r"import of cuda\.bindings halted.*"),
        (SimpleNamespace(nvrtc=SimpleNamespace(nvrtcVersion=no_library)), "no library in two lines"),
    ],
    ids=["no bindings", "no library"],
)
def test_without_nvrtc_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, bindings: SimpleNamespace | None, why: str
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    with pytest.raises(NvrtcError, match=rf"^NVRTC does not load \({why}\); install kvbench\[cuda\]$"):
        nvrtc.version()


@pytest.mark.parametrize("content", [b"", b"\x00" * 64])
def test_a_cached_file_that_holds_no_machine_code_is_made_again(cache: Path, content: bytes) -> None:
    first = cached_cubin("delay", "sm_90")
    (path,) = cache.iterdir()
    path.write_bytes(content)
    assert cached_cubin("delay", "sm_90") == first == path.read_bytes()


def static_shared_bytes(cubin: bytes, kernel: str) -> int:
    """Return the size of the ELF section that holds the kernel's static shared memory."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + size * number) for number in range(count)]
    texts = headers[names][4]
    found = {
        cubin[texts + name : cubin.index(b"\0", texts + name)].decode(): header[5]
        for name, *_ in headers
        for header in headers
        if header[0] == name
    }
    return found[f".nv.shared.{kernel}"]


@pytest.mark.parametrize(("arch", "most_bytes"), [("sm_90", 227 * 1024), ("sm_120", 99 * 1024)])
@pytest.mark.parametrize("largest_bytes", [1024, 2048, 4096])
def test_the_bulk_kernel_fits_into_a_block_s_shared_memory(arch: str, most_bytes: int, largest_bytes: int) -> None:
    cell = Cell("sm", Direction.H2D, 256, largest_bytes)
    shape = shape_for(cell, largest_bytes, 16, int(arch.removeprefix("sm_")), most_bytes)
    assert shape.method == "bulk"
    cubin = compile_cubin(kernel_source("sm_copy.cu"), "sm_copy", arch, shape.defines)
    static = static_shared_bytes(cubin, "kvbench_sm_bulk")
    dynamic = shape.warps * shape.depth * (shape.piece_bytes + 128)  # as csrc/swap/sm_copy.cpp asks for
    reserved = 1024  # by the system, and part of the section from sm_90 on
    assert dynamic + static - reserved == shape.shared_bytes
    assert shape.shared_bytes <= most_bytes
