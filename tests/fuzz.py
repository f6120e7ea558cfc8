"""Hostile input, thousands of cases: configs, axes, filters, options, policies, models, rules, runs
and traces.

Every case is a command that runs in this process, its worker stood in for. It must end soon, with an exit code that is
documented and foreseen, in bounded memory, and with one line where it fails. `python -m tests.fuzz --cases 5000` runs
more than the tests do; `--seed S --only N` repeats a case and shows it.
"""

import argparse
import contextlib
import copy
import gzip
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

import tomli_w

from kvbench.cells.cell import AXES
from kvbench.cells.facts import BackendFacts
from kvbench.cli import main
from kvbench.ground.errors import ExitCode, UsageError
from kvbench.ground.files import shipped_folder
from kvbench.report.drawing import Drawing
from kvbench.run import runner
from kvbench.run.protocol import Opened
from tests.command import BRIEF, swept, tiny
from tests.strategies import CPU, H200, opened
from tests.unit.sweep.test_configs import EVERYWHERE, ON_A_HOST

MODEL = Path(__file__).parent / "unit" / "models" / "configs" / "llama-3.1-8b-fp8-kv.json"
CASE_S = 300  # ends a hang, also on a machine that other work holds up
MOST_LINE = 2200
MOST_GROWTH_MIB = 2560  # the largest pool that `trace make` takes, of 2^24 blocks, is 2.1 GiB
KNOWN_SHARE = 0.7
FORESEEN = {int(code) for code in ExitCode if code is not ExitCode.UNFORESEEN}
TEXTS = (
    "", " ", "x", "x" * 5000, "\x1b[31mred", "\x00", "\u202eabc", "=cmd|'/c calc'!A1", "../../etc/passwd", "nan", "-1",
    "1e999", "é" * 100, "\ud800", "[bold]", "{}", "%s%n", "a\nb", "auto", "batched", "h2d", "0", "1KiB", "dense",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 7, 64, 4096, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, 10**400, 0.0, -0.0, 0.5, 1e-9, 5e-324,
    1e308, -1e308, 1e16,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [0], [""], {"a": 1}, {"": {}}, [1, "a", None])


class Hang(BaseException):
    """A case took longer than CASE_S."""


class FakeSlot:
    """Stands for the worker: a device as the tests know it."""

    def __init__(self, spec: Any, _backends: Any = ()) -> None:
        self.device = spec.device
        self.pids: frozenset[int] = frozenset()

    def start(self) -> Opened:
        if self.device.startswith("cuda:") and self.device != "cuda:0":
            raise UsageError(f"--device {self.device}: no such device")
        on_gpu = self.device.startswith("cuda")
        return opened(H200, EVERYWHERE) if on_gpu else opened(CPU, ON_A_HOST)

    def reserve(self, pool_bytes: int, *_: object) -> None:
        raise UsageError(f"no {pool_bytes} bytes here")

    def close(self) -> None:
        pass


class Bench:
    """The files that cases start from, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        swept(folder, *tiny(direction="h2d,d2h", stream_state="idle,busy"), *BRIEF, "--rounds=6", name="a")
        shutil.copytree(folder / "a", folder / "b")
        self.info = json.loads((folder / "a" / "run.json").read_text())
        self.journal = [json.loads(line) for line in (folder / "a" / "journal.jsonl").read_text().splitlines()]
        self.configs = [tomllib.loads(file.read_text()) for file in sorted(shipped_folder().glob("*.toml"))]
        shipped = [tomllib.loads(file.read_text()) for file in sorted((shipped_folder() / "rules").glob("*.toml"))]
        # Rules that the run `a` is judged by, so that cases reach the judge.
        self.rules = [*shipped, {"rule": RULES}, {"rule": RULES[:1]}]
        points = {"block_bytes": [1024, 4096], "blocks": [4, 64]}
        choices = [["batched", "per_block"], ["batched descriptors_per_call=8", ""]]
        table = {"direction": "h2d", "stream_state": "idle", **points, "choices": choices}
        self.policy = {"device": CPU.title, "tables": [table]}
        self.model = json.loads(MODEL.read_text())

    def write(self, name: str, data: bytes) -> str:
        path = self.folder / name
        path.write_bytes(data)
        return str(path)

    def run(self, info: Any, records: list[Any], torn: bytes = b"") -> str:
        """Write a run whose journal is sealed as kvbench does it, whatever it holds."""
        folder = self.folder / "mutant"
        folder.mkdir(exist_ok=True)
        (folder / "run.json").write_bytes(as_json(info))
        lines, crc = [], 0
        for record in records:
            body = as_json({key: value for key, value in record.items() if key != "crc"})
            crc = zlib.crc32(body, crc)
            lines.append(body[:-1] + b',"crc":"%08x"}\n' % crc)
        (folder / "journal.jsonl").write_bytes(b"".join(lines) + torn)
        return str(folder)


def as_json(plain: Any) -> bytes:
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")


def as_toml(plain: Any) -> bytes:
    plain = plain if isinstance(plain, dict) else {"": plain}
    try:
        return tomli_w.dumps(plain).encode(errors="surrogatepass")
    except (TypeError, ValueError):  # TOML has no null
        return tomli_w.dumps(json.loads(json.dumps(plain).replace("null", '""'))).encode(errors="surrogatepass")


def value(chance: random.Random) -> Any:
    # a copy: what is changed in one case must not be in the next, nor within itself
    return copy.deepcopy(chance.choice(chance.choice((TEXTS, NUMBERS, OTHERS))))


def mutated(plain: Any, chance: random.Random) -> Any:
    """Return a copy of what JSON holds with up to three places changed, removed or doubled."""
    changed = copy.deepcopy(plain)
    for _ in range(chance.randint(1, 3)):
        places = list(_places(changed))
        if not places:
            return value(chance)
        holder, key = chance.choice(places)
        match chance.randrange(9):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case 1:
                holder[str(chance.choice(TEXTS))] = value(chance)
            case 2 | 3 | 4 | 5 if isinstance(holder[key], int | float):
                holder[key] = chance.choice((*NUMBERS, holder[key] * 2, holder[key] // 2))
            case 2 | 3 | 4 | 5 if isinstance(holder[key], str):  # often nearly right: it gets behind the first check
                holder[key] = word(chance, holder[key])
            case 2 | 3 | 4 | 5:
                pass
            case _:
                holder[key] = value(chance)
    return changed


def _places(plain: Any) -> Iterator[tuple[Any, Any]]:
    for key, inner in plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ():
        yield plain, key
        yield from _places(inner)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with a few of them flipped, cut out or put in, some of which are not UTF-8."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(4):
            case 0:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del changed[at : at + chance.choice((1, 10, 1000))]
            case 2:
                changed[at:at] = chance.choice((b"\xff", b"\x00", b"[" * 3000, b"\xc3", b"\n", b'"', b"=", b"9" * 5000))
            case _:
                del changed[at:]
    return bytes(changed)


def either(plain: Any, write: Callable[[Any], bytes], chance: random.Random) -> bytes:
    data = write(mutated(plain, chance)) if chance.random() < 0.8 else write(plain)
    return damaged(data, chance) if chance.random() < 0.15 else data


def word(chance: random.Random, *known: str) -> str:
    """Return a known word, a part of one, two together, or something else, as an argument takes it."""
    others = (*TEXTS, *(str(number)[:40] for number in NUMBERS))
    text = chance.choice(known if chance.random() < KNOWN_SHARE else others)
    match chance.randrange(8):
        case 0:
            text = text[: chance.randrange(len(text) + 1)]
        case 1:
            text += chance.choice((",", ":", "|", "=", "x", "..", "%", " ", "<", "!=")) + chance.choice(known)
    return os.fsdecode(text.replace("\x00", "").encode("utf-8", "surrogatepass"))  # as the shell passes it


def axis_text(chance: random.Random) -> str:
    axis = chance.choice(list(AXES))
    named = axis if chance.random() < 0.8 else word(chance, axis)
    return f"{named}={word(chance, AXES[axis].example, *AXES[axis].example.split(','))}"


# What each option takes; a case has one or two of them, and every second value is hostile.
OPTIONS = {
    "rounds": "3", "warmups": "1", "min-samples": "2", "max-samples": "50", "cell-seconds": "0.5",
    "busy-delay-us": "100", "deadline-s": "10", "seed": "1", "host-memory": "8GiB",
    "device-memory": "8GiB", "fault": "error@call=0", "model": "qwen3-8b", "tokens": "4096",
    "tp": "2", "block-tokens": "16", "layout": "per-layer", "kv-dtype": "bf16", "device": "cuda:0", "nonsense": "1",
}  # fmt: skip
OF_MODEL = {"model", "tokens", "tp", "block-tokens", "layout", "kv-dtype"}  # these need a model
RULES = [
    {"cells": "backend=batched,direction=h2d", "at_least": "0.01 ceiling"},
    {"cells": "backend=batched", "at_least": "0.1 backend=per_block", "quantity": "caller_us"},
    {"cells": "backend=batched,stream_state=idle", "at_most": "1000 backend=per_block"},
    {"cells": "direction=d2h", "no_cliff_above": 50.0},
]
TRACE_HEADER = {"kvbench_trace": 1, "block_bytes": 4096}
SWAP = {"t": 1, "d": "h2d", "job": 1, "host": [5, 3, 1, -2], "gpu": [0, 5]}
# What is wrong with a line: times, ids that are missing, repeat, go below 0 or differ in number, and huge counts.
HOSTILE_SWAPS: tuple[dict[str, Any], ...] = (
    {"t": -1}, {"t": 0}, {"t": 1e300}, {"done": 0}, {"d": "up"}, {"job": -1}, {"job": 2**64},
    {"host": [], "gpu": []}, {"host": [5, 3, 1]}, {"host": [5, 4]}, {"host": [5, 3, 4, 2]}, {"gpu": [0, 5, 0, 5]},
    {"host": [1, -5]}, {"gpu": [0, 0]}, {"gpu": [2**63, 5]}, {"host": [2**40, 5]},
    {"host": [0, 2**22], "gpu": [0, 2**22]}, {"host": [0, 2**22 + 1], "gpu": [0, 2**22 + 1]},
    {"host": [0, 2**22] * 5000, "gpu": [0, 2**22] * 5000}, {"host": [0, 1] * 300_000, "gpu": [0, 1] * 300_000},
)  # fmt: skip
REQUEST = {"timestamp": 1, "input_length": 1000, "output_length": 3, "hash_ids": [1, 2]}
HOSTILE_REQUESTS: tuple[dict[str, Any], ...] = (
    {"timestamp": -1}, {"timestamp": 0}, {"timestamp": 1e300}, {"hash_ids": []}, {"hash_ids": [1, 1]},
    {"hash_ids": [1]}, {"hash_ids": [2**64, 1]}, {"hash_ids": [-1, 1]}, {"input_length": 0}, {"input_length": 2**40},
    {"output_length": -1}, {"output_length": 10**7}, {"session_id": 1}, {"session_id": {}},
    {"input_length": 10**7, "hash_ids": [*range(19_532)]}, {"hash_ids": [*range(500_000)]},
)  # fmt: skip
POOLS = {"gpu": "1GiB", "host": "4GiB"}
DRY = ("--dry-run", "--device=cpu")
SMALL = ("-ablocks=4", "-ablock_size=4KiB", "-abackend=batched")


def axes_case(_: Bench, chance: random.Random) -> list[str]:
    return ["sweep", *DRY, *(f"-a{axis_text(chance)}" for _ in range(chance.randint(1, 3)))]


def filter_case(_: Bench, chance: random.Random) -> list[str]:
    axis = chance.choice((*AXES, "swap_bytes", "cell_id"))
    named = axis if chance.random() < 0.8 else word(chance, axis)
    sign = chance.choice(("=", "!=", "<", "<=", ">", ">=") * 3 + ("==", ""))
    example = AXES[axis].example.split(",") if axis in AXES else ["4KiB", "0123456789ab"]
    return ["sweep", *DRY, *SMALL, f"-f{named}{sign}{word(chance, *example)}"]


def option_case(_: Bench, chance: random.Random) -> list[str]:
    named = chance.sample(list(OPTIONS), chance.randint(1, 2))
    values = [OPTIONS[name] if chance.random() < 0.5 else word(chance, OPTIONS[name]) for name in named]
    base = ("-abackend=batched", "--model=qwen3-8b") if OF_MODEL & set(named) else SMALL
    return ["sweep", *DRY, *base, *(f"--{name}={text}" for name, text in zip(named, values, strict=True))]


def config_case(bench: Bench, chance: random.Random) -> list[str]:
    config = either(chance.choice(bench.configs), as_toml, chance)
    return ["sweep", bench.write("config.toml", config), "--dry-run", chance.choice(("--device=cpu", "--device=cuda"))]


def policy_case(bench: Bench, chance: random.Random) -> list[str]:
    policy = bench.write("policy.toml", either(bench.policy, as_toml, chance))
    return ["sweep", *DRY, "-abackend=auto,batched", "-ablocks=4", f"--policy={policy}"]


def model_case(bench: Bench, chance: random.Random) -> list[str]:
    model = bench.write("config.json", either(bench.model, as_json, chance))
    return ["sweep", *DRY, f"--model={model}{chance.choice(('', '', '', '', '@tp2', '@tp0', '@tp999999'))}"]


def rules_case(bench: Bench, chance: random.Random) -> list[str]:
    rules = bench.write("rules.toml", either(chance.choice(bench.rules), as_toml, chance))
    return ["gate", "rules", str(bench.folder / "a"), "--rules", rules, *chance.choice(((), ("--json",)))]


def path_case(bench: Bench, chance: random.Random) -> list[str]:
    good = str(bench.folder / "a")
    path = word(chance, good, f"{good}/run.json", ".", "/dev/zero", "/proc/self/mem", "x" * 300)
    return chance.choice(
        (
            ["sweep", f"{path}.toml", *DRY],
            ["sweep", *DRY, f"--model={path}/config.json"],
            ["sweep", *DRY, "-ablocks=4", "-abackend=auto", f"--policy={path}"],
            ["gate", "rules", good, f"--rules={path}"],
            ["gate", "compare", path, good],
            ["gate", "compare", f"--base=env:{path}", "--cand=here"],
            ["gate", "compare", "--base=here", "--cand=here", f"--suite={path}.toml", "--minutes=0.01"],
            ["report", f"-o{bench.folder / 'out'}", "--", path],
            ["show", "--", path],
        )
    )


def run_case(bench: Bench, chance: random.Random) -> list[str]:
    info = mutated(bench.info, chance) if chance.random() < 0.5 else bench.info
    records = copy.deepcopy(bench.journal)
    for _ in range(chance.randint(0, 3)):
        at = chance.randrange(len(records))
        record = mutated(records[at], chance)
        records[at] = record if isinstance(record, dict) else records[at]
    chance.shuffle(records) if chance.random() < 0.1 else None
    folder = bench.run(info, records[: chance.choice((None, None, 0, 1, 5))], chance.choice((b"", b"", b'{"type":"v')))
    if chance.random() < 0.3:
        file = Path(folder, chance.choice(("run.json", "journal.jsonl")))
        file.write_bytes(damaged(file.read_bytes(), chance))
    good, out = str(bench.folder / "b"), str(bench.folder / "out")
    return chance.choice(
        (
            ["gate", "rules", folder],
            ["show", folder, "--json"],
            ["show", folder, good, "--open"],
            ["sweep", "--resume", folder],
            ["report", folder, good, "-o", out],
        )
    )


def trace_case(bench: Bench, chance: random.Random) -> list[str]:
    verb = chance.choice(("show", "make", "sweep"))
    of_requests = verb == "make"
    good, hostile = (REQUEST, HOSTILE_REQUESTS) if of_requests else (SWAP, HOSTILE_SWAPS)
    lines: list[Any] = [good] * 4 if of_requests else [TRACE_HEADER, *[good] * 3]
    if chance.random() < 0.6:
        lines[chance.randrange(1, 4)] = good | chance.choice(hostile)
    if chance.random() < 0.4:
        at = chance.randrange(4)
        lines[at] = mutated(lines[at], chance)
    data = b"".join(as_json(line) + b"\n" for line in lines)
    data = damaged(data, chance) if chance.random() < 0.2 else data
    packed = gzip.compress(data)
    bombs = [gzip.compress(data + filler * (9 << 20)) for filler in (b"0", b"\n")] if chance.random() < 0.2 else []
    file = bench.write("trace", chance.choice((data, data, packed, packed, packed[:-9], *bombs)))
    if verb == "sweep":
        options = [f"--trace-swaps={word(chance, '3')}"] if chance.random() < 0.5 else []
        return ["sweep", "--trace", file, *options, *DRY]
    if verb == "show":
        return ["trace", "show", file]
    pools = [f"--{name}-pool={word(chance, size) if chance.random() < 0.3 else size}" for name, size in POOLS.items()]
    return ["trace", "make", file, "--model=llama-3-8b", *pools, f"-o{bench.folder / 'swaps.gz'}"]


# Stands for a drawing, which takes long.
BLANK: Final = Drawing(b"", b'<svg xmlns="http://www.w3.org/2000/svg"></svg>')
CASES = (
    axes_case, filter_case, option_case, config_case, policy_case, model_case, rules_case, path_case,
    run_case, trace_case,
)  # fmt: skip


def fuzz(cases: int, seed: int, only: int | None = None) -> tuple[list[str], Counter[int]]:
    """Run the cases of a seed; return those that broke a promise, and how often each exit code came."""
    findings, codes = list[str](), Counter[int]()
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        bench = Bench(Path(name).resolve())
        with _standing_in(bench.info["identity"]):
            for number in range(cases) if only is None else (only,):
                chance = random.Random(f"{seed}/{number}")
                arguments = CASES[number % len(CASES)](bench, chance)
                with contextlib.ExitStack() as stack:
                    if number % 50:  # a chart takes half a second to draw
                        stack.enter_context(mock.patch("kvbench.report.drawing.draw", return_value=BLANK))
                    before_mib = peak_mib()
                    code, what = outcome(arguments, show=only is not None)
                    grown_mib = peak_mib() - before_mib
                    if grown_mib > MOST_GROWTH_MIB:
                        what = what or f"it took {grown_mib} MiB more than all before it"
                codes[code] += 1
                if what:
                    findings.append(f"case {number} of seed {seed}: {what}\n  {' '.join(arguments)[:400]}")
    return findings, codes


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def outcome(arguments: list[str], *, show: bool = False) -> tuple[int, str]:
    """Run a command here; return its exit code and which promise it broke, "" where none."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    signal.setitimer(signal.ITIMER_REAL, CASE_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main.run(arguments)
    except Hang:
        return -1, f"no end within {CASE_S} s"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if show:
        print(arguments, code, err.getvalue(), sep="\n")
    lines = err.getvalue().splitlines()
    messages = [line for line in lines if line.startswith("kvbench: ")]
    if code not in FORESEEN:
        return code, f"exit code {code}: {err.getvalue()[-400:]}"
    if code == ExitCode.USAGE and len(messages) != 1:
        return code, f"{len(messages)} lines for bad input: {err.getvalue()[-400:]!r}"
    if any(len(line) > MOST_LINE or not line.isprintable() for line in messages):
        return code, f"a line that is long or not printable: {err.getvalue()[:400]!r}"
    return code, ""


@contextlib.contextmanager
def _standing_in(identity: dict[str, Any]) -> Iterator[None]:
    def hang(*_: object) -> None:
        raise Hang

    def known() -> tuple[dict[str, BackendFacts], list[str]]:
        return {facts.name: facts for facts in ON_A_HOST}, []

    before = signal.signal(signal.SIGALRM, hang)
    try:
        with (
            mock.patch.multiple(runner, WorkerSlot=FakeSlot, installed=known, identity_of=lambda _: identity),
            mock.patch.object(runner, "asked_for", return_value=[]),
            mock.patch.dict(os.environ),
        ):
            os.environ.pop(main.TRACEBACK_VARIABLE, None)
            yield
    finally:
        signal.signal(signal.SIGALRM, before)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    begin_s = time.monotonic()
    findings, codes = fuzz(given.cases, given.seed, given.only)
    for finding in findings:
        print(finding)
    ends = ", ".join(f"{count} with {code}" for code, count in sorted(codes.items()))
    took_s = round(time.monotonic() - begin_s)
    print(f"{codes.total()} cases of seed {given.seed} in {took_s} s: {ends}; {len(findings)} broke a promise")
    sys.exit(bool(findings))


if __name__ == "__main__":
    _main()
