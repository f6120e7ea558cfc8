"""The code that affects a measurement: sources of the engine and its kernels, Python files, plug-ins."""

import hashlib
from pathlib import Path
from typing import Final

from kvbench.engine.device import SOURCE_HASH
from kvbench.engine.nvrtc import kernel_texts
from kvbench.sweep.installed import installed

_WINGS: Final = ("backends", "cells", "engine", "measure")


def hash_of_what_runs() -> str:
    """Return a hash, as 16 hex digits, of the compiled engine's sources, the kernel texts and the current Python files.

    Installed plug-ins contribute their name and version.
    """
    package = Path(__file__).parents[1]
    files = sorted(file for wing in _WINGS for file in (package / wing).rglob("*.py"))
    known, _ = installed()
    plug_ins = [f"{name} {backend.package}" for name, backend in sorted(known.items()) if not backend.own]
    parts = [SOURCE_HASH, *kernel_texts(), *(file.read_text() for file in files), *plug_ins]
    return hashlib.blake2s("\0".join(parts).encode(), digest_size=8).hexdigest()
