"""The chart of the queue's depth: submission time over queued swaps, a line per backend, swap and number of streams."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from kvbench.report import markdown as md
from kvbench.report.charts.layout import PANEL_WIDTH, Words, lay_out
from kvbench.report.charts.lines import page, render, spaced, styled
from kvbench.report.charts.palette import Ink
from kvbench.report.sections.queue_depth import QueueLine

Grid = Sequence[Sequence[Sequence[QueueLine]]]

_POOL: Final = (0, (4, 1.8))
_LABEL_POINTS: Final = 13
_LABEL_INCHES: Final = 0.34
_ROOM: Final = 0.06  # of the height, above the lines and below


def queue_chart(grid: Grid, words: Words, inks: Mapping[str, Ink]) -> dict[str, bytes]:
    """Return {"png": …, "svg": …}: a row of `grid` is a row of panels; both axes logarithmic, 0 queued at the left."""
    lines = [line for row in grid for panel in row for line in panel]
    with styled():
        keys = _legend(lines, inks)
        layout = lay_out(grid, words, [str(key.get_label()) for key in keys])
        figure = page(layout, keys)
        axes = figure.subplots(len(grid), max(map(len, grid)), squeeze=False, gridspec_kw=layout.gridspec)
        depths = sorted({depth for line in lines for depth in line.times})
        knees = max(sum(line.knee is not None for line in panel) for row in grid for panel in row)
        limits = _limits(lines, knees * _LABEL_POINTS / (72 * layout.panel))
        for row, panels in zip(axes, grid, strict=True):
            for ax, panel in zip(row, panels, strict=True):
                _draw(ax, panel, inks)
                _dress(ax, depths)
                ax.set_ylim(limits)
                ax.label_outer()
            row[0].set_ylabel("us a submission", labelpad=1)
        return render(figure)


def _draw(ax: Axes, lines: Sequence[QueueLine], inks: Mapping[str, Ink]) -> None:
    if not lines:
        ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center")
        return
    ax.set_title(f"{lines[0].direction}, {spaced(lines[0].block_bytes)} blocks")
    for line in lines:
        ink, times = inks[line.backend], line.times
        ax.fill_between(
            list(times),
            [time.low for time in times.values()],
            [time.high for time in times.values()],
            color=ink.colour,
            alpha=0.18,
            linewidth=0,
        )
        ax.add_line(_line(line, ink, list(times), [time.median for time in times.values()]))
    for place, line in enumerate(line for line in lines if line.knee):
        _mark_knee(ax, line, inks[line.backend], place)


def _mark_knee(ax: Axes, line: QueueLine, ink: Ink, place: int) -> None:
    """Ring the knee, and write it in the upper left corner, above the shallow queues."""
    knee = line.knee
    assert knee is not None
    ax.plot(
        [knee.depth], [knee.submit_us], marker="o", markersize=11, markerfacecolor="none", markeredgecolor=ink.colour
    )
    ax.annotate(
        f"{line.label}: knee at {md.count(knee.depth)}, \N{MULTIPLICATION SIGN}{md.figure(knee.height)}",
        (0, 1),
        xycoords="axes fraction",
        xytext=(4, -2 - _LABEL_POINTS * place),
        textcoords="offset points",
        va="top",
        fontsize=8,
        fontweight="bold",
        color=ink.text,
    )


def _line(line: QueueLine, ink: Ink, x: Sequence[float], y: Sequence[float]) -> Line2D:
    return Line2D(
        x,
        y,
        color=ink.colour,
        linestyle="-" if line.streams == 1 else _POOL,
        linewidth=1.7,
        marker=ink.marker,
        markersize=4.5,
        markerfacecolor=ink.colour if line.streams == 1 else "white",
        label=line.label,
    )


def _legend(lines: Iterable[QueueLine], inks: Mapping[str, Ink]) -> list[Line2D]:
    return list({line.label: _line(line, inks[line.backend], [], []) for line in lines}.values())


def _limits(lines: Iterable[QueueLine], headroom: float) -> tuple[float, float]:
    """Return the ends of the logarithmic y axis: all quartiles, and above them a share of the height for the knees."""
    ends = [end for line in lines for time in line.times.values() for end in (time.low, time.high) if end > 0]
    low, high = math.log10(min(ends, default=1.0)), math.log10(max(ends, default=1.0))
    span = max(high - low, 1.0) / max(1 - headroom - 2 * _ROOM, 0.2)
    return 10 ** (low - _ROOM * span), 10 ** (low + (1 - _ROOM) * span)


def _dress(ax: Axes, depths: Sequence[int]) -> None:
    """Scale both axes and label every depth that has room, the smallest first; the others get a tick."""
    ax.set_xscale("symlog", base=2, linthresh=1)
    ax.set_yscale("log")
    octaves_a_label = _LABEL_INCHES / PANEL_WIDTH * 1.15 * max(1.0, _place(depths[-1]) - _place(depths[0]))
    named: list[int] = []
    for depth in depths:
        if all(abs(_place(depth) - _place(other)) >= octaves_a_label for other in named):
            named.append(depth)
    ax.set_xticks(named, [md.count(depth) for depth in named], fontsize=7.5)
    ax.xaxis.set_minor_locator(FixedLocator(list(depths)))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda time, _: f"{time:g}"))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.tick_params(axis="y", labelsize=7.5)
    ax.set_xlim(depths[0] - (0.3 if depths[0] < 1 else 0.2 * depths[0]), depths[-1] * 1.3)
    ax.set_xlabel("queued swaps")


def _place(depth: float) -> float:
    """Return where a depth stands on the axis, in octaves: linear up to 1, logarithmic from there."""
    return 1 + math.log2(depth) if depth > 1 else depth
