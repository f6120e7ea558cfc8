"""How often the gate is wrong on this GPU: gates of a build with itself, and with its copy kernel slower by 5%.

    python -m tests.gate_rates --gates 10

A benchmark, no test. Each run appends to the file, gate by gate: it may be stopped at any time and go on another day.
"""

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from kvbench.gate.judgement import GateVerdict
from kvbench.ground.files import write_whole
from kvbench.ground.text import range_text
from kvbench.report.markdown import table
from kvbench.results import load_run
from kvbench.results.outcomes import grouped
from tests.slow_backend import laid_out

FILE: Final = Path(__file__).parents[1] / "reports" / "gate-rates.json"
# Name of a kind of gates -> its sides, and its suite if that is not the default.
KINDS: Final[Mapping[str, Sequence[str]]] = {
    "the same build": ("--base=here", "--cand=here"),
    "the kernel 5% slower": ("--base=backend:sm_same", "--cand=backend:sm_slow5"),
    "the same build, suite vllm": ("--base=here", "--cand=here", "--suite=vllm"),
}
_DEFAULT_KINDS: Final = tuple(KINDS)[:2]  # the suite vllm needs vLLM installed
_SHOWN: Final = (GateVerdict.SLOWER, GateVerdict.UNDECIDED, GateVerdict.SAME)
_HEADINGS: Final = ("candidate", "GPU, driver", "measured", "gates", *_SHOWN, "other", "seconds")


class Gated(msgspec.Struct, frozen=True):
    """One gate: kind, sides and suite as a command, verdicts of it and of its rows, and what it said, controls last."""

    kind: str
    command: str
    date: str
    gpu: str
    driver: str
    engine_hash: str
    verdict: str
    seconds: float
    rows: dict[str, int]
    said: list[str]


def read(file: Path) -> list[Gated]:
    return msgspec.json.decode(file.read_bytes(), type=list[Gated]) if file.exists() else []


def write(file: Path, gates: Sequence[Gated]) -> None:
    write_whole(file, msgspec.json.format(msgspec.json.encode(gates), indent=1) + b"\n")


def gate(kind: str, minutes: float, more: Sequence[str], folder: Path) -> Gated:
    """Run one gate of this kind in the empty `folder`."""
    command = ["kvbench", "gate", "compare", *KINDS[kind], f"--minutes={minutes}", *more]
    path = os.pathsep.join([str(laid_out(folder / "site")), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    full = [sys.executable, "-m", *command, f"--out={folder / 'gate'}", "--json"]
    env, began_s = {**os.environ, "PYTHONPATH": path}, time.monotonic()
    with subprocess.Popen(full, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as done:
        said = [f"{time.monotonic() - began_s:.1f} s: {line.strip()}" for line in done.stderr or ()]
    seconds = round(time.monotonic() - began_s, 1)
    if not (outcome := folder / "gate" / "gate.json").exists():
        sys.exit("\n".join([shlex.join(command), *said]))
    data = json.loads(outcome.read_bytes())
    identity = load_run(folder / "gate" / "base").info.identity
    return Gated(
        kind=kind,
        command=shlex.join(command),
        date=datetime.now(UTC).date().isoformat(),
        gpu=str(identity.get("gpu_name") or identity["device_kind"]),
        driver=str(identity.get("driver_version") or ""),
        engine_hash=str(identity["engine_hash"]),
        verdict=data["verdict"],
        seconds=seconds,
        rows=dict(Counter(row["verdict"] for row in data["rows"])),
        said=[*said, *data["warnings"], *(f"{one['name']} unsure: {one['unsure']}" for one in data["controls"])],
    )


def rates(gates: Sequence[Gated]) -> str:
    """Return the rates in Markdown, a row for each kind, GPU and driver, and the commands behind them."""
    rows = []
    for (kind, gpu, driver), of_kind in grouped(gates, lambda one: (one.kind, one.gpu, one.driver)).items():
        days = range_text((one.date for one in of_kind), str)
        rows.append((kind, ", ".join(filter(None, (gpu, driver))), days, str(len(of_kind)), *_shares(of_kind)))
    lines = dict.fromkeys(one.command for one in gates)
    commands = (f"    {line}  # needs a GPU{_also_needed(line)}" for line in lines)
    return "\n".join([table(_HEADINGS, rows, left=3), "", *commands])


def _also_needed(command: str) -> str:
    return " and tests/slow_backend" if "backend:" in command else " and vLLM" if "--suite=vllm" in command else ""


def _shares(gates: Sequence[Gated]) -> tuple[str, ...]:
    counts, seconds = Counter(one.verdict for one in gates), [one.seconds for one in gates]
    shown = [counts[verdict] for verdict in _SHOWN]
    return (*map(str, (*shown, len(gates) - sum(shown))), f"{median(seconds):.0f}, at most {max(seconds):.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=10, help="gates of each kind to add")
    parser.add_argument("--kind", action="append", choices=tuple(KINDS), help="kind of gates; repeatable")
    parser.add_argument("--minutes", type=float, default=0.6, help="time limit of a gate")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no gate that would end later than this")
    parser.add_argument("--file", type=Path, default=FILE, help="file to append to")
    parser.add_argument("more", nargs="*", help="more arguments of kvbench gate compare, behind --")
    options = parser.parse_args()
    gates, began_s = read(options.file), time.monotonic()
    for number, kind in product(range(options.gates), options.kind or _DEFAULT_KINDS):
        took_s = max((one.seconds for one in gates if one.kind == kind), default=60 * options.minutes)
        if time.monotonic() - began_s + took_s > options.seconds:
            break
        with tempfile.TemporaryDirectory() as folder:
            gates.append(gate(kind, options.minutes, options.more, Path(folder)))
        write(options.file, gates)
        print(f"{number + 1} of {options.gates}: {kind}: {gates[-1].verdict} in {gates[-1].seconds:.0f} s", flush=True)
    print(rates(gates))


if __name__ == "__main__":
    main()
