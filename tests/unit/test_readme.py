"""The documents say what the code does: their tables are its words, their commands run, their links lead somewhere."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from kvbench.cells.cell import AXES
from kvbench.cli.main import app
from kvbench.engine.faults import KINDS, NO_BATCH
from kvbench.errors import ExitCode
from kvbench.gate.judgement import GateVerdict
from kvbench.gate.outcomes import QUANTITIES
from kvbench.gate.rules import load_rules
from kvbench.results import COLUMNS, RunInfo
from kvbench.results.schema import SAMPLE_COLUMNS, EffectivePath
from kvbench.sweep.config import load_config, shipped_configs
from tests.command import kvbench_here
from tests.markdown import anchors

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
REPORTS = ROOT / "reports" / "README.md"
DOCUMENTS = (README, CONTRIBUTING, REPORTS, ROOT / "CHANGELOG.md")


def leaves(group: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command below a group, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, *names, name)
        else:
            yield (*names, name), command


COMMANDS = dict(leaves(typer.main.get_command(app)))
Row = tuple[str, ...]


def rows_below(document: Path, header: str) -> list[Row]:
    """Return the rows of the table whose first heading is `header`, a tuple of cells each."""
    lines = iter(document.read_text().splitlines())
    assert any(line.startswith(f"| {header} |") for line in lines), f"{document.name} has no table of {header}"
    next(lines)  # the rule below the headings
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append(tuple(cell.strip() for cell in line.strip("|").split(" | ")))
    return rows


def code(text: str) -> str:
    return f"`{text}`"


def names_in(rows: list[Row]) -> list[str]:
    """Return what stands in code in the first column, in order."""
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row[0])]


def code_lines(document: Path) -> Iterator[str]:
    """Yield the lines of shell in fenced and in indented blocks."""
    fence = None
    for line in document.read_text().splitlines():
        if line.startswith("```"):
            fence = None if fence is not None else line.removeprefix("```")
        elif fence == "sh":
            yield line
        elif fence is None and line.startswith("    "):
            yield line.strip()


def kvbench_commands() -> list[list[str]]:
    """Return the arguments of every `kvbench …` in the documents, each once."""
    lines = dict.fromkeys(line for document in DOCUMENTS for line in code_lines(document))
    return [words[1:] for line in lines if (words := shlex.split(line, comments=True)) and words[0] == "kvbench"]


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs that the documents speak of."""
    folder = tmp_path_factory.mktemp("tour")
    cells = ("-abackend=per_block,batched", "-adirection=h2d", "-ablocks=4", "-ablock_size=1KiB,2KiB")
    for name in ("mine", "other"):
        options = ("-astream_state=idle", "--rounds=1", f"--out=runs/{name}")
        done = kvbench_here("sweep", "--device=cpu", *cells, *options, cwd=folder)
        assert done.returncode == 0, done.stderr
    done = kvbench_here("tune", "runs/mine", "-p", "mine.toml", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_axis_is_documented_in_its_own_words() -> None:
    expected = [(code(axis.name), axis.help, code(f"-a {axis.name}={axis.example}")) for axis in AXES.values()]
    assert rows_below(README, "axis") == expected


def test_every_config_is_documented_with_its_question() -> None:
    expected = [(code(name), load_config(path).question) for name, path in shipped_configs().items()]
    assert rows_below(README, "config") == expected


def test_every_column_of_the_summary_is_documented() -> None:
    rows = rows_below(README, "column")
    assert names_in(rows) == list(COLUMNS)
    assert {row[0]: row[1] for row in rows if "," not in row[0]} == {
        code(name): text for name, text in COLUMNS.items() if not re.search("_us_(median|q1|q3)$", name)
    }


def test_every_column_of_the_samples_is_documented_in_its_own_words() -> None:
    assert rows_below(README, "sample column") == [(code(name), text) for name, text in SAMPLE_COLUMNS.items()]


def test_every_field_of_run_json_is_documented() -> None:
    assert names_in(rows_below(README, "field")) == list(RunInfo.__struct_fields__)


def test_every_exit_code_is_documented() -> None:
    assert names_in(rows_below(README, "code")) == [str(int(exit_code)) for exit_code in ExitCode]


@pytest.mark.parametrize("path", EffectivePath)
def test_every_effective_path_is_explained(path: str) -> None:
    assert f"\n- `{path}`: " in README.read_text()


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_every_command_and_option_is_documented(name: tuple[str, ...]) -> None:
    shown = "\n".join(path.read_text() for path in (README, CONTRIBUTING))
    options = {text for option in COMMANDS[name].params for text in option.opts if text.startswith("--")}
    missing = sorted(text for text in options - {"--axis", "--output"} if text not in shown)  # shown as -a and -o
    assert " ".join(("kvbench", *name)) in shown
    assert not missing


def test_every_verdict_and_every_quantity_of_the_gate_is_documented() -> None:
    assert names_in(rows_below(README, "verdict")) == list(GateVerdict)
    said = re.search(r"QUANTITY is (.*?), each", README.read_text(), re.DOTALL)
    assert said is not None
    assert set(re.findall("`(.*?)`", said[1])) == set(QUANTITIES)


def test_the_documented_rules_are_rules(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```toml\n(config = .*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "rules.toml").write_text(block)
    assert len(load_rules(tmp_path / "rules.toml").rules) == block.count("[[rule]]")


def test_every_fault_is_documented_in_its_own_words() -> None:
    assert rows_below(CONTRIBUTING, "kind") == [(code(kind), text) for kind, text in KINDS.items()]
    assert code(NO_BATCH) in CONTRIBUTING.read_text()


@pytest.mark.parametrize("arguments", kvbench_commands(), ids=shlex.join)
def test_a_documented_command_parses(arguments: list[str]) -> None:
    name = next((name for name in COMMANDS if tuple(arguments[: len(name)]) == name), None)
    if name is None:
        assert arguments == ["--help"]
    else:
        COMMANDS[name].make_context(name[-1], arguments[len(name) :])


@pytest.mark.parametrize(
    "arguments",
    [words for words in kvbench_commands() if words[0] == "sweep" and "--resume" not in words],
    ids=shlex.join,
)
def test_a_documented_sweep_can_be_planned(arguments: list[str], tmp_path: Path, folder: Path) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "mine.toml").symlink_to(folder / "mine.toml")
    # A backend that is yet to be written stands for one that is there.
    words = [word.replace("my_kernel", "per_block") for word in arguments]
    done = kvbench_here(*words, "--device=cpu", "--dry-run", cwd=tmp_path)
    if done.returncode == 2:  # only what has SMs can be asked for some of them
        assert "nothing to measure: " in done.stderr
        assert "the cpu device has no SMs" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
    assert re.search(r"^\d+ cells; ", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    "arguments",
    [words for words in kvbench_commands() if "runs/mine" in words and "--out" not in words],
    ids=shlex.join,
)
def test_a_documented_command_on_a_run_runs(arguments: list[str], folder: Path) -> None:
    done = kvbench_here(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", python_blocks())
def test_documented_python_runs(block: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    dead = []
    for target in re.findall(r"\]\((?!https://)([^)\s]+)\)", document.read_text()):
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        if name == "report.html":  # is not committed: `make reports` makes it
            continue
        if not path.exists() or (anchor and anchor not in anchors(path.read_text())):
            dead.append(target)
    assert not dead


@pytest.mark.parametrize("document", [README, CONTRIBUTING, REPORTS], ids=lambda document: document.name)
def test_no_measured_figure_is_typed(document: Path) -> None:
    # what a user writes into a file, such as a rule, is no measurement
    text = re.sub(r"^```toml\n.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`-a \S+`", "", text)  # nor is what stands on an axis
    assert not re.findall(r"\d[\d.,]*\s*(?:[KMG]B/s|GB per|µs|us\b|ms\b|times\b|-fold|x\b)", text)
    assert not re.findall(r"\b(?:24|28) ?KiB|\b25088\b", text)
