"""The backend `auto` against the best of the others, cell by cell, where both were measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import pandas as pd

from kvbench.report.captions import a_stream, caption
from kvbench.report.contests import time_ratio
from kvbench.report.model import DataTable, Part, Section, Strong, Text
from kvbench.report.numbers import ABSENT, bytes_size, count, figure
from kvbench.report.tables import Row, rows_of, swap_quartiles, undecided
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
    """One cell: what auto took and chose ("" where the run does not say), what the best other took and which it was."""

    direction: str
    state: str
    block_bytes: int
    blocks: int
    auto_us: float
    chosen: str
    best_us: float
    best: str
    undecided: bool

    @property
    def ratio(self) -> float:
        """Time of the best over that of auto."""
        return self.best_us / self.auto_us

    @property
    def close(self) -> bool:
        return self.ratio >= CLOSE


def make(view: View) -> Part | str:
    cells = timed(tried(view.frame))
    found = _verdicts(cells) if AUTO in set(cells["backend"]) else []
    if not found:
        return f"it needs {AUTO} and another backend measured at the same block size and number of blocks"
    kinds = [list(group) for _, group in groupby(found, key=lambda verdict: (verdict.direction, verdict.state))]
    tables = [_ratios(view, cells, kind) for kind in kinds]
    if missed := [verdict for verdict in found if not verdict.close]:
        tables.append(_misses(view, cells, missed))
    return Part(_findings(view, found), tables=tables)


SECTION = Section("auto", "The backend auto against the best of the others", make)


def _verdicts(cells: pd.DataFrame) -> list[AutoCell]:
    """Return a verdict for every direction, state, size and number of blocks with auto and another backend."""
    found = []
    for _, here in cells.groupby(_POINT):
        rows = rows_of(here)
        own = [row for row in rows if row["backend"] == AUTO]
        others = [row for row in rows if row["backend"] != AUTO]
        if own and others:
            found.append(_verdict(own[0], min(others, key=lambda row: float(row["swap_us_median"]))))
    return sorted(found, key=lambda v: (v.direction != "h2d", v.state != "idle", v.block_bytes, v.blocks))


def _verdict(auto: Row, best: Row) -> AutoCell:
    auto_time, best_time = swap_quartiles(auto), swap_quartiles(best)
    return AutoCell(
        direction=str(auto["direction"]),
        state=str(auto["stream_state"]),
        block_bytes=int(auto["block_bytes"]),
        blocks=int(auto["blocks"]),
        auto_us=auto_time.median,
        chosen=short(auto["chosen"]) if isinstance(auto["chosen"], str) else "",
        best_us=best_time.median,
        best=str(choice_of(best)),
        undecided=not time_ratio(best_time, auto_time).decided,
    )


def _findings(view: View, found: Sequence[AutoCell]) -> list[str]:
    close = sum(verdict.close for verdict in found)
    worst = min(found, key=lambda verdict: verdict.ratio)
    lines = [
        f"auto was within {1 - CLOSE:.0%} of the fastest other backend, or faster, in {count(close)} of "
        f"{count(len(found))} cells ({close / len(found):.1%}). At worst it reached {worst.ratio:.2f} of its speed: "
        f"{_where(worst)}, where it chose {worst.chosen or 'something unsaid'} and "
        f"{worst.best} was fastest"
    ]
    missed = [verdict for verdict in found if not verdict.close]
    same = sum(verdict.chosen == verdict.best for verdict in missed)
    noisy = sum(verdict.undecided for verdict in missed)
    if missed:
        lines.append(
            f"Of the {count(len(missed))} other cells, auto ran the very choice that was fastest in "
            f"{count(same)}, and {count(noisy)} are undecided"
        )
    policy = view.run.info.spec.get("policy")
    if not policy:
        return [*lines, "It had no policy and chose by built-in defaults"]
    made = policy.get("made") if isinstance(policy, dict) else None
    return [*lines, f"It went by a policy measured on {str(made or 'an unknown day')[:10]}"]


def _where(verdict: AutoCell) -> str:
    size = bytes_size(verdict.block_bytes)
    return f"{verdict.direction}, {a_stream(verdict.state)}, N = {count(verdict.blocks)} of {size}"


def _ratios(view: View, cells: pd.DataFrame, kind: Sequence[AutoCell]) -> DataTable:
    grid = {(verdict.block_bytes, verdict.blocks): verdict for verdict in kind}
    sizes, counts = (sorted({point[place] for point in grid}) for place in (0, 1))
    rows = [[bytes_size(size), *(_ratio(grid.get((size, blocks))) for blocks in counts)] for size in sizes]
    direction, state = kind[0].direction, kind[0].state
    shown = cells[(cells["direction"] == direction) & (cells["stream_state"] == state)]
    title = f"{direction}, {a_stream(state)}: time of the best / time of auto"
    header = ("Block size", *(f"N = {count(blocks)}" for blocks in counts))
    return DataTable(title, header, rows, [_MARKS], caption(view, shown, _INCLUDES))


def _ratio(verdict: AutoCell | None) -> Text:
    if verdict is None:
        return ABSENT
    text = f"{verdict.ratio:.2f}"
    marked = text if verdict.close else Strong(text)
    return undecided(marked) if verdict.undecided else marked


def _misses(view: View, cells: pd.DataFrame, missed: Sequence[AutoCell]) -> DataTable:
    worst = sorted(missed, key=lambda verdict: verdict.ratio)
    header = ("Dir", "Stream", "Blocks", "Block size", "auto us", "Chose", "Best us", "Best", "Ratio")
    rows = [
        [
            verdict.direction,
            verdict.state,
            count(verdict.blocks),
            bytes_size(verdict.block_bytes),
            figure(verdict.auto_us),
            verdict.chosen,
            figure(verdict.best_us),
            verdict.best,
            _ratio(verdict),
        ]
        for verdict in worst[:_MOST_SHOWN]
    ]
    notes = [f"and {count(len(worst) - _MOST_SHOWN)} more"] if len(worst) > _MOST_SHOWN else []
    return DataTable(
        f"Where auto reached less than {CLOSE} of the best", header, rows, notes, caption(view, cells, _INCLUDES)
    )
