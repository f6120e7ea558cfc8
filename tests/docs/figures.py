"""The figures of README, from the runs of the newest committed report; without one, a line says so."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pandas as pd

from kvbench.report.build import SECTIONS, report_of
from kvbench.report.markdown import anchor
from kvbench.report.model import Chapter, plain
from kvbench.report.numbers import TIMES, count, figure
from kvbench.report.view import views_of
from kvbench.results import Run, load_run
from kvbench.text import ends
from reports.cards import cards, run_folders

ROOT: Final = Path(__file__).parents[2]
# The reports of README's first table, newest first, and the one of all other figures.
CARDS: Final = sorted(cards(), key=lambda card: card.name[-len("2026-01-01") :], reverse=True)
REPORT: Final = CARDS[0] if CARDS else ROOT
RUNS: Final = REPORT / "runs"
_LINK: Final = REPORT.relative_to(ROOT).as_posix()
_PULL_REQUESTS: Final = "https://github.com/vllm-project/vllm/pull"
# The first sentences of a section answer the question; the rest is its table's.
_MOST_FINDINGS: Final = 2


def numbers() -> str:
    """The answer of the newest card's report, and where its figures come from."""
    table, _, notes, _ = (REPORT / "report.md").read_text().partition("**What to use**\n\n")[2].split("\n\n", 3)
    said = " ".join(f"{note}." for note in notes.removeprefix("- ").split("\n- "))
    return f"{table}\n\n{said} {_origin()}"


class Asked(NamedTuple):
    """A question, the pull request of vLLM that raised it ("" for none), and the run and the section that answer it."""

    question: str
    pull_request: str
    run: str
    section: str


_ASKED: Final = (
    Asked("Is there a cliff, and why?", "42212", "cliff", "cliff"),
    Asked("The copy engine or a kernel?", "42212", "threshold", "threshold"),
    Asked("How many SMs?", "42212", "sm-ladder", "sm-ladder"),
    Asked("ANY or STREAM?", "39306", "order", "order"),
    Asked("Batched or block by block?", "38460", "models", "models"),
    Asked("When is a stream full?", "29013", "queue", "queue"),
    Asked("What does a step beside it lose?", "", "beside", "beside"),
)


def picture() -> str:
    """The cliff of the card, with a link to its table."""
    (chapter,) = _chapters("cliff", "cliff")
    return f"[![Cliff: GB/s against block size]({_LINK}/cliff-cliff.png)]({_link_to(chapter.section.short_title)})"


def asked() -> str:
    """A line for each question: what its section finds in the run of the card, or that the run is missing."""
    rows = [f"| {_linked(each)} | {_found(each)} |" for each in _ASKED]
    limit = [f"| Where do small blocks end? | {_limit()} |"] if (RUNS / "engine").is_dir() else []
    return "\n".join(["| Asked | On this card |", "| --- | --- |", *rows, *limit])


def _linked(asked: Asked) -> str:
    if not asked.pull_request:
        return asked.question
    return f"{asked.question} ([#{asked.pull_request}]({_PULL_REQUESTS}/{asked.pull_request}))"


def _found(asked: Asked) -> str:
    """Return the findings of a section, with a link to its table."""
    chapters = _chapters(asked.run, asked.section) if (RUNS / asked.run).is_dir() else []
    if not chapters:
        return f"not measured: `kvbench sweep {asked.run}`"
    findings = [plain(finding).replace(TIMES, "x") for finding in chapters[0].part.findings[:_MOST_FINDINGS]]
    return f"{' '.join(findings)} ([table]({_link_to(chapters[0].section.short_title)}))"


def _chapters(run: str, section: str) -> list[Chapter]:
    return [chapter for chapter in report_of([committed(run)]).chapters if chapter.section.name == section]


def _limit() -> str:
    swap = _cells("engine", backend="sm", direction="h2d", blocks=50_000, block_size="1KiB").iloc[0]
    large_gbps = _cells("engine", backend="sm", direction="h2d", block_size="16KiB").iloc[0].roof_gbps
    titles = {section.name: section.title for section in SECTIONS}
    return (
        f"Address translation ends them: also with all SMs, {swap.limit_blocks_per_s / 1e6:.0f} million scattered "
        f"blocks a second. Blocks below {large_gbps * 1e9 / swap.limit_blocks_per_s / 1024:.1f} KiB cannot fill the "
        f"link: {count(swap.blocks)} of 1 KiB move at {figure(swap.gbps)} GB/s "
        f"([table]({_LINK}/details.md#{anchor(titles['limits'])}))."
    )


def _origin() -> str:
    """Where and when the card's runs were made, and by which commands."""
    runs = [load_run(run) for run in run_folders(REPORT)]
    infos = [run.info for run in runs]
    identity = infos[0].identity
    dates = ends(sorted(info.created[:10] for info in infos), str)
    packages = {facts.package.partition(" ")[0] for info in infos for facts in info.backends}
    used = "".join(f", {each}" for each in sorted(packages) if each and not each.startswith("kvbench=="))
    return (
        f"{identity['gpu_name']}, driver {identity['driver_version']}{used}; {views_of(runs[:1])[0].host}; {dates}: "
        "`kvbench sweep` with the name "
        f"of each of these [runs]({_LINK}/runs), then `kvbench report` ([report]({_LINK}/report.md))."
    )


def _link_to(heading: str, card: Path = REPORT) -> str:
    """Return a link to the section of a card's report, or else of its details, whose heading begins so."""
    pattern = re.compile(rf"^#+ ({re.escape(heading)}.*)$", re.MULTILINE)
    files = (card / "report.md", card / "details.md")
    report, match = next((file, found) for file in files if (found := pattern.search(file.read_text())))
    return f"{report.relative_to(ROOT).as_posix()}#{anchor(match[1])}"


@cache
def committed(run: str, card: Path = REPORT) -> Run:
    return load_run(card / "runs" / run)


@cache
def _frame(run: str, card: Path) -> pd.DataFrame:
    return committed(run, card).table


def _cells(run: str, card: Path = REPORT, **values: Any) -> pd.DataFrame:
    frame = _frame(run, card)
    for name, value in ({"pattern": "shuffled"} | values).items():
        column = frame[name].astype(object).where(frame[name].notna(), "")
        frame = frame[column.isin(value if isinstance(value, tuple) else (value,))]
    return frame


def of_a_card(makers: Mapping[str, Callable[[], str]]) -> Mapping[str, Callable[[], str]]:
    """Return the makers of what a committed report has, or, while there is none, makers of a line that says so."""
    return makers if CARDS else dict.fromkeys(makers, lambda: "No report of this version is committed yet.")


MAKERS: Final = of_a_card({"picture": picture, "numbers": numbers, "asked": asked})
