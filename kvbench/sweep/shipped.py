"""The folder of the configs and presets that come with kvbench, and reading TOML from it or from its users."""

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Final

from kvbench.errors import UsageError

# Beside the configs lies a file of rules for `kvbench gate rules`, which is no sweep.
RULES_NAME: Final = "gate"
MAX_FILE_BYTES: Final = 2**20


def shipped_folder() -> Path:
    """Return the folder of what comes with kvbench: configs, and below it the presets of models."""
    checkout = Path(__file__).resolve().parents[1]
    # First, since an editable install also holds a copy, as old as the installation.
    if (checkout / "pyproject.toml").is_file() and (checkout / "configs").is_dir():
        return checkout / "configs"
    packaged = resources.files("kvbench") / "configs"
    assert isinstance(packaged, Path)
    return packaged


def read_toml(path: Path) -> dict[str, Any]:
    """Return the table of a TOML file; raises UsageError that says why it cannot be read, without its name."""
    with read_as("TOML"):
        if path.is_dir():
            raise UsageError("is a directory, not a TOML file")
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError("is not a TOML file of at most 1 MiB")
        return tomllib.loads(path.read_bytes().decode())


@contextmanager
def read_as(language: str) -> Iterator[None]:
    """Turn what goes wrong inside, when a file is read and parsed as `language`, into a UsageError."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot be read as {language}: {reason}") from None
    except RecursionError:
        raise UsageError(f"cannot be read as {language}: nested too deep") from None
