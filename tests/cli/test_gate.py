"""`kvbench gate rules` on runs made before: exit codes, and what is written where."""

import json
from pathlib import Path

import pytest

from tests.command import Done, kvbench_here
from tests.synthetic import ceilings, rounds, write_run
from tests.unit.gate.gated import CELLS


def check(folder: Path, backend: str, limit: str, *options: str, **env: str) -> Done:
    run = write_run(folder / "run", [*rounds(CELLS[:2]), *ceilings()])
    (folder / "mine.toml").write_text(f'[[rule]]\ncells = "backend={backend}"\nat_least = "{limit}"')
    return kvbench_here("gate", "rules", run, "--rules=mine.toml", *options, cwd=folder, env=env)


@pytest.mark.parametrize(
    ("backend", "limit", "code"),
    [("batched", "0.01 ceiling", 0), ("batched", "9 ceiling", 1), ("sm", "0.01 ceiling", 5)],
)
def test_rules_have_their_exit_codes(tmp_path: Path, backend: str, limit: str, code: int) -> None:
    done = check(tmp_path, backend, limit, "--json")
    assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)["exit_code"] == code


def test_files_json_and_github_have_the_same_content(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("earlier\n")
    options = ("--json", "--github", "--out=gate")
    done = check(tmp_path, "batched", "9 ceiling", *options, GITHUB_STEP_SUMMARY=str(summary))
    assert done.returncode == 1
    assert json.loads(done.stdout) == json.loads((tmp_path / "gate" / "gate.json").read_text())
    assert json.loads(done.stdout)["rules"][0]["verdict"] == "FAIL"
    assert "FAIL" in (tmp_path / "gate" / "gate.md").read_text()
    assert summary.read_text().startswith("earlier\n## kvbench gate rules run: FAIL")
