"""`kvbench gate rules` and `kvbench gate compare` on runs made before: exit codes, files, what is refused."""

import json
import re
import shutil
from pathlib import Path

import pytest

from kvbench.gate.judgement import GateVerdict
from tests.command import Done, error_line, kvbench_here, refused
from tests.synthetic import ceilings, failure, rounds, write_run
from tests.unit.gate.gated import CELLS, Side, compared, written

SLOW = Side(factor=lambda cell: 1.08 if cell == CELLS[1] else 1.0)
UNCLEAR = Side(factor=lambda cell: 1.03 if cell == CELLS[1] else 1.0)
ELSEWHERE = Side(changes={"identity": {"gpu_name": "another"}})


def compare(
    folder: Path, cand: Side, *options: str, rounds: int = 8, noise: float = 0.002, base: Side | None = None
) -> Done:
    runs = compared(base or Side(), cand, rounds, noise, cells=CELLS[:2])
    before, after = (written(folder / "runs", side) for side in runs)
    return kvbench_here("gate", "compare", *options, *before, "--", *after, cwd=folder)


@pytest.mark.parametrize(
    ("cand", "options", "code"),
    [
        (Side(), (), 0),
        (SLOW, (), 1),
        (SLOW, ("--margin=0.2",), 0),
        (SLOW, ("--absolute-us=100000",), 0),
        (UNCLEAR, (), 3),
        (UNCLEAR, ("--inconclusive=pass",), 0),
        (Side(control=1.05), (), 3),
        (Side(control=1.05), ("--control-margin=0.2",), 0),
        (ELSEWHERE, (), 4),
        (ELSEWHERE, ("--force",), 0),
        (Side(without=CELLS[:1]), (), 5),
        (Side(extra=[failure(CELLS[0])], control=1.05), ("--inconclusive=pass",), 5),
    ],
)
def test_every_outcome_has_its_exit_code(tmp_path: Path, cand: Side, options: tuple[str, ...], code: int) -> None:
    noise = 0.008 if cand is UNCLEAR else 0.002
    done = compare(tmp_path, cand, *options, noise=noise)
    assert done.returncode == code, done.stdout + done.stderr
    if code == 4:
        assert 'gpu_name: "Synthetic H200" against "another"' in error_line(done)
    if "--force" in options:
        assert "warning: forced: different kinds of machines" in done.stdout


def test_plain_text_names_the_cell_and_the_command_to_run(tmp_path: Path) -> None:
    done = compare(tmp_path, SLOW)
    lines = [line.strip() for line in done.stdout.splitlines()]
    (row,) = [line for line in lines if line.startswith("SLOWER")]
    assert CELLS[1].label in row
    assert re.search(r" \+7\.\d% +\[\+7\.\d%, \+8\.\d%\] ", row)
    assert CELLS[1].command() in lines
    assert lines[0] == "kvbench gate compare: SLOWER"
    assert "\x1b" not in done.stdout


def test_files_json_and_github_have_the_same_content(tmp_path: Path) -> None:
    runs = compared(Side(), SLOW, cells=CELLS[:2])
    before, after = (written(tmp_path / "runs", side) for side in runs)
    summary = tmp_path / "summary.md"
    summary.write_text("earlier\n")
    done = kvbench_here(
        "gate", "compare", "--json", "--github", "--out=gate", *before, "--", *after,
        cwd=tmp_path, env={"GITHUB_STEP_SUMMARY": str(summary)},
    )  # fmt: skip
    assert done.returncode == 1
    assert json.loads(done.stdout) == json.loads((tmp_path / "gate" / "gate.json").read_text())
    assert json.loads(done.stdout)["rows"][0]["verdict"] == GateVerdict.SLOWER
    assert done.stderr.startswith("::error title=SLOWER")
    assert (tmp_path / "gate" / "gate.xml").read_text().startswith("<?xml")
    assert "SLOWER" in (tmp_path / "gate" / "gate.md").read_text()
    assert summary.read_text().startswith("earlier\n## kvbench gate compare: SLOWER")


def test_both_sides_must_have_the_same_number_of_runs(tmp_path: Path) -> None:
    base, cand = compared(Side(), Side(), rounds=2, cells=CELLS[:1])
    before, after = written(tmp_path / "runs", base), written(tmp_path / "runs", cand)
    assert "2 rounds of the base and 1 of the candidate" in refused(
        "gate", "compare", *before, "--", after[0], cwd=tmp_path
    )


def test_a_run_is_not_compared_with_itself(tmp_path: Path) -> None:
    base, cand = compared(Side(), Side(), rounds=2, cells=CELLS[:1])
    sides = (written(tmp_path / "runs", base), written(tmp_path / "runs", cand))
    # As paths below the folder: a line that is long is cut.
    before, after = ([path.relative_to(tmp_path) for path in side] for side in sides)
    (tmp_path / "link").symlink_to(before[1])
    shutil.copytree(tmp_path / before[1], tmp_path / "copy")
    for twice in (before[1], Path("link"), Path("copy")):
        line = refused("gate", "compare", *before, "--", after[0], twice, cwd=tmp_path)
        assert "the same run is on both sides" in line
        assert twice.name in line


@pytest.mark.parametrize(
    ("backend", "limit", "code"),
    [("batched", "0.01 ceiling", 0), ("batched", "9 ceiling", 1), ("sm", "0.01 ceiling", 5)],
)
def test_rules_have_their_exit_codes(tmp_path: Path, backend: str, limit: str, code: int) -> None:
    run = write_run(tmp_path / "run", [*rounds(CELLS[:2]), *ceilings()])
    (tmp_path / "mine.toml").write_text(f'[[rule]]\ncells = "backend={backend}"\nat_least = "{limit}"')
    done = kvbench_here("gate", "rules", run, "--rules=mine.toml", "--json", cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)["exit_code"] == code
