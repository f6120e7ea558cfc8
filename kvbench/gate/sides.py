"""The two sides of a comparison: an environment or a backend, checked before anything is measured."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kvbench.errors import UsageError, brief
from kvbench.results import SCHEMA
from kvbench.text import printable

FORMS: Final = "write env:PATH (a virtual environment or its python), backend:NAME, or here (this environment)"
_PROBE_S: Final = 120.0
_PROBE: Final = """
import json, kvbench
from kvbench.engine.device import SOURCE_HASH
from kvbench.results import SCHEMA
from kvbench.sweep.spec import Sampling
print(json.dumps({"version": kvbench.__version__, "package": kvbench.__file__, "schema": SCHEMA,
                  "engine_hash": SOURCE_HASH, "controls": hasattr(Sampling(), "controls")}))
"""
# They would put one side's packages in front of the other's.
_LEAKING: Final = ("PYTHONPATH", "PYTHONHOME")


@dataclass(frozen=True, slots=True)
class Side:
    """One side: the interpreter that measures it, and the backend that it is, None for every backend of the suite.

    `text` is the side as it was asked for; `isolated` is set where it is an environment of its own; `fault` is injected
    on it (cpu device only).
    """

    text: str
    python: str
    backend: str | None = None
    isolated: bool = False
    fault: str | None = None

    def command(self, *arguments: str) -> list[str]:
        """Return `kvbench ARGUMENTS…` as this side runs it."""
        # -P: a checkout in the working directory must not stand in for the installed package.
        return [self.python, "-P", "-m", "kvbench", *arguments]

    def environment(self) -> dict[str, str]:
        """Return the environment variables of its processes."""
        return {name: value for name, value in os.environ.items() if not (self.isolated and name in _LEAKING)}


class Build(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a side's environment says of itself, in printable words."""

    version: str
    package: str
    schema: int
    engine_hash: str
    controls: bool


def parse_side(option: str, text: str, fault: str | None = None) -> Side:
    """Read `--base` or `--cand`; raises UsageError that names the option."""
    if text == "here":
        return Side(text, sys.executable, fault=fault)
    form, _, value = text.partition(":")
    if value and form == "env":
        return Side(text, str(_interpreter(option, text, Path(value))), isolated=True, fault=fault)
    if value and form == "backend":
        return Side(text, sys.executable, backend=value, fault=fault)
    raise UsageError(f"{option} {brief(text)}: {FORMS}")


def probe(option: str, side: Side) -> Build:
    """Ask the side's environment what kvbench it has; raises UsageError where it has none that fits this one."""
    where = f"{option} {brief(side.text)}"
    command = [side.python, "-P", "-c", _PROBE]
    try:
        done = subprocess.run(
            command, env=side.environment(), capture_output=True, timeout=_PROBE_S, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{where}: its python does not run ({printable(error)})") from None
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        last = done.stderr.strip().splitlines()[-1:]
        raise UsageError(f"{where}: no kvbench that works is installed there ({printable(''.join(last))})")
    try:
        build = msgspec.json.decode(lines[-1], type=Build)
    except msgspec.MsgspecError:
        raise UsageError(f"{where}: its kvbench is not understood ({brief(lines[-1])})") from None
    build = msgspec.structs.replace(build, version=printable(build.version), package=printable(build.package))
    if build.schema != SCHEMA:
        raise UsageError(
            f"{where}: its kvbench {build.version} writes schema {build.schema}, this one {SCHEMA}; "
            "judge with a kvbench as new as the newer side"
        )
    if not build.controls:
        raise UsageError(f"{where}: its kvbench {build.version} makes no control copies; take a newer one")
    return build


def remarks(base: Build, cand: Build) -> list[str]:
    """Return what the reader should know of two builds before they are compared."""
    if base.package == cand.package:
        return [f"both sides run the same kvbench ({base.package}): this compares it with itself"]
    if base.engine_hash == cand.engine_hash:
        return ["both sides have the same engine sources; what differs is Python code or installed packages"]
    return []


def _interpreter(option: str, text: str, path: Path) -> Path:
    # Never resolved: the python of a virtual environment is a link, and knows its environment by the link's place.
    for candidate in (path / "bin" / "python", path):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate.absolute()
    raise UsageError(f"{option} {brief(text)}: no python there; {FORMS}")
