"""Runs that are not as a report would like them: it holds what is there, and a line says what is not."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from kvbench.cli.main import app
from kvbench.errors import ExitCode, RunDirectoryError
from kvbench.report.build import report_files
from kvbench.results import Run, load_run
from tests import synthetic


def good_run(path: Path) -> Path:
    return synthetic.write_run(path, synthetic.visits(synthetic.order_cells(), count=5))


def newer_run(path: Path) -> Path:
    return with_info(good_run(path), schema=99)


def with_info(path: Path, **changes: object) -> Path:
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | changes))
    return path


def journal_without_a_field(path: Path) -> Path:
    journal = good_run(path) / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"stopped_by"', b'"stopped_at"', 1))
    return path


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (newer_run, "newer kvbench (schema 99"),
        (journal_without_a_field, "journal line 1"),
        (Path, "folder not found"),
    ],
)
def test_readable_runs_are_reported_and_the_others_named(
    tmp_path: Path, make: Callable[[Path], Path], said: str
) -> None:
    good, bad, out = good_run(tmp_path / "good"), make(tmp_path / "bad"), tmp_path / "out"
    done = CliRunner().invoke(app, ["report", str(bad), str(good), "-o", str(out)])
    assert isinstance(done.exception, RunDirectoryError)
    assert done.exception.exit_code is ExitCode.USAGE
    assert said in str(done.exception)
    assert f"report: {out / 'report.md'}" in done.stdout
    text = (out / "report.md").read_text()
    assert "STREAM against ANY" in text
    assert "`kvbench sweep models`" in text.partition("## Not measured")[2]


def outlying(tmp_path: Path, each: int) -> Run:
    """Return a run whose first cell has every `each`-th of 30 samples far off."""
    first, *others = synthetic.visits(synthetic.order_cells())
    far = [us * (50 if index % each == 0 else 1) for index, us in enumerate(first.samples.event_us or [])]
    samples = msgspec.structs.replace(first.samples, event_us=far)
    return load_run(synthetic.write_run(tmp_path / "run", [msgspec.structs.replace(first, samples=samples), *others]))


def test_many_outliers_are_reported_first_and_counted(tmp_path: Path) -> None:
    run = outlying(tmp_path, each=5)
    counts = run.table.set_index("cell_id")["outliers"]
    assert counts[synthetic.order_cells()[0].id] == 6
    assert (counts.drop(synthetic.order_cells()[0].id) <= 3).all()
    text = report_files([run])["details.md"].decode()
    assert "run: 1 cell has outliers among more than 10% of the samples" in text
