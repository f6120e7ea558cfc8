"""A report as data: what each section says of each run. Text is plain here; whoever writes it out escapes it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from kvbench.report.charts.plot import LinePlot, MapPlot
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
