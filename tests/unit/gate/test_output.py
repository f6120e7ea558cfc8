"""What the gate writes: read back, within the platform's limits, and harmless whatever a run's text is."""

import json
import shlex
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.gate import outputs
from kvbench.gate.judgement import ControlEffect, Estimate, GateVerdict, Judgement, Row
from kvbench.gate.outputs import Destinations, GateData, Sheet, as_json, data_of, message, page, sheet_of_judgement
from kvbench.gate.rules import RulesReport
from kvbench.ground.text import LOG_COLUMNS, folded
from tests.synthetic import failure
from tests.unit.gate.gated import CELLS, Side, compared, judge_runs

HOSTILE = "x\n::error title=no::way%0A <script>alert(1)</script> ]]> | `a` @everyone \x1b[31m\ud800 [l](http://e.com)"
CELL = Cell("sm", Direction.H2D, 64, 4096, sms=2)


def row(verdict: GateVerdict, name: str = "sm h2d", reason: str = "") -> Row:
    estimate = Estimate(1.1, 1.05, 1.15, pairs=8)
    return Row("cell", name, verdict, [CELL], estimate, None, "us", 100, 110, 0.03, reason)


def judgement(*rows: Row, verdict: GateVerdict = GateVerdict.SLOWER) -> Judgement:
    return Judgement(verdict, rows, [], 8, 1.0)


def sheet(*rows: Row, verdict: GateVerdict = GateVerdict.SLOWER) -> Sheet:
    return sheet_of_judgement(judgement(*rows, verdict=verdict))


def test_what_was_not_settled_is_named_and_what_cannot_be_slower_is_not() -> None:
    unclear, same = row(GateVerdict.UNDECIDED, name="unclear"), row(GateVerdict.SAME)
    settled = replace(unclear, name="not slower", effect=Estimate(0.9, 0.8, 1.0, not_slower=True))
    (line,) = judgement(unclear, unclear, settled, same, verdict=GateVerdict.UNDECIDED).unsettled
    assert line == "not settled: 1 cell: unclear"
    assert judgement(settled, same, verdict=GateVerdict.UNDECIDED).unsettled == []
    few, more = (replace(unclear, effect=Estimate(pairs=pairs)) for pairs in (2, 5))
    assert {*judgement(few, more, verdict=GateVerdict.UNDECIDED).missing(6).values()} == {4}
    moved = replace(judgement(row(GateVerdict.CONTAMINATED)), verdict=GateVerdict.CONTAMINATED)
    controls = [ControlEffect("d2h", Estimate(1.1, 1.05, 1.2), steady=False)]
    assert "d2h" in replace(moved, controls=controls).unsettled[0]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "by pairs +10.0% (95%: +5.0 to +15.0%), margin 3%"),
        ({"effect": Estimate()}, "margin 3%"),
        ({"effect": Estimate(2.9, 0.95, 3.5, pairs=8)}, "by pairs +190.0% (95%: -5.0% to 3.5x), margin 3%"),
        ({"upper": Estimate(1.2, 1.0, 1.3, pairs=8)},
         "by pairs +10.0% (95%: +5.0 to +15.0%), margin 3%; upper half +20.0% (95%: +0.0 to +30.0%)"),
    ],
)  # fmt: skip
def test_a_row_says_both_times_the_effect_by_pairs_and_the_margin(changes: dict[str, Any], text: str) -> None:
    assert message(replace(row(GateVerdict.SLOWER), **changes)) == f"base 100.0 us, cand 110.0 us; {text}"


@pytest.mark.parametrize(
    ("steady", "unsure", "text"),
    [
        (False, 0.0, "outside its margin: the machine moved"),
        (True, 0.0, "steady"),
        (True, 0.02, "unsure: a change must exceed its margin by 2.0%"),
        (True, 1.2, "unsure: too few or too uneven to find a change"),
    ],
)
def test_a_sheet_says_how_far_the_machine_may_have_moved(steady: bool, unsure: float, text: str) -> None:
    control = ControlEffect("h2d", Estimate(1.01, 1.0, 1.02, pairs=8), steady, unsure)
    moved = replace(judgement(), controls=[control], slot_bias=1.012, disturbed={"slow CPU": 3})
    assert sheet_of_judgement(moved).details == [
        f"control h2d: +1.0% (95%: +0.0 to +2.0%), {text}",
        "disturbed pairs are recorded but not counted (slow CPU: 3)",
        "the second visit of a pair was 1.2% slower; both sides are corrected",
    ]
    assert "0.8% faster" in sheet_of_judgement(replace(moved, slot_bias=0.992)).details[-1]


def test_hostile_text_is_escaped_in_markdown() -> None:
    broken = Side(extra=[failure(CELLS[0], HOSTILE)])
    text = page(sheet_of_judgement(judge_runs(*compared(Side(), broken, rounds=12))))
    assert "<script>" not in text
    assert "[l](" not in text
    assert "@everyone" not in text
    assert "\x1b" not in text


def test_a_page_keeps_its_size_limit_and_the_worst_rows() -> None:
    bad = [row(GateVerdict.SLOWER, name=f"bad {number} é") for number in range(5)]
    quiet = [row(GateVerdict.SAME, name=f"quiet {number}") for number in range(10_000)]
    text = page(sheet(*bad, *quiet))
    assert len(text.encode()) <= outputs.COMMENT_BYTES
    assert all(f"bad {number} é" in text for number in range(5))
    assert "more than fit here" in text
    assert len(page(sheet(*[row(GateVerdict.SLOWER)] * 10_000)).encode()) <= outputs.COMMENT_BYTES


def test_a_page_shows_five_lines_and_folds_every_row() -> None:
    rows = [row(GateVerdict.SLOWER, name="loud"), row(GateVerdict.SAME, name="quiet")]
    text = page(sheet_of_judgement(judgement(*rows), 90, "kvbench gate compare"))
    shown, _, folded_text = text.partition("<details>")
    verdict, worst, cells, minutes, command = [line for line in shown.splitlines() if line]
    assert verdict.endswith("SLOWER")
    assert all(part in worst for part in ("loud", "base 100.0 us", "cand 110.0 us", "95%"))
    assert "1 on both sides" in cells
    assert "1.5 minutes" in minutes
    assert "kvbench gate compare" in command
    assert "more than fit here" not in text
    assert folded_text.index("loud") < folded_text.index("quiet")
    columns = {line.count(" | ") for line in text.splitlines() if line.startswith("|")}
    assert len(columns) == 1


def test_a_terminal_shows_the_verdict_the_counts_and_changed_rows(capsys: pytest.CaptureFixture[str]) -> None:
    undecided = [row(GateVerdict.UNDECIDED, name=f"unclear {number}") for number in range(78)]
    same = [row(GateVerdict.SAME, name=f"alike {number}") for number in range(40)]
    changed = [row(GateVerdict.SLOWER, name="late"), row(GateVerdict.FASTER, name="early")]
    rows = [changed[0], *undecided, *same, changed[1]]
    assert sheet(*rows).listed == changed
    data = data_of(judgement(*rows))
    Destinations().deliver(sheet(*rows), data)
    verdict, *lines = capsys.readouterr().out.splitlines()
    assert verdict.endswith("SLOWER")
    assert any("1 SLOWER, 78 UNDECIDED, 40 SAME, 1 FASTER" in line for line in lines)
    assert [line.split()[0] for line in lines if line.endswith(("late", "early"))] == ["SLOWER", "FASTER"]
    assert not any("alike" in line or "unclear" in line for line in lines)
    assert len(data.rows) == len(rows)


def test_no_line_of_a_log_is_wider_than_120_and_its_commands_run(capsys: pytest.CaptureFixture[str]) -> None:
    long = row(GateVerdict.SLOWER, name="name " * 60, reason="reason " * 60)
    repeat = shlex.join(["kvbench", "gate", "compare", "--base", "env:a folder/" + "x" * 60, *["-a", "sms=1"] * 20])
    written = sheet_of_judgement(judgement(long), 1.0, repeat)
    Destinations().deliver(written, data_of(judgement(long)))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= LOG_COLUMNS
    joined = "\n".join(lines).replace(" \\\n", " ")
    (again,) = [line for line in joined.splitlines() if line.startswith("to repeat: ")]
    assert shlex.split(again.removeprefix("to repeat: ")) == shlex.split(repeat)
    assert shlex.split(CELL.command()) in [shlex.split(line) for line in joined.splitlines() if "kvbench sweep" in line]
    assert folded("x " * 100, terminal=True) == "x " * 100


def test_json_has_figures_and_null_for_unknown_values() -> None:
    unknown = Row("cell", "lost", GateVerdict.FAILED, [CELL], reason="missing")
    data = json.loads(as_json(data_of(judgement(unknown, row(GateVerdict.SLOWER)))))
    assert (data["kind"], data["verdict"], data["exit_code"]) == ("comparison", "SLOWER", 1)
    lost, slow = data["rows"]
    assert (lost["effect"]["ratio"], lost["verdict"], lost["cells"]) == (None, "FAILED", [CELL.id])
    assert (slow["base"], slow["unit"], slow["pairs"]) == (100, "us", 8)
    assert (slow["effect"]["ratio"], slow["effect"]["low"]) == pytest.approx((1.1, 1.05))
    assert as_json(data_of(judgement(Row("cell", "é", GateVerdict.FAILED, [])))).isascii()


@pytest.mark.parametrize("kind", ["comparison", "rules"])
def test_json_is_what_its_schema_describes(kind: str) -> None:
    unknown = Row("cell", "lost", GateVerdict.FAILED, [CELL], reason="missing")
    compared_ = data_of(judge_runs(*compared(Side(), Side(), rounds=6))), data_of(judgement(unknown))
    rules = data_of(RulesReport("a-run", None, [Row("rule", "sm", GateVerdict.PASS, [CELL])], ["late"]))
    for data in compared_ if kind == "comparison" else [rules]:
        text = as_json(data)
        read: GateData = msgspec.json.decode(text, type=GateData)
        assert (json.loads(text)["kind"], as_json(read)) == (kind, text)
