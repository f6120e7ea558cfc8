"""Every CUDA source that is shipped compiles, for every GPU generation that is supported; compilations are cached."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

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
    assert message.startswith("NVRTC refused broken.cu for sm_90: ")
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
