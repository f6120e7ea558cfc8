"""The backend `auto` against the best of the others, cell by cell, where both were measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from kvbench.report.contests import TimeRatio, time_ratio
from kvbench.report.model import DataTable, Part, Section, Strong, Text
from kvbench.report.numbers import ABSENT, bytes_size, count, figure
from kvbench.report.select import where
from kvbench.report.tables import Row, a_stream, caption, grouped, rows_of, swap_quartiles, undecided
from kvbench.report.view import View
from kvbench.text import short
from kvbench.tune.fit import choice_of, timed, tried
from kvbench.tune.table import AUTO

CLOSE: Final = 0.97
_MOST_SHOWN: Final = 12
_POINT: Final = ["direction", "stream_state", "block_bytes", "blocks"]
_INCLUDES: Final = (
    "Time of the fastest other backend over that of auto, both medians of swap_us: 1 where auto is as fast, below 1 "
    "where it is slower. The fastest is the lowest of several medians, which noise alone makes lower than auto's"
)
_MARKS: Final = (
    Strong("Bold"),
    f": below {CLOSE}. ≈: undecided, the quartiles of auto and of the fastest overlap. "
    f"{ABSENT}: auto or all the others were not measured",
)


@dataclass(frozen=True, slots=True)
class AutoCell:
    """One cell of auto and the fastest of the others there: the rows of both, the time of that one over auto's."""

    auto: Row
    best: Row
    ratio: TimeRatio

    @property
    def close(self) -> bool:
        return self.ratio.value >= CLOSE

    @property
    def shape(self) -> tuple[int, int]:
        """Block bytes and number of blocks."""
        return int(self.auto["block_bytes"]), int(self.auto["blocks"])

    @property
    def state(self) -> tuple[str, str]:
        """Direction and stream state."""
        return str(self.auto["direction"]), str(self.auto["stream_state"])

    @property
    def chosen(self) -> str:
        """What auto chose, "" where the run does not say."""
        return short(self.auto["chosen"]) if isinstance(self.auto["chosen"], str) else ""

    @property
    def fastest(self) -> str:
        return str(choice_of(self.best))


def make(view: View) -> Part | str:
    cells = timed(tried(view.frame))
    found = _verdicts(cells) if AUTO in set(cells["backend"]) else []
    if not found:
        return f"it needs {AUTO} and another backend measured at the same block size and number of blocks"
    tables = [_ratios(view, cells, kind) for kind in grouped(found, lambda cell: cell.state).values()]
    if missed := [cell for cell in found if not cell.close]:
        tables.append(_misses(view, cells, missed))
    return Part(_findings(view, found), tables=tables)


SECTION = Section("auto", "The backend auto against the best of the others", make)


def _verdicts(cells: pd.DataFrame) -> list[AutoCell]:
    """Return every direction, state, size and number of blocks with auto and another backend."""
    found = []
    for _, here in cells.groupby(_POINT):
        rows = rows_of(here)
        own = [row for row in rows if row["backend"] == AUTO]
        others = [row for row in rows if row["backend"] != AUTO]
        if own and others:
            best = min(others, key=lambda row: float(row["swap_us_median"]))
            found.append(AutoCell(own[0], best, time_ratio(swap_quartiles(best), swap_quartiles(own[0]))))
    return sorted(found, key=lambda cell: (cell.state[0] != "h2d", cell.state[1] != "idle", *cell.shape))


def _findings(view: View, found: Sequence[AutoCell]) -> list[str]:
    close = sum(cell.close for cell in found)
    worst = min(found, key=lambda cell: cell.ratio.value)
    (direction, state), (size, blocks) = worst.state, worst.shape
    lines = [
        f"auto was within {1 - CLOSE:.0%} of the fastest other backend, or faster, in {count(close)} of "
        f"{count(len(found))} cells ({close / len(found):.1%}). At worst it reached {worst.ratio.value:.2f} of its "
        f"speed: {direction}, {a_stream(state)}, N = {count(blocks)} of {bytes_size(size)}, where it chose "
        f"{worst.chosen or 'something unsaid'} and {worst.fastest} was fastest"
    ]
    if missed := [cell for cell in found if not cell.close]:
        same = sum(cell.chosen == cell.fastest for cell in missed)
        noisy = sum(not cell.ratio.decided for cell in missed)
        lines.append(
            f"Of the {count(len(missed))} other cells, auto ran the very choice that was fastest in "
            f"{count(same)}, and {count(noisy)} are undecided"
        )
    policy = view.run.info.spec.get("policy")
    if not policy:
        return [*lines, "It had no policy and chose by built-in defaults"]
    made = policy.get("made") if isinstance(policy, dict) else None
    return [*lines, f"It went by a policy measured on {str(made or 'an unknown day')[:10]}"]


def _ratios(view: View, cells: pd.DataFrame, kind: Sequence[AutoCell]) -> DataTable:
    grid = {cell.shape: cell for cell in kind}
    sizes, counts = (sorted({shape[place] for shape in grid}) for place in (0, 1))
    rows = [[bytes_size(size), *(_ratio(grid.get((size, blocks))) for blocks in counts)] for size in sizes]
    direction, state = kind[0].state
    title = f"{direction}, {a_stream(state)}: time of the best / time of auto"
    header = ("Block size", *(f"N = {count(blocks)}" for blocks in counts))
    shown = where(cells, direction=direction, stream_state=state)
    return DataTable(title, header, rows, [_MARKS], caption(view, shown, _INCLUDES))


def _ratio(cell: AutoCell | None) -> Text:
    if cell is None:
        return ABSENT
    text = f"{cell.ratio.value:.2f}"
    marked = text if cell.close else Strong(text)
    return marked if cell.ratio.decided else undecided(marked)


def _misses(view: View, cells: pd.DataFrame, missed: Sequence[AutoCell]) -> DataTable:
    worst = sorted(missed, key=lambda cell: cell.ratio.value)
    header = ("Dir", "Stream", "Blocks", "Block size", "auto us", "Chose", "Best us", "Best", "Ratio")
    rows = []
    for cell in worst[:_MOST_SHOWN]:
        size, blocks = cell.shape
        auto_us, best_us = (figure(row["swap_us_median"]) for row in (cell.auto, cell.best))
        chosen = (auto_us, cell.chosen, best_us, cell.fastest, _ratio(cell))
        rows.append([*cell.state, count(blocks), bytes_size(size), *chosen])
    notes = [f"and {count(len(worst) - _MOST_SHOWN)} more"] if len(worst) > _MOST_SHOWN else []
    title = f"Where auto reached less than {CLOSE} of the best"
    return DataTable(title, header, rows, notes, caption(view, cells, _INCLUDES))
