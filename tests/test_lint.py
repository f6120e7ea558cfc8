"""What `make lint` adds to ruff finds what it is for, and lets the rest pass."""

import ast
from pathlib import Path

import pytest

from tests import clocks, size

TEST = "from tests.visits import measure\ndef test():\n    "

TEXT = '''A_TEXT = """
# like a comment

"""'''
SOURCE = f'''"""A docstring."""

# A reason.
import os  # code
{TEXT}
def of():  # code

    """Of a function,
    in two lines."""
    return os  # code
'''


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("began = time.perf_counter()", 1), ("time.sleep(0.1)", 0), ("assert sample.wall_us < 5000", 1),
        ("assert 5000 > min(samples.wall_us)", 1), ("assert median(fast.wall_us) < median(slow.wall_us)", 1),
        ("assert median(one.gpu_us) == pytest.approx(median(other.gpu_us), rel=0.1)", 1),
        ("assert sample.wall_us >= 5000", 0), ("assert 0 < sample.cpu_us <= sample.caller_us <= sample.wall_us", 0),
        ("assert sample.cpu_us < 5000", 0),
    ],
)  # fmt: skip
def test_a_comparison_that_a_busy_machine_fails_is_found(line: str, count: int) -> None:
    assert _complaints(TEST + line) == count
    assert _complaints((TEST + line).replace("tests.visits", "tests.synthetic")) == ("perf_counter" in line)


def _complaints(text: str) -> int:
    return len([*clocks.complaints([*ast.walk(ast.parse(text))])])


def test_only_lines_of_code_count(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(SOURCE)
    assert size.code_lines(file) == SOURCE.count("# code") + len(TEXT.splitlines())


def test_a_function_of_more_than_a_screen_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size, "ROOT", tmp_path)
    for lines, faults in ((size.LONGEST_FUNCTION, 0), (size.LONGEST_FUNCTION + 1, 1)):
        file = tmp_path / f"of_{lines}.py"
        file.write_text('def long():\n    """Two\n    lines."""\n' + "    pass\n" * lines)
        assert len([*size.too_long([file])]) == faults
