"""The list of plain words: what people read has none of its phrases, and each of them is found."""

from pathlib import Path

import pytest

from tests import style


def test_what_people_read_is_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert style.main() == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("0.5 is no whole number", '"is no whole": write is not a …'),
        ("whichever it was", '"whichever": write the one that …'),
        ("No such device.", '"No such": write not found; unknown'),
        ("the run may not continue", '"may not": write must not; cannot'),
        ("at most so many calls", '"at most so many": write maximum …; the number of …'),
    ],
)
def test_a_complaint_names_the_plain_form_of_a_phrase(line: str, complaint: str) -> None:
    assert list(style.complaints(f"plain\n{line}")) == [(2, complaint)]


@pytest.mark.parametrize("line", ["is not a whole number", "there is no table", "it is no longer there", "noheeds"])
def test_plain_words_are_left_alone(line: str) -> None:
    assert not list(style.complaints(line))


def test_documents_sources_and_workflows_are_read() -> None:
    read = {str(file.relative_to(style.ROOT)) for file in style.files(style.ROOT)}
    assert {"README.md", "configs/quick.toml", "csrc/swap/swap.hpp", ".github/workflows/ci.yml"} <= read
    assert str(Path("kvbench") / "cli" / "sweep.py") in read
