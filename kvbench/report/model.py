"""A report as data: what each section says of each run. Text is plain here; whoever writes it out escapes it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

from kvbench.report.view import View


@dataclass(frozen=True, slots=True)
class Strong:
    """Words that stand out."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """What is typed: a command, a column of the data."""

    text: str


Span = str | Strong | Code
Text = Span | tuple[Span, ...]


def spans(text: Text) -> tuple[Span, ...]:
    return text if isinstance(text, tuple) else (text,)


def words_of(text: Text) -> str:
    """Return the words alone."""
    return "".join(span if isinstance(span, str) else span.text for span in spans(text))


@dataclass(frozen=True, slots=True)
class DataTable:
    """A table; the first `left` columns are words, the others numbers. `title` and `caption` may be ""."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Text]]
    notes: Sequence[Text] = ()
    caption: Text = ""
    left: int = 1


@dataclass(frozen=True, slots=True)
class ChartWords:
    """The text around a chart: a title, a line under it, what the numbers include (a line each), a warning or ""."""

    title: str
    subtitle: str
    footer: Sequence[str]
    warning: str

    @property
    def alternative(self) -> str:
        """The words for readers who do not see the chart."""
        return f"{self.title} ({self.warning})" if self.warning else self.title


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """What an axis counts: its label, and whether its numbers are bytes, whole numbers, or any figure.

    "symlog2" is linear up to 1 and logarithmic from there, so that it has a place for 0.
    """

    label: str
    unit: Literal["bytes", "count", "figure"]
    scale: Literal["log2", "symlog2", "log10", "linear"]


@dataclass(frozen=True, slots=True)
class PlotMark:
    """What to point out on a line, in words: a jump from the point at `low` to that at `high`, or one point."""

    low: float
    high: float
    words: str


@dataclass(frozen=True, slots=True)
class PlotLine:
    """A line of points ascending in x: medians in `y`, quartiles in `low` and `high`, in the unit of the y axis.

    `backend` decides colour and marker; `cell_ids` are the cells behind the points, of the run labelled `run`.
    """

    run: str
    label: str
    backend: str
    dashed: bool
    x: Sequence[int]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    cell_ids: Sequence[str]
    marks: Sequence[PlotMark] = ()


@dataclass(frozen=True, slots=True)
class PlotPanel:
    """One pair of axes; `ceiling` is in the unit of the y axis, None where it was not measured."""

    title: str
    lines: Sequence[PlotLine]
    ceiling: float | None = None


@dataclass(frozen=True, slots=True)
class LinePlot:
    """Rows of panels on the same axes."""

    x: PlotAxis
    y: PlotAxis
    grid: Sequence[Sequence[PlotPanel]]

    @property
    def lines(self) -> list[PlotLine]:
        return [line for row in self.grid for panel in row for line in panel.lines]


@dataclass(frozen=True, slots=True)
class MapTile:
    """A ratio of times, whether their quartiles lie apart, and in words what stands behind it."""

    ratio: float
    decided: bool
    words: str


@dataclass(frozen=True, slots=True)
class MapPanel:
    """Tiles by block bytes and number of blocks."""

    title: str
    tiles: Mapping[tuple[int, int], MapTile]

    @property
    def sizes(self) -> list[int]:
        return sorted({size for size, _ in self.tiles})

    @property
    def counts(self) -> list[int]:
        return sorted({count for _, count in self.tiles})


@dataclass(frozen=True, slots=True)
class MapPlot:
    """Rows of maps with the same colours."""

    grid: Sequence[Sequence[MapPanel]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: the stem of its files, the words around it, what is drawn, and the numbers behind that."""

    stem: str
    words: ChartWords
    plot: LinePlot | MapPlot
    points: pd.DataFrame


@dataclass(frozen=True, slots=True)
class Part:
    """What one run adds to a section.

    `told` are those findings that belong into the summary on top; `files` stand beside the report and are linked.
    """

    findings: Sequence[Text] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[DataTable] = ()
    told: Sequence[Text] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Section:
    """A kind of finding; `make` returns what a run adds, or why it adds nothing ("" where that goes without saying)."""

    name: str
    title: str
    make: Callable[[View], Part | str]

    @property
    def short_title(self) -> str:
        return self.title.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Chapter:
    """A section that at least one run adds something to."""

    section: Section
    parts: Sequence[tuple[View, Part]]


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of the summary and its evidence: the section and the label of the run."""

    text: Text
    section: Section
    run: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a report says, in its order; what is empty is left out.

    `host_note` says which runs are of no GPU; `runs` and `commands` are the runs and what made them; `missing` says of
    sections, and of runs that could not be read, why they are not there.
    """

    views: Sequence[View]
    host_note: Text
    runs: DataTable
    commands: Sequence[Text]
    warnings: Sequence[Text]
    chapters: Sequence[Chapter]
    missing: Sequence[Text]
    skipped: Sequence[Text]
    failed: DataTable | None
    definitions: Sequence[Text]

    @property
    def several_runs(self) -> bool:
        return len(self.views) > 1

    @property
    def parts(self) -> list[Part]:
        return [part for chapter in self.chapters for _, part in chapter.parts]

    @property
    def charts(self) -> list[Chart]:
        return [chart for part in self.parts for chart in part.charts]

    @property
    def summary(self) -> list[Sentence]:
        """The sentences on top, in the order of the sections; each sentence once."""
        found: dict[Text, Sentence] = {}
        for chapter in self.chapters:
            for view, part in chapter.parts:
                for text in part.told:
                    found.setdefault(text, Sentence(text, chapter.section, view.label))
        return list(found.values())
