"""The figures of README, from the runs of the newest committed report; without one, a line says so."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pandas as pd

from kvbench.report.build import SECTIONS, report_of
from kvbench.report.markdown import anchor
from kvbench.report.model import plain
from kvbench.report.numbers import TIMES, count, figure
from kvbench.results import Run, load_run
from kvbench.text import ends
from reports.cards import cards, run_folders

ROOT: Final = Path(__file__).parents[2]
# The reports of README's first table, newest first, and the one of all other figures.
CARDS: Final = sorted(cards(), key=lambda card: card.name[-len("2026-01-01") :], reverse=True)
REPORT: Final = CARDS[0] if CARDS else ROOT
RUNS: Final = REPORT / "runs"
_LINK: Final = REPORT.relative_to(ROOT).as_posix()


def numbers() -> str:
    """The answer of the newest card's report, and where its figures come from."""
    table, _, notes, _ = (REPORT / "report.md").read_text().partition("**What to use**\n\n")[2].split("\n\n", 3)
    said = " ".join(f"{note}." for note in notes.removeprefix("- ").split("\n- "))
    return (
        f"{table}\n\n{said} Times by CUDA events. Blocks differ each time, scattered over 16 GiB on each side; "
        "`batched` is unmodified `cuMemcpyBatchAsync`, `sm` kvbench's copy kernel, an SM one of the multiprocessors of "
        f"the GPU. {_origin()}"
    )


# Run of a card -> what its own section shows, in a word.
_SURPRISES: Final = {
    "order": "The access order hardly matters here.",
    "cliff": "The CPU causes the cliff.",
    "call": "A call takes longer in an engine than in a loop.",
}


def surprises() -> str:
    """What the runs of the card show, as their reports find it."""
    found = [_surprise(run, lead) for run, lead in _SURPRISES.items() if (RUNS / run).is_dir()]
    limit = [_limit()] if (RUNS / "engine").is_dir() else []
    return "\n".join(f"- {text}" for text in (*found, *limit))


def _surprise(run: str, lead: str) -> str:
    (chapter,) = (one for one in report_of([committed(run)]).chapters if one.section.name == run)
    why = "; [why](reports/README.md#why-the-cliff-exists-and-how-to-check-it)" if run == "cliff" else ""
    finding = plain(chapter.part.findings[0]).replace(TIMES, "x")
    return f"**{lead}** {finding} ({_evidence(chapter.section.short_title)}{why})"


def _limit() -> str:
    swap = _cells("engine", backend="sm", direction="h2d", blocks=50_000, block_size="1KiB").iloc[0]
    large_gbps = _cells("engine", backend="sm", direction="h2d", block_size="16KiB").iloc[0].roof_gbps
    titles = {section.name: section.title for section in SECTIONS}
    return (
        f"**Small scattered blocks are limited by address translation, not by the link.** Even with all its SMs, the "
        f"GPU reaches no more than {swap.limit_blocks_per_s / 1e6:.0f} million scattered blocks a second. Blocks "
        f"smaller than {large_gbps * 1e9 / swap.limit_blocks_per_s / 1024:.1f} KiB therefore cannot fill the link: "
        f"{count(swap.blocks)} blocks of 1 KiB move at {figure(swap.gbps)} GB/s with {swap.sms:.0f} SMs. "
        f"([Table]({_LINK}/details.md#{anchor(titles['limits'])}))"
    )


def _origin() -> str:
    """Where and when the card's runs were made, and by which commands."""
    infos = [load_run(run).info for run in run_folders(REPORT)]
    identity = infos[0].identity
    dates = ends(sorted(info.created[:10] for info in infos), str)
    packages = {facts.package.partition(" ")[0] for info in infos for facts in info.backends}
    used = "".join(f", {each}" for each in sorted(packages) if each and not each.startswith("kvbench=="))
    return (
        f"{identity['gpu_name']}, driver {identity['driver_version']}{used}, {dates}: `kvbench sweep` with the name "
        f"of each of these [runs]({_LINK}/runs), then `kvbench report` ([report]({_LINK}/report.md))."
    )


def _evidence(heading: str, card: Path = REPORT) -> str:
    """Return a link to the section of a card's report, or else of its details, whose heading begins so."""
    pattern = re.compile(rf"^#+ ({re.escape(heading)}[^:\n]*)(.*)$", re.MULTILINE)
    files = (card / "report.md", card / "details.md")
    report, match = next((file, found) for file in files if (found := pattern.search(file.read_text())))
    section, rest = match.groups()
    anchor = re.sub(r"[^\w\- ]", "", (section + rest).lower()).replace(" ", "-")
    return f"[{section}]({report.relative_to(ROOT).as_posix()}#{anchor})"


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


MAKERS: Final = of_a_card({"numbers": numbers, "surprises": surprises})
