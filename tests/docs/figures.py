"""The figures of README, from the runs of the newest whole report; without one, a line says so."""

import re
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final

from kvbench.ground.text import range_text
from kvbench.report.build import SECTIONS, report_of
from kvbench.report.markdown import anchor, table
from kvbench.report.model import Chapter, plain
from kvbench.report.numbers import TIMES, count, figure
from kvbench.report.view import views_of
from kvbench.results import Run, load_run
from reports.cards import LACKS_FILE, cards, run_folders
from tests.command import succeeds

ROOT: Final = Path(__file__).parents[2]


def _rank(card: Path) -> tuple[bool, str]:
    """A card that lacks no table ranks above one that does, and a newer one above an older."""
    return not (card / LACKS_FILE).is_file(), card.name[-len("2026-01-01") :]


# The reports of README's first table, and the one of all other figures.
CARDS: Final = sorted(cards(), key=_rank, reverse=True)
REPORT: Final = CARDS[0] if CARDS else ROOT
RUNS: Final = REPORT / "runs"
_LINK: Final = REPORT.relative_to(ROOT).as_posix()


def numbers(folders: Sequence[Path] = CARDS) -> str:
    """The answers of the cards' reports, in so few columns that a phone shows all, and where they come from."""
    names = [""] if len(folders) == 1 else [_short_name(folder) for folder in folders]
    of_cards = [
        [_situation(*row, card=name) for row in answer_rows(folder)]
        for name, folder in zip(names, folders, strict=True)
    ]
    # A row for each card: lines of one row would not stay side by side where a narrow page breaks them.
    rows = [row for of_situation in zip(*of_cards, strict=True) for row in of_situation]
    origins = []
    for name, folder in zip(names, folders, strict=True):
        blocks, _, *more = _notes(folder)
        origins.append(". ".join((f"{name}{': ' * bool(name)}{blocks}", *more, _origin(folder))))
    head = ("Swap", "Use", "GB/s", "Cost (lost, thread: ms/GB)")
    return f"{table(head, rows, left=len(head))}\n\n{_notes(folders[0])[1]}. {' '.join(origins)}"


def _notes(folder: Path) -> list[str]:
    """The notes of the report's answer: of which blocks it is, what its columns mean, and the others."""
    first, *others = _answer(folder)[2].removeprefix("- ").split("\n- ")
    return [*first.split(". ", 1), *others]


def answer_rows(folder: Path = REPORT) -> list[list[str]]:
    """Return the rows of the report's answer: direction, beside, use, GB/s, step, cost, otherwise."""
    return [line.strip("| ").split(" | ") for line in _answer(folder)[0].splitlines()[2:]]


def _answer(folder: Path) -> list[str]:
    """Return the table of the report's answer, its caption, its notes and the rest."""
    return (folder / "report.md").read_text().partition("**What to use**\n\n")[2].split("\n\n", 3)


def _situation(
    direction: str, beside: str, use: str, gbps: str, step: str, cost: str, other: str, *, card: str
) -> Sequence[str]:
    lost, _, thread = cost.rpartition(" + ")
    said = {"step": step, "lost": lost, "thread": thread}
    costs = ", ".join(f"{name} {figure}" for name, figure in said.items() if figure not in ("", "-"))
    swap = f"{direction} {'alone' if beside == 'nothing' else f'beside {beside}'}"
    others = f"<br>otherwise {other}" * (other != "-")
    return f"{swap}, {card}" if card else swap, use + others, gbps, costs or "-"


# A question, the pull request of vLLM that raised it ("" for none), and the run and section that answer it.
_ASKED: Final = (
    ("Is there a cliff, and why?", "42212", "cliff"),
    ("The copy engine or a kernel?", "42212", "threshold"),
    ("How many SMs?", "42212", "sm-ladder"),
    ("ANY or STREAM?", "39306", "order"),
    ("Batched or block by block?", "38460", "models"),
    ("When is a stream full?", "29013", "queue"),
    ("What does a step beside it lose?", "", "beside"),
)


def picture() -> str:
    """The cliff of the card, with a link to its table."""
    (chapter,) = _chapters("cliff")
    return f"[![Cliff: GB/s against block size]({_LINK}/cliff-cliff.png)]({_link_to(chapter.section.short_title)})"


def asked() -> str:
    """A line for each question: what its section finds in the run of the card, or that the run is missing."""
    rows = [f"| {_linked(question, number)} | {_found(name)} |" for question, number, name in _ASKED]
    if (RUNS / "threshold").is_dir():
        crossed = _linked("Above what block size is batched faster than Triton?", "42212")
        rows.insert(2, f"| {crossed} | {_crossovers()} |")
    limit = [f"| Where do small blocks end? | {_limit()} |"] if (RUNS / "engine").is_dir() else []
    return "\n".join([f"| Asked | On the {_short_name(REPORT)} |", "| --- | --- |", *rows, *limit])


def _crossovers() -> str:
    """Above what block size batched copies are faster than the Triton kernel, by direction and SM count."""
    (chapter,) = _chapters("threshold")
    (back_to_back, *_) = chapter.part.tables
    column = next(index for index, head in enumerate(back_to_back.header) if head.startswith("triton"))
    lines = [row for row in back_to_back.rows if str(row[1]).startswith("crossover, ") and row[column]]
    texts = [f"{row[0]} {str(row[1]).removeprefix('crossover, ')}: {row[column]}" for row in lines]
    return f"{'; '.join(texts).replace('none to', 'not up to')} ([table]({_link_to(chapter.section.short_title)}))"


def _linked(question: str, number: str) -> str:
    return f"{question} ([#{number}](https://github.com/vllm-project/vllm/pull/{number}))" if number else question


def _found(name: str) -> str:
    """Return the findings of a section in the run of its name, with a link to its table."""
    chapters = _chapters(name) if (RUNS / name).is_dir() else []
    if not chapters:
        return f"not measured: `kvbench sweep {name}`"
    findings = " ".join(plain(finding).replace(TIMES, "x") for finding in chapters[0].part.findings[:2])
    # README explains no state but idle
    findings = findings.replace("on a sustained stream", "back to back").replace("(opened)", "(after a fired event)")
    return f"{findings} ([table]({_link_to(chapters[0].section.short_title)}))"


def _chapters(name: str) -> list[Chapter]:
    return [chapter for chapter in report_of([committed(name)]).chapters if chapter.section.name == name]


def _limit() -> str:
    loads = committed("engine").table.query("backend == 'sm' and direction == 'h2d' and pattern == 'shuffled'")
    swap = loads.query("blocks == 50_000 and block_size == '1KiB'").iloc[0]
    large_gbps = loads.query("block_size == '16KiB'").iloc[0].roof_gbps
    titles = {section.name: section.title for section in SECTIONS}
    return (
        f"Address translation ends them: also with all SMs, {swap.limit_blocks_per_s / 1e6:.0f} million scattered "
        f"blocks a second. Blocks below {large_gbps * 1e9 / swap.limit_blocks_per_s / 1024:.1f} KiB cannot fill the "
        f"link: {count(swap.blocks)} of 1 KiB move at {figure(swap.gbps)} GB/s "
        f"([table]({_LINK}/details.md#{anchor(titles['limits'])}))."
    )


@cache
def _runs_of(card: Path) -> list[Run]:
    return [load_run(run) for run in run_folders(card)]


def _short_name(card: Path) -> str:
    """A card's model without its maker and memory: "H100"."""
    title = str(_runs_of(card)[0].info.identity["gpu_name"])
    return title.removeprefix("NVIDIA ").partition(" ")[0]


def _origin(folder: Path) -> str:
    """Where and when a card's runs were made, and by which commands."""
    link = folder.relative_to(ROOT).as_posix()
    runs = _runs_of(folder)
    infos = [run.info for run in runs]
    identity = infos[0].identity
    dates = range_text(sorted(info.created[:10] for info in infos), str)
    packages = {facts.package.partition(" ")[0] for info in infos for facts in info.backends}
    used = "".join(f", {each}" for each in sorted(packages) if each and not each.startswith("kvbench=="))
    return (
        f"{identity['gpu_name']}, driver {identity['driver_version']}{used}; {views_of(runs[:1])[0].host}; {dates}: "
        f"`kvbench sweep` ([runs]({link}/runs), each with its command), then `kvbench report` "
        f"([report]({link}/report.md))."
    )


def _link_to(heading: str) -> str:
    """Return a link to the section of the report, or else of its details, whose heading begins so."""
    pattern = re.compile(rf"^#+ ({re.escape(heading)}.*)$", re.MULTILINE)
    files = (REPORT / "report.md", REPORT / "details.md")
    report, match = next((file, found) for file in files if (found := pattern.search(file.read_text())))
    return f"{report.relative_to(ROOT).as_posix()}#{anchor(match[1])}"


@cache
def committed(run: str) -> Run:
    return load_run(RUNS / run)


def _output(*command: str, runs: Sequence[str]) -> str:
    """What a command prints about runs of the card, or about those of another where it has none."""
    folders = [next(folder for card in CARDS if (folder := card / "runs" / run).is_dir()) for run in runs]
    return succeeds(*command, *(folder.relative_to(ROOT) for folder in folders), cwd=ROOT).stdout


def _printed(*command: str, runs: Sequence[str] = ("engine", "beside"), lines: int = 9) -> str:
    return "\n".join(["```", *_output(*command, runs=runs).splitlines()[:lines], "```"])


def _table_of(section: str, run: str) -> str:
    """The first table of a section as a run of the card has it, as Markdown."""
    return "\n\n".join(_output("report", "--snippet", section, runs=(run,)).split("\n\n")[:3])


def _probed() -> str:
    """The answers of the card's probes."""
    return "\n\n".join((REPORT / "probe.md").read_text().split("\n\n")[:2]).removeprefix("### ")


_IN_TIME: Final = ("show", "--beside", "decode", "--max-slowdown", "5%")
_OUTPUTS: Final = {
    "show": partial(_printed, "show"),
    "chat": partial(_printed, "report", "--snippet", "chat"),
    "show-beside": partial(_printed, *_IN_TIME, runs=("beside",), lines=7),
    "table-of-sweep": partial(_table_of, "cliff", "cliff"),
    "table-of-models": partial(_table_of, "models", "models"),
    "table-of-replay": partial(_table_of, "trace", "hour"),
    "probed": _probed,
}
_MAKERS: Final = {"picture": picture, "numbers": numbers, "asked": asked, **_OUTPUTS}
MAKERS: Final = _MAKERS if CARDS else dict.fromkeys(_MAKERS, lambda: "No report of this version is committed yet.")
