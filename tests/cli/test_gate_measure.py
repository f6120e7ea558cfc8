"""`kvbench gate` from end to end on the device cpu: two workers in turn, judged, kept, stopped; sides that lie."""

import itertools
import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvbench.ground.errors import ExitCode
from kvbench.ground.text import LOG_COLUMNS
from kvbench.results import Control, Note, Visit, load_run
from kvbench.run.worker_process import WorkerSlot
from tests.command import TIMEOUT_S, Done, kvbench_here, kvbench_started, with_times
from tests.synthetic import ceilings, rounds, write_run
from tests.unit.backends.test_plugin import install
from tests.unit.gate.gated import CELLS

EXAMPLE = Path(__file__).parents[1] / "example_backend"
SUITE = """
[axes]
backend = "batched"
direction = "h2d"
stream_state = "idle"
blocks = {blocks}
block_size = "16KiB"
pool = "8MiB"
[sampling]
warmups = 0
min_samples = 3
max_samples = 5
cell_seconds = 0.01
"""
WIDE = ("--margin=1000%", "--minutes=60")  # for a busy host
# Of what is alike; a busy host may leave it undecided.
ALIKE, ENDED = {"SAME", "UNDECIDED"}, (ExitCode.DONE, ExitCode.INCONCLUSIVE)


def cell(blocks: int, backend: str = "batched") -> str:
    return f"{backend} h2d {blocks} x 16KiB idle pool=8MiB reuse=fresh"


SMALL, LARGE = cell(4), cell(16)


def write_suite(folder: Path, *blocks: int, more: str = "") -> Path:
    (folder / "suite.toml").write_text(SUITE.format(blocks=[*blocks]) + more)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_suite(tmp_path, 4, 16)


def compare(folder: Path, *options: str, base: str = "here", cand: str = "here") -> Done:
    sides = (f"--base={base}", f"--cand={cand}", "--suite=suite.toml", "--device=cpu")
    return kvbench_here("gate", "compare", *sides, *WIDE, "--out=gate", *options, cwd=folder)


def verdicts(folder: Path) -> dict[str, str]:
    data: dict[str, Any] = json.loads((folder / "gate" / "gate.json").read_text())
    return {row["name"]: row["verdict"] for row in data["rows"] if row["kind"] == "cell"}


def reasons(folder: Path) -> dict[str, str]:
    data: dict[str, Any] = json.loads((folder / "gate" / "gate.json").read_text())
    return {row["name"]: row["reason"] for row in data["rows"]}


def unfolded(done: Done) -> str:
    """Return what was printed, without the line ends that keep a log narrow."""
    return " ".join(done.stdout.split())


def visits_of(folder: Path, side: str) -> list[Visit]:
    return [record for record in load_run(folder / "gate" / side).records if isinstance(record, Visit)]


def steady_us(slot: WorkerSlot, made: Visit) -> float:
    return 3000.0 if f"blocks={made.cell.blocks}" in str(slot._open.fault) else 100.0


def test_slower_and_faster_cells_are_detected_and_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerSlot, "visit", with_times(steady_us))
    done = compare(folder, "--cand-fault=slow=1 when blocks=16", "--base-fault=slow=1 when blocks=4")
    assert done.returncode == 1, done.stdout + done.stderr
    assert verdicts(folder) == {SMALL: "FASTER", LARGE: "SLOWER"}
    base, cand = (load_run(folder / "gate" / side) for side in ("base", "cand"))
    assert base.info.status == cand.info.status == "complete"
    assert base.info.spec["seed"] == cand.info.spec["seed"]
    # Before the second look new processes took over, and what they copied first was compared.
    for run in (base, cand):
        assert {record.direction for record in run.records if isinstance(record, Control)} == {"h2d", "d2h"}
        assert [record.text for record in run.records if isinstance(record, Note) and "was replaced" in record.text]
        indices = [index for index, record in enumerate(run.records) if isinstance(record, Note)]
        first = next(record for record in [*run.records][indices[-1] :] if isinstance(record, Visit))
        assert first.verified_bytes
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= LOG_COLUMNS
    assert f"SLOWER  {LARGE}" in lines


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    folder = write_suite(tmp_path_factory.mktemp("backends"), 4, 16)
    return compare(folder, base="backend:per_block", cand="backend:batched"), folder


def test_two_backends_are_compared_cell_by_cell(backends: tuple[Done, Path]) -> None:
    done, folder = backends
    assert done.returncode in ENDED, done.stdout + done.stderr
    judged = verdicts(folder)
    assert set(judged) == {f"{cell(blocks, 'per_block')} -> batched" for blocks in (4, 16)}
    assert {*judged.values()} <= ALIKE
    assert "per_block (base) and batched (candidate)" in unfolded(done)


def test_visits_alternate_on_one_cpu_and_some_are_compared_byte_for_byte(backends: tuple[Done, Path]) -> None:
    theirs = {(visit.cell.blocks, visit.round): visit for visit in visits_of(backends[1], "cand")}
    pairs = [(visit, theirs[visit.cell.blocks, visit.round]) for visit in visits_of(backends[1], "base")]
    assert len(pairs) >= 24
    spans = sorted(visit.span_ns or (0, 0) for pair in pairs for visit in pair)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    for base, cand in pairs:
        assert base.cpu == cand.cpu
        assert (base.probe_us or 0) > 0
        assert bool(base.verified_bytes) == bool(cand.verified_bytes)
        assert ((base.span_ns or (0, 0)) < (cand.span_ns or (0, 0))) is (base.round % 2 == 0)
    by_round = {base.round: base.verified_bytes > 0 for base, _ in pairs}
    assert by_round[0]
    assert by_round[max(by_round)]
    assert sum(not verified for verified in by_round.values()) > 2


# Number of blocks -> fault of the candidate in the cell of so many, and what is said of it.
FAULTS = {
    8: ("corrupt@descriptor=0", "mismatch"),
    16: ("error@call=0", "error"),
    32: ("crash@call=0", "crash"),
    64: ("hang@call=0", "no answer within 12"),
    128: ("crash@call=0", "crash"),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    folder = write_suite(tmp_path_factory.mktemp("faulty"), 4, *FAULTS, more="deadline_s = 12\n")
    faults = "; ".join(f"{fault} when blocks={blocks}" for blocks, (fault, _) in FAULTS.items())
    return compare(folder, f"--cand-fault={faults}"), folder


# What stands in for an environment's python: kvbench's own worker, behind something that spoils its lines.
LIAR = """#!{python}
import os, subprocess, sys
if "kvbench.measure.worker" not in sys.argv:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
{first}
from kvbench.engine.device import die_with_parent
die_with_parent()
worker = subprocess.Popen([{python!r}, *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for line in sys.stdin.buffer:
    worker.stdin.write(line)
    worker.stdin.flush()
    said = worker.stdout.readline()
{lies}
    sys.stdout.buffer.write(said)
    sys.stdout.buffer.flush()
"""


def write_liar(folder: Path, lies: Mapping[int, str], first: str = "") -> Path:
    """Write what spoils the answers about cells of so many blocks in these ways."""
    python = folder / "python"
    spoils = "\n".join(f'    if b\'"blocks":"{blocks}"\' in line: {lie}' for blocks, lie in lies.items())
    python.write_text(LIAR.format(python=sys.executable, lies=spoils, first=first))
    python.chmod(0o755)
    return python


# Number of blocks -> lie about the cell of so many, and what is said of it.
LIES = {
    8: ("said = b'kvbench: warming up\\n'", "answer is invalid"),
    16: ("said = b'x' * (65 << 20)", "longer than 64 MiB"),
    32: ('said = b\'{"type":"reserved","notes":[]}\\n\'', "does not match the request"),
    64: ("said = said.replace(b'\"round\":0', b'\"round\":7')", "of another visit"),
    128: ("said = said.replace(b'\"span_ns\":[', b'\"span_ns\":[1')", "overlaps a visit of the other side"),
    256: ("said = b'\\xff' * 99 + b'\\n'", "answer is invalid"),
}


@pytest.fixture(scope="module")
def lied_to(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    folder = write_suite(tmp_path_factory.mktemp("lied_to"), 4, *LIES)
    return compare(folder, cand=f"env:{write_liar(folder, {at: lie for at, (lie, _) in LIES.items()})}"), folder


@pytest.mark.parametrize(("gate", "spoiled"), [("faulty", FAULTS), ("lied_to", LIES)], ids=["fails", "lies"])
def test_a_cell_that_fails_or_lies_on_one_side_fails_the_gate_but_others_are_judged(
    request: pytest.FixtureRequest, gate: str, spoiled: Mapping[int, tuple[str, str]]
) -> None:
    done, folder = request.getfixturevalue(gate)
    assert done.returncode == 5, done.stdout + done.stderr
    judged = verdicts(folder)
    assert judged.pop(SMALL) in ALIKE
    assert judged == dict.fromkeys(map(cell, spoiled), "FAILED")
    for blocks, (_, said) in spoiled.items():
        assert said in reasons(folder)[cell(blocks)]
        assert said in unfolded(done)
    assert "Traceback" not in done.stderr


def test_a_cell_that_failed_on_one_side_is_not_visited_again_and_its_like_are_one_line(
    faulty: tuple[Done, Path],
) -> None:
    done, folder = faulty
    visited = [visit.cell.blocks for visit in visits_of(folder, "base")]
    assert all(visited.count(blocks) <= 1 for blocks in FAULTS)
    first, more = (line for line in done.stdout.splitlines() if line.startswith("FAILED (crash)"))
    assert first.startswith("FAILED (crash) cand: ")
    assert more.startswith("FAILED (crash) 1 more cell of cand: ")


LOST = "the worker ended with exit code 1: out of memory"
IF_ENDED = 'if os.path.exists("ended"): sys.exit("out of memory")'


def test_what_the_candidate_can_no_longer_run_failed(folder: Path) -> None:
    done = compare(folder, "-abackend=batched,per_block", "--cand-fault=no-batch", "-ablocks=4")
    assert done.returncode == ExitCode.FAILED_CELLS, done.stdout + done.stderr
    assert verdicts(folder)[SMALL] == "FAILED"
    assert reasons(folder)[SMALL].startswith("cand: failed: error: the candidate cannot run what the base can: ")
    assert verdicts(folder)[cell(4, "per_block")] in ALIKE


@pytest.mark.parametrize(
    ("liar", "lie", "first", "faults", "reason"),
    [
        ("base", "open('ended', 'w').close(); sys.exit(3)", IF_ENDED, (), LOST),
        ("cand", "os.unlink(__file__); sys.exit(3)", "", (), "{python} cannot be started: No such file or directory"),
        ("cand", "pass", f"{IF_ENDED}\nopen('ended', 'w').close()", ("--base-fault=slow=1 when blocks=4",), LOST),
    ],
    ids=["out of memory", "environment removed", "second process"],
)
def test_a_side_whose_worker_cannot_be_replaced_fails_its_remaining_cells(
    folder: Path, monkeypatch: pytest.MonkeyPatch, liar: str, lie: str, first: str, faults: list[str], reason: str
) -> None:
    if faults:
        monkeypatch.setattr(WorkerSlot, "visit", with_times(steady_us))
    python = write_liar(folder, {16: lie}, first)
    done = compare(folder, *faults, **{liar: f"env:{python}"})
    assert done.returncode == 5, done.stdout + done.stderr
    assert verdicts(folder) == {LARGE: "FAILED", SMALL: "FAILED"}
    assert f"its worker could not be replaced: {reason.format(python=python)}" in unfolded(done)
    assert "Traceback" not in done.stderr


PLUG_IN = """
from kvbench import Mechanism, PreparedSwap
from kvbench_memmove import Memmove

class Plugin(Memmove):
    name, summary = "mine", "the example, in a package of another name"
"""


def plug_in(folder: Path, version: str) -> Path:
    """Install a version of a package with a backend in a folder of its own."""
    packages = folder / f"plug-in {version}"
    packages.mkdir()
    return install(packages, PLUG_IN, "mine", version)


def python_with(folder: Path, packages: Path) -> str:
    """Write what stands in for the python of an environment with these packages, as a side."""
    python = folder / f"python {packages.name}"
    path = shlex.quote(f"{packages}:{EXAMPLE}")
    python.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    return f"env:{python}"


COMPARE = ("gate", "compare", "--suite=suite.toml", *WIDE)


def test_versions_of_a_plug_in_are_compared_and_a_stream_that_leaves_no_figure_fails_no_gate(
    folder: Path,
) -> None:
    """The device cpu cannot launch Python code on a stream, so nothing of a busy swap is behind the delay."""
    versions = [plug_in(folder, version) for version in ("0.1", "0.2")]
    base, cand = (python_with(folder, packages) for packages in versions)
    axes = ("-abackend=mine", "-astream_state=idle,busy", "-ablocks=4", "--device=cpu")
    environment = {"PYTHONPATH": f"{versions[0]}:{EXAMPLE}"}
    command = (*COMPARE, f"--base={base}", f"--cand={cand}", *axes, "--out=gate")
    done = kvbench_here(*command, cwd=folder, env=environment)
    assert done.returncode in ENDED, done.stdout + done.stderr
    judged, idle = verdicts(folder), cell(4, "mine")
    assert judged.pop(idle) in ALIKE
    assert judged == {idle.replace("idle", "busy"): "UNDECIDED"}
    assert visits_of(folder, "base")[0].process == 1  # none was started only to describe the plug-in
    made = [load_run(folder / "gate" / side).info.identity["plug_ins"] for side in ("base", "cand")]
    assert made == ["kvbench-mine==0.1", "kvbench-mine==0.2"]
    assert "kvbench-mine==0.1 (base) and kvbench-mine==0.2 (candidate)" in unfolded(done)


HANGS = "seen = globals().get('seen', 0) + 1; seen > 3 and (open('hangs', 'w').close(), sys.stdin.read())"


def test_an_interrupt_keeps_the_pairs_so_far(folder: Path) -> None:
    os.mkfifo(folder / "hangs")
    sides = ("--base=here", f"--cand=env:{write_liar(folder, {16: HANGS})}", "--device=cpu")
    with kvbench_started(*COMPARE, *sides, "--out=gate", cwd=folder) as process:
        (folder / "hangs").read_bytes()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 130
    infos = [load_run(folder / "gate" / side).info for side in ("base", "cand")]
    assert {(info.status, info.status_reason) for info in infos} == {("interrupted", "SIGTERM")}
    assert [visit.cell.blocks for visit in visits_of(folder, "cand")].count(16) == 3


# Rules on runs made before


def test_files_json_and_github_have_the_same_content(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("earlier\n")
    run = write_run(tmp_path / "run", [*rounds(CELLS[:2]), *ceilings()])
    (tmp_path / "mine.toml").write_text('[[rule]]\ncells = "backend=batched"\nat_least = "9 ceiling"')
    options = ("--rules=mine.toml", "--json", "--github", "--out=gate")
    done = kvbench_here("gate", "rules", run, *options, cwd=tmp_path, env={"GITHUB_STEP_SUMMARY": str(summary)})
    assert done.returncode == 1
    assert json.loads(done.stdout) == json.loads((tmp_path / "gate" / "gate.json").read_text())
    assert json.loads(done.stdout)["rules"][0]["verdict"] == "FAIL"
    assert "FAIL" in (tmp_path / "gate" / "gate.md").read_text()
    assert summary.read_text().startswith("earlier\n## kvbench gate rules run: FAIL")
