"""The comparison of runs: what differs in identity, and the times of the cells that both measured."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from kvbench.analysis.compare import Verdict, compare_apart
from kvbench.analysis.margins import BETWEEN_RUNS
from kvbench.machine.identity import differing
from kvbench.report.charts.plot import LinePlot, PlotAxis, PlotLine
from kvbench.report.curves import (
    CLIFF,
    LADDER,
    POINT_COLUMNS,
    CurveKind,
    RateCurve,
    RateCurves,
    curve_line,
    curve_panels,
    line_labels,
    spread,
)
from kvbench.report.model import Chart, ChartWords, Code, DataTable, Finding, Part, Section, Span
from kvbench.report.numbers import TIMES, bytes_size, count, figure, noun, size, two_digits
from kvbench.report.select import LATER, SIDE_AXES, where
from kvbench.report.tables import Row, family, host_mark, includes, rows_of
from kvbench.report.view import HOST_COPIES, View, sample_words
from kvbench.results import Scalar
from kvbench.results.frame import as_csv
from kvbench.text import short

_AXES: Final = ("backend", "direction", "stream_state", "blocks", "block_bytes", "block_size", *SIDE_AXES)
_FIGURES: Final = ("samples", "rounds", "swap_us_low", "swap_us_median", "swap_us_high", "gbps", "path")
_MOST_CELLS: Final = 40
_BAND: Final = ("ratio", "ratio_low", "ratio_high")
_RATIO: Final = PlotAxis("ratio of times", "figure", "linear", zero=False)
_ORDER: Final = (Verdict.SLOWER, Verdict.FASTER, Verdict.SAME, Verdict.UNDECIDED)
_VERDICT: Final = (
    f"Slower, faster: the whole 95% interval of the ratio, from the medians of the visits, lies beyond "
    f"{BETWEEN_RUNS.fraction:.0%}. Same: the whole interval lies within, because {BETWEEN_RUNS.reason}; kvbench gate "
    "compare, which measures in turn, finds smaller differences. Undecided: neither, or fewer than four visits in a run"
)


@dataclass(frozen=True, slots=True)
class Pairing:
    """`other` against `base`: the rows of the cells that both measured.

    `cells` has the axes (one of `LATER` only where `base` has swept it), `_base` and `_other` of the figures, `change`
    (the time of other over that of base, less 1) with its interval in `change_low` and `change_high`, and `verdict`.
    The largest changes for the worse come first, SLOWER and FASTER before the others.
    """

    base: View
    other: View
    cells: pd.DataFrame

    @property
    def views(self) -> tuple[View, View]:
        return self.base, self.other

    def of(self, verdict: Verdict) -> pd.DataFrame:
        return where(self.cells, verdict=verdict)


def make(view: View) -> Part | str:
    base = base_of(view)
    if base is None:
        return ""
    pairing = Pairing(base, view, _cells(base, view))
    sentence = _sentence(pairing)
    return Part(
        [sentence],
        _charts(pairing),
        [_differences(pairing), _by_backend(pairing), _cell_table(pairing)],
        [Finding(sentence, _weight(pairing))] if len(pairing.of(Verdict.UNDECIDED)) < len(pairing.cells) else [],
        {f"comparison-{base.label}-{view.label}.csv": as_csv(pairing.cells)},
        weight=len(pairing.cells),
    )


SECTION = Section("comparison", "Comparison: runs against each other", make)


def base_of(view: View) -> View | None:
    """Return the earlier run that shares most measured cells with `view`, None where none shares any."""
    shared = [len(view.measured_ids & base.measured_ids) for base in view.earlier]
    return view.earlier[shared.index(max(shared))] if any(shared) else None


def _cells(base: View, other: View) -> pd.DataFrame:
    axes = [axis for axis in _AXES if axis not in LATER or base.measured[axis].notna().any()]
    both = base.measured[["cell_id", *axes, *_FIGURES]].merge(
        other.measured[["cell_id", *_FIGURES]], on="cell_id", suffixes=("_base", "_other")
    )
    both = both[both["cell_id"].isin(base.visits) & both["cell_id"].isin(other.visits)]
    times = ([list(view.visits[cell].values()) for view in (base, other)] for cell in both["cell_id"])
    found = [compare_apart(before, after, BETWEEN_RUNS) for before, after in times]
    both = both.assign(
        change=[one.ratio - 1 for one in found],
        change_low=[one.low - 1 for one in found],
        change_high=[one.high - 1 for one in found],
        verdict=[one.verdict.value for one in found],
    )
    return both.iloc[np.lexsort((-both["change"], ~both["verdict"].isin(_ORDER[:2])))]


def _identity(view: View) -> dict[str, Scalar]:
    """Return a run's identity, and what else may differ: the version of kvbench, the day, the ceilings."""
    info = view.run.info
    ceilings = view.measured.groupby("direction")["ceiling_gbps"].first()
    own: dict[str, Scalar] = {"kvbench": info.kvbench, "device": view.title, "date": view.date}
    for way, rate in ceilings.dropna().items():
        own[f"ceiling {way} GB/s"] = round(float(rate), 1)
    return dict(info.identity) | own


def _sentence(pairing: Pairing) -> str:
    parts = []
    for verdict, ends in ((Verdict.SLOWER, "max"), (Verdict.FASTER, "min")):
        changes = pairing.of(verdict)["change"]
        most = "" if changes.empty else f" (by up to {two_digits(100 * abs(getattr(changes, ends)()))}%)"
        parts.append(f"{count(len(changes))} {verdict.lower()}{most}")
    parts.append(f"{count(len(pairing.of(Verdict.SAME)))} the same within {BETWEEN_RUNS.fraction:.0%}")
    parts.append(f"{count(len(pairing.of(Verdict.UNDECIDED)))} undecided")
    cells = f"{noun(len(pairing.cells), 'cell')} in common"
    return f"{pairing.other.label} against {pairing.base.label}, {cells}: {', '.join(parts)}."


def _weight(pairing: Pairing) -> float:
    """Return the largest change that a verdict was reached on."""
    told = pairing.cells[pairing.cells["verdict"].isin(_ORDER[:2])]["change"]
    return float(np.abs(np.log1p(told)).max()) if len(told) else 0.0


def _differences(pairing: Pairing) -> DataTable:
    rows = [tuple(map(short, words)) for words in differing(*map(_identity, pairing.views))]
    same = "Everything else in the identity is the same" if rows else "The identities are the same"
    header = ("Field", pairing.base.label, pairing.other.label)
    return DataTable("What differs in identity", header, rows, [], (f"{same}. ", *_origin(pairing)), left=3)


def _by_backend(pairing: Pairing) -> DataTable:
    rows = []
    for names, cells in pairing.cells.groupby(["backend", "direction", "stream_state"]):
        counts = [count(len(where(cells, verdict=verdict))) for verdict in _ORDER]
        ratio = f"{TIMES}{1 + cells['change'].median():.3f}"
        rows.append([*map(str, names), count(len(cells)), ratio, *counts])
    header = ("Backend", "Dir", "Stream", "Cells", "Median ratio", *(verdict.capitalize() for verdict in _ORDER))
    notes = [_VERDICT, *family(len(pairing.cells))]
    title = f"Time of {pairing.other.label} / time of {pairing.base.label}, by backend"
    return DataTable(title, header, rows, notes, _origin(pairing), left=3)


def _cell_table(pairing: Pairing) -> DataTable:
    cells = pairing.cells
    shown = cells.head(_MOST_CELLS)
    varying = [axis for axis in SIDE_AXES if axis in shown and shown[axis].nunique(dropna=False) > 1]
    rows = [_row(row, varying) for row in rows_of(shown.astype(dict.fromkeys(varying, "string")))]
    more = f" (the {_MOST_CELLS} slowest of {count(len(cells))})" if len(cells) > len(shown) else ""
    labels = (f"{view.label} us" for view in pairing.views)
    header = ("Backend", "Dir", "Stream", "Blocks", "Block size", "Other axes", *labels, "Ratio (95%)", "Verdict")
    states = ". ".join(includes(shown["stream_state"], "Time"))
    caption = (f"Medians of swap_us. {states}. ", *_origin(pairing))
    return DataTable(f"Cell by cell, worst first{more}", header, rows, [], caption, left=6, stem="cells")


def _row(row: Row, varying: Iterable[str]) -> list[str]:
    others = ", ".join(f"{axis} {row[axis]}" for axis in varying if isinstance(row[axis], str))
    times = [figure(row[f"swap_us_median_{side}"]) for side in ("base", "other")]
    cell = [row["backend"], row["direction"], row["stream_state"], count(row["blocks"]), size(row["block_size"])]
    known = np.isfinite(row["change_high"])
    interval = f" ({1 + row['change_low']:.3f} to {1 + row['change_high']:.3f})" if known else ""
    return [*cell, others, *times, f"{TIMES}{1 + row['change']:.3f}{interval}", row["verdict"].lower()]


def _origin(pairing: Pairing) -> tuple[Span, ...]:
    """Return where the figures of both come from."""
    words: list[Span] = []
    for view, side in zip(pairing.views, ("base", "other"), strict=True):
        samples = sample_words(pairing.cells[[f"samples_{side}"]].set_axis(["samples"], axis="columns"))
        words += [
            f"{view.label}: ",
            *host_mark(view),
            f"{view.heading} · {samples}, reproduced by ",
            Code(view.command),
        ]
        words.append("; " if side == "base" else ".")
    return tuple(words)


def _charts(pairing: Pairing) -> list[Chart]:
    """Return the ratios of times against block size, and against the SM count, where there are enough of either."""
    ratios = pairing.cells.set_index("cell_id")[["change", "change_low", "change_high"]] + 1
    ratios.columns = pd.Index(_BAND)
    known = np.isfinite(ratios["ratio_high"])  # where there is no interval there is no band
    ratios = ratios.assign(**{end: ratios[end].where(known, ratios["ratio"]) for end in _BAND[1:]})
    both = pairing.base.frame[pairing.base.frame["cell_id"].isin(pairing.cells["cell_id"])]
    picked = {kind.name: (kind, kind.pick(both)) for kind in (CLIFF, LADDER)}
    return [_chart(pairing, kind, curves, ratios) for kind, curves in picked.values() if isinstance(curves, RateCurves)]


def _chart(pairing: Pairing, kind: CurveKind, curves: RateCurves, ratios: pd.DataFrame) -> Chart:
    """Return the chart of `ratios`, which have the columns `_BAND` and stand by cell id, over the axis of `kind`."""
    base, other = (view.label for view in pairing.views)
    sizes = spread(sorted({curve.panel for curve in curves.curves}))
    rows = {size: f", {bytes_size(size)} blocks" for size in sizes} if kind is LADDER else {curves.main: ""}
    drawn = [curve for curve in curves.curves if curve.panel in rows]
    labels = line_labels(drawn)

    def line(curve: RateCurve) -> PlotLine:
        return curve_line(base, curve, labels, curve.points.join(ratios, on="cell_id"), _BAND)

    subject = "the SM count" if kind is LADDER else "block size"
    words = ChartWords(
        title=f"Time of {other} over time of {base}, against {subject}, N = {count(curves.main)} blocks",
        subtitle=f"{'; '.join(f'{view.label}: {view.heading}' for view in pairing.views)} · band: 95% interval",
        footer=includes((curve.state for curve in drawn), "Time"),
        warning=HOST_COPIES if any(view.on_host for view in pairing.views) else "",
    )
    points = pd.concat([curve.points[list(POINT_COLUMNS)] for curve in drawn]).join(ratios, on="cell_id")
    plot = LinePlot(kind.x, _RATIO, curve_panels(curves, rows, line, {}))
    return Chart(f"comparison-{kind.name}-{base}-{other}", words, plot, points)
