"""`kvbench gate` from end to end on the device cpu: measured in turn, judged, some cells again, kept, stopped."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvbench.results import Run, Visit, load_run
from tests.command import KVBENCH, Done, error_line, kvbench, kvbench_started

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
controls = 20
"""
# Wide enough for a busy host: what is injected is far beyond.
WIDE = ("--margin=10", "--absolute-us=200", "--control-margin=10")
SLOW = "slow=500 when blocks=16"


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


def run_of(folder: Path, name: str) -> Run:
    return load_run(folder / "gate" / "rounds" / name)


def blocks_of(run: Run) -> set[int]:
    return {record.cell.blocks for record in run.records if isinstance(record, Visit)}


def test_what_became_slower_and_faster_is_found_and_named(folder: Path) -> None:
    done = compare(folder, "--rounds=6", f"--cand-fault={SLOW}", "--base-fault=slow=500 when blocks=4")
    assert done.returncode == 1, done.stdout + done.stderr
    assert verdicts(folder) == {
        "batched h2d 4 x 16KiB idle pool=32MiB reuse=fresh": "FASTER",
        "batched h2d 16 x 16KiB idle pool=32MiB reuse=fresh": "SLOWER",
    }
    names = [f"{number:02d}-{side}" for number in range(12) for side in "ab"]  # a regression is confirmed
    assert sorted(path.name for path in (folder / "gate" / "rounds").iterdir()) == names
    for number in range(6):
        base, cand = run_of(folder, f"{number:02d}-a"), run_of(folder, f"{number:02d}-b")
        assert base.info.spec["seed"] == cand.info.spec["seed"]
        assert set(base.controls()) == set(cand.controls()) == {"h2d", "d2h"}
        first, second = (base, cand) if number % 2 == 0 else (cand, base)
        assert first.info.created <= second.info.created
    # The same runs, judged once more by their names, give the same judgement.
    sides = [[f"gate/rounds/{number:02d}-{side}" for number in range(12)] for side in "ab"]
    later = kvbench("gate", "compare", *WIDE, "--json", *sides[0], "--", *sides[1], cwd=folder)
    assert later.returncode == 1, later.stderr
    assert json.loads(later.stdout)["rows"] == json.loads((folder / "gate" / "gate.json").read_text())["rows"]


@pytest.mark.parametrize(
    ("fault", "kind"), [("corrupt@descriptor=0", "mismatch"), ("error@call=0", "error"), ("crash@call=0", "crash")]
)
def test_a_cell_that_fails_on_one_side_fails_the_gate_and_the_others_are_measured_again(
    folder: Path, fault: str, kind: str
) -> None:
    done = compare(folder, "--rounds=1", f"--cand-fault={fault} when blocks=16")
    assert done.returncode == 5, done.stdout + done.stderr
    assert verdicts(folder) == {
        "batched h2d 16 x 16KiB idle pool=32MiB reuse=fresh": "FAILED",
        "batched h2d 4 x 16KiB idle pool=32MiB reuse=fresh": "UNDECIDED",
    }
    assert kind in done.stdout
    # One pair has no interval, so what was not decided, and that alone, was measured again on both sides.
    assert blocks_of(run_of(folder, "00-a")) == {4, 16}
    assert [blocks_of(run_of(folder, f"01-{side}")) for side in "ab"] == [{4}, {4}]
    assert not (folder / "gate" / "rounds" / "02-a").exists()


def test_when_the_controls_moved_everything_is_measured_again_before_it_is_given_up(folder: Path) -> None:
    done = compare(folder, "--rounds=1", "--control-margin=0")  # no copy takes exactly as long as another
    assert done.returncode == 3, done.stdout + done.stderr
    assert "CONTAMINATED" in done.stdout
    assert set(verdicts(folder).values()) == {"CONTAMINATED"}
    assert [blocks_of(run_of(folder, f"01-{side}")) for side in "ab"] == [{4, 16}, {4, 16}]
    assert not (folder / "gate" / "rounds" / "02-a").exists()


def test_two_backends_are_compared_cell_by_cell(folder: Path) -> None:
    done = compare(folder, "--rounds=1", base="backend:per_block", cand="backend:batched")
    assert done.returncode == 3, done.stdout + done.stderr
    assert set(verdicts(folder)) == {
        "per_block h2d 4 x 16KiB idle pool=32MiB reuse=fresh",
        "per_block h2d 16 x 16KiB idle pool=32MiB reuse=fresh",
    }
    assert set(verdicts(folder).values()) == {"UNDECIDED"}
    assert "per_block (base) and batched (candidate)" in done.stdout
    assert blocks_of(run_of(folder, "01-b")) == {4, 16}


def test_an_environment_measures_with_the_kvbench_that_is_in_it(folder: Path) -> None:
    done = compare(folder, "--rounds=1", "--inconclusive=pass", "--json", base=f"env:{sys.prefix}", cand="here")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["rows"]
    assert "1 of 2: round 0, base env:" in done.stderr


def test_sides_of_two_kinds_of_machine_are_not_compared_beyond_the_first_round(folder: Path) -> None:
    python = folder / "python"
    change = """sed -i 's/"device_kind": "cpu"/"device_kind": "other"/' "${option#--out=}/run.json\""""
    python.write_text(
        f'#!/bin/sh\n{sys.executable} "$@"\ncode=$?\n'
        f'for option in "$@"; do case $option in --out=*) {change};; esac; done\nexit $code\n'
    )
    python.chmod(0o755)
    done = compare(folder, "--rounds=9", cand=f"env:{python}")
    assert done.returncode == 4, done.stdout + done.stderr
    assert 'device_kind: "cpu" against "other"' in error_line(done)
    assert sorted(path.name for path in (folder / "gate" / "rounds").iterdir()) == ["00-a", "00-b"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--base=here",), "--base and --cand"),
        (("--base=nowhere", "--cand=here"), "--base nowhere: write env:PATH"),
        (("--base=here", "--cand=backend:batched"), "a backend is compared with another backend"),
        (("--base=here", "--cand=here", "--suite=none"), 'config "none"'),
        (("--base=here", "--cand=here", "--filter=blocks=5"), "nothing to measure: no cell meets the filters"),
        (("--base=here", "--cand=here", "--cand-fault=burn=1"), "--cand here: --fault 'burn=1': write KIND=NUMBER"),
        (("--base=here", "--cand=backend:no-such", "--base=backend:batched"), "unknown backend no-such"),
        (("--base=backend:batched", "--cand=backend:per_block", "-abackend=sm"), "the sides name the backends"),
        (("--base=here", "--cand=here", "--floor=none.json"), "--floor none.json: no such file"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(folder: Path, options: tuple[str, ...], message: str) -> None:
    suite = () if any(option.startswith("--suite") for option in options) else ("--suite=suite.toml",)
    done = kvbench("gate", "compare", "--device=cpu", "--out=gate", *suite, *options, cwd=folder)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in error_line(done)
    assert not (folder / "gate").exists()


def test_a_folder_in_use_is_not_written_to(folder: Path) -> None:
    (folder / "gate").mkdir()
    (folder / "gate" / "mine").touch()
    done = compare(folder, "--rounds=1")
    assert done.returncode == 2
    assert "is not empty" in error_line(done)


def test_after_ctrl_c_whole_rounds_can_be_judged(folder: Path) -> None:
    options = ("--base=here", "--cand=here", "--suite=suite.toml", "--device=cpu", "--out=gate", "--rounds=50")
    with kvbench_started("gate", "compare", *options, cwd=folder) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("4 of 100"):
                break
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    rounds = folder / "gate" / "rounds"
    whole = sorted(path.name for path in rounds.iterdir() if not path.name.endswith(".unfinished"))
    assert whole == ["00-a", "00-b"]
    judged = kvbench("gate", "compare", *WIDE, rounds / "00-a", "--", rounds / "00-b", cwd=folder)
    assert judged.returncode == 3, judged.stdout + judged.stderr


def test_floors_are_measured_and_used(folder: Path) -> None:
    done = kvbench(
        "gate", "calibrate", "--suite=suite.toml", "--device=cpu", "--rounds=6", "--out=aa", "--force", cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    floors = json.loads((folder / "aa" / "floor.json").read_text())["floors"]
    assert len(floors) == 2
    done = compare(folder, "--rounds=1", "--floor=aa/floor.json", "--inconclusive=pass")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_module_is_the_command() -> None:
    said = [
        subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
        for command in ([sys.executable, "-P", "-m", "kvbench"], [str(KVBENCH)])
    ]
    assert said[0].startswith("kvbench ")
    assert said[0] == said[1]
