"""`kvbench sweep` on several devices at once, for which two workers of the device cpu stand."""

import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from kvbench.cells.cell import Cell
from kvbench.results import Visit, load_run
from kvbench.results.frame import visits_that_count
from kvbench.results.schema import Retry
from tests import synthetic
from tests.command import (
    await_records,
    cell_of,
    error_line,
    events,
    failures,
    kvbench,
    kvbench_here,
    kvbench_started,
    records,
    tiny,
    visit_counts,
)

BOTH = ("--device=cpu,cpu", "--rounds=2", "--warmups=0", "--min-samples=2", "--max-samples=2", "--cell-seconds=0.05")


def two(**axes: str) -> list[str]:
    return [*tiny(backend="batched", **axes)[1:], *BOTH]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("devices")
    done = kvbench("sweep", *two(), "--out", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_each_device_has_a_run_of_every_cell_alone_and_at_once(run: Path) -> None:
    assert sorted(path.name for path in run.iterdir()) == ["cpu-0", "cpu-1"]
    for path in run.iterdir():
        frame = load_run(path).frame()
        assert sorted(frame["devices"]) == [1, 2]
        assert (frame["status"] == "ok").all()
        assert (frame["verified_bytes"] > 0).all()


def test_a_dry_run_shows_the_cells_that_would_be_measured(run: Path) -> None:
    (preview,) = events(kvbench_here("sweep", *two(), "--dry-run", "--json", cwd=run.parent))
    for path in run.glob("cpu-*"):
        measured = {record.cell.id for record in records(path) if isinstance(record, Visit)}
        assert {Cell.from_strings(texts).id for texts in preview["cells"]} == measured


def test_at_once_a_visit_lasts_until_its_time_is_up(run: Path) -> None:
    for path in run.iterdir():
        stopped = {
            (cell_of(record).devices, record.stopped_by) for record in records(path) if isinstance(record, Visit)
        }
        assert stopped == {(1, "max_samples"), (2, "time")}


def test_the_report_puts_them_together(run: Path) -> None:
    done = kvbench_here("report", run, cwd=run.parent)
    assert done.returncode == 0, done.stderr
    text = (run / "report" / "report.md").read_text()
    assert "## Devices: swaps on all of them at once" in text
    first, second = [line for line in text.splitlines() if line.startswith("| batched, h2d, 4 ")]
    assert first.count("%") == 1
    assert second.count("%") == 2  # its own share, and that of both


def test_a_cell_that_fails_on_one_device_costs_its_share(tmp_path: Path) -> None:
    """Both devices meet the fault in cells of two devices; those of one go on."""
    done = kvbench_here("sweep", *two(), "--fault=error@call=2 when devices=2", "--out", "run", cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    for name in ("cpu-0", "cpu-1"):
        assert {cell_of(record).devices for record in failures(tmp_path / "run" / name)} == {2}
        visits = [record for record in records(tmp_path / "run" / name) if isinstance(record, Visit)]
        assert {cell_of(visit).devices for visit in visits} == {1}
        (command,) = {record.command for record in failures(tmp_path / "run" / name)}
        assert "-a devices=2 --device cpu,cpu" in command


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device=cpu,auto"], "device:"),
        (["--device=cuda:0,cuda:0"], "--device cuda:0,cuda:0: cuda:0 is named 2 times; name each GPU once"),
        (["--device=cuda:0,cuda:00"], "--device cuda:0,cuda:00: cuda:0 is named 2 times; name each GPU once"),
        (["--device=cpu", "-adevices=2"], "nothing to measure: devices=2 requires --device to name 2 devices"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path: Path, options: list[str], message: str) -> None:
    done = kvbench_here("sweep", *tiny()[1:], *options, cwd=tmp_path)
    assert done.returncode == 2
    assert message in error_line(done)


def test_two_devices_swap_at_the_same_time(run: Path) -> None:
    """Their visits of the cell of two overlap: they began within a second of each other, and took as long."""
    began = [
        [record.began for record in records(path) if isinstance(record, Visit) and cell_of(record).devices == 2]
        for path in sorted(run.iterdir())
        if path.name.startswith("cpu")
    ]
    assert np.abs(np.subtract(*began)).max() <= 1


@pytest.mark.parametrize("device", ["cpu,cpu", "cuda:all"])
def test_what_measures_one_device_refuses_several(tmp_path: Path, device: str) -> None:
    done = kvbench_here("tune", "--device", device, cwd=tmp_path)
    assert done.returncode == 2
    assert f"--device {device}: only a new kvbench sweep supports several devices" in error_line(done)


def test_one_of_several_runs_cannot_be_resumed(run: Path) -> None:
    done = kvbench_here("sweep", "--resume", run / "cpu-1", cwd=run.parent)
    assert done.returncode == 2
    assert "--device cpu,cpu: only a new kvbench sweep supports several devices" in error_line(done)


# Resuming

LONG = (*two(blocks="4,8,16", direction="h2d,d2h"), "--rounds=3", "--cell-seconds=0.1")


def without(run: Path, *, device: str, number: int) -> None:
    """Take the visits on all devices of one round out of a device's journal, as if it had been killed before them."""
    folder = run / device
    every, info = records(folder), load_run(folder).info
    left = [
        record
        for record in every
        if not (isinstance(record, Visit) and record.cell.devices == 2 and record.round == number)
    ]
    assert len(left) < len(every)
    shutil.rmtree(folder)
    synthetic.write_run(folder, left, info)


def check_complete(run: Path, cells: int, rounds: int) -> None:
    """Every device holds each visit once, those of both made at the same time."""
    visits = []
    for name in ("cpu-0", "cpu-1"):
        loaded = load_run(run / name)
        assert loaded.info.status == "complete"
        counts = visit_counts(run / name)
        assert set(counts.values()) == {1}
        assert len(counts) == cells * rounds
        assert not failures(run / name)
        visits.append({(one.cell.id, one.round): one for one in visits_that_count(loaded.records)})
    for key, one in visits[0].items():
        if one.cell.devices == 2:
            assert one.attempt == visits[1][key].attempt
            assert abs(one.began - visits[1][key].began) <= 1


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_what_was_stopped_is_finished_on_all_devices(tmp_path: Path, stop: signal.Signals) -> None:
    with kvbench_started("sweep", *LONG, "--json", "--out", "run", cwd=tmp_path) as process:
        await_records(process, "visit", 4)
        process.send_signal(stop)
        process.communicate(timeout=30)
    done = kvbench_here("sweep", "--resume", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check_complete(tmp_path / "run", cells=12, rounds=3)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["cpu-0", "cpu-1"]


def test_visits_that_one_device_lacks_are_made_again_on_both(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    without(tmp_path / "run", device="cpu-1", number=1)
    done = kvbench_here("sweep", "--resume", "run", *two(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check_complete(tmp_path / "run", cells=2, rounds=2)
    for name in ("cpu-0", "cpu-1"):
        visits = visits_that_count(records(tmp_path / "run" / name))
        attempts = {one.round: one.attempt for one in visits if one.cell.devices == 2}
        assert attempts == {0: 0, 1: 1}
    before = [(tmp_path / "run" / name / "journal.jsonl").read_bytes() for name in ("cpu-0", "cpu-1")]
    assert kvbench_here("sweep", "--resume", "run", cwd=tmp_path).returncode == 0
    assert [(tmp_path / "run" / name / "journal.jsonl").read_bytes() for name in ("cpu-0", "cpu-1")] == before


def test_cells_that_failed_are_tried_again_on_all_devices(tmp_path: Path) -> None:
    fault = "--fault=error@call=2 when devices=2"
    assert kvbench_here("sweep", *two(), fault, "--out", "run", cwd=tmp_path).returncode == 5
    done = kvbench_here("sweep", "--resume", "run", "--retry-failed", cwd=tmp_path)
    assert done.returncode == 5
    for name in ("cpu-0", "cpu-1"):
        assert len([one for one in records(tmp_path / "run" / name) if isinstance(one, Retry)]) == 1
        assert "INJECTED" in failures(tmp_path / "run" / name)[0].message


def test_an_interrupted_sweep_names_the_folder_to_resume(tmp_path: Path) -> None:
    with kvbench_started("sweep", *LONG, "--rounds=50", "--out", "run", cwd=tmp_path) as process:
        assert process.stdout is not None
        while not list((tmp_path).glob("run/cpu-1/journal.jsonl")):
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        said = process.stdout.read()
    assert "to continue: kvbench sweep --resume run" in said
    assert "--resume run/cpu" not in said


def test_an_interrupt_is_heard_within_a_visit(tmp_path: Path) -> None:
    long = ("--min-samples=100000", "--max-samples=100000", "--cell-seconds=30")
    with kvbench_started("sweep", *LONG, *long, "--out", "run", cwd=tmp_path) as process:
        while not list((tmp_path).glob("run/cpu-1/journal.jsonl")):
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        began_s = time.monotonic()
        process.wait(30)
    assert time.monotonic() - began_s < 5
    assert process.returncode == 130


def test_what_is_not_the_runs_of_all_devices_is_refused(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    other = kvbench_here("sweep", "--resume", "run", *two(blocks="8"), cwd=tmp_path)
    assert other.returncode == 4
    assert error_line(other).startswith("--resume run: the run is of another sweep")
    fewer = kvbench_here("sweep", "--resume", "run", *two(), "--device=cpu", cwd=tmp_path)
    assert fewer.returncode == 4
    shutil.rmtree(tmp_path / "run" / "cpu-1")
    done = kvbench_here("sweep", "--resume", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "--resume run: it holds cpu-0, and not the runs of cpu-0, cpu-1 of --device cpu,cpu" in error_line(done)
