"""The comparison of runs: what differs in identity, the cells that both measured side by side, their curves in one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd

from kvbench.analysis.intervals import DRIFT, rank_sum_probability
from kvbench.machine.identity import differing
from kvbench.report.charts.plot import LinePlot
from kvbench.report.curves import CLIFF, GBPS, LADDER, POINT_COLUMNS, CurveKind, RateCurve, RateCurves, plot_panel
from kvbench.report.model import Chart, ChartWords, Code, DataTable, Part, Section, Span
from kvbench.report.numbers import bytes_size, count, figure, size
from kvbench.report.select import DIRECTIONS, LATER, SIDE_AXES, STATES, where
from kvbench.report.tables import Row, grouped, host_mark, includes, rows_of, swap_quartiles
from kvbench.report.view import HOST_COPIES, View, sample_words
from kvbench.results import Scalar
from kvbench.text import short

CHANCE: Final = 0.05
_AXES: Final = ("backend", "direction", "stream_state", "blocks", "block_bytes", "block_size", *SIDE_AXES)
_FIGURES: Final = ("samples", "rounds", "swap_us_q1", "swap_us_median", "swap_us_q3", "gbps", "path")
_MOST_CELLS: Final = 40
_SIGNS: Final = {"slower": "", "faster": "", "drift": "≈ ", "noise": "≈ ", "undecided": ""}
_VERDICT: Final = (
    f"Slower, faster: by more than {DRIFT:.0%} and beyond the noise, the medians of the visits lie apart as they would "
    f"by chance in at most {CHANCE:.0%} of such cells (Mann-Whitney). ≈ drift: beyond the noise, but by no more than "
    "runs of one build may lie apart, one after the other; kvbench gate compare, which measures in turn, finds smaller "
    "differences. ≈ noise: inside the noise. Undecided: too few visits to tell, four of each run are enough"
)


@dataclass(frozen=True, slots=True)
class Pairing:
    """`other` against `base`: the rows of the cells that both measured.

    `cells` has the axes (one of `LATER` only where `base` has swept it), `_base` and `_other` of the figures, `change`
    (other over base - 1 of the medians of swap_us), `chance` of such visits if there were no difference, and `verdict`:
    slower, faster, drift (beyond the noise, but by no more than `DRIFT`), noise or undecided. The largest changes for
    the worse come first, slower and faster before the others.
    """

    base: View
    other: View
    cells: pd.DataFrame

    @property
    def views(self) -> tuple[View, View]:
        return self.base, self.other

    def count(self, verdict: str) -> int:
        return len(where(self.cells, verdict=verdict))


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
        [sentence] if pairing.count("undecided") < len(pairing.cells) else [],
        {f"comparison-{base.label}-{view.label}.csv": pairing.cells.to_csv(index=False).encode()},
    )


SECTION = Section("comparison", "Comparison of runs", make)


def base_of(view: View) -> View | None:
    """Return the earlier run that shares most measured cells with `view`, None where none shares any."""
    ids = set(view.measured["cell_id"])
    shared = [len(ids.intersection(base.measured["cell_id"])) for base in view.earlier]
    return view.earlier[shared.index(max(shared))] if any(shared) else None


def _cells(base: View, other: View) -> pd.DataFrame:
    axes = [axis for axis in _AXES if axis not in LATER or base.measured[axis].notna().any()]
    both = base.measured[["cell_id", *axes, *_FIGURES]].merge(
        other.measured[["cell_id", *_FIGURES]], on="cell_id", suffixes=("_base", "_other")
    )
    change = both["swap_us_median_other"] / both["swap_us_median_base"] - 1
    visits = [_visits(view, both["cell_id"]) for view in (base, other)]
    pairs = [tuple(found[cell] for found in visits) for cell in both["cell_id"]]
    both = both.assign(change=change, chance=[rank_sum_probability(a, b) for a, b in pairs])
    # how unlikely any times of as many visits could be without a difference
    least = np.array([rank_sum_probability([0.0] * len(a), [1.0] * len(b)) for a, b in pairs])
    both["verdict"] = np.select(
        [least > CHANCE, both["chance"] > CHANCE, change > DRIFT, change < -DRIFT],
        ["undecided", "noise", "slower", "faster"],
        "drift",
    )
    return both.iloc[np.lexsort((-both["change"], ~both["verdict"].isin(["slower", "faster"])))]


def _visits(view: View, cell_ids: "pd.Series[str]") -> dict[str, list[float]]:
    """Return cell id -> median of swap_us of every visit."""
    samples = view.all_samples
    medians = samples[samples["cell_id"].isin(cell_ids)].groupby(["cell_id", "round"], sort=False)["swap_us"].median()
    return {str(cell): found.tolist() for cell, found in medians.groupby(level="cell_id", sort=False)}


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
    for verdict, ends in (("slower", "max"), ("faster", "min")):
        changes = where(pairing.cells, verdict=verdict)["change"]
        most = "" if changes.empty else f" (by up to {getattr(changes, ends)():+.1%})"
        parts.append(f"{count(len(changes))} {verdict}{most}")
    if drift := pairing.count("drift"):
        parts.append(f"{count(drift)} apart by no more than {DRIFT:.0%}, as runs of one build may be")
    parts.append(f"{count(pairing.count('noise'))} inside the noise")
    if undecided := pairing.count("undecided"):
        parts.append(f"{count(undecided)} undecided for too few visits")
    cells = f"{count(len(pairing.cells))} cells of both"
    return f"{pairing.other.label} against {pairing.base.label}, {cells}: {', '.join(parts)}."


def _differences(pairing: Pairing) -> DataTable:
    rows = [tuple(map(short, words)) for words in differing(*map(_identity, pairing.views))]
    same = "Everything else in the identity is the same" if rows else "The identities are the same"
    header = ("Field", pairing.base.label, pairing.other.label)
    return DataTable("What differs in identity", header, rows, [], (f"{same}. ", *_origin(pairing)), left=3)


def _by_backend(pairing: Pairing) -> DataTable:
    rows = []
    for names, cells in pairing.cells.groupby(["backend", "direction", "stream_state"]):
        counts = [count(len(where(cells, verdict=verdict))) for verdict in _SIGNS]
        rows.append([*map(str, names), count(len(cells)), f"{cells['change'].median():+.1%}", *counts])
    verdicts = (f"{sign}{name}".capitalize() for name, sign in _SIGNS.items())
    header = ("Backend", "Dir", "Stream", "Cells", "Median delta", *verdicts)
    return DataTable("By backend: cells beyond the noise", header, rows, [_VERDICT], _origin(pairing), left=3)


def _cell_table(pairing: Pairing) -> DataTable:
    cells = pairing.cells
    shown = cells.head(_MOST_CELLS)
    varying = [axis for axis in SIDE_AXES if axis in shown and shown[axis].nunique(dropna=False) > 1]
    rows = [_row(row, varying) for row in rows_of(shown.astype(dict.fromkeys(varying, "string")))]
    more = f" (the {_MOST_CELLS} slowest of {count(len(cells))})" if len(cells) > len(shown) else ""
    labels = (f"{view.label} us" for view in pairing.views)
    header = ("Backend", "Dir", "Stream", "Blocks", "Block size", "Other axes", *labels, "Delta", "Verdict")
    states = ". ".join(includes(shown["stream_state"], "Time"))
    caption = (f"Medians of swap_us with [quartiles]. {states}. ", *_origin(pairing))
    return DataTable(f"Cell by cell, worst first{more}", header, rows, [_VERDICT], caption, left=6)


def _row(row: Row, varying: Iterable[str]) -> list[str]:
    others = ", ".join(f"{axis} {row[axis]}" for axis in varying if isinstance(row[axis], str))
    quartiles = [swap_quartiles(row, f"_{side}") for side in ("base", "other")]
    times = [f"{figure(time.median)} [{figure(time.low)}, {figure(time.high)}]" for time in quartiles]
    verdict = f"{_SIGNS[row['verdict']]}{row['verdict']}"
    cell = [row["backend"], row["direction"], row["stream_state"], count(row["blocks"]), size(row["block_size"])]
    return [*cell, others, *times, f"{row['change']:+.1%}", verdict]


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
    found = []
    for kind, subject in ((CLIFF, "block size"), (LADDER, "the SM count")):
        both = [kind.pick(view.frame[view.frame["cell_id"].isin(pairing.cells["cell_id"])]) for view in pairing.views]
        curves = [one for one in both if isinstance(one, RateCurves)]
        if len(curves) == len(both):
            title = f"GB/s against {subject}, N = {count(curves[0].main)} blocks"
            found.append(_chart(pairing, kind, title, curves))
    return found


def _chart(pairing: Pairing, kind: CurveKind, subject: str, both: Sequence[RateCurves]) -> Chart:
    base, other = (view.label for view in pairing.views)
    curves = [
        replace(curve, run=(place, view.label))
        for place, (view, found) in enumerate(zip(pairing.views, both, strict=True))
        for curve in found.curves
    ]
    rows = _rows(kind, curves, both[0].main)
    heads = "; ".join(f"{view.label}: {view.heading}" for view in pairing.views)
    words = ChartWords(
        title=f"{subject}: {base} and {other}",
        subtitle=f"{heads} · band: quartiles",
        footer=includes((curve.state for curve in curves), "GB/s"),
        warning=HOST_COPIES if any(view.on_host for view in pairing.views) else "",
    )
    drawn = [curve for row in rows.values() for way in DIRECTIONS for curve in row if curve.direction == way]
    ways = [way for way in DIRECTIONS if any(curve.direction == way for curve in drawn)]
    panels = [
        [plot_panel(kind, f"{way}, {title}", [c for c in row if c.direction == way], base) for way in ways]
        for title, row in rows.items()
    ]
    plot = LinePlot(kind.x, GBPS, panels)
    points = pd.concat(curve.points[list(POINT_COLUMNS)].assign(run=curve.run[1]) for curve in drawn if curve.run)
    return Chart(f"comparison-{kind.name}-{base}-{other}", words, plot, points)


def _rows(kind: CurveKind, curves: Sequence[RateCurve], main: int) -> dict[str, list[RateCurve]]:
    """Return the curves by stream state, of a ladder by block size too, so that a panel is about runs alone."""
    shown = [curve for curve in curves if kind is LADDER or curve.panel == main]
    shown.sort(key=lambda curve: (curve.panel, STATES.index(curve.state)))
    size = {curve.panel: f"{bytes_size(curve.panel)} blocks, " if kind is LADDER else "" for curve in shown}
    return grouped(shown, lambda curve: f"{size[curve.panel]}{curve.state} stream")
