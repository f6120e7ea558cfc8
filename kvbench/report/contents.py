"""What a report holds: the sections of runs, and what stands around them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvbench.errors import UsageError
from kvbench.report import front
from kvbench.report.model import Chapter, Code, Part, Report, Section, Text
from kvbench.report.sections import sections_of
from kvbench.report.view import View, views_of
from kvbench.results import Run
from kvbench.tune.answer import machine_words

# Is called with what is made next, its number, and the number of all.
Tell = Callable[[str, int, int], None]


def untold(_what: str, _number: int, _total: int) -> None:
    """Tell nobody."""


def report_of(runs: Sequence[Run], unread: Sequence[str] = (), tell: Tell = untold) -> Report:
    """Return the report of `runs` as data; `unread` says of other runs why they could not be read."""
    views = views_of(runs)
    chapters, missing = _chapters(views, tell)
    return Report(
        views=views,
        host_note=front.host_note(views),
        box=_box(views, chapters),
        first_warnings=front.first_warnings(views, len(unread)),
        runs=front.run_table(views),
        commands=[(f"{view.label}: ", Code(view.command)) for view in views],
        warnings=front.warnings(views),
        chapters=chapters,
        missing=[*(f"A run: {why}" for why in unread), *missing],
        skipped=front.skipped(views),
        failed=front.failed(views),
        definitions=front.definitions(),
    )


def _box(views: Sequence[View], chapters: Sequence[Chapter]) -> list[Text]:
    try:
        return front.answer(views)
    except UsageError as none:
        reason = [] if any(chapter.part.told for chapter in chapters) else [str(none)]
        return [machine_words(views[0].run), *reason]


def _chapters(views: Sequence[View], tell: Tell) -> tuple[list[Chapter], list[Text]]:
    """Return the chapters of the sections that a run can fill, and why no run fills the others."""
    sections = sections_of(views)
    found: dict[str, Chapter] = {}
    reasons: dict[str, dict[str, None]] = {}
    for number, view in enumerate(views, start=1):
        tell("tables of run", number, len(views))
        for section in sections:
            made = section.make(view)
            if isinstance(made, Part):
                found[section.name] = _chapter(section, view, made, found.get(section.name))
            elif made:
                reasons.setdefault(section.name, {})[f"{section.short_title}: {made}"] = None
    absent = [section.name for section in sections if section.name not in found]
    missing: list[Text] = [reason for name in absent for reason in reasons.get(name, {})]
    return [found[section.name] for section in sections if section.name in found], missing


def _chapter(section: Section, view: View, part: Part, before: Chapter | None) -> Chapter:
    """Return the chapter of a section once a run more has filled it."""
    if before is None or section.of_all:
        return Chapter(section, view, part)
    if (part.weight, view.weight) > (before.part.weight, before.view.weight):
        others = sorted([before.view, *before.others], key=lambda other: len(other.earlier))
        return Chapter(section, view, part, others)
    return replace(before, others=[*before.others, view])
