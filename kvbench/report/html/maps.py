"""The crossover map as a coloured table: it needs no script, prints, and is read aloud cell by cell."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Final

from kvbench.analysis.intervals import Quartiles
from kvbench.report import markdown as md
from kvbench.report.charts.palette import RATIO_KEYS, RATIO_OCTAVES, is_dark, ratio_colour
from kvbench.report.charts.plot import MapPlot
from kvbench.report.html.templates import template
from kvbench.report.ratios import RatioMap

_STEPS_AN_OCTAVE: Final = 4
_LAST_STEP: Final = round(_STEPS_AN_OCTAVE * RATIO_OCTAVES)


@dataclass(frozen=True, slots=True)
class Tile:
    """A cell of the map: the class of its colour, its figure, and in words what stands behind it."""

    step: str
    figure: str
    words: str
    decided: bool


@dataclass(frozen=True, slots=True)
class MapTable:
    """A panel as a table: numbers of blocks across, block sizes down from the largest; None where nothing is known."""

    title: str
    counts: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Tile | None]]]


def map_figure(plot: MapPlot, stem: str) -> str:
    """Return the HTML of a map's figure."""
    tables = [_table(panel) for row in plot.grid for panel in row]
    keys = [(_step(ratio), words) for ratio, words in RATIO_KEYS.items()]
    return template("map.html").render(stem=stem, words=plot.words, tables=tables, keys=keys)


def map_style() -> str:
    """Return the style sheet of the maps' colours: a class for every quarter of an octave."""
    rules = []
    for step in range(-_LAST_STEP, _LAST_STEP + 1):
        colour = ratio_colour(2 ** (step / _STEPS_AN_OCTAVE))
        red, green, blue = (round(255 * part) for part in colour)
        letters = "#fff" if is_dark(colour) else "#000"
        rules.append(f".tile.r{step}{{background-color:rgb({red},{green},{blue});color:{letters}}}")
    return "\n".join(rules)


def _table(panel: RatioMap) -> MapTable:
    sizes, counts = (sorted({shape[axis] for shape in panel.cells}) for axis in (0, 1))
    rows = [(md.bytes_size(size), [_tile(panel, size, count) for count in counts]) for size in reversed(sizes)]
    return MapTable(panel.title, [md.count(count) for count in counts], rows)


def _tile(panel: RatioMap, size: int, count: int) -> Tile | None:
    ratio = panel.cells.get((size, count))
    if ratio is None:
        return None
    times = {
        "batched": panel.contest.arms[0].times[size, count],
        panel.kernel.backend: panel.kernel.times[size, count],
    }
    said = "; ".join(f"{backend} {_words(time)}" for backend, time in times.items())
    verdict = "" if ratio.decided else "; undecided: the quartiles overlap"
    words = f"{md.count(count)} blocks of {md.bytes_size(size)}: {said}{verdict}"
    return Tile(_step(ratio.value), md.figure(ratio.value), words, ratio.decided)


def _step(ratio: float) -> str:
    steps = round(_STEPS_AN_OCTAVE * max(-RATIO_OCTAVES, min(RATIO_OCTAVES, log2(ratio))))
    return f"r{steps}"


def _words(time: Quartiles) -> str:
    return f"{md.figure(time.median)} us ({md.figure(time.low)} to {md.figure(time.high)})"
