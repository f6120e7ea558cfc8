"""What the worker process asks of a visit."""

from unittest import mock

import pytest

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.errors import KvbenchError
from kvbench.measure import worker
from kvbench.run.protocol import MeasureCell
from kvbench.sweep.spec import Sampling


@pytest.mark.parametrize(("number", "attempt", "is_first"), [(0, 0, True), (0, 1, True), (1, 0, False), (1, 1, False)])
def test_every_attempt_in_the_first_round_is_compared_first(
    monkeypatch: pytest.MonkeyPatch, number: int, attempt: int, *, is_first: bool
) -> None:
    """After a resumed sweep, the first visit on one of several devices may be a repeated one."""
    visit = mock.Mock(side_effect=KvbenchError("not measured here"))
    monkeypatch.setattr(worker, "visit", visit)
    monkeypatch.setattr(worker.Worker, "_set_up", mock.Mock())
    here = worker.Worker()
    here._bench = mock.Mock()
    cell = Cell("batched", Direction.H2D, 1, 4096)
    here.answer(MeasureCell(cell=cell.as_strings(), round=number, attempt=attempt, seed=0, sampling=Sampling()))
    assert visit.call_args.kwargs["is_first"] is is_first
