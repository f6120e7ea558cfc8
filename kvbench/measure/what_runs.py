"""What shapes a measurement, as it runs here and now: sources of the engine and its kernels, Python, plug-ins."""

import hashlib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

from kvbench.backends.base import GROUP
from kvbench.engine.device import SOURCE_HASH
from kvbench.engine.nvrtc import kernel_texts

_WINGS: Final = ("backends", "cells", "engine", "measure")


def hash_of_what_runs() -> str:
    """Return 16 hex digits over the compiled engine's sources, the kernels' texts and Python's files as they are now.

    Installed plug-ins count by name and version.
    """
    package = Path(__file__).parents[1]
    files = sorted(file for wing in _WINGS for file in (package / wing).rglob("*.py"))
    parts = [SOURCE_HASH, *kernel_texts(), *(file.read_text() for file in files), *plug_ins()]
    return hashlib.blake2s("\0".join(parts).encode(), digest_size=8).hexdigest()


def plug_ins() -> list[str]:
    """Return "backend package==version" of every backend that another package brings, by name."""
    return sorted(f"{entry.name} {_package(entry)}" for entry in entry_points(group=GROUP) if not _is_our_own(entry))


@cache
def is_claimed(backend: str) -> bool:
    """Whether the backend comes from another package, whose word for its path is all there is."""
    return not any(_is_our_own(entry) for entry in entry_points(group=GROUP) if entry.name == backend)


def _is_our_own(entry: EntryPoint) -> bool:
    return entry.value.startswith("kvbench.backends.")


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name}=={entry.dist.version}" if entry.dist else "of no package"
