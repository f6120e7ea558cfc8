"""What a report holds: the sections of runs, and what stands around them."""

from collections.abc import Callable, Sequence
from typing import Final

from kvbench.errors import UsageError
from kvbench.report import preamble
from kvbench.report.model import Chapter, Code, Part, Report, Section, Text
from kvbench.report.sections import sections_of
from kvbench.report.view import View, views_of
from kvbench.results import Run
from kvbench.tune.answer import machine_text

# In a report of more runs, a section does not name the others that could fill it: to know takes as long as its tables.
_MOST_NAMED: Final = 20

# Called with what is made next, its number, and the number of all.
Progress = Callable[[str, int, int], None]


def silent(_what: str, _number: int, _total: int) -> None:
    """Show no progress."""


def report_of(runs: Sequence[Run], unread: Sequence[str] = (), progress: Progress = silent) -> Report:
    """Return the report of `runs` as data; `unread` says of other runs why they could not be read."""
    views = views_of(runs)
    chapters, missing = _chapters(views, progress)
    return Report(
        views=views,
        host_note=preamble.host_note(views),
        headline=_headline(views, chapters),
        first_warnings=preamble.first_warnings(views, len(unread)),
        runs=preamble.run_table(views),
        commands=[(f"{view.label}: ", Code(view.command)) for view in views],
        warnings=preamble.warnings(views),
        chapters=chapters,
        missing=[*(f"A run: {why}" for why in unread), *missing],
        skipped=preamble.skipped(views),
        failed=preamble.failed(views),
        definitions=preamble.definitions(),
    )


def _headline(views: Sequence[View], chapters: Sequence[Chapter]) -> list[Text]:
    try:
        return preamble.answer(views)
    except UsageError as none:
        reason = [] if any(chapter.part.highlights for chapter in chapters) else [str(none)]
        return [machine_text(views[0].run), *reason]


def _chapters(views: Sequence[View], progress: Progress) -> tuple[list[Chapter], list[Text]]:
    sections = sections_of(views)
    chapters: list[Chapter] = []
    missing: list[Text] = []
    for number, section in enumerate(sections, start=1):
        progress("section", number, len(sections))
        chapter, reasons = _chapter(section, views)
        chapters += [chapter] if chapter else []
        missing += [] if chapter else [f"{section.short_title}: {reason}" for reason in reasons]
    return chapters, missing


def _chapter(section: Section, views: Sequence[View]) -> tuple[Chapter | None, dict[str, None]]:
    """Return the chapter of the run with most to say in a section, or why no run fills it."""

    def weight(view: View) -> tuple[float | str, ...]:
        visits, cells = view.weight
        return (len(view.earlier),) if section.of_all else (visits, section.weight(view), cells)

    filled: list[tuple[View, Callable[[], Part]]] = []
    reasons: dict[int, str] = {}  # by the number of earlier runs, as all orders here
    for view in sorted(views, key=weight, reverse=True):
        made = section.make(view)
        if isinstance(made, str):
            reasons[len(view.earlier)] = made
        else:
            filled.append((view, made))
            if section.of_all or len(views) > _MOST_NAMED:
                break
    if not filled:
        return None, dict.fromkeys(reasons[number] for number in sorted(reasons) if reasons[number])
    others = sorted((view for view, _ in filled[1:]), key=lambda view: len(view.earlier))
    shown, make_part = filled[0]
    return Chapter(section, shown, make_part(), others if section.of_all or len(views) <= _MOST_NAMED else None), {}
