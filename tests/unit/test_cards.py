"""Committed reports are complete, and a folder that is not is refused with the reason."""

import gzip
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from kvbench.cells.axes import StreamState
from kvbench.probe import ProbeFinding, ProbeReport, Result
from kvbench.probe.command import JSON_FILE, MARKDOWN_FILE, markdown_of
from kvbench.report.build import SECTIONS, report_of
from kvbench.report.document import render_details, render_report
from kvbench.results import Record, RunInfo, RunWriter, load_run
from kvbench.results.schema import identity_hash
from kvbench.sweep.spec import SweepSpec
from reports import cards
from tests import synthetic

KEPT = ("batched", StreamState.IDLE)
CELLS = [cell for cell in synthetic.cliff_cells((256,), synthetic.FEW_KIB) if (cell.backend, cell.stream_state) == KEPT]
SEEN: Sequence[Record] = [*synthetic.ceilings(), *synthetic.rounds(CELLS)]


def info(spec: SweepSpec | None = None, title: str = "Synthetic H200", kind: str = "cuda") -> RunInfo:
    plain = synthetic.info(title, kind, spec=(spec or SweepSpec("quick")).to_plain())
    return msgspec.structs.replace(plain, identity_hash=identity_hash(plain.identity))


def add_run(card: Path, name: str, records: Sequence[Record], info_: RunInfo) -> Path:
    run = synthetic.write_run(card / "runs" / name, records, info_)
    with RunWriter.reopen(run) as writer:
        writer.set_status(info_.status)  # and the number of lines
    journal = run / "journal.jsonl"
    (run / "journal.jsonl.gz").write_bytes(gzip.compress(journal.read_bytes()))
    journal.unlink()
    return card


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    card = add_run(tmp_path_factory.mktemp("whole") / "card", "quick", SEEN, info())
    report = report_of([load_run(path) for path in cards.run_folders(card)])
    (card / "report.md").write_text(render_report(report))
    (card / "details.md").write_text(render_details(report))
    there = {chapter.section.name for chapter in report.chapters}
    lacks = [section.name for section in SECTIONS if section.config and section.name not in there]
    (card / cards.LACKS_FILE).write_text("\n".join(lacks))
    for chart in report.charts:
        (card / f"{chart.stem}.png").touch()
    return card


@pytest.fixture
def card(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "card"))


@pytest.mark.parametrize("folder", cards.cards(), ids=lambda folder: folder.name)
def test_a_committed_report_is_whole(folder: Path) -> None:
    assert not cards.complaints_about(folder)


def test_the_table_of_cards_is_that_of_the_folders() -> None:
    text = cards.README.read_text()
    assert text == cards.with_table(text, cards.cards())


def test_what_cards_reach_is_that_of_their_runs() -> None:
    assert cards.REACHED.read_text() == cards.reached_text(cards.cards())


def test_a_whole_card_is_taken(card: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for made_again in ("report.html", "cliff.svg", "cliff.csv", "runs/quick/summary.csv"):
        (card / made_again).touch()
    assert not cards.complaints_about(card)
    monkeypatch.setattr(cards, "MAX_LINES", 9)
    assert "lines; the maximum is 9" in str(cards.complaints_about(card))
    monkeypatch.setattr(cards, "MAX_WORDS", 9)
    assert "words outside its tables; the maximum is 9" in str(cards.complaints_about(card))


def test_a_card_without_one_of_the_seven_tables_says_so_or_is_refused(card: Path) -> None:
    (card / cards.LACKS_FILE).unlink()
    lacking = [text.partition("no table ")[2].partition(":")[0] for text in cards.complaints_about(card)]
    seven = {"order", "models", "cliff", "threshold", "sm-ladder", "queue", "beside"}
    assert seven - set(lacking) == {"cliff"}
    (card / cards.LACKS_FILE).write_text("\n".join([*lacking, "cliff"]))
    (complaint,) = cards.complaints_about(card)
    assert "the card has a table cliff" in complaint


def test_the_table_has_a_row_for_a_card(card: Path) -> None:
    *_, row = cards.table([card]).splitlines()
    assert row == "| [Synthetic H200](card/report.md) | 580.159 | 2026-11-20 | 1 | 10 | 6 | 55.5 | 55.5 |"


def test_a_title_from_a_run_starts_no_markup(tmp_path: Path) -> None:
    folder = add_run(tmp_path / "card", "quick", SEEN, info(title="](https://evil) | <b>"))
    *_, row = cards.table([folder]).splitlines()
    assert "](https://evil)" not in row
    assert "<b>" not in row.replace("\\<b", "")


def lines(card: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    journal = card / "runs/quick/journal.jsonl.gz"
    journal.write_bytes(
        gzip.compress(b"".join(change(gzip.decompress(journal.read_bytes()).splitlines(keepends=True))))
    )


def replaced(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (lambda card: lines(card, lambda every: every[:-1]), "has 5 visits; 6 are needed"),
        (lambda card: lines(card, lambda every: [*every[:-1], every[-1][:-9]]), "was cut"),
        (lambda card: lines(card, lambda every: every[:3] + every[4:]), "was changed after it was written"),
        (lambda card: (card / "runs/quick/journal.jsonl").touch(), "has both"),
        (lambda card: replaced(card / "runs/quick/run.json", '"complete"', '"interrupted"'), "interrupted, not comp"),
        (lambda card: replaced(card / "runs/quick/run.json", '"580.159"', '"600"'), "run.json was changed"),
        (
            lambda card: replaced(card / "runs/quick/run.json", f'lines": {len(SEEN)}', 'lines": 0'),
            "has no journal_lin",
        ),
        (lambda card: replaced(card / "report.md", "55.5", "65.5"), "is not what kvbench report writes"),
        (lambda card: next(card.glob("*.png")).unlink(), "is missing"),
        (lambda card: (card / "other.png").touch(), "is not a chart of this report"),
        (lambda card: (card / "notes.txt").touch(), "is not a file of a card"),
        (lambda card: (card / "link.png").symlink_to("report.md"), "symbolic link"),
        (lambda card: (card / "large.png").write_bytes(bytes(8_000_001)), "the maximum is 8 MB"),
        (lambda card: shutil.rmtree(card / "runs/quick"), "no runs"),
        (lambda card: add_run(card, "other", SEEN, info(title="Synthetic H100")), "several devices"),
    ],
)
def test_a_card_that_is_not_whole_is_refused(card: Path, harm: Callable[[Path], object], complaint: str) -> None:
    harm(card)
    complaints = cards.complaints_about(card)
    assert any(complaint in text for text in complaints), complaints


UNVERIFIED = msgspec.structs.replace(synthetic.visit(CELLS[0], 10.0), verified_bytes=0)


@pytest.mark.parametrize(
    ("records", "info_", "complaint"),
    [
        ([*SEEN, UNVERIFIED], info(), "was not verified"),
        ([*SEEN, synthetic.failure(CELLS[0])], info(), "failed (error)"),
        (list(synthetic.ceilings()), info(), "no visits"),
        (SEEN, info(SweepSpec("quick", fault="slow=50")), "with --fault"),
        (SEEN, info(SweepSpec("quick").with_sampling({"rounds": 8})), "has 6 visits; 8 are needed"),
        (SEEN, info(kind="cpu"), "not measured on a GPU"),
    ],
)
def test_a_run_that_is_not_whole_is_refused(
    tmp_path: Path, records: Sequence[Record], info_: RunInfo, complaint: str
) -> None:
    complaints = cards.complaints_about(add_run(tmp_path / "card", "quick", records, info_))
    assert any(complaint in text for text in complaints), complaints


def add_probes(card: Path, driver: str) -> None:
    figures: dict[str, str | int | float | bool] = {"driver_version": driver}
    well = ProbeFinding(answer="well", number=0, unit="", of="", expected=True, figures=figures)
    odd = ProbeFinding(answer="up to 24 | KiB", number=24, unit="KiB", of="largest", expected=False)
    results, health = [Result("inline", "", odd, 1.0)], Result("health", "", well, 1.0)
    report = ProbeReport(kvbench="", created="", device="cuda:0", results=results, health=health, took_s=2.0)
    (card / JSON_FILE).write_bytes(msgspec.json.encode(report))
    (card / MARKDOWN_FILE).write_text(markdown_of(report))


def test_the_answers_of_probes_stand_in_a_table_and_belong_to_the_card(card: Path) -> None:
    assert "|" not in cards.probe_table([card])
    add_probes(card, "570")
    assert any("is not that of the runs" in text for text in cards.complaints_about(card))
    add_probes(card, "580.159")
    assert not cards.complaints_about(card)
    header, _, *rows = cards.probe_table([card]).splitlines()
    assert header == "| Probe | [Synthetic H200, 580.159](card/probe.md) |"
    assert r"| inline | up to 24 \| KiB |" in rows
    (card / MARKDOWN_FILE).write_text("typed by hand")
    assert any("does not follow" in text for text in cards.complaints_about(card))
    (card / JSON_FILE).unlink()
    assert any("has no probe.json" in text for text in cards.complaints_about(card))
