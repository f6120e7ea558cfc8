"""`kvbench probe` as its user runs it: the block, the files and the exit code."""

from pathlib import Path

import msgspec
import pytest

from kvbench.errors import ExitCode
from kvbench.probe import command as probe
from kvbench.probe.common import ProbeFinding, ProbeReport, Result, Unanswered
from tests.command import kvbench_here, succeeds


def test_the_terminal_and_the_files_have_the_same_answers(tmp_path: Path) -> None:
    done = succeeds("probe", "confidential", "order", "--device=cpu", "--out=made", cwd=tmp_path)
    assert (tmp_path / "made" / probe.MARKDOWN_FILE).read_text() == done.stdout
    report = msgspec.json.decode((tmp_path / "made" / probe.JSON_FILE).read_bytes(), type=ProbeReport)
    assert [result.name for result in report.results] == ["confidential", "order"]
    assert probe.markdown_of(report) == done.stdout
    assert isinstance(report.health.found, ProbeFinding)
    assert report.health.found.expected


def test_a_probe_as_json_is_the_file_that_out_writes(tmp_path: Path) -> None:
    done = succeeds("probe", "confidential", "--device=cpu", "--json", "--out=made", cwd=tmp_path)
    assert done.stdout == (tmp_path / "made" / probe.JSON_FILE).read_text()


def test_a_finding_is_not_an_error_but_a_missing_answer_is(tmp_path: Path) -> None:
    crash = kvbench_here("probe", "count", "--device=cpu", "--fault=crash@call=0", cwd=tmp_path)
    assert (crash.returncode, "surprising" in crash.stdout) == (0, True)
    error = kvbench_here("probe", "order", "--device=cpu", "--fault=error@call=0", cwd=tmp_path)
    assert (error.returncode, "no answer" in error.stdout) == (ExitCode.FAILED_CELLS, True)


HEALTHY = Result("health", "", ProbeFinding(answer="well", number=0, unit="", of="", expected=True), 1.0)
OFF = Result("stalls", "", Unanswered("too little memory", off=True), 1.0)
ILL = msgspec.structs.replace(HEALTHY, found=ProbeFinding(answer="ill", number=1, unit="", of="", expected=False))


@pytest.mark.parametrize(
    ("results", "health", "named", "code"),
    [
        ([OFF], HEALTHY, False, 0),
        ([OFF], HEALTHY, True, ExitCode.FAILED_CELLS),
        ([], ILL, False, ExitCode.FAILED_CELLS),
    ],
)
def test_a_disabled_probe_fails_only_if_it_was_named(
    results: list[Result], health: Result, named: bool, code: int
) -> None:
    report = ProbeReport(kvbench="", created="", device="cpu", results=results, health=health, took_s=1.0)
    assert probe.exit_code(report, named=named) == code
