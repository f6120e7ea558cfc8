"""Compile the engine's CUDA sources with NVRTC for this GPU and its driver, and cache the cubin."""

import ctypes
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module, resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from kvbench.ground.errors import KvbenchError, StorageError
from kvbench.ground.files import write_whole
from kvbench.machine.sources import driver_version

OPTIONS = ("--std=c++17",)
ELF = b"\x7fELF"
HEADERS = ("types.hpp", "piece_map.hpp", "pacer.hpp", "bulk_ring.hpp", "pool_words.hpp")
# Major versions of NVRTC that kvbench uses, newest first. CUDA's rule of compatibility: a cubin loads in drivers of the
# major version that made it and in newer ones. Seen for sm_80 and sm_90: NVRTC 12 emits ELF ABI 7, NVRTC 13 ABI 8.
MAJORS: Final = (13, 12)


class NvrtcError(KvbenchError):
    """NVRTC is missing or failed to compile a source; the message contains its log."""


def kernel_source(file: str) -> str:
    """The text of `csrc/kernels/<file>` from a checkout or from the installed package."""
    return (_kernel_folder() / file).read_text()


def kernel_texts() -> list[str]:
    """The texts of all shipped kernels and their headers, sorted by name."""
    return [kernel_source(name) for name in sorted(file.name for file in _kernel_folder().iterdir() if file.is_file())]


def version() -> str:
    """The version of the NVRTC that compiles for this driver; raises NvrtcError if none loads."""
    nvrtc = load(driver_version())
    return "{}.{}".format(*_call(nvrtc.nvrtcVersion))


@cache
def load(driver: int) -> Any:  # the bindings have no types
    """Load `cuda.bindings.nvrtc` with the newest NVRTC whose cubins load in this version of the driver (0: any).

    The bindings use the NVRTC that the process has loaded, and keep it. Raises NvrtcError.
    """
    usable = [major for major in MAJORS if driver == 0 or major <= driver // 1000]
    reasons: list[str] = []
    for path in (path for major in usable for path in _installed(f"libnvrtc.so.{major}")):
        try:
            for builtins in Path(path).parent.glob("libnvrtc-builtins.so.*") if "/" in path else ():
                ctypes.CDLL(str(builtins))  # NVRTC opens it by its name, without a search path in some wheels
            ctypes.CDLL(path)
            return import_module("cuda.bindings.nvrtc")
        except (OSError, ImportError) as error:
            reasons.append(" ".join(str(error).split()))
    needs = f" for a driver of CUDA {driver // 1000}.{driver % 1000 // 10}" if driver else ""
    why = "; ".join(reasons) or "the driver is older than CUDA 12"
    raise NvrtcError(f"NVRTC does not load{needs} ({why}); install kvbench[cuda]")


def compile_cubin(source: str, name: str, arch: str, defines: Sequence[str] = ()) -> bytes:
    """Compile `source` for `arch` ("sm_90") to a cubin; raises NvrtcError with the compiler's log."""
    nvrtc = load(driver_version())
    names = [header.encode() for header in HEADERS]
    headers = [kernel_source(header).encode() for header in HEADERS]
    options = [option.encode() for option in (*OPTIONS, *defines, f"--gpu-architecture={arch}")]
    (program,) = _call(nvrtc.nvrtcCreateProgram, source.encode(), f"{name}.cu".encode(), len(names), headers, names)
    try:
        if int(nvrtc.nvrtcCompileProgram(program, len(options), options)[0]) != 0:
            log = _output(nvrtc, "ProgramLog", program).decode(errors="replace").strip("\0 \n")
            raise NvrtcError(f"NVRTC failed to compile {name}.cu for {arch}: {log}")
        return _output(nvrtc, "CUBIN", program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def cached_cubin(name: str, arch: str, defines: Sequence[str] = ()) -> bytes:
    """The cubin of a shipped kernel source; compiled once per source, options, architecture and NVRTC."""
    source = kernel_source(f"{name}.cu")
    headers = [kernel_source(header) for header in HEADERS]
    parts = (source, *headers, *OPTIONS, *defines, arch, version())
    key = hashlib.blake2s("\0".join(parts).encode(), digest_size=12).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = cache / "kvbench" / f"{name}-{arch}-{key}.cubin"
    with suppress(OSError):
        cached = _read_own(path)
        if cached.startswith(ELF):  # a full disk can leave a file without content
            return cached
    cubin = compile_cubin(source, name, arch, defines)
    # If the cache cannot be written, every run compiles again; nothing else changes.
    with suppress(OSError, StorageError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, cubin, wait=False)
    return cubin


def _read_own(path: Path) -> bytes:
    """The content of a file that belongs to this user and that nobody else may write, else nothing."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return b"" if others_write or status.st_uid != os.geteuid() else file.read()


def _kernel_folder() -> Traversable:
    checkout = Path(__file__).parents[2] / "csrc" / "kernels"
    # The checkout comes first: an editable install also has a copy, which is as old as the installation.
    return checkout if checkout.is_dir() else resources.files("kvbench") / "kernels"


def _installed(file: str) -> Iterator[str]:
    """Yield where a library may be: in every package of NVIDIA, then where the system looks."""
    packages = find_spec("nvidia")
    for folder in (packages and packages.submodule_search_locations) or ():
        yield from map(str, sorted(Path(folder).glob(f"*/lib/{file}")))
    yield file


def _output(nvrtc: Any, kind: str, program: Any) -> bytes:
    content = bytes(*_call(getattr(nvrtc, f"nvrtcGet{kind}Size"), program))
    _call(getattr(nvrtc, f"nvrtcGet{kind}"), program, content)  # writes into it
    return content


def _call(function: Any, *arguments: Any) -> Any:
    status, *results = function(*arguments)
    if int(status) != 0:
        raise NvrtcError(f"{function.__name__}: {status.name}")
    return results
