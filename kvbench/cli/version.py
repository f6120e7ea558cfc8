"""The version of kvbench, and the commit of its checkout or build."""

import subprocess
from contextlib import suppress
from pathlib import Path

import kvbench
from kvbench._version import __version__


def version_line() -> str:
    """Return "kvbench VERSION (COMMIT)", without the commit if it is unknown; never raises."""
    commit_id = commit(Path(kvbench.__file__).parent)
    return f"kvbench {__version__} ({commit_id})" if commit_id else f"kvbench {__version__}"


def commit(package: Path) -> str | None:
    """Return the commit of the package folder: from git in a checkout, else from the file that the build wrote."""
    checkout = package.parent
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        if (checkout / ".git").exists():
            command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=2, check=True)
            return done.stdout.strip() or None
        return (package / "_commit.txt").read_text(encoding="utf-8").strip() or None
    return None
