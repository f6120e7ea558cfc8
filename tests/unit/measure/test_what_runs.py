"""The hash of a build changes with everything that shapes a measurement, and with nothing that presents one."""

import shutil
from pathlib import Path

import pytest

from kvbench.measure import worker


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = tmp_path / "kvbench"
    shutil.copytree(Path(worker.__file__).parents[1], copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    monkeypatch.setattr(worker, "__file__", str(copy / "measure" / "worker.py"))
    return copy


@pytest.mark.parametrize(
    ("file", "shapes"),
    [
        ("backends/sm.py", True),
        ("cells/facts.py", True),  # connections
        ("measure/visit.py", True),
        ("sweep/spec.py", True),  # defaults of sampling, lengths of chains
        ("run/execution.py", True),  # repeats of disturbed visits
        ("run/worker_process.py", True),  # the environment of workers
        ("cells/policy.py", True),  # policies
        ("report/numbers.py", False),
        ("cli/show.py", False),
    ],
)
def test_a_change_of_what_shapes_a_measurement_is_another_build(package: Path, file: str, shapes: bool) -> None:
    before = worker.hash_of_what_runs()
    with (package / file).open("a") as changed:
        changed.write("CHANGED = 1\n")
    assert (worker.hash_of_what_runs() != before) is shapes


@pytest.mark.parametrize(
    ("old", "new", "shapes"),
    [
        ('"""Measure one visit', '"""Changed: measure one visit', False),
        ("CHECK_COPIES: Final = 4", "CHECK_COPIES: Final = 4  # changed", False),
        ("CHECK_COPIES: Final = 4", "CHECK_COPIES: Final = (\n    4\n)", False),
        ("CHECK_COPIES: Final = 4", "CHECK_COPIES: Final = 5", True),
        ("is faster than the link: large", "was faster than the link: large", True),
    ],
)
def test_comments_docstrings_and_layout_are_no_other_build(package: Path, old: str, new: str, shapes: bool) -> None:
    before, file = worker.hash_of_what_runs(), package / "measure" / "visit.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    assert (worker.hash_of_what_runs() != before) is shapes
