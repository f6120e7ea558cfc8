"""Checks the committed reports, and writes the table of cards in README.md.

A card is a folder with the runs of one GPU and their report. `python -m reports.cards` checks every card, the table,
and `configs/cards.json`, what such cards reach; `--write` updates both. Exit code 1: a check failed.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from kvbench.cells.axes import Direction
from kvbench.ground.errors import KvbenchError
from kvbench.ground.files import shipped_folder
from kvbench.ground.text import range_text
from kvbench.probe import PROBES, ProbeFinding, ProbeReport
from kvbench.probe.command import JSON_FILE, MARKDOWN_FILE, answer_columns, markdown_of
from kvbench.report import markdown
from kvbench.report.build import SECTIONS, report_of
from kvbench.report.document import DETAILS_FILE, REPORT_FILE, render_details, render_report, table_text
from kvbench.report.health import FILE, Reached, reached_by
from kvbench.report.model import Report
from kvbench.report.sections.answer import machines_table
from kvbench.report.view import views_of
from kvbench.results import Run, load_run
from kvbench.results.rundir import PACKED_JOURNAL_FILE, RUN_FILE, runs_in
from kvbench.results.schema import EffectivePath, Failure, Visit, identity_hash
from kvbench.sweep.spec import SweepSpec

FOLDER: Final = Path(__file__).parent
README: Final = FOLDER / "README.md"
REACHED: Final = shipped_folder() / FILE
# Names the tables of the first page that a card lacks, a line each; a card without this file has all of them.
LACKS_FILE: Final = "lacks.txt"
MAX_CARD_BYTES: Final = 8_000_000
# Of report.md, which is one page: its lines, and its words outside its tables.
MAX_LINES: Final = 260
MAX_WORDS: Final = 900
# Fewer leave every comparison undecided.
MIN_VISITS: Final = 6
# Globs below a card: committed files, and generated files, which git ignores.
COMMITTED: Final = (
    REPORT_FILE,
    DETAILS_FILE,
    MARKDOWN_FILE,
    JSON_FILE,
    LACKS_FILE,
    "*.png",
    "policy*.toml",
    f"runs/**/{RUN_FILE}",
    f"runs/**/{PACKED_JOURNAL_FILE}",
)
IGNORED: Final = ("report.html", "*.svg", "*.csv", "runs/**/summary.csv")


def cards(folder: Path = FOLDER) -> list[Path]:
    """Return the folders of cards, by name."""
    return sorted(runs.parent for runs in folder.glob("*/runs"))


def run_folders(card: Path) -> list[Path]:
    """Return the run directories of a card, in the order in which its report has them."""
    return [run for path in sorted((card / "runs").iterdir()) for run in runs_in(path)]


@cache
def _run(path: Path) -> Run:
    run = load_run(path)
    _ = run.table  # now, while its journal is held
    return run


def complaints_about(card: Path) -> list[str]:
    """Return what is wrong with a card, one line each; empty if it can be committed."""
    complaints = list(_about_files(card))
    runs: list[Run] = []
    for path in run_folders(card):
        try:
            runs.append(_run(path))
        except KvbenchError as error:
            complaints.append(str(error))
            continue
        complaints += [f"{path}: {text}" for text in _about_run(runs[-1])]
    if complaints or not runs:
        return complaints or [f"{card}: no runs"]
    if len({_machine(run) for run in runs}) > 1:
        return [f"{card}: its runs are of several devices or drivers; use one folder for each"]
    report = report_of(runs)
    return [*_about_report(card, report), *_about_tables(card, report), *_about_probes(card, runs)]


def _about_files(card: Path) -> Iterator[str]:
    committed = {path for glob in COMMITTED for path in card.glob(glob)}
    ignored = {path for glob in IGNORED for path in card.glob(glob)}
    for path in sorted(card.rglob("*")):
        if path.is_symlink():
            yield f"{path} is a symbolic link"
        elif path.is_file() and path not in committed | ignored:
            yield f"{path} is not a file of a card: these are {', '.join(COMMITTED)}"
    size_bytes = sum(path.lstat().st_size for path in committed)
    if size_bytes > MAX_CARD_BYTES:
        yield f"{card} has {size_bytes / 1e6:.1f} MB; the maximum is {MAX_CARD_BYTES / 1e6:.0f} MB"


def _about_run(run: Run) -> Iterator[str]:
    info = run.info
    yield from run.warnings
    if info.status != "complete":
        yield f"the run is {info.status}, not complete; finish it with kvbench sweep --resume"
    if not info.journal_lines:
        yield f"{RUN_FILE} has no journal_lines: a journal that was cut would pass as whole"
    if info.device.get("kind") != "cuda":
        yield "it was not measured on a GPU"
    if info.identity_hash != identity_hash(info.identity):
        yield "identity_hash is not that of identity: run.json was changed"
    try:
        spec = SweepSpec.from_plain(info.spec)
    except KvbenchError as error:
        yield f"{RUN_FILE}: {error}"
        return
    if spec.fault is not None:
        yield "it was measured with --fault"
    yield from _about_cells(run, max(spec.sampling.rounds, MIN_VISITS))


def _about_cells(run: Run, visits: int) -> Iterator[str]:
    rounds: dict[str, set[int]] = {}
    for record in run.records:
        if isinstance(record, Failure):
            yield f"cell {record.cell.id} failed ({record.kind}): measure it again with --resume and --retry-failed"
        elif isinstance(record, Visit):
            rounds.setdefault(record.cell.id, set()).add(record.round)
            # of the swaps of a trace, the first of a visit is compared in full
            first = record.samples.swap_blocks
            wanted_bytes = first[0] * record.cell.block_bytes if first else record.cell.swap_bytes
            if record.path != EffectivePath.NOTHING and record.verified_bytes < wanted_bytes:
                yield f"cell {record.cell.id}: a visit in round {record.round} was not verified"
    if not rounds:
        yield "it has no visits"
    for cell, seen in rounds.items():
        if len(seen) < visits:
            yield f"cell {cell} has {len(seen)} visits; {visits} are needed"


def _about_tables(card: Path, report: Report) -> Iterator[str]:
    path = card / LACKS_FILE
    lacks = path.read_text().split() if path.is_file() else []
    there = {chapter.section.name for chapter in report.chapters}
    for section in SECTIONS:
        if section.config and section.name not in (*there, *lacks):
            yield f"{card} has no table {section.name}: add a run of kvbench sweep {section.config}"
    for name in sorted(there.intersection(lacks)):
        yield f"{path}: the card has a table {name}; take the line out, and the file with its last line"


def _about_report(card: Path, report: Report) -> Iterator[str]:
    for name, render in ((REPORT_FILE, render_report), (DETAILS_FILE, render_details)):
        path = card / name
        if not path.is_file() or path.read_bytes() != render(report).encode():
            yield f"{path} is not what kvbench report writes from these runs: run make reports"
    lines = render_report(report).splitlines()
    if len(lines) > MAX_LINES:
        yield f"{card / REPORT_FILE} has {len(lines)} lines; the maximum is {MAX_LINES}"
    prose = [line for line in lines if not line.startswith(("|", "!["))]
    words = len(re.sub(r"(?<=\d)\s(?=\d{3}\b)", "", "\n".join(prose)).split())
    if words > MAX_WORDS:
        yield f"{card / REPORT_FILE} has {words} words outside its tables; the maximum is {MAX_WORDS}"
    drawn = {f"{chart.stem}.png" for chart in report.charts}
    there = {path.name for path in card.glob("*.png")}
    for name in sorted(drawn - there):
        yield f"{card / name} is missing: run make reports"
    for name in sorted(there - drawn):
        yield f"{card / name} is not a chart of this report: remove it"


def _about_probes(card: Path, runs: Sequence[Run]) -> Iterator[str]:
    path = card / MARKDOWN_FILE
    if not (card / JSON_FILE).is_file():
        if path.exists():
            yield f"{path} has no {JSON_FILE}: write both with kvbench probe --out"
        return
    try:
        probed = _probed(card)
    except msgspec.DecodeError as error:
        yield f"{card / JSON_FILE}: {error}"
        return
    if not path.is_file() or path.read_text() != markdown_of(probed):
        yield f"{path} does not follow from {JSON_FILE}: write both with kvbench probe --out"
    if _driver(probed) != _machine(runs[0])[1]:
        yield f"{card / JSON_FILE}: its driver {_driver(probed)} is not that of the runs"


def _probed(card: Path) -> ProbeReport:
    return msgspec.json.decode((card / JSON_FILE).read_bytes(), type=ProbeReport)


def _driver(probed: ProbeReport) -> str:
    found = probed.health.found
    return str(found.figures.get("driver_version")) if isinstance(found, ProbeFinding) else "unknown"


def probe_table(folders: Iterable[Path]) -> str:
    """Return the answers of every probe in Markdown, a column for each card that has them."""
    probed = {card: _probed(card) for card in folders if (card / JSON_FILE).is_file()}
    if not probed:
        return "No card has probes."
    names = (f"{_machine(_run(run_folders(card)[0]))[0]}, {_driver(one)}" for card, one in probed.items())
    titles = [
        f"[{markdown.inline(name)}]({card.name}/{MARKDOWN_FILE})" for name, card in zip(names, probed, strict=True)
    ]
    answers = [{result.name: answer_columns(result)[0] for result in one.results} for one in probed.values()]
    rows = [[name, *(markdown.inline(answer.get(name, "")) for answer in answers)] for name in PROBES]
    return markdown.table(["Probe", *titles], rows, left=1 + len(titles))


def table(folders: Iterable[Path]) -> str:
    """Return the table of cards in Markdown."""
    header = ["Card", "Driver", "Date", "Runs", "Cells", "Visits a cell", "Ceiling h2d, GB/s", "Ceiling d2h, GB/s"]
    return markdown.table(header, [_row(card) for card in folders], left=3)


def machine_table(folders: Iterable[Path]) -> str:
    """Return what every card reaches in Markdown, a column for each."""
    views = views_of([load_run(path) for card in folders for path in run_folders(card)])
    table = machines_table(views)
    return table_text(replace(table, title="")) if table else "There is one card."


def _row(card: Path) -> list[str]:
    runs = [_run(path) for path in run_folders(card)]
    title, driver = _machine(runs[0])
    visits = [len(one.attempts) for run in runs for one in run.outcomes.values() if one.attempts]
    ceilings = [[rate for run in runs for rate in run.ceiling_rates.get(way, ())] for way in Direction]
    return [
        f"[{markdown.inline(title)}]({card.name}/{REPORT_FILE})",
        markdown.inline(driver),
        range_text((run.info.created[:10] for run in runs), str),
        str(len(runs)),
        str(len(visits)),
        str(min(visits)),
        *(f"{median(rates):.1f}" if rates else "" for rates in ceilings),
    ]


def _machine(run: Run) -> tuple[str, str]:
    return str(run.info.device.get("title")), str(run.info.identity.get("driver_version"))


def reached_text(folders: Iterable[Path]) -> str:
    """Return what the runs of cards reached as JSON, by the title of the card."""
    runs: dict[str, list[Run]] = {}
    for card in folders:
        for path in run_folders(card):
            runs.setdefault(_machine(_run(path))[0], []).append(_run(path))
    reached = {title: _rounded(reached_by(of_card)) for title, of_card in sorted(runs.items())}
    return msgspec.json.format(msgspec.json.encode(reached), indent=2).decode() + "\n"


def _rounded(reached: Reached) -> Reached:
    """Rates to a tenth of a GB/s, and to 100 000 blocks a second."""
    digits = {"h2d_gbps": 1, "d2h_gbps": 1, "h2d_blocks_per_s": -5, "d2h_blocks_per_s": -5}
    rates = {name: value for name in digits if (value := getattr(reached, name)) is not None}
    return msgspec.structs.replace(reached, **{name: round(value, digits[name]) for name, value in rates.items()})


def with_table(readme: str, folders: Sequence[Path]) -> str:
    """Return the text of README.md with the tables of `folders` between their markers."""
    for name, made in (
        ("cards", table(folders)),
        ("machines", machine_table(folders)),
        ("probes", probe_table(folders)),
    ):
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, _, rest = readme.partition(begin)
        _, _, after = rest.partition(end)
        readme = f"{before}{begin}\n{made}\n{end}{after}"
    return readme


def main() -> int:
    """Check all cards and the table, or update the table; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m reports.cards", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"update the table in README.md, and {REACHED}")
    write = parser.parse_args().write
    complaints = [text for card in cards() for text in complaints_about(card)]
    made = {} if complaints else {README: with_table(README.read_text(), cards()), REACHED: reached_text(cards())}
    for path, text in made.items():
        if write:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            complaints.append(f"{path} is out of date: run make reports")
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    if not complaints:
        print("complete:", *(card.name for card in cards()))
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
