"""The cliff: GB/s against block size, and where it jumps."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from kvbench.analysis.curves import Cliff, find_cliff
from kvbench.analysis.margins import CLIFF as CLIFF_MARGIN
from kvbench.cells.backend_facts import NO_CHOICES
from kvbench.cells.units import two_digits
from kvbench.report.model import Chart, Code, DataTable, Finding, Part, PartOrReason, Text
from kvbench.report.numbers import bytes_size, count
from kvbench.report.rate_curves import (
    MIN_SIZES,
    RateCurve,
    RateCurves,
    cliff_curves,
    cliff_parts,
    curve_chart,
    evenly_spaced,
    left_out,
)
from kvbench.report.tables import (
    Measured,
    Row,
    any_decidable,
    grid_table,
    includes_of,
    main_path,
    primed_inline,
    rate,
)
from kvbench.report.view import SERIES, View, ceiling_of, grouped, where
from kvbench.text import a_stream, ends, short

_NO_CLIFF = (
    f"No jump between neighbouring block sizes exceeds the ratio of the sizes by {CLIFF_MARGIN.fraction:.0%} or more, "
    f"interval included: {CLIFF_MARGIN.reason}."
)
_HEIGHT = "Faster: GB/s of the larger size over those of the smaller; size explains: the ratio of the sizes, less 1"


def make(view: View) -> PartOrReason:
    curves = cliff_curves(view.pinned)
    return curves if isinstance(curves, str) else partial(_part, view, curves)


def _part(view: View, curves: RateCurves) -> Part:
    highlights = [*_highlights(curves.curves), *_falls(curves.cells), *primed_inline(curves.cells)]
    groups = grouped(curves.curves, lambda curve: (curve.direction, curve.backend, curve.state))
    tables = [_table(view, curves, group) for group in groups.values()]
    none = any_decidable(curves.cells) and not any(curve.cliff for curve in curves.curves)
    return Part([_NO_CLIFF] if none else [], _charts(view, curves), tables, highlights)


def _charts(view: View, curves: RateCurves) -> list[Chart]:
    title = f"GB/s against block size, N = {count(curves.main)} blocks"
    charts = [curve_chart(view, "cliff", curves, {curves.main: ""}, title)]
    several = sorted({curve.panel for curve in curves.curves if len(curve.x) >= MIN_SIZES})
    if len(several) > 1:
        title = f"GB/s against block size, by number of blocks{left_out(several)}"
        rows = {panel: f", N = {count(panel)}" for panel in evenly_spaced(several)}
        charts.append(curve_chart(view, "cliff-by-blocks", curves, rows, title))
    return charts


def _table(view: View, curves: RateCurves, group: Sequence[RateCurve]) -> DataTable:
    direction, backend, state = group[0].direction, group[0].backend, group[0].state
    rows = where(curves.cells, direction=direction, backend=backend, stream_state=state)
    header, body = grid_table(rows, _rate_and_share)
    blank = _blanks(view) if any("" in line for line in body) else []
    long = {curve.panel: ("none", "", "") for curve in group if len(curve.x) >= MIN_SIZES}
    cliffs = long | {curve.panel: cliff_parts(curve.cliff) for curve in group if curve.cliff}
    parts = [cliffs.get(blocks, ("", "", "")) for blocks in sorted(set(rows["blocks"]))]
    lines = zip(("cliff", "faster", "size explains"), zip(*parts, strict=True), strict=True)
    body += [[name, *line] for name, line in lines if name == "cliff" or any(line)]
    ceiling = " not measured" if (gbps := ceiling_of(rows)) is None else f", {gbps:.1f} GB/s"
    title = f"{direction}, {backend}, {state} stream: GB/s (share of the ceiling{ceiling})"
    stem = "" if backend == "batched" else f"{direction}-{backend}-{state}"
    notes = [_HEIGHT] if any(curve.cliff for curve in group) else []
    measured = Measured(view, where(rows, status="ok"), includes_of(state), curves.pinned)
    table = measured.table(title, header, body, notes, stem=stem)
    return replace(table, notes=[*table.notes, *blank])


def _blanks(view: View) -> list[Text]:
    filters = view.run.info.spec.get("filters")
    texts = [text for text in filters if isinstance(text, str)] if isinstance(filters, list) else []
    blank = "Blank: not asked for, or left out by the sweep's filter "
    return [(blank, Code(short(", ".join(texts))))] if texts else []


def _rate_and_share(row: Row) -> Text:
    return f"{rate(row)} ({row['ceiling_share']:.0%})" if math.isfinite(row["ceiling_share"]) else rate(row)


def _highlights(curves: Sequence[RateCurve]) -> list[Finding]:
    """Return a sentence for every backend, direction and stream state of which most curves jump at the same sizes."""
    long = [curve for curve in curves if len(curve.x) >= MIN_SIZES]
    highlights = []
    for (backend, direction, state), group in grouped(long, lambda c: (c.backend, c.direction, c.state)).items():
        cliffs = [(curve, cliff) for curve in group if (cliff := curve.cliff)]
        jumps = grouped(cliffs, lambda one: (one[1].below_bytes, one[1].above_bytes, one[1].rises))
        (below, above, rises), same = max(jumps.items(), key=lambda jump: len(jump[1]), default=((0, 0, False), []))
        if len(same) * 2 <= len(group):
            continue
        heights, excess = [cliff.height for _, cliff in same], [cliff.excess for _, cliff in same]
        other = [c for c in long if (c.backend, c.direction) == (backend, direction) and c.state != state]
        flat = any(any_decidable(curve.points) for curve in other) and not any(curve.cliff for curve in other)
        none = f"; no cliff on {a_stream(other[0].state)}" if flat else ""
        if rises:
            ratio = f"{ends(heights, lambda height: f'{two_digits(height)}x')} the speed of"
            beyond = f", {ends(excess, two_digits)} times more than the size explains"
        else:
            ratio, beyond = f"{ends([100 * (1 - 1 / height) for height in heights], two_digits)}% less GB/s than", ""
        text = (
            f"{backend} {direction} on {a_stream(state)}: {bytes_size(above)} blocks reach {ratio} {bytes_size(below)} "
            f"blocks{beyond} (N = {ends([c.panel for c, _ in same], count)}); {_path_text(same)}{none}."
        )
        highlights.append(Finding(text, math.log(max(excess))))
    return highlights


def _falls(cells: pd.DataFrame) -> list[Finding]:
    """Return the largest fall of GB/s of each backend, direction and state as a swap gets more blocks.

    auto has a section for its choices, whose falls these would be.
    """
    falls: dict[tuple[str, ...], Finding] = {}
    for _, group in where(cells[~cells["backend"].isin(NO_CHOICES)], status="ok").groupby([*SERIES, "block_bytes"]):
        rows = group.sort_values("blocks")
        fall = find_cliff(*(rows[name].tolist() for name in ("blocks", "gbps", "gbps_low", "gbps_high")))
        if fall and not fall.rises:
            backend, direction, state, size = (rows[axis].iloc[0] for axis in (*SERIES, "block_bytes"))
            text = (
                f"{backend} {direction} on {a_stream(state)}: {bytes_size(int(size))} blocks fall from "
                f"{two_digits(fall.below_gbps)} to {two_digits(fall.above_gbps)} GB/s between N = "
                f"{count(fall.below_bytes)} and {count(fall.above_bytes)}."
            )
            finding, series = Finding(text, math.log(fall.height)), (backend, direction, state)
            falls[series] = max(falls.get(series, finding), finding, key=lambda one: one.weight)
    return list(falls.values())


def _path_text(cliffs: Iterable[tuple[RateCurve, Cliff]]) -> str:
    paths = []
    for curve, cliff in cliffs:
        path_at = dict(zip(curve.x, map(main_path, curve.points["path"]), strict=True))
        paths.append((path_at[cliff.below_bytes], path_at[cliff.above_bytes]))
    below, above = (" or ".join(sorted(set(side))) for side in zip(*paths, strict=True))
    return f"path: {below}" if below == above else f"path: {below} below, {above} above"
