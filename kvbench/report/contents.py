"""What a report holds: the sections of runs, and what stands around them."""

from collections.abc import Sequence

from kvbench.report import first_page, front
from kvbench.report.model import Chapter, Code, Part, Report, Text
from kvbench.report.sections import sections_of
from kvbench.report.view import views_of
from kvbench.results import Run


def report_of(runs: Sequence[Run], unread: Sequence[str] = ()) -> Report:
    """Return the report of `runs` as data; `unread` says of other runs why they could not be read."""
    views = views_of(runs)
    chapters: list[Chapter] = []
    missing: list[Text] = [f"A run: {why}" for why in unread]
    for section in sections_of(views):
        made = [(view, section.make(view)) for view in views]
        parts = [(view, part) for view, part in made if isinstance(part, Part)]
        if parts and section.of_all:
            chapters.append(Chapter(section, *parts[-1]))
        elif parts:
            view, part = max(parts, key=lambda one: (one[1].weight, one[0].weight))  # the first of equal ones
            chapters.append(Chapter(section, view, part, [other for other, _ in parts if other is not view]))
        else:
            reasons = [f"{section.short_title}: {why}" for _, why in made if isinstance(why, str) and why]
            missing += dict.fromkeys(reasons)
    return Report(
        views=views,
        host_note=front.host_note(views),
        box=first_page.box(views, chapters),
        runs=front.run_table(views),
        commands=[(f"{view.label}: ", Code(view.command)) for view in views],
        warnings=front.warnings(views),
        chapters=chapters,
        missing=missing,
        skipped=front.skipped(views),
        failed=front.failed(views),
        definitions=front.definitions(),
    )
