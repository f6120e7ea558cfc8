"""Visits of cells that are set up for one alone."""

from kvbench.backends.base import Backend
from kvbench.cells.cell import Cell
from kvbench.engine.faults import Fault
from kvbench.measure.visit import Bench, Measurement, set_up, visit
from kvbench.sweep.spec import Sampling


def measure(
    bench: Bench, backend: Backend, cell: Cell, sampling: Sampling, seed: int, fault: Fault | None
) -> Measurement:
    return visit(bench, set_up(bench, backend, cell, sampling, seed), sampling, fault)
