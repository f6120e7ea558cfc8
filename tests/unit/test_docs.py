"""The documents say what the code does: their tables are its words, their commands run, their links lead somewhere."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import Any

import pytest
import typer.main

from kvbench.cells.policy import load_policy
from kvbench.cli.main import app
from kvbench.gate.judgement import GateVerdict
from kvbench.gate.rules import check_rules, load_rules, shipped_rules
from kvbench.ground.errors import ExitCode
from kvbench.results import load_run
from kvbench.sweep.spec import load_config
from reports import cards
from tests.command import succeeds
from tests.docs import figures
from tests.docs.blocks import DOCUMENTS, MAKERS, OTHERS, ROOT, filled, names_of, without_blocks
from tests.docs.schemas import FOLDER, SHOW, TYPES, schema
from tests.markdown import anchors

README = ROOT / "README.md"
REFERENCE = ROOT / "docs" / "reference"
HOW_TO = ROOT / "docs" / "how-to"


def options(command: Any) -> Iterator[str]:
    yield from (text for option in command.params for text in option.opts)
    for name in getattr(command, "commands", ()):
        yield from options(command.get_command(None, name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs that the documents speak of."""
    folder = tmp_path_factory.mktemp("tour")
    cells = ("-abackend=per_block,batched", "-adirection=h2d", "-ablocks=4", "-ablock_size=1KiB,2KiB")
    succeeds("sweep", "--device=cpu", *cells, "-astream_state=idle", "--rounds=1", "--out=runs/mine", cwd=folder)
    shutil.copytree(folder / "runs/mine", folder / "runs/other")
    succeeds("show", "runs/mine", "-p", "mine.toml", cwd=folder)
    (folder / "reports").symlink_to(ROOT / "reports")
    return folder


def test_the_documents_stay_short() -> None:
    """Words count that somebody wrote, code too, as `wc -w` counts them; not what is generated."""
    text = "\n".join(without_blocks(page.read_text()) for page in (README, *(ROOT / "docs").rglob("*.md")))
    assert len(text.split()) <= 13_000
    assert not {"opened", "gated", "sustained", "merged", "copier"} & {*README.read_text().split()}


def test_each_card_has_a_row_of_its_own_for_each_situation() -> None:
    single, double = (figures.numbers([figures.REPORT] * cards).split("\n\n")[0].splitlines() for cards in (1, 2))
    assert len(double) - 2 == 2 * (len(single) - 2)
    (swap, *answer), *of_cards = (row.strip("| ").split(" | ") for row in (single[2], *double[2:4]))
    assert [row[1:] for row in of_cards] == [answer] * 2
    assert all(row[0].startswith(f"{swap}, ") for row in of_cards)


def test_every_exit_code_and_verdict_has_a_row() -> None:
    pages = {REFERENCE / "results.md": list(map(int, ExitCode)), HOW_TO / "gate.md": list(GateVerdict)}
    for page, values in pages.items():
        assert [value for value in values if f"\n| `{value}` | " not in page.read_text()] == []


@pytest.mark.parametrize("name", MAKERS)
def test_a_generated_block_is_as_it_is_made_now(name: str) -> None:
    (document,) = [document for document in DOCUMENTS if name in names_of(document.read_text())]
    (text,) = re.findall(rf"<!-- {name}: begin -->.*?<!-- {name}: end -->", document.read_text(), re.DOTALL)
    assert filled(text) == text, f"{document.relative_to(ROOT)}: run make docs"


def test_every_schema_is_as_its_type_is_now() -> None:
    texts = {path.name: path.read_text() for path in FOLDER.iterdir() if path != SHOW}
    assert texts == {name: schema(name) for name in TYPES}


def test_every_block_has_a_maker() -> None:
    names = [name for document in DOCUMENTS for name in names_of(document.read_text())]
    assert sorted(names) == sorted([*MAKERS, *OTHERS])


def test_options_that_are_spoken_of_exist() -> None:
    pages = [README, *HOW_TO.glob("*.md")]
    spoken = {name for page in pages for name in re.findall(r"`(--[a-z-]+)[^`]*`", page.read_text())}
    assert spoken <= {*options(typer.main.get_command(app)), "--help", "--"}


@pytest.mark.parametrize(
    ("document", "read", "table"),
    [
        (REFERENCE / "config.md", lambda path: load_config(path).groups, "[[group]]"),
        (REFERENCE / "policy.md", lambda path: load_policy(path).tables, "[[tables]]"),
    ],
    ids=["config", "policy"],
)
def test_a_documented_file_can_be_read(
    tmp_path: Path, document: Path, read: Callable[[Path], Sized], table: str
) -> None:
    (block,) = re.findall(r"^```toml\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "mine.toml").write_text(block)
    assert len(read(tmp_path / "mine.toml")) == block.count(table)


@pytest.mark.parametrize("rules", ["shipped", "of the page"])
def test_the_shipped_rules_and_those_of_the_page_hold_on_the_committed_runs(tmp_path: Path, rules: str) -> None:
    (block,) = re.findall(r"^```toml\n(config = .*?)^```", (HOW_TO / "gate.md").read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "rules.toml").write_text(block)
    wanted = load_rules(shipped_rules() if rules == "shipped" else tmp_path / "rules.toml")
    assert wanted.config is not None
    if not cards.cards():
        pytest.skip("no report is committed")
    runs = sorted((ROOT / "reports").glob(f"*/runs/{wanted.config}"))
    assert runs
    holding = set()
    for path in runs:
        report = check_rules(load_run(path), wanted)
        assert not report.warnings
        # A run of a card can lack the largest swaps or, on a noisy host, leave a rule undecided; none breaks one, and
        # some run passes each.
        assert {row.verdict for row in report.rows if row.cells} <= {GateVerdict.PASS, GateVerdict.UNDECIDED}
        holding |= {row.name for row in report.rows if row.verdict is GateVerdict.PASS}
    assert len(holding) == len(wanted.rules)


def test_documented_python_runs(folder: Path) -> None:
    """In one process: most of what a block takes is the start of pandas."""
    texts, environment = "".join(map(Path.read_text, DOCUMENTS)), os.environ | {"MPLBACKEND": "agg"}
    blocks = re.findall(r"^```python\n(.*?)^```", texts, re.DOTALL | re.MULTILINE)
    command = (sys.executable, "-c", "".join(blocks))
    done = subprocess.run(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    for name in re.findall(r'savefig\("(.*?)"\)', "".join(blocks)):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))


@every_document
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https://|report.html)([^)\s]+)\)", document.read_text()):  # it is not committed
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text()), target


@every_document
def test_no_measured_figure_is_typed(document: Path) -> None:
    text = without_blocks(document.read_text())  # what is generated comes from committed runs
    # what a user writes into a file, such as a rule, or gives an axis is no measurement
    text = re.sub(r"^```toml\n.*?^```|-a \S+", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not re.findall(r"\d[\d.,]*\s*(?:[KMG]B/s|GB per|µs|us\b|ms\b|times\b|-fold|x\b)", text)
    assert not re.findall(r"\b(?:24|28) ?KiB|\b25088\b", text)
