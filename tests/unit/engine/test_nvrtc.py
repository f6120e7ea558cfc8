"""Every CUDA source that is shipped compiles, for every GPU generation and driver that is supported, once."""

import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from kvbench.backends.sm import KernelShape, shape_for
from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.engine import nvrtc
from kvbench.engine.nvrtc import NvrtcError, cached_cubin, compile_cubin, kernel_source

try:
    nvrtc.version()
except NvrtcError as absent:
    pytest.skip(str(absent), allow_module_level=True)

SOURCES = sorted((Path(__file__).parents[3] / "csrc" / "kernels").glob("*.cu"))
ELF = b"\x7fELF"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "kvbench"


@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
@pytest.mark.parametrize("path", [path for path in SOURCES if path.stem != "sm_copy"], ids=lambda path: path.stem)
def test_a_shipped_source_compiles(path: Path, arch: str) -> None:
    assert compile_cubin(kernel_source(path.name), path.stem, arch).startswith(ELF)


def compiled(shape: KernelShape, arch: str) -> bytes:
    """Return the machine code of a copy kernel, once it was seen to have its three entries."""
    cubin = compile_cubin(kernel_source("sm_copy.cu"), "sm_copy", arch, shape.defines)
    for end in ("", "_inline", "_short"):
        assert f"kvbench_sm_{shape.method}{end}".encode() + b"\0" in cubin
    return cubin


@pytest.mark.parametrize(("method", "arch"), [("lanes", "sm_80"), ("lanes", "sm_120"), ("words", "sm_100")])
def test_the_other_methods_of_the_copy_kernel_compile(method: str, arch: str) -> None:
    assert compiled(KernelShape(method, 8, 6, 4096), arch)


@pytest.mark.parametrize(
    ("method", "arch"), [("lanes", "sm_80"), ("bulk", "sm_90"), ("bulk", "sm_100"), ("bulk", "sm_120")]
)
def test_a_kernel_that_can_be_held_at_a_rate_is_another_one(method: str, arch: str) -> None:
    shape = KernelShape(method, 8, 2, 4096)
    assert compiled(replace(shape, paced=True), arch) != compiled(shape, arch)


def test_a_broken_source_is_refused_with_the_compiler_s_log() -> None:
    with pytest.raises(NvrtcError) as caught:
        compile_cubin('extern "C" __global__ void broken() { undeclared_name = 3; }', "broken", "sm_90")
    message = str(caught.value)
    assert message.startswith("NVRTC failed to compile broken.cu for sm_90: ")
    assert 'identifier "undeclared_name" is undefined' in message


def test_a_kernel_is_compiled_only_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cached_cubin("delay", "sm_90")
    assert first == compile_cubin(kernel_source("delay.cu"), "delay", "sm_90")
    assert [path.read_bytes() for path in cache.iterdir()] == [first]
    monkeypatch.setattr(nvrtc, "compile_cubin", mock.Mock(side_effect=AssertionError))
    assert cached_cubin("delay", "sm_90") == first


@pytest.mark.parametrize("changed", ["delay.cu", *nvrtc.HEADERS, "architecture", "NVRTC"])
def test_every_input_of_the_machine_code_is_part_of_the_cache_key(
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


def test_kernels_compile_if_the_cache_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_the_way))
    for _ in range(2):
        assert cached_cubin("delay", "sm_90").startswith(ELF)
    assert in_the_way.read_text() == "not a folder"


# A process keeps the first NVRTC that it loads.
FOR_A_DRIVER = """
import sys
from kvbench.engine import nvrtc

driver, hidden, *sources = sys.argv[1:]
find = nvrtc._installed
nvrtc._installed = lambda file: () if file == hidden else find(file)
nvrtc.driver_version = lambda: int(driver)
print(nvrtc.version())
for source in sources:
    print(nvrtc.compile_cubin(nvrtc.kernel_source(source), source, "sm_90")[8])  # e_ident[EI_ABIVERSION]
"""


@pytest.mark.parametrize(
    ("driver", "hidden", "major", "abi"),
    [
        (12040, "", "12", "7"),
        (13000, "", "13", "8"),
        (13000, "libnvrtc.so.13", "12", "7"),  # a new driver loads cubins of an old NVRTC
    ],
)
def test_the_newest_nvrtc_that_the_driver_supports_compiles_in_its_elf_abi(
    driver: int, hidden: str, major: str, abi: str
) -> None:
    for wanted in (12, 13):
        if not any("/" in path for path in nvrtc._installed(f"libnvrtc.so.{wanted}")):
            pytest.skip(f"NVRTC {wanted} is not installed, as `make setup` does")
    sources = [path.name for path in SOURCES] if driver == 12040 else ["delay.cu"]  # all compile with NVRTC 13 above
    arguments = [str(driver), hidden, *sources]
    done = subprocess.run([sys.executable, "-c", FOR_A_DRIVER, *arguments], check=True, capture_output=True, text=True)
    version, *abis = done.stdout.split()
    assert version.split(".")[0] == major
    assert abis == [abi] * len(sources)


@pytest.mark.parametrize("content", [b"", b"\x00" * 64])
def test_a_cached_file_without_machine_code_is_replaced(cache: Path, content: bytes) -> None:
    first = cached_cubin("delay", "sm_90")
    (path,) = cache.iterdir()
    path.write_bytes(content)
    assert cached_cubin("delay", "sm_90") == first == path.read_bytes()


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_cached_file_that_others_may_write_is_not_used(cache: Path, mode: int) -> None:
    first = cached_cubin("delay", "sm_90")
    (path,) = cache.iterdir()
    path.write_bytes(ELF + b"of somebody else")
    assert cached_cubin("delay", "sm_90") != first
    path.chmod(mode)
    assert cached_cubin("delay", "sm_90") == first


def static_shared_bytes(cubin: bytes, kernel: str) -> int:
    """Return the size of the ELF section that holds the kernel's static shared memory."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + size * number) for number in range(count)]
    texts = headers[names][4]
    shared_bytes = {
        cubin[texts + name : cubin.index(b"\0", texts + name)].decode(): header[5]
        for name, *_ in headers
        for header in headers
        if header[0] == name
    }
    return shared_bytes[f".nv.shared.{kernel}"]


@pytest.mark.parametrize(
    ("arch", "most_bytes", "largest_bytes"), [("sm_90", 227 * 1024, 4096), ("sm_120", 99 * 1024, 1024)]
)
def test_the_bulk_kernel_compiles_and_fits_into_a_block_s_shared_memory(
    arch: str, most_bytes: int, largest_bytes: int
) -> None:
    cell = Cell("sm", Direction.H2D, 1024, largest_bytes)
    shape = shape_for(cell, largest_bytes, 16, int(arch.removeprefix("sm_")), most_bytes)
    assert shape.method == "bulk"
    static = static_shared_bytes(compiled(shape, arch), "kvbench_sm_bulk")
    dynamic = shape.warps * shape.depth * (shape.piece_bytes + 128)  # as csrc/swap/sm_copy.cpp asks for
    reserved = 1024  # by the system, and part of the section from sm_90 on
    assert dynamic + static - reserved == shape.shared_bytes
    assert shape.shared_bytes <= most_bytes
