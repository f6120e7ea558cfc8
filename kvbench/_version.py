"""The version of kvbench and its commit, in their own module so that every module can import them."""

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

__version__: Final = "0.1.0"


def commit(package: Path = Path(__file__).parent) -> str | None:
    """The commit of the package folder: from git in a checkout, else from the file that the build wrote."""
    checkout = package.parent
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        if (checkout / ".git").exists():
            command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=2, check=True)
            return done.stdout.strip() or None
        return (package / "_commit.txt").read_text(encoding="utf-8").strip() or None
    return None
