"""`kvbench sweep` on several devices at once, for which two workers of the device cpu stand."""

import json
import signal
from pathlib import Path

import pytest

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.results import Visit, load_run
from tests import command, synthetic
from tests.command import failures, kvbench_here, records, refused, succeeds, swept, tiny

BOTH = ("--device=cpu,cpu", "--rounds=2", "--warmups=0", "--min-samples=2", "--max-samples=2", "--cell-seconds=0.05")


def two(**axes: str) -> list[str]:
    return [*tiny(backend="batched", **axes)[1:], *BOTH]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return swept(tmp_path_factory.mktemp("devices"), *two())


def test_each_device_has_a_run_with_every_cell_alone_and_together(run: Path) -> None:
    assert sorted(path.name for path in run.iterdir()) == ["cpu-0", "cpu-1"]
    for path in run.iterdir():
        frame = load_run(path).frame("verified_bytes", "stopped_by")
        # while others swap too, a device goes on until its time is up
        assert sorted(zip(frame["devices"], frame["stopped_by"], strict=True)) == [(1, "max_samples"), (2, "time")]
        assert (frame["status"] == "ok").all()
        assert (frame["verified_bytes"] > 0).all()


def test_the_report_combines_the_runs_of_all_devices(run: Path) -> None:
    later = synthetic.write_run(run.parent / "later", synthetic.rounds([Cell("batched", Direction.H2D, 4, 4096)]))
    succeeds("report", run, later, "--out", "report", cwd=run.parent)
    text = (run.parent / "report" / "details.md").read_text()
    section = text.partition("swaps on all of them at once")[2].partition("</details>")[0]
    assert "--cell-seconds=0.05" in section, "the command of these runs, not of the latest"
    assert section.count("\n| batched | 4 ") == 2  # each against its own GB/s alone


def test_a_fault_on_two_devices_spares_cells_of_one(tmp_path: Path) -> None:
    """Both devices meet the fault in cells of two devices; those of one go on."""
    done = kvbench_here("sweep", *two(), "--fault=error@call=2 when devices=2", "--out", "run", cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    hints = [line.partition(": kvbench report ")[2] for line in done.stdout.splitlines() if "kvbench report" in line]
    assert hints == ["run"]  # the folder of both, once
    for name in ("cpu-0", "cpu-1"):
        assert {record.cell.devices for record in failures(tmp_path / "run" / name)} == {2}
        visits = [record for record in records(tmp_path / "run" / name) if isinstance(record, Visit)]
        assert {visit.cell.devices for visit in visits} == {1}
        (again,) = {record.command for record in failures(tmp_path / "run" / name)}
        assert "-a devices=2 --device cpu,cpu" in again


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cpu-1", "--device cpu,cpu: only a new kvbench sweep supports several devices"),
        ("", "cannot continue the runs of several devices; to use what was measured: kvbench report"),
    ],
    ids=["one", "all"],
)
def test_the_runs_of_several_devices_cannot_be_continued(run: Path, name: str, message: str) -> None:
    assert message in refused("sweep", "--resume", run / name, cwd=run.parent)


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_an_interrupt_ends_the_visits_of_all_devices(tmp_path: Path, number: signal.Signals, reason: str) -> None:
    long = ("--rounds=50", "--min-samples=100000", "--max-samples=100000", "--cell-seconds=30")
    with command.kvbench_started(
        "sweep", *two(blocks="4,8,16", direction="h2d,d2h"), *long, "--json", "--out=run", cwd=tmp_path
    ) as process:
        command.await_records(process, "ceiling", 2)  # the visits come next
        process.send_signal(number)
        assert process.stdout is not None
        ends = [json.loads(line) for line in process.stdout if '"finished"' in line]
        assert process.wait(command.TIMEOUT_S) == 130
    assert [end["run"] for end in ends] == ["run/cpu-0", "run/cpu-1"]
    assert {(end["status"], end["reason"]) for end in ends} == {("interrupted", reason)}
    succeeds("report", "run", cwd=tmp_path)
