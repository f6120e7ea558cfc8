"""From effects to rows: every cell and every feature of the shape against its margin, with what to run next."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvbench.analysis.intervals import MIN_PAIRS, Floats
from kvbench.cells.cell import AXES, Cell, command_of
from kvbench.gate.judgement import Margins, Row
from kvbench.gate.pairs import Pairs
from kvbench.gate.shape import Feature
from kvbench.gate.verdict import Effects, Verdict, effects, ratio_of, row_medians, verdict


def cell_margins(base_us: Floats, floors: Floats, margins: Margins) -> Floats:
    """Return what every cell may differ by, as log ratios.

    The largest of the relative margin, the cell's own A/A floor (a fraction), and the absolute floor over the base's
    median: a difference below any of them is no difference.
    """
    with np.errstate(invalid="ignore"):
        absolute = margins.absolute_us / row_medians(base_us)
    return np.log1p(np.fmax(np.maximum(margins.relative, floors), absolute))


def cell_rows(pairs: Pairs, found: Effects, allowed: Floats) -> list[Row]:
    base_us, cand_us = row_medians(pairs.base_us), row_medians(pairs.cand_us)
    rows = []
    for place, cell in enumerate(pairs.cells):
        if cell in pairs.failed:
            rows.append(Row("cell", cell.label, Verdict.FAILED, [cell], cell.command(), reason=pairs.failed[cell]))
            continue
        row = Row(
            "cell",
            cell.label,
            verdict(found.low[place], found.high[place], allowed[place]),
            [cell],
            cell.command(),
            base=float(base_us[place]),
            cand=float(cand_us[place]),
            reason=pairs.paths.get(cell, ""),
        )
        rows.append(_with_effect(row, found, place, allowed[place]))
    return rows


def shape_rows(shape: Sequence[Feature]) -> list[Row]:
    if not shape:
        return []
    found = effects(np.log([feature.cand / feature.base for feature in shape]))
    rows = []
    for place, feature in enumerate(shape):
        low, high = sorted((feature.worse * found.low[place], feature.worse * found.high[place]))
        row = Row(
            feature.kind,
            feature.name,
            verdict(low, high, feature.margin),
            feature.cells,
            curve_command(feature.cells),
            unit=feature.unit,
            base=float(row_medians(feature.base[None])[0]),
            cand=float(row_medians(feature.cand[None])[0]),
        )
        rows.append(_with_effect(row, found, place, feature.margin))
    return rows


def _with_effect(row: Row, found: Effects, place: int, margin: float) -> Row:
    pairs = int(found.pairs[place])
    few = f"{pairs} pairs; an interval takes {MIN_PAIRS}" if pairs < MIN_PAIRS else ""
    return replace(
        row,
        effect=ratio_of(found.median[place]),
        low=ratio_of(found.low[place]),
        high=ratio_of(found.high[place]),
        margin=math.expm1(margin),
        pairs=pairs,
        reason="; ".join(filter(None, (few, row.reason))),
    )


def curve_command(cells: Sequence[Cell]) -> str:
    """Return the command that measures these cells, which are all combinations of their values on each axis."""
    strings = [cell.as_strings() for cell in cells]
    values = {name: dict.fromkeys(value for cell in strings if (value := cell.get(name)) is not None) for name in AXES}
    return command_of({name: ",".join(own) or None for name, own in values.items()})
