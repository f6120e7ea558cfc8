"""`kvbench sweep` from end to end on the cpu device: what is measured, what goes wrong, and what is kept."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import termios
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvbench.cells.cell import AXES
from kvbench.ground.text import LOG_COLUMNS
from kvbench.results import COLUMNS, Note, Visit, load_run
from kvbench.results.attempts import visits_that_count
from kvbench.results.schema import identity_hash
from tests.command import (
    BRIEF,
    HOT,
    KVBENCH,
    Done,
    await_cpu_time,
    await_records,
    ended,
    error_line,
    events,
    failures,
    kvbench,
    kvbench_here,
    kvbench_started,
    records,
    refused,
    succeeds,
    swept,
    tiny,
    visit_counts,
    watched,
    workers_of,
)

SHORT = ("sweep", *tiny(blocks="1,2", block_size="512B"), *BRIEF, "--rounds=2")
# Visits of some ten kilobytes in the journal: it meets a limit on the size of files before run.json does.
BULKY = ("sweep", *tiny(), "--rounds=2", "--min-samples=300", "--max-samples=300", "--cell-seconds=60")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two cells in two rounds that nothing disturbed."""
    return swept(tmp_path_factory.mktemp("whole"), *tiny(), *BRIEF, "--rounds=2")


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of `whole` to damage."""
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("run.json", "journal.jsonl", "summary.csv"):
        (copy / name).write_bytes((whole / name).read_bytes())
    return copy


def resume(run: Path, *options: str) -> Done:
    return kvbench_here("sweep", "--resume", run, *options, cwd=run.parent)


def status(run: Path) -> str:
    return load_run(run).info.status


# What a sweep leaves


def test_a_run_directory_records_its_origin(whole: Path) -> None:
    assert {path.name for path in whole.iterdir()} == {"run.json", "journal.jsonl", "summary.csv"}
    read = load_run(whole)
    assert not read.warnings
    assert read.info.status == "complete"
    assert read.info.command[:3] == ["kvbench", "sweep", "--device=cpu"]
    assert read.info.device["kind"] == "cpu"
    assert read.info.identity_hash == identity_hash(read.info.identity)
    assert [seen["at"] for seen in read.info.observed] == ["start", "end"]


def test_a_device_without_batch_is_measured_and_says_so(tmp_path: Path) -> None:
    run = swept(tmp_path, *tiny(), *BRIEF, "--fault=no-batch")
    table = pd.read_csv(run / "summary.csv").set_index("backend")
    assert table["path"].to_dict() == {"batched": "per-copy fallback", "per_block": "host thread"}


def test_the_summary_is_read_by_pandas_in_one_line(whole: Path) -> None:
    table = pd.read_csv(whole / "summary.csv")
    assert set(table) == {*COLUMNS, *(column for axis in AXES.values() for column in axis.columns)}
    assert table["status"].tolist() == ["ok", "ok"]
    assert table["backend"].tolist() == ["batched", "per_block"]
    assert (table["device"] == "cpu (host copies, no GPU)").all()
    assert (table["path"] == "host thread").all()
    assert (table["samples"] == 4).all()
    assert (table["swap_bytes"] == 4096).all()
    for name in ("wall_us_median", "gbps", "ceiling_gbps", "ceiling_share"):
        assert (table[name] > 0).all()


def test_every_cell_is_visited_and_verified_in_every_round(whole: Path) -> None:
    assert set(visit_counts(whole).values()) == {1}
    visits = visits_that_count(records(whole))
    assert Counter((visit.cell.backend, visit.round) for visit in visits) == Counter(
        (backend, number) for backend in ("batched", "per_block") for number in (0, 1)
    )
    for visit in visits:
        # the first swap, two samples and the audit's swap: four blocks each, and what lies beside them
        assert visit.verified_bytes > 4 * 4 * 1024
        assert len(visit.samples) == 2
        assert visit.calls == (1 if visit.cell.backend == "batched" else 4)


# What it shows


def test_a_dry_run_shows_the_plan_and_creates_nothing(tmp_path: Path) -> None:
    cells = tiny(backend="per_block,batched,triton", order="stream,any", blocks="4,8")
    done = succeeds("sweep", *cells, "-fblocks=4", "--dry-run", "--out", "run", cwd=tmp_path)
    shown = done.stdout.splitlines()
    assert shown[0].startswith("device cpu: ")
    assert "without a GPU" in shown[0]
    assert shown[1].startswith("2 cells; up to ")
    assert "of pinned host memory and " in shown[1]
    assert shown[2:4] == [
        f"  {backend} h2d 4 x 1KiB idle pool=2MiB reuse=fresh" for backend in ("per_block", "batched")
    ]
    assert shown[4] == "6 combinations excluded by filters"
    assert "skipped 2 cells of per_block, batched: the cpu device has no access order" in shown[5:]
    assert any("Triton kernels need a GPU" in line for line in shown[5:])
    assert not list(tmp_path.iterdir())


def test_json_has_the_plan_every_record_and_the_outcome(tmp_path: Path) -> None:
    json_events = events(
        kvbench_here("sweep", *tiny(backend="per_block,triton"), *BRIEF, "--json", "--out", "run", cwd=tmp_path)
    )
    assert [event["event"] for event in json_events].count("planned") == 1
    planned = next(event for event in json_events if event["event"] == "planned")
    assert (planned["cells"], planned["skipped"], planned["visits"], planned["done"]) == (1, 1, 1, 0)
    kept = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    for line in kept:
        del line["crc"]
    assert [event["record"] for event in json_events if event["event"] == "record"] == kept
    last, counts = json_events[-1], ("measured", "failed", "skipped", "copies_failed")
    assert [last[name] for name in ("event", "run", "status", "reason")] == ["finished", "run", "complete", None]
    assert [last[name] for name in counts] == [1, 0, 1, 0]


def test_progress_is_plain_lines_without_a_terminal(tmp_path: Path) -> None:
    done = succeeds("sweep", *tiny(backend="per_block,triton"), *BRIEF, "--out", "run", cwd=tmp_path)
    assert not done.stderr
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines()[1:5] == [
        "1 cell in 1 visit",
        "skipped 1 cell of triton: Triton kernels need a GPU; the cpu device has no SMs",
        "1 cell measured, 0 failed, 1 skipped: run",
        "to write tables and charts: kvbench report run",
    ]
    assert "| per_block |" in done.stdout  # it ends with the table of its cells


def test_progress_on_a_terminal_of_80_columns_is_a_bar_before_the_table_of_the_cells(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    command = [str(KVBENCH), "sweep", *tiny(), *BRIEF, "--out", "run"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while chunk := _read_terminal(ours):
            shown += chunk
    os.close(ours)
    assert process.returncode == 0
    assert b"Traceback" not in shown
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()))
    bars = [number for number, line in enumerate(lines) if "\u2501" in line]
    assert all(re.search(r" [012]/2 0:00:\d\d", lines[number]) and len(lines[number]) <= 80 for number in bars)
    labels = {lines[number].partition("\u2501")[0].strip() for number in bars}
    assert labels <= {"ceiling", "batched h2d 4 x 1KiB idle", "per_block h2d 4 x 1KiB"}
    for backend in ("batched", "per_block"):
        assert any(backend in line for line in lines[bars[-1] + 1 :])


def _read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # the other side was closed
        return b""


# Cells that fail


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    """A sweep with a fault of every kind, each in a cell of its own, and two cells without."""
    folder = tmp_path_factory.mktemp("faulty")
    faults = [
        "error@call=0 when blocks=1",
        "error@descriptor=1 when blocks=2",
        "corrupt@descriptor=0 when blocks=3",
        "stray@descriptor=3 when blocks=4",
        "crash@call=0 when blocks=5",
        "hang@call=0 when blocks=6",
    ]
    cells = tiny(backend="per_block", blocks="1:8:+1", pattern="contiguous", **HOT)
    options = ("--deadline-s=12", "--fault", "; ".join(faults), "--out", "run")
    return kvbench_here("sweep", *cells, *BRIEF, *options, cwd=folder), folder / "run"


def test_every_kind_of_failure_is_recorded_and_the_other_cells_are_measured(faulty: tuple[Done, Path]) -> None:
    done, run = faulty
    assert done.returncode == 5
    assert not done.stderr
    assert status(run) == "complete"
    errors = {failure.cell.blocks: (failure.kind, failure.message) for failure in failures(run)}
    wrong = {blocks: errors[blocks][1].partition(" bytes are wrong, ")[2] for blocks in (3, 4)}
    assert wrong == {
        3: "the first at offset 2047, in the block of descriptor 0",
        4: "the first at offset 5120, outside of every copied block",
    }
    assert errors == {
        1: ("error", "copy: INJECTED_ERROR (descriptor 0)"),
        2: ("error", "copy: INJECTED_ERROR (descriptor 1)"),
        3: ("mismatch", errors[3][1]),
        4: ("mismatch", errors[4][1]),
        5: ("crash", errors[5][1]),
        6: ("timeout", "no answer within 12 s; the worker was killed"),
    }
    assert errors[5][1].startswith("the worker died by SIGSEGV")
    assert {record.cell.blocks for record in records(run) if isinstance(record, Visit)} == {7, 8}
    replaced = [record.text for record in records(run) if isinstance(record, Note)]
    assert len([text for text in replaced if "replaced" in text]) == len(errors)


def test_every_failure_is_shown_with_the_command_that_reproduces_it(faulty: tuple[Done, Path]) -> None:
    done, run = faulty
    told = done.stdout.partition("to write tables and charts")[0]  # before the table, which has a line a row
    wide = [line for line in told.splitlines() if len(line) > LOG_COLUMNS]
    assert all(line.startswith("    --fault ") for line in wide)  # one word of a shell
    text = " ".join(done.stdout.split())  # long lines go on in the next
    whole = done.stdout.replace(" \\\n", " ").splitlines()
    printed_commands = [shlex.split(line.partition("to measure it again: ")[2]) for line in whole]
    for failure in failures(run):
        assert f"FAILED ({failure.kind}) {failure.cell.label}: {failure.message}" in text
        assert shlex.split(failure.command) in printed_commands
    assert "2 cells measured, 6 failed, 0 skipped" in done.stdout


def test_resuming_does_not_clear_failed_cells(faulty: tuple[Done, Path]) -> None:
    run = faulty[1]
    before = (run / "journal.jsonl").read_bytes()
    assert resume(run).returncode == 5
    assert (run / "journal.jsonl").read_bytes() == before


# Interruptions


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda number: number.name)
def test_a_sweep_that_ends_early_keeps_its_data_and_leaves_no_worker_and_can_be_finished(
    tmp_path: Path, number: signal.Signals
) -> None:
    killed = number is signal.SIGKILL
    run = tmp_path / "run"
    with kvbench_started(*SHORT, "--json", "--out", run, cwd=tmp_path, held=True) as process:
        await_records(process, "visit", 2)
        (worker,) = workers_of(process.pid)
        with watched(worker) as descriptor:
            # as a terminal and a scheduler do: everything in the group gets it
            process.kill() if killed else os.killpg(process.pid, number)
            process.send_signal(signal.SIGCONT)
            assert process.wait() == (-signal.SIGKILL if killed else 130)
            assert ended(descriptor)
        assert process.stdout is not None
        rest = process.stdout.read().splitlines()
    assert visit_counts(run).total() == 2
    assert status(run) == ("running" if killed else "interrupted")
    if not killed:
        last = json.loads(rest[-1])
        assert (last["event"], last["status"], last["reason"]) == ("finished", "interrupted", number.name)
        assert len(pd.read_csv(run / "summary.csv")) == 2
    before = (run / "journal.jsonl").read_bytes()
    done = resume(run, "--json")
    assert done.returncode == 0, done.stderr
    planned = next(event for event in events(done) if event["event"] == "planned")
    assert (planned["done"], planned["visits"]) == (2, 8)
    assert (run / "journal.jsonl").read_bytes().startswith(before)
    assert set(visit_counts(run).values()) == {1}  # as in a sweep that nobody disturbed
    visits = visits_that_count(records(run))
    preview = events(kvbench_here(*SHORT, "--dry-run", "--json", cwd=tmp_path))[0]
    for turn in range(2):
        made = [record.cell_text for record in visits if record.round == turn]
        assert sorted(map(str, made)) == sorted(map(str, preview["cells"]))
    assert pd.read_csv(run / "summary.csv")[["status", "rounds"]].to_numpy().tolist() == [["ok", 2]] * 4
    assert status(run) == "complete"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_sweep_that_ends_leaves_no_hanging_worker(tmp_path: Path, number: signal.Signals) -> None:
    fault = ("--fault=hang@call=0", "--deadline-s=600")
    with kvbench_started("sweep", *tiny(), *BRIEF, *fault, "--json", "--out=run", cwd=tmp_path) as process:
        await_records(process, "ceiling")
        (worker,) = workers_of(process.pid)
        with watched(worker) as descriptor:
            await_cpu_time(worker, 0.2)  # it waits for a stream that has stopped
            process.send_signal(number)
            assert ended(descriptor)


# Resuming what was damaged, or is of another sweep


def test_resuming_a_complete_run_changes_nothing(run: Path) -> None:
    before = (run / "journal.jsonl").read_bytes()
    done = resume(run)
    assert done.returncode == 0, done.stderr
    assert "4 already done" in done.stdout
    assert (run / "journal.jsonl").read_bytes() == before
    assert status(run) == "complete"


def elsewhere(info: dict[str, Any]) -> dict[str, object]:
    identity = info["identity"] | {"cpu_model": "a CPU of elsewhere"}
    return {"identity": identity, "identity_hash": identity_hash(identity)}


@pytest.mark.parametrize(
    ("change", "code", "terms"),
    [
        (elsewhere, 4, ["the run is of another machine", 'cpu_model: "a CPU of elsewhere" against ']),
        (lambda _: {"identity_hash": "0" * 16}, 4, ["its record was changed"]),
        (lambda _: {"schema": 0}, 2, ["schema 0 does not exist"]),
        (lambda _: {"schema": 99}, 2, ["was written by a newer kvbench (schema 99; this one reads 1)"]),
        (lambda info: {"spec": info["spec"] | {"seed": -1}}, 2, ["seed: -1 is not a whole number"]),
    ],
    ids=["another machine", "an edited identity", "no schema", "a newer kvbench", "an edited spec"],
)
def test_a_run_that_was_changed_is_refused(
    run: Path, change: Callable[[dict[str, Any]], dict[str, object]], code: int, terms: list[str]
) -> None:
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | change(info)))
    line = refused("sweep", "--resume", run, cwd=run.parent, code=code)
    for term in terms:
        assert term in line


# Where nothing can be written, and where memory is short


def test_a_full_disk_keeps_the_measurements_and_the_sweep_can_be_finished(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the full disk."""
    done = kvbench(*BULKY, "--out", "run", cwd=tmp_path, file_bytes=30_000)
    run = tmp_path / "run"
    assert done.returncode == 5
    assert not done.stderr
    reason = f"stopped: {Path('run') / 'journal.jsonl'} cannot be written: File too large"
    assert reason in done.stdout.splitlines()
    kept = visit_counts(run)
    assert 1 <= kept.total() < 4
    assert not load_run(run).warnings
    assert status(run) == "stopped"
    done = resume(run)
    assert done.returncode == 0, done.stderr
    counts = visit_counts(run)
    assert counts.total() == 4
    assert set(counts.values()) == {1}
    assert kept <= counts


def test_unavailable_memory_is_reported(tmp_path: Path) -> None:
    """The plan goes by what is free; a limit on the process stands in for memory that was taken meanwhile."""
    cells = tiny(backend="per_block", blocks="1", block_size="128MiB", **HOT)
    done = kvbench(
        "sweep", *cells, *BRIEF, "--out=run", cwd=tmp_path, env={"OPENBLAS_NUM_THREADS": "1"}, memory_bytes=900 << 20
    )
    assert done.returncode == 2
    message = error_line(done)
    assert message.startswith("not enough memory for ")
    assert "of 384.0 MiB on each side (mmap: ENOMEM)" in message
    assert message.endswith("use smaller swaps, or a smaller pool (-a pool=1GiB)")
    assert status(tmp_path / "run") == "stopped"
