"""The schedule of a comparison against its time limit, with a clock and visits of its own."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest

from kvbench.cells.cell import Cell
from kvbench.gate import side_by_side
from kvbench.gate.judgement import GateVerdict, Judgement
from kvbench.gate.pairs import BASE, CAND
from kvbench.gate.side_by_side import SideBySide
from kvbench.ground.errors import ExitCode, UsageError
from kvbench.results import Record, Run
from tests.synthetic import info, visit
from tests.unit.gate.gated import CELLS


class Scheduled(SideBySide):
    """A comparison in which every pair takes a second; `began_s` has when each began."""

    def __init__(self) -> None:
        self.records: dict[str, list[Record]] = {BASE: [], CAND: []}
        self.now_s, self.began_s = 0.0, list[float]()
        sides: list[Any] = [
            SimpleNamespace(
                names={cell: cell for cell in CELLS},
                plan=SimpleNamespace(cells=CELLS, plug_ins={}),
                side=SimpleNamespace(backend=None),
                execution=MagicMock(**{"spec.seed": 1}),
                run=lambda name=name: Run(Path(name), info(), [*self.records[name]], []),
            )
            for name in (BASE, CAND)
        ]
        super().__init__(*sides, lambda _: None, MagicMock(ThreadPoolExecutor), 1.0)

    def monotonic(self) -> float:
        return self.now_s

    def _pair(self, number: int, cell: Cell, order: Sequence[str], *, verify: bool) -> None:
        del order, verify
        self.began_s.append(self.now_s)
        self.now_s += 1
        for records in self.records.values():
            records.append(visit(cell, 100.0 + number % 3, count=3, noise=0.0, round_=number))


def compared(monkeypatch: pytest.MonkeyPatch, deadline_s: float) -> tuple[Scheduled, Judgement]:
    both = Scheduled()
    monkeypatch.setattr(side_by_side, "time", both)
    return both, both.compare(0.03, deadline_s)


def test_no_pair_begins_after_the_deadline_and_what_was_not_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    both, judgement = compared(monkeypatch, len(CELLS) / 2)
    assert both.began_s == list(range(len(CELLS) // 2))
    unmeasured = [row for row in judgement.rows if "time limit" in row.reason]
    assert len(unmeasured) == len(CELLS) // 2
    assert judgement.verdict is GateVerdict.UNDECIDED
    assert judgement.exit_code is ExitCode.INCONCLUSIVE
    assert any("not settled" in warning for warning in judgement.warnings)
    assert any("last comparison of bytes" in warning for warning in judgement.warnings)


def test_time_for_the_last_comparison_of_bytes_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    both, judgement = compared(monkeypatch, 4.5 * len(CELLS))
    assert max(both.began_s) < 4.5 * len(CELLS)
    last = max(record.round for record in both.records[BASE] if hasattr(record, "round"))
    assert sum(getattr(record, "round", None) == last for record in both.records[BASE]) == len(CELLS)
    assert not any("last comparison of bytes" in warning for warning in judgement.warnings)


def test_a_limit_within_which_nothing_was_measured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--minutes: start-up alone took 1 s"):
        compared(monkeypatch, 0.0)


@pytest.mark.parametrize(("begins_ns", "fails"), [(200, False), (199, True)])
def test_a_visit_that_begins_before_the_other_side_s_has_ended_fails(begins_ns: int, *, fails: bool) -> None:
    """Two at once on one GPU slow each other."""
    cell = CELLS[0]
    base, cand = (MagicMock(names={cell: cell}, execution=MagicMock(**{"spec.seed": 1})) for _ in range(2))
    for side, span_ns in ((base, (100, 200)), (cand, (begins_ns, 300))):
        side.execution.visit.return_value = [msgspec.structs.replace(visit(cell, 1.0), span_ns=span_ns)]
    both = SideBySide(base, cand, lambda _: None, MagicMock(ThreadPoolExecutor), 1.0)
    both._pair(0, cell, (BASE, CAND), verify=False)
    assert [call.args[1] for call in cand.execution.fail.mock_calls] == [
        "its visit overlaps a visit of the other side"
    ] * fails
