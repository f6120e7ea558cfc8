"""Curves of GB/s against block size, and where they jump."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from kvbench.analysis.curves import Cliff, find_cliff
from kvbench.analysis.margins import CLIFF
from kvbench.cells.axes import Direction
from kvbench.report.tables import main_path, name_of
from kvbench.report.view import is_measured
from kvbench.results.outcomes import Outcome, grouped

MIN_SIZES: Final = 4  # an edge needs a size or two on each side of it, which tell it from a slope
Series = tuple[str, Direction, str]  # backend, direction, stream state


@dataclass(frozen=True)
class Curve:
    """The cells of one backend, direction and stream state at a number of blocks, ascending in their block sizes."""

    series: Series
    blocks: int
    outcomes: Sequence[Outcome]

    @property
    def backend(self) -> str:
        """The name of the backend, which says of a plug-in that it is one."""
        return name_of(self.outcomes[0])

    @property
    def sizes(self) -> list[int]:
        return [outcome.cell.block_bytes for outcome in self.outcomes]

    @cached_property
    def cliff(self) -> Cliff | None:
        """The largest jump beyond noise and beyond what the sizes bring by `CLIFF`."""
        low, high = zip(*(outcome.interval_gbps for outcome in self.outcomes), strict=True)
        cliff = find_cliff(self.sizes, [outcome.gbps for outcome in self.outcomes], low, high)
        return cliff if cliff and cliff.excess >= 1 + CLIFF.fraction else None

    def outcome_at(self, size: int) -> Outcome:
        return self.outcomes[self.sizes.index(size)]

    def path_at(self, size: int) -> str:
        return main_path(self.outcome_at(size))


def curves_of(outcomes: Iterable[Outcome]) -> list[Curve]:
    """The curves of at least `MIN_SIZES` sizes, by series and then number of blocks."""
    groups = grouped(filter(is_measured, outcomes), lambda outcome: (_series(outcome), outcome.cell.blocks))
    return [
        Curve(series, blocks, sorted(points, key=lambda outcome: outcome.cell.block_bytes))
        for (series, blocks), points in sorted(groups.items(), key=lambda group: group[0])
        if len(points) >= MIN_SIZES
    ]


def _series(outcome: Outcome) -> Series:
    cell = outcome.cell
    return cell.backend, cell.direction, cell.stream_state.value
