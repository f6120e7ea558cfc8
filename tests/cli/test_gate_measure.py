"""`kvbench gate` from end to end on the device cpu: two workers in turn, judged, kept, stopped; sides that lie."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvbench.gate.looks import PLAN
from kvbench.results import Control, Note, Visit, load_run
from tests.command import KVBENCH, Done, error_line, kvbench, kvbench_here, kvbench_started

SUITE = """
[axes]
backend = "batched"
direction = "h2d"
stream_state = "idle"
blocks = [4, 16]
block_size = "16KiB"
[sampling]
warmups = 0
min_samples = 3
max_samples = 5
cell_seconds = 0.01
controls = 2
"""
# Wide enough for a busy host: what is injected is far beyond.
WIDE = ("--margin=10", "--absolute-us=200", "--control-margin=10")
SMALL = "batched h2d 4 x 16KiB idle pool=32MiB reuse=fresh"
LARGE = "batched h2d 16 x 16KiB idle pool=32MiB reuse=fresh"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "suite.toml").write_text(SUITE)
    return tmp_path


def compare(folder: Path, *options: str, base: str = "here", cand: str = "here") -> Done:
    sides = (f"--base={base}", f"--cand={cand}", "--suite=suite.toml", "--device=cpu")
    return kvbench("gate", "compare", *sides, *WIDE, "--out=gate", *options, cwd=folder)


def verdicts(folder: Path) -> dict[str, str]:
    """Return label -> verdict of the cells in gate.json."""
    data: dict[str, Any] = json.loads((folder / "gate" / "gate.json").read_text())
    return {row["name"]: row["verdict"] for row in data["rows"] if row["kind"] == "cell"}


def visits_of(folder: Path, side: str) -> list[Visit]:
    return [record for record in load_run(folder / "gate" / side).records if isinstance(record, Visit)]


def pairs_of(folder: Path) -> list[tuple[Visit, Visit]]:
    """Return the visits of either side, paired by cell and round."""
    theirs = {(visit.cell.blocks, visit.round): visit for visit in visits_of(folder, "cand")}
    return [(visit, theirs[visit.cell.blocks, visit.round]) for visit in visits_of(folder, "base")]


def test_slower_and_faster_cells_are_detected_and_named(folder: Path) -> None:
    done = compare(folder, "--cand-fault=slow=500 when blocks=16", "--base-fault=slow=500 when blocks=4")
    assert done.returncode == 1, done.stdout + done.stderr
    assert verdicts(folder) == {SMALL: "FASTER", LARGE: "SLOWER"}
    base, cand = (load_run(folder / "gate" / side) for side in ("base", "cand"))
    assert base.info.status == cand.info.status == "complete"
    assert base.info.spec["seed"] == cand.info.spec["seed"]
    # Before the second look new processes took over, and what they copied first was compared.
    for run in (base, cand):
        assert {record.direction for record in run.records if isinstance(record, Control)} == {"h2d", "d2h"}
        assert [record.text for record in run.records if isinstance(record, Note) and "was replaced" in record.text]
        places = [place for place, record in enumerate(run.records) if isinstance(record, Note)]
        first = next(record for record in run.records[places[-1] :] if isinstance(record, Visit))
        assert first.verified_bytes
    # Judged once more by their names, the same runs say the same.
    later = kvbench("gate", "compare", *WIDE, "--json", "gate/base", "--", "gate/cand", cwd=folder)
    assert later.returncode == 1, later.stderr
    assert {row["name"]: row["verdict"] for row in json.loads(later.stdout)["rows"]} == verdicts(folder)


def test_visits_alternate_on_one_cpu_and_some_are_compared_byte_for_byte(folder: Path) -> None:
    assert compare(folder, "--inconclusive=pass").returncode == 0
    pairs = pairs_of(folder)
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


@pytest.mark.parametrize(
    ("fault", "kind"), [("corrupt@descriptor=0", "mismatch"), ("error@call=0", "error"), ("crash@call=0", "crash")]
)
def test_a_cell_that_fails_on_one_side_fails_the_gate_but_others_are_judged(
    folder: Path, fault: str, kind: str
) -> None:
    done = compare(folder, f"--cand-fault={fault} when blocks=16")
    assert done.returncode == 5, done.stdout + done.stderr
    assert verdicts(folder) == {LARGE: "FAILED", SMALL: "SAME"}
    assert kind in done.stdout
    assert len([visit for visit in visits_of(folder, "base") if visit.cell.blocks == 16]) <= 1


def test_a_side_that_crashes_in_every_cell_is_reported_once_with_a_count(folder: Path) -> None:
    suite = folder / "suite.toml"
    suite.write_text(suite.read_text().replace("[4, 16]", "[4, 8, 16]"))
    done = compare(folder, "--cand-fault=crash@call=0")
    assert done.returncode == 5, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("FAILED (crash)")]
    assert len(told) == 2, told
    assert "FAILED (crash) 2 more cells of cand: " in told[1]


# What stands in for an environment's python: kvbench's own worker, behind something that spoils its lines.
LIAR = """#!{python}
import os, subprocess, sys
if "kvbench.measure.worker" not in sys.argv:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
from kvbench.engine.device import die_with_parent
die_with_parent()
worker = subprocess.Popen([{python!r}, *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for line in sys.stdin.buffer:
    worker.stdin.write(line)
    worker.stdin.flush()
    said = worker.stdout.readline()
    if b'"blocks":"16"' in line:
        {lie}
    sys.stdout.buffer.write(said)
    sys.stdout.buffer.flush()
"""


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ("said = b'kvbench: warming up\\n'", "answer is invalid"),
        ("said = b'x' * (65 << 20)", "longer than 64 MiB"),
        ('said = b\'{"type":"reserved","notes":[]}\\n\'', "does not match the request"),
        ("said = said.replace(b'\"round\":0', b'\"round\":7')", "of another visit"),
        ("said = said.replace(b'\"span_ns\":[', b'\"span_ns\":[1')", "overlaps a visit of the other side"),
        ("said = b'\\xff' * 99 + b'\\n'", "answer is invalid"),
    ],
    ids=["no JSON", "no end", "another answer", "another visit", "a clock that lies", "no text"],
)
def test_a_side_with_invalid_answers_fails_only_those_rows(folder: Path, lie: str, words: str) -> None:
    python = folder / "python"
    python.write_text(LIAR.format(python=sys.executable, lie=lie))
    python.chmod(0o755)
    done = compare(folder, cand=f"env:{python}")
    assert done.returncode == 5, done.stdout + done.stderr
    assert verdicts(folder) == {LARGE: "FAILED", SMALL: "SAME"}
    assert words in done.stdout
    assert "Traceback" not in done.stderr


def test_a_side_whose_worker_cannot_be_replaced_fails_its_remaining_cells(folder: Path) -> None:
    lie = f"open('{folder}/gone', 'w').close(); sys.exit(3)"
    python = folder / "python"
    refuse = f'if os.path.exists("{folder}/gone"): sys.exit("out of memory")\nfrom kvbench.engine'
    text = LIAR.format(python=sys.executable, lie=lie).replace("from kvbench.engine", refuse)
    python.write_text(text)
    python.chmod(0o755)
    done = compare(folder, base=f"env:{python}")
    assert done.returncode == 5, done.stdout + done.stderr
    assert verdicts(folder) == {LARGE: "FAILED", SMALL: "FAILED"}
    assert "its worker could not be replaced: the worker ended with exit code 1: out of memory" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_side_fails_if_its_environment_is_removed(folder: Path) -> None:
    python = folder / "python"
    python.write_text(LIAR.format(python=sys.executable, lie=f"os.unlink('{python}'); sys.exit(3)"))
    python.chmod(0o755)
    done = compare(folder, cand=f"env:{python}")
    assert done.returncode == 5, done.stdout + done.stderr
    assert verdicts(folder) == {LARGE: "FAILED", SMALL: "FAILED"}
    assert f"its worker could not be replaced: {python} cannot be started: No such file or directory" in done.stdout


def test_a_side_fails_if_its_second_process_does_not_start(folder: Path) -> None:
    python = folder / "python"
    once = f'if os.path.exists("{folder}/gone"): sys.exit("out of memory")\nopen("{folder}/gone", "w").close()\n'
    python.write_text(
        LIAR.format(python=sys.executable, lie="pass").replace("from kvbench.engine", f"{once}from kvbench.engine")
    )
    python.chmod(0o755)
    done = compare(folder, "--base-fault=slow=500", cand=f"env:{python}")
    assert done.returncode == 5, done.stdout + done.stderr
    assert verdicts(folder) == {LARGE: "FAILED", SMALL: "FAILED"}
    assert "its worker could not be replaced: the worker ended with exit code 1: out of memory" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_side_that_hangs_fails_only_those_rows(folder: Path) -> None:
    suite = folder / "suite.toml"
    suite.write_text(suite.read_text() + "deadline_s = 3\n")
    done = compare(folder, "--cand-fault=hang@call=0 when blocks=16")
    assert done.returncode == 5, done.stdout + done.stderr
    assert verdicts(folder) == {LARGE: "FAILED", SMALL: "SAME"}
    assert "no answer within 3 s" in done.stdout


def test_two_backends_are_compared_cell_by_cell(folder: Path) -> None:
    done = compare(folder, base="backend:per_block", cand="backend:batched")
    assert done.returncode == 0, done.stdout + done.stderr
    assert verdicts(folder) == {
        "per_block h2d 4 x 16KiB idle pool=32MiB reuse=fresh": "SAME",
        "per_block h2d 16 x 16KiB idle pool=32MiB reuse=fresh": "SAME",
    }
    assert "per_block (base) and batched (candidate)" in done.stdout


def test_an_environment_measures_with_its_installed_kvbench(folder: Path) -> None:
    done = compare(folder, "--json", base=f"env:{sys.prefix}", cand="here")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["rows"]
    assert "2 cells on two sides in turn" in done.stderr


def test_the_time_limit_ends_a_comparison_with_its_results_so_far(folder: Path) -> None:
    done = compare(folder, "--minutes=0.01")
    assert done.returncode == 3, done.stdout + done.stderr
    assert set(verdicts(folder).values()) == {"UNDECIDED"}
    assert len(pairs_of(folder)) == 4  # the first round and the last


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--base=here",), "--base and --cand"),
        (("--base=nowhere", "--cand=here"), "--base nowhere: write env:PATH"),
        (("--base=here", "--cand=backend:batched"), "a backend can only be compared with a backend"),
        (("--base=here", "--cand=here", "--suite=none"), 'config "none"'),
        (("--base=here", "--cand=here", "--filter=blocks=5"), "nothing to measure: no cell meets the filters"),
        (
            ("--base=here", "--cand=here", "--cand-fault=burn=1"),
            "--cand-fault 'burn=1': not a fault; write KIND=NUMBER",
        ),
        (("--base=here", "--cand=backend:no-such", "--base=backend:batched"), "unknown backend no-such"),
        (("--base=backend:batched", "--cand=backend:per_block", "-abackend=sm"), "the sides set the backends"),
        (("--base=here", "--cand=here", "--floor=none.json"), "--floor none.json: file not found"),
    ],
)
def test_bad_input_is_refused_before_measuring(folder: Path, options: tuple[str, ...], message: str) -> None:
    suite = () if any(option.startswith("--suite") for option in options) else ("--suite=suite.toml",)
    done = kvbench_here("gate", "compare", "--device=cpu", "--out=gate", *suite, *options, cwd=folder)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in error_line(done)
    assert not (folder / "gate").exists()


def test_a_folder_that_is_not_empty_is_not_written_to(folder: Path) -> None:
    (folder / "gate").mkdir()
    (folder / "gate" / "mine").touch()
    done = compare(folder)
    assert done.returncode == 2
    assert "is not empty" in error_line(done)


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_after_an_interrupt_the_pairs_so_far_can_be_judged(folder: Path, number: signal.Signals, name: str) -> None:
    # Nothing can be settled at the first look, so that it goes on until it is stopped.
    margins = ("--margin=0", "--absolute-us=0")
    options = ("--base=here", "--cand=here", "--suite=suite.toml", "--device=cpu", "--out=gate", *margins)
    with kvbench_started("gate", "compare", *options, cwd=folder) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(f"{PLAN[0].pairs} pairs"):
                assert re.search(r": 0 of \d+ rows are settled", line)
                break
        os.kill(process.pid, number)
        assert process.wait(60) == 130
    infos = [load_run(folder / "gate" / side).info for side in ("base", "cand")]
    ended = {(info.status, info.status_reason) for info in infos}
    assert ended == {("interrupted", name)}
    # So few pairs of a busy host may leave a cell undecided.
    judged = kvbench("gate", "compare", *WIDE, "--inconclusive=pass", "gate/base", "--", "gate/cand", cwd=folder)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "both sides were interrupted" in judged.stdout


def test_a_closed_output_interrupts_and_keeps_the_measurements(folder: Path) -> None:
    sides = ("--base=here", "--cand=here", "--suite=suite.toml", "--device=cpu")
    command = [str(KVBENCH), "gate", "compare", *sides, *WIDE, "--out=gate"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(120) == 130
    assert {load_run(folder / "gate" / side).info.status for side in ("base", "cand")} == {"interrupted"}


def test_floors_are_measured_and_used(folder: Path) -> None:
    for minutes in ("0.06", "0.6", "3"):  # a busy host needs longer for as many rounds
        options = ("--suite=suite.toml", "--device=cpu", f"--minutes={minutes}", f"--out={minutes}", "--force")
        done = kvbench("gate", "calibrate", *options, cwd=folder)
        if "floors of 2 of 2 cells" in done.stdout:
            break
        assert "use more --minutes" in done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads((folder / minutes / "floor.json").read_text())
    assert len(measured["floors"]) == 2
    wide = folder / "wide.json"
    wide.write_text(json.dumps(measured | {"floors": dict.fromkeys(measured["floors"], 20.0)}))
    done = compare(folder, f"--floor={wide}", "--out=judged")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((folder / "judged" / "gate.json").read_text())["rows"]
    assert [row["margin"] for row in rows if row["kind"] == "cell"] == pytest.approx([20.0, 20.0])


@pytest.mark.parametrize(("name", "message"), [("none/floor.json", "its folder does not"), ("suite.toml", "choose")])
def test_an_unwritable_file_of_floors_is_refused_before_measuring(folder: Path, name: str, message: str) -> None:
    done = kvbench("gate", "calibrate", "--suite=suite.toml", "--device=cpu", f"--floor={name}", "--out=a", cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (folder / "a").exists()


def test_a_cell_that_the_candidate_can_no_longer_run_fails(folder: Path) -> None:
    done = compare(folder, "-abackend=per_block,batched", "--cand-fault=no-batch", "--minutes=0.1")
    assert done.returncode == 5, done.stdout + done.stderr
    found = verdicts(folder)
    assert {verdict for name, verdict in found.items() if name.startswith("batched")} == {"FAILED"}
    assert "FAILED" not in {verdict for name, verdict in found.items() if name.startswith("per_block")}


def test_the_module_can_be_run_as_the_command() -> None:
    said = [
        subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
        for command in ([sys.executable, "-P", "-m", "kvbench"], [str(KVBENCH)])
    ]
    assert said[0].startswith("kvbench ")
    assert said[0] == said[1]
