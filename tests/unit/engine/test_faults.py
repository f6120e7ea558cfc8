"""Faults as they are written on the command line."""

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.engine.faults import Fault, parse_faults


def test_a_slowdown_can_be_fractional_and_the_first_fault_of_a_cell_counts() -> None:
    plan = parse_faults("slow=0.25 when blocks=16; slow=2")
    near, far = (plan.for_cell(Cell("batched", Direction.H2D, blocks, 4096)) for blocks in (16, 64))
    assert isinstance(near, Fault)
    assert near.number == 0.25
    assert far == Fault("slow", 2)
