"""Compile the engine's CUDA sources with NVRTC for this GPU, and cache the cubin."""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from kvbench.errors import KvbenchError, StorageError
from kvbench.files import write_whole

OPTIONS = ("--std=c++17",)
ELF = b"\x7fELF"
HEADERS = ("types.hpp", "piece_map.hpp", "pool_words.hpp")


class NvrtcError(KvbenchError):
    """NVRTC is missing or failed to compile a source; the message contains its log."""


def kernel_source(file: str) -> str:
    """Return the text of `csrc/kernels/<file>` from a checkout or from the installed package."""
    return (_kernel_folder() / file).read_text()


def kernel_texts() -> list[str]:
    """Return the texts of all shipped kernels and their headers, sorted by name."""
    return [kernel_source(name) for name in sorted(file.name for file in _kernel_folder().iterdir() if file.is_file())]


def version() -> str:
    """Return the version of NVRTC; raises NvrtcError if it cannot be loaded."""
    nvrtc = _load()
    status, major, minor = nvrtc.nvrtcVersion()
    _check(status, "nvrtcVersion")
    return f"{major}.{minor}"


def compile_cubin(source: str, name: str, arch: str, defines: Sequence[str] = ()) -> bytes:
    """Return the cubin of `source` for `arch` ("sm_90"); raises NvrtcError with the compiler's log."""
    nvrtc = _load()
    headers = [kernel_source(header).encode() for header in HEADERS]
    names = [header.encode() for header in HEADERS]
    status, program = nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), len(names), headers, names)
    _check(status, "nvrtcCreateProgram")
    try:
        options = [option.encode() for option in (*OPTIONS, *defines, f"--gpu-architecture={arch}")]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise NvrtcError(f"NVRTC failed to compile {name}.cu for {arch}: {_log(nvrtc, program)}")
        status, size = nvrtc.nvrtcGetCUBINSize(program)
        _check(status, "nvrtcGetCUBINSize")
        cubin: bytes = b" " * size
        (status,) = nvrtc.nvrtcGetCUBIN(program, cubin)
        _check(status, "nvrtcGetCUBIN")
        return cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def cached_cubin(name: str, arch: str, defines: Sequence[str] = ()) -> bytes:
    """Return the cubin of a shipped kernel source; compiled once per source, options, architecture and NVRTC."""
    source = kernel_source(f"{name}.cu")
    headers = [kernel_source(header) for header in HEADERS]
    parts = (source, *headers, *OPTIONS, *defines, arch, version())
    key = hashlib.blake2s("\0".join(parts).encode(), digest_size=12).hexdigest()
    path = _cache_folder() / f"{name}-{arch}-{key}.cubin"
    with suppress(OSError):
        cached = path.read_bytes()
        if cached.startswith(ELF):  # a full disk can leave a file without content
            return cached
    cubin = compile_cubin(source, name, arch, defines)
    # If the cache cannot be written, every run compiles again; nothing else changes.
    with suppress(OSError, StorageError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, cubin, wait=False)
    return cubin


def _kernel_folder() -> Traversable:
    checkout = Path(__file__).parents[2] / "csrc" / "kernels"
    # The checkout comes first: an editable install also has a copy, which is as old as the installation.
    return checkout if checkout.is_dir() else resources.files("kvbench") / "kernels"


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvbench"


def _load() -> Any:  # the bindings have no types
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise NvrtcError(f"NVRTC does not load ({why}); install kvbench[cuda]") from None
    return nvrtc


def _check(status: Any, call: str) -> None:
    if int(status) != 0:
        raise NvrtcError(f"{call}: {status}")


def _log(nvrtc: Any, program: Any) -> str:
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    text: bytes = b" " * size
    nvrtc.nvrtcGetProgramLog(program, text)
    return text.decode(errors="replace").strip("\0 \n")
