"""A report as data: what each section says of each run. Text is plain here; whoever writes it out escapes it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvbench.report.view import View


@dataclass(frozen=True, slots=True)
class Strong:
    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """What is typed: a command, a column of the data."""

    text: str


class Once(str):
    """What a report says once for all its tables, in its head or its definitions, and a table that stands alone too."""

    __slots__ = ()


Span = str | Strong | Code
Text = Span | tuple[Span, ...]


def spans(text: Text) -> tuple[Span, ...]:
    return text if isinstance(text, tuple) else (text,)


def plain(text: Text) -> str:
    """The text without markup, with ordinary spaces."""
    unmarked = "".join(span if isinstance(span, str) else span.text for span in spans(text))
    return unmarked.replace("\N{NO-BREAK SPACE}", " ")


@dataclass(frozen=True, slots=True)
class DataTable:
    """A table; the first `left` columns are text, the others numbers. `title` and `caption` may be "".

    Of `compared` comparisons chance alone shows some.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Text]]
    notes: Sequence[Text] = ()
    caption: Text = ""
    left: int = 1
    compared: int = 0


@dataclass(frozen=True, slots=True)
class ChartText:
    """The text around a chart: a title, a line under it, what the numbers include, and a warning; "" for none."""

    title: str
    subtitle: str
    footer: str = ""
    warning: str = ""

    @property
    def alternative(self) -> str:
        """The text for readers who do not see the chart."""
        return f"{self.title} ({self.warning})" if self.warning else self.title


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """What an axis counts: an x axis perhaps in `octaves`, or bytes, shown `in_kib`; a y axis from 0, or not.

    A y axis of `ratios` is logarithmic, from 1 on.
    """

    label: str
    octaves: bool = False
    in_kib: bool = False
    zero: bool = True
    ratios: bool = False


@dataclass(frozen=True, slots=True)
class PlotLine:
    """A line of points: medians in `y`, the ends of its band in `low` and `high`, in the unit of y.

    `backend` decides colour and marker, `variant` the stroke, `light` (from 0 to 1) how much of the colour is left out:
    a plot's lines of one label have the same of all, and lines of two labels do not. `notes` stand beside the points,
    one for each, if any; points at the x of `rings` have a ring.
    """

    label: str
    backend: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    variant: int = 0
    light: float = 0.0
    notes: Sequence[str] = ()
    rings: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class PlotPanel:
    """One pair of axes; `ceiling` is in the unit of the y axis, `x_ceiling` in that of the x axis, None where there is
    none.

    `marked` are texts at values of x, each with a line from the bottom to the top; `divided` is a value of x with what
    lies left and right of it.
    """

    title: str
    lines: Sequence[PlotLine]
    ceiling: float | None = None
    marked: Mapping[float, str] = field(default_factory=dict)
    x_ceiling: float | None = None
    divided: tuple[float, str, str] | None = None


@dataclass(frozen=True, slots=True)
class LinePlot:
    """Panels on the same axes, side by side, or at most that number in a row."""

    x: PlotAxis
    y: PlotAxis
    panels: Sequence[PlotPanel]
    in_a_row: int | None = None

    @property
    def lines(self) -> list[PlotLine]:
        return [*chain.from_iterable(panel.lines for panel in self.panels)]

    @property
    def most_points(self) -> int:
        """How many values of x the fullest panel has."""
        return max(len({*chain.from_iterable(line.x for line in panel.lines)}) for panel in self.panels)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: the stem of its files, the text around it, and what is drawn."""

    stem: str
    text: ChartText
    plot: LinePlot


@dataclass(frozen=True, slots=True)
class Part:
    """What one run adds to a section.

    On the first page a section has its findings, its charts and its first table; the other tables are details.
    `short` is what stands for the section elsewhere: for machines at the head of a report, for the answer in a chat.
    """

    findings: Sequence[Text] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[DataTable] = ()
    short: Sequence[Text] = ()


# What makes the part of a run, or why there is none: "" where that goes without saying. It is called for the run that
# is shown alone.
PartOrReason = Callable[[], Part] | str


@dataclass(frozen=True, slots=True)
class Section:
    """A kind of table; `make` returns what a run adds, or why it adds nothing.

    A section with a `config` stands on the first page, and the config measures what it needs; of one that `leads`, the
    first finding alone stands there. Of several runs, a report shows the one with most visits, then one of the config,
    then the one with most block sizes and cells. With `covers_earlier`, what a run adds covers the runs before it too,
    and the last one is shown.
    """

    name: str
    title: str
    make: Callable[["View"], PartOrReason]
    covers_earlier: bool = False
    config: str = ""
    leads: bool = False

    @property
    def short_title(self) -> str:
        return self.title.partition(":")[0]

    @property
    def measured_by(self) -> str:
        """The name of its config: in the details, the section's."""
        return self.config or self.name


@dataclass(frozen=True, slots=True)
class Chapter:
    """A section, what one run adds to it, and the other runs that could fill it."""

    section: Section
    view: "View"
    part: Part
    others: Sequence["View"] = ()

    @property
    def origin(self) -> str:
        """Which run is shown, and which others could be, on the first page how many; "" where there is one alone."""
        if not self.others:
            return ""
        if self.section.config:
            return f"Run {self.view.label}; measured in {len(self.others) + 1} runs."
        return f"Run {self.view.label}; also measured in {', '.join(view.label for view in self.others)}."

    @property
    def details(self) -> Sequence[DataTable]:
        """The tables that are not on the first page."""
        return self.part.tables[1:] if self.section.config else self.part.tables


def short_of(section: str, chapters: Sequence[Chapter]) -> Sequence[Text]:
    """The section as other places show it; empty without it."""
    return next((chapter.part.short for chapter in chapters if chapter.section.name == section), ())


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a report says, in its order; what is empty is left out.

    `unsteady` says which runs' figures rest on rounds with a low ceiling; `host_note` says which runs are of no GPU;
    `headline` is what they were measured on; `first_warnings` say, shortly, what was wrong with whole runs; `runs` and
    `commands` are the runs and what made them; `missing` says why sections of the first page are not there, and
    `unread` which runs could not be read.
    """

    views: Sequence["View"]
    unsteady: Text
    host_note: Text
    headline: Sequence[Text]
    first_warnings: Sequence[Text]
    runs: DataTable
    commands: Sequence[Text]
    warnings: Sequence[Text]
    chapters: Sequence[Chapter]
    missing: Mapping[Section, Text]
    unread: Sequence[Text]
    skipped: Sequence[Text]
    failed: DataTable | None
    definitions: Sequence[Text]

    @property
    def parts(self) -> list[Part]:
        return [chapter.part for chapter in self.chapters]

    @property
    def charts(self) -> list[Chart]:
        return [*chain.from_iterable(part.charts for part in self.parts)]

    @property
    def findings(self) -> list[Text]:
        return [*chain.from_iterable(part.findings for part in self.parts)]

    @property
    def leads(self) -> list[Text]:
        """What sections that have no table on the first page say there: the first finding of each."""
        leading = (chapter.part.findings[:1] for chapter in self.chapters if chapter.section.leads)
        return [*chain.from_iterable(leading)]

    @property
    def comparisons(self) -> int:
        return sum(table.compared for table in chain.from_iterable(part.tables for part in self.parts))
