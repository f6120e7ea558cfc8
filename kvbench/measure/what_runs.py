"""The code that affects a measurement: sources of the engine and its kernels, and Python files."""

import hashlib
from pathlib import Path
from typing import Final

from kvbench.engine.device import SOURCE_HASH
from kvbench.engine.nvrtc import kernel_texts

_WINGS: Final = ("backends", "cells", "engine", "engines", "measure")
# Outside of them: lengths of chains, defaults of sampling, the environment of workers, repeats of visits, policies.
_FILES: Final = (
    "sweep/estimate.py", "sweep/spec.py", "run/worker_process.py", "run/execution.py", "policy.py",
)  # fmt: skip


def hash_of_what_runs() -> str:
    """Return a hash, as 16 hex digits, of the compiled engine's sources, the kernel texts and the Python files."""
    package = Path(__file__).parents[1]
    files = sorted(file for wing in _WINGS for file in (package / wing).rglob("*.py"))
    files += [package / name for name in _FILES]
    parts = [SOURCE_HASH, *kernel_texts(), *(file.read_text() for file in files)]
    return hashlib.blake2s("\0".join(parts).encode(), digest_size=8).hexdigest()
