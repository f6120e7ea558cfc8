"""The comparison of runs: what differs in identity, and the times of the cells that both measured."""

from collections.abc import Iterable
from functools import partial
from statistics import median
from typing import Final

import numpy as np
import pandas as pd

from kvbench.analysis.compare import MIN_PAIRS, Comparison, Verdict, by_chance, compare_apart
from kvbench.analysis.margins import ABSOLUTE_US, BETWEEN_RUNS, INLINE, between_runs
from kvbench.cells.axes import Role
from kvbench.cells.cell import AXES, axes_of
from kvbench.cells.units import two_digits
from kvbench.report.model import Code, DataTable, Part, PartOrReason, Span, Text
from kvbench.report.numbers import TIMES, bytes_size, count, figure, noun
from kvbench.report.tables import INCLUDES, axis_text, host_mark, main_path
from kvbench.report.view import LATER, SIDE_AXES, Row, View, rows_of, where
from kvbench.results import Scalar
from kvbench.results.between_runs import kind_of, spread_between
from kvbench.results.schema import EffectivePath, differing
from kvbench.text import ends, short

_BESIDE: Final = axes_of(Role.BESIDE)
_AXES: Final = ("backend", "direction", "stream_state", "blocks", "block_bytes", *SIDE_AXES, *_BESIDE)
_FIGURES: Final = ("samples", "rounds", "swap_us_low", "swap_us_median", "swap_us_high", "gbps", "path")
_SIDES: Final = ("base", "other")
_MOST_ROWS: Final = 40
_MARGIN: Final = (
    f"{BETWEEN_RUNS.fraction:.0%} ({INLINE.fraction:.0%} where the CPU copies in both), at least {ABSOLUTE_US:g} us"
)
_VERDICT: Final = (
    f"Slower, faster: the whole 95% interval of the ratio, from the medians of the visits and the spread between runs "
    f"of one build, lies beyond the margin, {_MARGIN}. Same: the whole interval lies within. Undecided: neither, or "
    f"fewer than {MIN_PAIRS} visits in a run. kvbench gate, which measures two builds in turn, detects smaller "
    "differences"
)
Pair = tuple[View, View]  # the earlier run, and the one that is held against it


def make(view: View) -> PartOrReason:
    if not view.earlier or view.earlier[0].title != view.title:
        return ""
    pair = (view.earlier[0], view)
    cells = _cells(*pair)
    return "" if cells.empty else partial(_part, pair, cells)


def _part(pair: Pair, cells: pd.DataFrame) -> Part:
    base, view = pair
    origin = _origin(pair, cells)
    findings = [_finding(f"{view.label} against {base.label}, {noun(len(cells), 'cell')} in common", cells)]
    return Part(findings, tables=[*_differences(pair, origin), _cell_table(pair, cells, origin)])


def _cells(base: View, other: View) -> pd.DataFrame:
    """Return the cells that both measured, SLOWER ones first, largest changes for the worse first.

    Columns: axes (of the optional ones those that `base` has swept), figures with `_base` and `_other`, `change` (other
    over base, less 1), its interval `change_low` to `change_high`, `verdict`.
    """
    # As text: pandas 3.1 with pyarrow compares a column of strings with nothing else.
    optional = {axis: {*map(str, base.measured[axis].dropna())} for axis in (*LATER, *_BESIDE)}
    unswept = {axis for axis, values in optional.items() if values <= {AXES[axis].show(AXES[axis].unused)}}
    axes = [axis for axis in _AXES if axis not in unswept]
    both = base.measured[["cell_id", *axes, *_FIGURES]].merge(
        other.measured[["cell_id", *_FIGURES]], on="cell_id", suffixes=("_base", "_other")
    )
    both = both[both["cell_id"].isin(base.visits) & both["cell_id"].isin(other.visits)]
    compared = [_compare(base, other, row) for row in rows_of(both)]
    both = both.assign(
        change=[one.ratio - 1 for one in compared],
        change_low=[one.low - 1 for one in compared],
        change_high=[one.high - 1 for one in compared],
        verdict=[one.verdict.value for one in compared],
    )
    return both.iloc[np.lexsort((-both["change"], both["verdict"] != Verdict.SLOWER))]


def _compare(base: View, other: View, row: Row) -> Comparison:
    before, after = ([*view.visits[row["cell_id"]].values()] for view in (base, other))
    inline = all(main_path(row[f"path_{side}"]) == EffectivePath.CPU_INLINE for side in _SIDES)
    spread = spread_between(base.title, kind_of(row["backend"], row["blocks"] * row["block_bytes"]))
    return compare_apart(before, after, between_runs(median(before), inline=inline), spread.fraction)


def _identity(view: View) -> dict[str, Scalar]:
    """Return a run's identity, and what else may differ: the version of kvbench, the day, the ceilings."""
    info = view.run.info
    ceilings = view.measured.groupby("direction")["ceiling_gbps"].first().dropna()
    rates = {f"ceiling {direction} GB/s": round(float(rate), 1) for direction, rate in ceilings.items()}
    return {**info.identity, "kvbench": info.kvbench, "device": view.title, "date": view.date, **rates}


def _finding(of: str, cells: pd.DataFrame) -> Text:
    parts = []
    for verdict, extreme in ((Verdict.SLOWER, "max"), (Verdict.FASTER, "min")):
        changes = where(cells, verdict=verdict)["change"]
        most = "" if changes.empty else f" (by up to {two_digits(100 * abs(getattr(changes, extreme)()))}%)"
        parts.append(f"{count(len(changes))} {verdict.lower()}{most}")
    same, undecided = (count(len(where(cells, verdict=verdict))) for verdict in (Verdict.SAME, Verdict.UNDECIDED))
    chance = f"; chance alone would show up to {noun(by_chance(len(cells)), 'difference')}" if len(cells) > 1 else ""
    return f"{of}: {', '.join([*parts, f'{same} the same', f'{undecided} undecided'])}{chance}."


def _differences(pair: Pair, origin: tuple[Span, ...]) -> list[DataTable]:
    """Return a table of what differs in the identities, none where nothing does."""
    rows = [tuple(map(short, fields)) for fields in differing(*map(_identity, pair))]
    header = ("Field", *(view.label for view in pair))
    caption = ("Everything else in the identity is the same. ", *origin)
    return [DataTable("Differences of identity", header, rows, caption=caption, left=3)] if rows else []


def _cell_table(pair: Pair, cells: pd.DataFrame, origin: tuple[Span, ...]) -> DataTable:
    shown = cells.head(_MOST_ROWS)
    varying = [axis for axis in SIDE_AXES if axis in shown and shown[axis].nunique(dropna=False) > 1]
    rows = [_row(row, varying) for row in rows_of(shown.astype(dict.fromkeys(varying, "string")))]
    more = f" (the {_MOST_ROWS} slowest of {count(len(cells))})" if len(cells) > len(shown) else ""
    labels = (f"{view.label} us" for view in pair)
    header = ("Backend", "Dir", "Stream", "Blocks", "Block size", "Other axes", *labels, "Ratio (95%)", "Verdict")
    states = INCLUDES["swap_us"]
    caption = (f"Medians of swap_us. {states}. ", *origin)
    notes = [_VERDICT] if differing(*map(_identity, pair)) else [_VERDICT, "The identities of both runs are the same"]
    return DataTable(f"Cell by cell, worst first{more}", header, rows, notes, caption, left=6, compared=len(cells))


def _row(row: Row, varying: Iterable[str]) -> list[str]:
    sides = [f"{axis} {row[axis]}" for axis in varying if isinstance(row[axis], str)]
    beside = [text for axis in _BESIDE if axis in row and (text := axis_text(axis, row[axis]))]
    times = [figure(row[f"swap_us_median_{side}"]) for side in _SIDES]
    shape = (row["direction"], row["stream_state"], count(row["blocks"]), bytes_size(row["block_bytes"]))
    return [row["backend"], *shape, ", ".join([*sides, *beside]), *times, *_judged(row)]


def _judged(row: Row) -> tuple[str, str]:
    known = np.isfinite(row["change_high"])
    interval = f" ({1 + row['change_low']:.3f} to {1 + row['change_high']:.3f})" if known else ""
    return f"{TIMES}{1 + row['change']:.3f}{interval}", row["verdict"].lower()


def _origin(pair: Pair, cells: pd.DataFrame) -> tuple[Span, ...]:
    origin: list[Span] = []
    for view, side, end in zip(pair, _SIDES, ("; ", "."), strict=True):
        samples = ends(cells[f"samples_{side}"], str)
        source = f"{view.heading}, {samples} samples a cell: "
        origin += [f"{view.label}: ", *host_mark(view), source, Code(view.command), view.commit, end]
    return tuple(origin)
