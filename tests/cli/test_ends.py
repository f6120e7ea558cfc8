"""How a command ends: the exit code says what happened, and a line says why, whatever is wrong with its output."""

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.cli import gate, listing, main, progress
from kvbench.cli.sweep import end_on_signals
from kvbench.gate import side_by_side
from kvbench.ground.errors import ExitCode
from tests import synthetic
from tests.command import BRIEF, KVBENCH, error_line, kvbench, kvbench_here, only_line, refused, succeeds, tiny


def test_an_internal_error_has_exit_code_70_and_says_how_to_report_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(listing._LISTINGS, "axes", lambda: [{"axis": 1 // 0}])
    assert main.run(["list", "axes"]) == ExitCode.UNFORESEEN == 70
    line = only_line(capsys.readouterr().err)
    assert line.startswith("ZeroDivisionError: integer division or modulo by zero (test_ends.py, line ")
    assert "please report it" in line
    monkeypatch.setenv(main.TRACEBACK_VARIABLE, "1")
    with pytest.raises(ZeroDivisionError):
        main.run(["list", "axes"])


def into(shell: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command whose standard output the shell redirects."""
    command = ["sh", "-c", f'"$@" {shell}', "sh", str(KVBENCH), *arguments]
    return subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)


def test_a_standard_output_that_takes_nothing_is_reported_and_the_sweep_can_be_finished(tmp_path: Path) -> None:
    for shell, error in ((">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
        done = into(shell, "list", "axes", cwd=tmp_path)
        assert (done.returncode, error_line(done)) == (5, f"standard output cannot be written: {error}")
    assert into(">&-", "sweep", *tiny(), *BRIEF, "--out=run", cwd=tmp_path).returncode == 5
    succeeds("sweep", "--resume", "run", cwd=tmp_path)
    assert into("<&- >&- 2>&-", "list", "axes", cwd=tmp_path).returncode == 5
    assert into("<&- 2>&-", "list", "axes", cwd=tmp_path).returncode == 0


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    synthetic.write_run(folder / "run", [*synthetic.ceilings(), *synthetic.rounds(synthetic.cliff_cells((256,)))])
    return folder


@pytest.mark.parametrize("command", ["list axes", "show run"])
def test_a_command_whose_reader_left_says_nothing_more(prepared: Path, command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            [KVBENCH, *command.split()], cwd=prepared, stdout=closed, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (ExitCode.CLOSED, "")


LONG = "x" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["sweep", f"{LONG}.toml"],
        ["sweep", "-a", "backend=auto", "--policy", LONG],
        ["report", LONG],
        ["show", "x" * 100_000],
        ["gate", "rules", LONG],
        ["gate", "compare", "--base", f"env:{LONG}", "--cand", "here"],
        ["gate", "compare", "--base", "here", "--cand", "here", "--suite", f"{LONG}.toml"],
    ],
    ids=lambda arguments: " ".join(word if len(word) < 100 else "LONG" for word in arguments),
)
def test_a_path_that_the_system_refuses_is_an_error_of_one_line(arguments: list[str], tmp_path: Path) -> None:
    line = refused(*arguments, cwd=tmp_path)
    assert "file name too long" in line.lower()
    assert len(line) <= main.MAX_LINE


@pytest.mark.parametrize(
    "arguments",
    [
        ["sweep", "--device=cpu", "--dry-run", "--fault", "\udcff"],
        ["sweep", "--device=cpu", "--dry-run", "--model=qwen3-8b", "--layout=\udcff"],
        ["sweep", *tiny(), *BRIEF, "--out=run\udcff"],
    ],
)
def test_an_argument_that_is_not_utf_8_is_refused(arguments: list[str], tmp_path: Path) -> None:
    assert r"\udcff': not valid UTF-8" in refused(*arguments, cwd=tmp_path)
    assert not list(tmp_path.iterdir())


def test_commands_and_configs_are_completed(tmp_path: Path) -> None:
    variables = {"_KVBENCH_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    for words, first in (("kvbench sw", "sweep"), ("kvbench sweep cl", "cliff")):
        assert kvbench(cwd=tmp_path, env={**variables, "_TYPER_COMPLETE_ARGS": words}).stdout.split()[0] == first


def copied(line: str, lead: str) -> list[str]:
    """Return the words that a shell makes of the command printed behind `lead`."""
    assert lead in line
    return shlex.split(line.partition(lead)[2])


def test_each_failure_is_shown_once_before_the_outcome(tmp_path: Path) -> None:
    cells = tiny(backend="per_block", blocks="1,2,3")
    done = kvbench_here("sweep", *cells, *BRIEF, "--fault=error@call=0 when blocks!=3", "--out=run", cwd=tmp_path)
    assert done.returncode == 5
    shown = [line for line in done.stdout.replace("\\\n", "").splitlines() if not line.startswith("note: ")]
    _, _, failed, again, more, measured, report, *_ = shown
    assert failed.startswith("FAILED (error) per_block h2d ")
    _, *once_more = copied(again, "  to measure it again: ")
    assert more == "FAILED (error) 1 more cell of per_block: copy: INJECTED_ERROR (descriptor 0)"
    assert measured == "1 cell measured, 2 failed, 0 skipped: run"
    assert report.endswith("kvbench report run")
    assert kvbench_here(*once_more, "--out=again", cwd=tmp_path).stdout.count("FAILED (error)") == 1
    retried = kvbench_here("sweep", "--resume", "again", "--retry-failed", cwd=tmp_path)
    assert (retried.returncode, retried.stdout.count("FAILED")) == (5, 1)


FOLDER = "it's $(mine) & yours"


def test_commands_printed_to_be_copied_are_quoted(tmp_path: Path) -> None:
    done = kvbench_here("sweep", *tiny(backend="batched"), *BRIEF, "--out", FOLDER, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (report,) = (line for line in done.stdout.splitlines() if "tables and charts: " in line)
    assert copied(report, "tables and charts: ") == ["kvbench", "report", FOLDER]
    again = kvbench_here("sweep", *tiny(), *BRIEF, "--out", FOLDER, cwd=tmp_path)
    assert copied(error_line(again), "continue its run with ") == ["--resume", FOLDER]
    auto = kvbench_here("sweep", *tiny(backend="auto"), "--policy", FOLDER, cwd=tmp_path)
    assert copied(error_line(auto), "build one with ") == ["kvbench", "show", FOLDER, "-p", "FILE"]


def test_the_command_of_an_interrupted_comparison_is_quoted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    both = mock.MagicMock()
    both.__enter__.return_value.compare.side_effect = KeyboardInterrupt
    both.__exit__.return_value = None
    opened = mock.Mock(side_effect=[KeyboardInterrupt, both])
    monkeypatch.setattr(side_by_side, "opened", opened)
    monkeypatch.setattr(gate, "end_on_signals", mock.Mock())
    command = ["gate", "compare", "--base=here", "--cand=here", "--out", FOLDER]
    assert main.run(command) == 130
    assert "kept" not in capsys.readouterr().err  # nothing was measured yet
    assert main.run(command) == 130
    printed_command = copied(capsys.readouterr().err, "to compare it: ")
    assert printed_command == ["kvbench", "report", f"{FOLDER}/base", f"{FOLDER}/cand"]


def test_the_time_left_follows_from_the_visits_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now_s[0])
    [visit] = synthetic.visits([Cell("batched", Direction.H2D, 4, 4096)])
    opened = mock.Mock(device=mock.Mock(kind="cpu", title="a host"))
    reporter = progress.PlainReporter()
    reporter.planned(mock.Mock(cells=[visit.cell], skipped=[]), opened, 0, 1000)
    capsys.readouterr()

    def line_at(second: float) -> str:
        now_s[0] = second
        reporter.recorded(visit)
        return capsys.readouterr().out.strip()

    assert line_at(30) == "1 of 1000 visits"  # the first visit opened the device
    for _ in range(499):
        reporter.recorded(visit)
    assert line_at(280) == "501 of 1000 visits, 4 min 10 s left"  # 250 s for 500 visits
    for _ in range(500):
        reporter.recorded(visit)
    assert line_at(530) == "1002 of 1000 visits, more than expected"


@pytest.fixture
def _as_before() -> Iterator[None]:
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_hangup_after_the_first_signal_does_not_end_what_is_written(number: signal.Signals) -> None:
    end_on_signals()
    with pytest.raises(KeyboardInterrupt, match=number.name):
        signal.raise_signal(number)
    signal.raise_signal(signal.SIGHUP)


@pytest.mark.usefixtures("_as_before")
def test_a_command_under_nohup_outlives_its_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    end_on_signals()
    signal.raise_signal(signal.SIGHUP)
