"""A report before it is written: which section holds what of which run, what was found, and what is missing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvbench.report import markdown as md
from kvbench.report.blocks import Block, Chart, Section
from kvbench.report.charts.drawing import Picture
from kvbench.report.charts.palette import Ink, inks
from kvbench.report.outline import sections_of
from kvbench.report.summary import Sentence
from kvbench.report.view import View, views_of
from kvbench.results import Run


@dataclass(frozen=True, slots=True)
class Part:
    """A section that at least one run has something for."""

    section: Section
    blocks: Sequence[tuple[View, Block]]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a report says; `missing` are lines in Markdown on the sections that no figure is there for."""

    views: Sequence[View]
    inks: Mapping[str, Ink]
    parts: Sequence[Part]
    missing: Sequence[str]

    @property
    def sentences(self) -> list[Sentence]:
        """The summary, in the order of the sections; each sentence once."""
        found: dict[str, Sentence] = {}
        for part in self.parts:
            for view, block in part.blocks:
                for text in block.sentences:
                    found.setdefault(text, Sentence(text, part.section.name, part.section.title, view.label))
        return list(found.values())

    @property
    def charts(self) -> list[Chart]:
        return [chart for part in self.parts for _, block in part.blocks for chart in block.charts]


def report_of(runs: Sequence[Run], begin: Callable[[str, Picture], None], unread: Sequence[str] = ()) -> Report:
    """Return the report of `runs`; what a run does not hold is named in it, not an error.

    `begin` is told the stem and the picture of every chart as soon as there is one, so that it can be drawn meanwhile.
    `unread` says of other runs why they could not be read.
    """
    views = views_of(runs)
    colours = inks(backend for view in views for backend in view.frame["backend"])
    parts, missing = [], [f"A run: {md.escape(why)}" for why in unread]
    for section in sections_of(views):
        reasons: dict[str, list[str]] = {}
        blocks = []
        for view in views:
            block = section.make(view, colours)
            if isinstance(block, Block):
                blocks.append((view, block))
                for chart in block.charts:
                    begin(chart.stem, chart.picture)
            elif block:
                reasons.setdefault(block, []).append(view.label)
        if blocks:
            parts.append(Part(section, blocks))
        missing += [f"{section.name} ({section.title}): {why} ({', '.join(of)})" for why, of in reasons.items()]
    return Report(views, colours, parts, missing)
