"""Fewer visits than a verdict needs decide nothing: not in a report, in the terminal, or in the answers of a tuning."""

import json

import pytest

from kvbench.analysis.compare import MIN_PAIRS
from kvbench.report.build import COMPARISON, SECTIONS, report_of
from kvbench.report.model import Report
from kvbench.results import Run
from tests.command import output
from tests.reports import findings_of, is_bold, lines_of, part_of, sections_of
from tests.unit.report.test_golden import again, everything


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("few")
    return [everything(folder, MIN_PAIRS - 1), again(folder, MIN_PAIRS - 1)]


@pytest.fixture(scope="module")
def report(runs: list[Run]) -> Report:
    return report_of(runs)


def test_with_few_visits_every_section_is_present_and_finds_nothing(report: Report) -> None:
    assert set(sections_of(report)) == {section.name for section in (*SECTIONS, COMPARISON)} - {"answer"}
    sentences = {chapter.section.name: findings_of(chapter.part) for chapter in report.chapters}
    assert "0 slower, 0 faster, 0 the same, 40 undecided" in sentences.pop("comparison")[0]
    shown = {"cliff": "no jump", "sm-ladder": "", "queue": "no number"}
    assert not [text for name, texts in sentences.items() for text in texts if shown.get(name, "?") not in text]


def test_with_few_visits_no_table_marks_a_winner(report: Report) -> None:
    assert not [
        cell for part in report.parts for table in part.tables for row in table.rows for cell in row if is_bold(cell)
    ]


def test_with_few_visits_the_answer_is_batched_and_claims_no_gain(runs: list[Run]) -> None:
    (answer,) = part_of(report_of(runs[:1]), "answer").tables
    for lines in (lines_of(answer.notes), output("show", runs[0].path).splitlines()):
        text = " ".join(" ".join(lines).split())
        assert "43 of 43 shapes undecided, each taken alone (fewer than 6 visits decide nothing)" in text
        assert "as fast as" not in text
    shown = json.loads(output("show", runs[0].path, "--json"))
    assert [(one["decided"], one["interval_us"]) for one in shown["answers"]] == [(False, None)] * 43
