"""The comparison of runs: what differs in identity, the cells that both measured side by side, their curves in one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from kvbench.analysis.intervals import DRIFT
from kvbench.report import markdown as md
from kvbench.report.blocks import DIRECTIONS, Block, Chart, Section, line_files
from kvbench.report.charts import pictures
from kvbench.report.charts.layout import Grid, Panel, Words, plain
from kvbench.report.charts.palette import Ink
from kvbench.report.charts.plot import LinePlot, ladder_plot, size_plot
from kvbench.report.curves import Curve, Curves, cliff_curves, ladder_curves
from kvbench.report.pairing import CHANCE, Pairing, pairings
from kvbench.report.select import SIDE_AXES, STATES
from kvbench.report.tables import INCLUDES, Row, Table, rows_of
from kvbench.report.view import HOST_COPIES, View, sample_words

_MOST_CELLS: Final = 40
_WORDS: Final = {
    "slower": "slower",
    "faster": "faster",
    "drift": "≈ drift",
    "noise": "≈ noise",
    "undecided": "undecided",
}
_VERDICT: Final = (
    f"Slower, faster: by more than {DRIFT:.0%} and beyond the noise, the medians of the visits lie apart as they would "
    f"by chance in at most {CHANCE:.0%} of such cells (Mann-Whitney). ≈ drift: beyond the noise, but by no more than "
    "runs of one build may lie apart, one after the other; kvbench gate compare, which measures in turn, finds smaller "
    "differences. ≈ noise: inside the noise. Undecided: too few visits to tell, four of each run are enough"
)


def with_comparison(sections: Sequence[Section], views: Sequence[View]) -> Sequence[Section]:
    """Return the sections and one that compares each run with an earlier one of the same cells, where there is one.

    It comes first where machine, driver or build differ, last where the runs are of one machine.
    """
    found = pairings(views)
    if not found:
        return sections
    apart = any(pairing.base.run.info.identity_hash != pairing.other.run.info.identity_hash for pairing in found)
    return [_section(found), *sections] if apart else [*sections, _section(found)]


def _section(pairs: Sequence[Pairing]) -> Section:
    found = {pairing.other.label: pairing for pairing in pairs}

    def make(view: View, inks: Mapping[str, Ink]) -> Block | str:
        pairing = found.get(view.label)
        return _block(pairing, inks) if pairing else ""

    return Section("A/B", "Comparison of runs", make)


def _block(pairing: Pairing, inks: Mapping[str, Ink]) -> Block:
    name = f"comparison-{pairing.base.label}-{pairing.other.label}.csv"
    sentence = _sentence(pairing)
    tables = [_differences(pairing), _by_backend(pairing), _cell_table(pairing)]
    files = {name: pairing.cells.to_csv(index=False).encode()}
    told = [sentence] if pairing.count("undecided") < len(pairing.cells) else []
    return Block([sentence], _charts(pairing, inks), tables, told, files)


def _sentence(pairing: Pairing) -> str:
    parts = []
    for verdict, ends in (("slower", "max"), ("faster", "min")):
        changes = pairing.cells.loc[pairing.cells["verdict"] == verdict, "change"]
        most = "" if changes.empty else f" (by up to {getattr(changes, ends)():+.1%})"
        parts.append(f"{md.count(len(changes))} {verdict}{most}")
    drift = pairing.count("drift")
    parts += [f"{md.count(drift)} apart by no more than {DRIFT:.0%}, as runs of one build may be"] if drift else []
    parts.append(f"{md.count(pairing.count('noise'))} inside the noise")
    undecided = pairing.count("undecided")
    parts += [f"{md.count(undecided)} undecided for too few visits"] if undecided else []
    return (
        f"{pairing.other.label} against {pairing.base.label}, {md.count(len(pairing.cells))} cells of both: "
        f"{', '.join(parts)}."
    )


def _differences(pairing: Pairing) -> Table:
    fields = pairing.differences
    rows = [tuple(map(md.escape, field)) for field in fields]
    same = "Everything else in the identity is the same" if rows else "The identities are the same"
    header = ("Field", pairing.base.label, pairing.other.label)
    return Table("What differs in identity", header, rows, [], f"{same}. {_origin(pairing)}", left=3)


def _by_backend(pairing: Pairing) -> Table:
    rows = []
    for (backend, way, state), cells in pairing.cells.groupby(["backend", "direction", "stream_state"]):
        verdicts = cells["verdict"].value_counts()
        rows.append(
            [
                md.escape(backend),
                str(way),
                str(state),
                md.count(len(cells)),
                f"{cells['change'].median():+.1%}",
                *(md.count(int(verdicts.get(verdict, 0))) for verdict in _WORDS),
            ]
        )
    header = ("Backend", "Dir", "Stream", "Cells", "Median delta", *(word.capitalize() for word in _WORDS.values()))
    return Table("By backend: cells beyond the noise", header, rows, [_VERDICT], _origin(pairing), left=3)


def _cell_table(pairing: Pairing) -> Table:
    cells = pairing.cells
    shown = cells.head(_MOST_CELLS)
    varying = [axis for axis in SIDE_AXES if axis in shown and shown[axis].nunique(dropna=False) > 1]
    rows = [_row(row, varying) for row in rows_of(shown.astype(dict.fromkeys(varying, "string")))]
    more = f" (the {_MOST_CELLS} slowest of {md.count(len(cells))})" if len(cells) > len(shown) else ""
    labels = (f"{view.label} us" for view in (pairing.base, pairing.other))
    header = ("Backend", "Dir", "Stream", "Blocks", "Block size", "Other axes", *labels, "Delta", "Verdict")
    states = [INCLUDES[state].replace("GB/s", "Time", 1) for state in STATES if state in set(shown["stream_state"])]
    caption = f"Medians of swap_us with [quartiles]. {'. '.join(states)}. {_origin(pairing)}"
    return Table(f"Cell by cell, worst first{more}", header, rows, [_VERDICT], caption, left=6)


def _row(row: Row, varying: Iterable[str]) -> list[str]:
    others = [f"{axis} {row[axis]}" for axis in varying if isinstance(row[axis], str)]
    times = [
        f"{md.figure(row[f'swap_us_median_{side}'])} "
        f"[{md.figure(row[f'swap_us_q1_{side}'])}, {md.figure(row[f'swap_us_q3_{side}'])}]"
        for side in ("base", "other")
    ]
    return [
        md.escape(row["backend"]),
        row["direction"],
        row["stream_state"],
        md.count(row["blocks"]),
        md.size(row["block_size"]),
        md.escape(", ".join(others)),
        *times,
        f"{row['change']:+.1%}",
        _WORDS[row["verdict"]],
    ]


def _origin(pairing: Pairing) -> str:
    parts = []
    for side, view in (("base", pairing.base), ("other", pairing.other)):
        samples = pairing.cells[[f"samples_{side}"]].rename(columns={f"samples_{side}": "samples"})
        words = " · ".join(map(md.escape, (view.title, view.driver, view.date, sample_words(samples))))
        host = f"**{HOST_COPIES}** " if view.on_host else ""
        parts.append(f"{view.label}: {host}{words}, reproduced by {md.code(view.command)}")
    return f"{'; '.join(parts)}."


def _charts(pairing: Pairing, inks: Mapping[str, Ink]) -> list[Chart]:
    found = []
    for name, subject, pick, draw, model in (
        ("cliff", "GB/s against block size, N = {main} blocks", cliff_curves, pictures.cliff_chart, size_plot),
        ("sm-ladder", "GB/s against the SM count, N = {main} blocks", ladder_curves, pictures.sm_chart, ladder_plot),
    ):
        both = [pick(view.frame[view.frame["cell_id"].isin(pairing.cells["cell_id"])]) for view in _views(pairing)]
        curves = [one for one in both if isinstance(one, Curves)]
        if len(curves) == len(both):
            title = subject.format(main=md.count(curves[0].main))
            found.append(_chart(pairing, name, title, curves, draw, model, inks))
    return found


def _chart(
    pairing: Pairing,
    name: str,
    subject: str,
    both: Sequence[Curves],
    draw: Callable[[Grid, Words, Mapping[str, Ink]], dict[str, bytes]],
    model: Callable[[Grid, Words, str], LinePlot],
    inks: Mapping[str, Ink],
) -> Chart:
    base, other = (view.label for view in _views(pairing))
    curves = [
        replace(curve, run=(place, view.label))
        for place, (view, found) in enumerate(zip(_views(pairing), both, strict=True))
        for curve in found.curves
    ]
    grid = _cliff_grid(curves, both[0].main) if name == "cliff" else _ladder_grid(curves)
    title = f"{subject}: {base} and {other}"
    heads = [f"{view.label}: {view.title} · {view.driver} · {view.date}" for view in _views(pairing)]
    states = [INCLUDES[state] for state in STATES if any(curve.state == state for curve in curves)]
    words = Words(
        title=title,
        subtitle=plain(f"{'; '.join(heads)} · band: quartiles"),
        footer=plain("\n".join(states)),
        warning=HOST_COPIES if any(view.on_host for view in _views(pairing)) else "",
    )
    alternative = f"{title} ({HOST_COPIES})" if words.warning else title
    picture = partial(draw, grid, words, inks)
    stem = f"comparison-{name}-{base}-{other}"
    return Chart(stem, alternative, line_files(grid), picture, model(grid, words, base))


def _cliff_grid(curves: Sequence[Curve], main: int) -> Grid:
    here = [curve for curve in curves if curve.panel == main]
    return _rows({state: [curve for curve in here if curve.state == state] for state in STATES}, "{} stream")


def _ladder_grid(curves: Sequence[Curve]) -> Grid:
    rows = {
        f"{md.bytes_size(size)} blocks, {state} stream": [
            curve for curve in curves if (curve.panel, curve.state) == (size, state)
        ]
        for size in sorted({curve.panel for curve in curves})
        for state in STATES
    }
    return _rows(rows, "{}")


def _rows(groups: Mapping[str, Sequence[Curve]], words: str) -> list[list[Panel]]:
    ways = [way for way in DIRECTIONS if any(c.direction == way for group in groups.values() for c in group)]
    return [
        [Panel(f"{way}, {words.format(name)}", [c for c in group if c.direction == way], None) for way in ways]
        for name, group in groups.items()
        if group
    ]


def _views(pairing: Pairing) -> tuple[View, View]:
    return pairing.base, pairing.other
