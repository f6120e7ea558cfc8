"""Fewer visits than a verdict needs decide nothing: not in a report, in the terminal, or in the answers of a tuning."""

import json

import pytest

from kvbench.analysis.compare import MIN_PAIRS, Verdict
from kvbench.report.build import COMPARISON, SECTIONS, report_of
from kvbench.report.model import Report
from kvbench.results import Run
from tests.command import output
from tests.reports import findings_of, is_bold, lines_of, part_of, sections_of
from tests.unit.report.test_golden import again, everything


@pytest.fixture(scope="module", params=[1, MIN_PAIRS - 1])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("few")
    return [everything(folder, request.param), again(folder, request.param)]


@pytest.fixture(scope="module")
def report(runs: list[Run]) -> Report:
    return report_of(runs)


def test_with_few_visits_every_section_is_present_and_none_has_a_highlight(report: Report) -> None:
    assert set(sections_of(report)) == {section.name for section in (*SECTIONS, COMPARISON)}
    assert report.summary == {}
    assert not [finding for part in report.parts for finding in part.findings if finding.weight]
    sentences = {chapter.section.name: findings_of(chapter.part) for chapter in report.chapters}
    assert "0 slower, 0 faster, 0 the same, 40 undecided" in sentences.pop("comparison")[0]
    assert not any(sentences.values())


def test_with_few_visits_no_table_marks_a_winner(report: Report) -> None:
    assert not [
        cell for part in report.parts for table in part.tables for row in table.rows for cell in row if is_bold(cell)
    ]
    (compared,) = (data.decode() for data in part_of(report, "comparison").files.values())
    assert not any(verdict.value in compared for verdict in Verdict if verdict is not Verdict.UNDECIDED)


def test_with_few_visits_the_answer_is_open_and_claims_no_gain(runs: list[Run]) -> None:
    path = runs[0].path
    for lines in (
        lines_of(report_of(runs[:1]).headline),
        output("show", path).splitlines(),
        output("tune", path).splitlines(),
    ):
        assert any(line.startswith("Undecided for 43 of 43 shapes: fewer than 6 visits") for line in lines)
        assert not any("as fast as" in line for line in lines)


def test_with_few_visits_tune_decides_nothing(runs: list[Run]) -> None:
    answers = json.loads(output("tune", runs[0].path, "--json"))["answers"]
    assert len(answers) == 43
    plain = [(answer["decided"], answer["times_the_speed_of"], answer["interval_us"]) for answer in answers]
    assert plain == [(False, {}, None)] * 43


def test_with_few_visits_tune_beside_a_neighbour_decides_nothing(runs: list[Run]) -> None:
    command = ("tune", "beside", "gemm", runs[0].path, "--max-slowdown")
    for limit, choice in (("300%", "sm sms=2"), ("15%", "sm sms=1"), ("5%", None)):
        (answer,) = json.loads(output(*command, limit, "--json"))["answers"]
        assert (answer["choice"], answer["decided"]) == (choice, False)
        assert answer["open"]
        assert "slower (open)" in " ".join(output(*command, limit).split())
