"""The two sides of a comparison: an environment or a backend, checked before anything is measured."""

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from kvbench.errors import UsageError, brief
from kvbench.results import SCHEMA
from kvbench.run.protocol import VERSION, Opened
from kvbench.run.worker_process import Interpreter
from kvbench.sweep.checks import usable_bytes
from kvbench.sweep.spec import Limits
from kvbench.text import printable

FORMS: Final = "write env:PATH (a virtual environment or its python), backend:NAME, or here (this environment)"
_PROBE_S: Final = 120.0
_PROBE: Final = """
import json, kvbench
from kvbench.results import SCHEMA
from kvbench.run import protocol
print(json.dumps({"version": kvbench.__version__, "package": kvbench.__file__, "schema": SCHEMA,
                  "protocol": getattr(protocol, "VERSION", 1)}))
"""
# These variables would let one side import the packages of the other.
_LEAKING: Final = ("PYTHONPATH", "PYTHONHOME")


@dataclass(frozen=True, slots=True)
class Side:
    """One side: the interpreter that measures it, and its backend, or None for every backend of the suite.

    `text` is the side as given by the user with `option`; `fault` is injected on it (cpu device only).
    """

    text: str
    option: str = "--side"
    interpreter: Interpreter = field(default_factory=Interpreter)
    backend: str | None = None
    fault: str | None = None


class Build(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The versions in a side's environment."""

    version: str
    package: str
    schema: int
    protocol: int


def parse_side(option: str, text: str, fault: str | None = None) -> Side:
    """Read `--base` or `--cand`, and query the kvbench of another environment.

    Raises UsageError, which names the option, also if that kvbench is incompatible with this one.
    """
    if text == "here":
        return Side(text, option, fault=fault)
    form, _, value = text.partition(":")
    if value and form == "backend":
        return Side(text, option, backend=value, fault=fault)
    if value and form == "env":
        where = f"{option} {brief(text)}"
        variables = {name: value for name, value in os.environ.items() if name not in _LEAKING}
        interpreter = Interpreter(str(_python(where, Path(value))), variables)
        _check(where, interpreter)
        return Side(text, option, interpreter, fault=fault)
    raise UsageError(f"{option} {brief(text)}: {FORMS}")


def half_of_memory(limits: Limits, opened: Opened) -> Limits:
    device = opened.device
    free = ((limits.host_bytes, device.host_free_bytes), (limits.device_bytes, device.device_free_bytes))
    return Limits(*(max(1, usable_bytes(limit, free_bytes) // 2) for limit, free_bytes in free))


def _check(where: str, interpreter: Interpreter) -> None:
    try:
        done = subprocess.run(
            interpreter.command("-c", _PROBE),
            env=interpreter.environment,
            capture_output=True,
            timeout=_PROBE_S,
            check=False,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{where}: its python does not run ({printable(error)})") from None
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        last = done.stderr.strip().splitlines()[-1:]
        raise UsageError(f"{where}: no working kvbench is installed there ({printable(''.join(last))})")
    try:
        build = msgspec.json.decode(lines[-1], type=Build)
    except msgspec.MsgspecError:
        raise UsageError(f"{where}: its kvbench gave an invalid answer ({brief(lines[-1])})") from None
    if (build.schema, build.protocol) != (SCHEMA, VERSION):
        raise UsageError(
            f"{where}: its kvbench {printable(build.version)} has schema {build.schema} and protocol {build.protocol}, "
            f"this one {SCHEMA} and {VERSION}; sweep with each kvbench, and compare the runs with kvbench report"
        )


def _python(where: str, path: Path) -> Path:
    # Never resolved: the python of a virtual environment is a link and finds its environment by the link's location.
    for candidate in (path / "bin" / "python", path):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate.absolute()
    raise UsageError(f"{where}: no python there; {FORMS}")
