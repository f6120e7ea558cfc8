"""What address translation allows: scattered small blocks a second, beside dense ones and large copies by SMs."""

from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

from kvbench.cells.axes import Direction
from kvbench.cells.units import KIB
from kvbench.ground.text import range_text
from kvbench.report.model import DataTable, Once, Part, PartOrReason
from kvbench.report.numbers import bytes_size, count, figure
from kvbench.report.view import View
from kvbench.results.outcomes import grouped
from kvbench.results.roofs import SmReach, reached

_NEEDED: Final = "it needs a run on a GPU whose blocks are scattered over 1 GiB or more"
_CLOCK: Final = Once("All SMs; execution times by CUDA events: a long swap less a short one. ")


class _Row(NamedTuple):
    """What the runs of a machine reach in a direction with small blocks scattered over as much memory."""

    direction: Direction
    pool_bytes: int
    runs: Sequence[SmReach]

    @property
    def scattered(self) -> str:
        return _millions([run.scattered.rate for run in self.runs])

    @property
    def dense(self) -> str:
        return _millions([run.dense.rate for run in self.runs])

    @property
    def fills_from(self) -> str:
        """From which block size scattered blocks fill the link; "" where nothing limits them."""
        sizes = [run.gbps.rate * 1e9 / run.limit.rate / KIB for run in self.runs if run.limit.rate > 0]
        return range_text(sizes, figure) if sizes else ""


def _millions(rates: Sequence[float]) -> str:
    return range_text([rate / 1e6 for rate in rates], figure)


def make(view: View) -> PartOrReason:
    rows = [*chain.from_iterable(_rows(view.of_machine, direction) for direction in Direction)]
    return (lambda: Part(_findings(rows), tables=[_table(view, rows)])) if rows else _NEEDED


def _rows(views: Sequence[View], direction: Direction) -> list[_Row]:
    """The largest pool first."""
    limits = [*filter(None, (reached(view.run.others, direction) for view in views))]
    pools = sorted(grouped(limits, lambda run: run.pool_bytes).items(), reverse=True)
    return [_Row(direction, pool_bytes, runs) for pool_bytes, runs in pools]


def _findings(rows: Sequence[_Row]) -> list[str]:
    """Say of each direction, with the largest pool, where all of its runs were limited."""
    findings = []
    for direction in Direction:
        row = next((row for row in rows if row.direction is direction), None)
        if row and all(run.limit.rate > 0 for run in row.runs):
            blocks = f"of {bytes_size(row.runs[0].block_bytes)} scattered over {bytes_size(row.pool_bytes)}"
            findings.append(f"{direction}, all SMs: {row.scattered} M blocks a second {blocks}, {row.dense} M dense.")
    return findings


def _table(view: View, rows: Sequence[_Row]) -> DataTable:
    body = [
        [
            row.direction.value,
            bytes_size(row.pool_bytes),
            count(len(row.runs)),
            range_text([run.gbps.rate for run in row.runs], figure),
            row.scattered,
            row.dense,
            row.fills_from,
        ]
        for row in rows
    ]
    size = bytes_size(rows[0].runs[0].block_bytes)
    header = ("Dir", "Pool", "Runs", "Large copies, GB/s", "Scattered, M/s", "Dense, M/s", "Fills the link from, KiB")
    notes = ["Scattered blocks are addressed by more pages than the GPU keeps translations of, dense ones are not"]
    title = f"Blocks of {size} a second by SM copies, and the size from which scattered ones fill the link"
    return DataTable(title, header, body, notes, (_CLOCK, f"Ends over the runs. {view.heading}"), left=2)
