"""A report as data: what each section says of each run. Text is plain here; whoever writes it out escapes it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

import pandas as pd

if TYPE_CHECKING:
    from kvbench.report.charts.plot import ChartText, Plot
    from kvbench.report.view import View

MOST_FINDINGS: Final = 8
MOST_OF_A_SECTION: Final = 2
MOST_ROWS: Final = 24  # of the tables that a section prints


@dataclass(frozen=True, slots=True)
class Strong:
    """Text that stands out."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """What is typed: a command, a column of the data."""

    text: str


Span = str | Strong | Code
Text = Span | tuple[Span, ...]


def spans(text: Text) -> tuple[Span, ...]:
    return text if isinstance(text, tuple) else (text,)


def plain(text: Text) -> str:
    """Return the text without markup, with ordinary spaces."""
    unmarked = "".join(span if isinstance(span, str) else span.text for span in spans(text))
    return unmarked.replace("\N{NO-BREAK SPACE}", " ")


@dataclass(frozen=True, slots=True)
class DataTable:
    """A table; the first `left` columns are text, the others numbers. `title` and `caption` may be "".

    Of `compared` comparisons chance alone shows some.

    A table with a `stem` is for looking things up, not for pasting: in Markdown it is a CSV file, named after its
    section and the stem, such as "d2h-auto-idle".
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Text]]
    notes: Sequence[Text] = ()
    caption: Text = ""
    left: int = 1
    stem: str = ""
    compared: int = 0


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: the stem of its files, the text around it, what is drawn, and the numbers behind that."""

    stem: str
    text: "ChartText"
    plot: "Plot"
    points: pd.DataFrame


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence; the larger the effect, the larger its `weight`, a log ratio: 0 does not reach the first page."""

    text: Text
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """What one run adds to a section; `files` stand beside the report and are linked."""

    findings: Sequence[Finding] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[DataTable] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


# What makes the part of a run, or why there is none: "" where that goes without saying. It is called for the run that
# is shown alone.
PartOrReason = Callable[[], Part] | str


@dataclass(frozen=True, slots=True)
class Section:
    """A kind of finding; `make` returns what a run adds, or why it adds nothing.

    Of several runs, a report shows the one with most visits, then with most `weight`, then with most cells. With
    `of_all`, what a run adds covers the runs before it too, and the last one is shown.
    """

    name: str
    title: str
    make: Callable[["View"], PartOrReason]
    of_all: bool = False
    weight: Callable[["View"], int | str] = lambda _: 0

    @property
    def short_title(self) -> str:
        return self.title.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Chapter:
    """A section, what one run adds to it, and the other runs that could fill it; None where that is not known."""

    section: Section
    view: "View"
    part: Part
    others: Sequence["View"] | None = ()

    @property
    def origin(self) -> str:
        """Which run is shown, and which others could be; "" where there is one alone."""
        if self.others is None:
            return f"From run {self.view.label}. With this many runs, others that could be shown are not named."
        others = ", ".join(view.label for view in self.others)
        return f"From run {self.view.label}. Also measured in {others}." if others else ""

    @property
    def printed(self) -> list[DataTable]:
        """The tables that Markdown shows: the first, and more as long as there are few rows; the others are files."""
        printed: list[DataTable] = []
        rows = 0
        for table in (table for table in self.part.tables if not table.stem):
            if not printed or rows + len(table.rows) <= MOST_ROWS:
                printed.append(table)
                rows += len(table.rows)
        return printed

    @property
    def files(self) -> dict[str, DataTable]:
        """The tables that are CSV files, by the names of these; a name that is taken gets a number."""
        taken = {f"{chart.stem}.csv" for chart in self.part.charts} | set(self.part.files)
        files: dict[str, DataTable] = {}
        printed = list(map(id, self.printed))
        for table in (table for table in self.part.tables if id(table) not in printed):
            name = f"{self.section.name}-{table.stem or table.title.partition(': ')[0]}"
            stem = re.sub(r"[^a-z0-9]+", "-", name.lower())[:80].strip("-")
            names = (f"{stem}{'' if number == 1 else f'-{number}'}.csv" for number in count(1))
            files[next(name for name in names if name not in taken and name not in files)] = table
        return files


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a report says, in its order; what is empty is left out.

    `host_note` says which runs are of no GPU; `headline` is the answer; `first_warnings` say, shortly, what was wrong
    with whole runs; `runs` and `commands` are the runs and what made them; `missing` says why sections, and runs that
    could not be read, are not there.
    """

    views: Sequence["View"]
    host_note: Text
    headline: Sequence[Text]
    first_warnings: Sequence[Text]
    runs: DataTable
    commands: Sequence[Text]
    warnings: Sequence[Text]
    chapters: Sequence[Chapter]
    missing: Sequence[Text]
    skipped: Sequence[Text]
    failed: DataTable | None
    definitions: Sequence[Text]

    @property
    def parts(self) -> list[Part]:
        return [chapter.part for chapter in self.chapters]

    @property
    def charts(self) -> list[Chart]:
        return [chart for part in self.parts for chart in part.charts]

    @property
    def files(self) -> dict[str, DataTable]:
        return {name: table for chapter in self.chapters for name, table in chapter.files.items()}

    @property
    def summary(self) -> dict[Text, Section]:
        """The weightiest findings, each once and few of a section, with their sections, in the order of these."""
        first = [
            (finding, chapter.section)
            for chapter in self.chapters
            for finding in sorted(chapter.part.findings, key=lambda finding: -finding.weight)[:MOST_OF_A_SECTION]
            if finding.weight > 0
        ]
        kept = sorted(first, key=lambda pair: -pair[0].weight)[:MOST_FINDINGS]
        return {finding.text: section for finding, section in first if (finding, section) in kept}

    def findings_of(self, chapter: Chapter) -> list[Text]:
        """Return what a chapter finds and the first page does not say."""
        texts = dict.fromkeys(finding.text for finding in chapter.part.findings)
        return [text for text in texts if text not in self.summary]

    @property
    def other_commands(self) -> list[Text]:
        """Return the commands that no caption names."""
        named = {span for part in self.parts for table in part.tables for span in spans(table.caption)}
        return [command for command in self.commands if spans(command)[-1] not in named]

    @property
    def comparisons(self) -> int:
        """Return how many comparisons the tables make."""
        return sum(table.compared for part in self.parts for table in part.tables)
