"""Each probe gives its answer on the host device, and another one where a fault puts there what it looks for."""

import os
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from kvbench.cells.faults import FaultPlan
from kvbench.cells.units import KIB
from kvbench.engine.device import Stream, open_device
from kvbench.ground.errors import ExitCode
from kvbench.probe import HEALTH, ZERO, ProbeFinding, ProbeReport, Result, Unanswered, path, registration, run_probe
from kvbench.probe import command as probe
from kvbench.probe.__main__ import _probe
from kvbench.probe.probe_bench import ProbeBench
from kvbench.run.worker_process import Supervised
from tests.command import TIMEOUT_S, kvbench_here, succeeds, workers_of
from tests.forks import forked


@pytest.fixture(autouse=True)
def _brief_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.probe.DEADLINE_S", TIMEOUT_S)
    monkeypatch.setattr(path, "_COUNTS", (1, 1024, 20_000))
    monkeypatch.setattr(path, "_LARGEST", 32 * KIB)


def finding(name: str, fault: str = "") -> ProbeFinding:
    """Probe in this process, unless it is to die."""
    with forked():
        answer = run_probe(name, "cpu", fault).found if "crash" in fault else _probe(name, "cpu", fault)
    assert isinstance(answer, ProbeFinding), answer
    return answer


# The answer on the host device, without what depends on how busy the machine is.
ANSWERS = {
    "count": "up to 20000 work",
    "inline": "on an idle stream: none",
    "order": "h2d stream in its turn; h2d any in its turn; d2h stream in its turn; d2h any in its turn",
    "registration": "64 MiB in one call: registers; a copy across two registrations: batched allowed, single allowed; "
    "0 bytes: registers",
    "confidential": "Confidential Computing: not known (the device is cpu); copies do not wait",
}
# A fault for each probe, and the answer that shows that it was detected.
FAULTS = {
    "count": ("crash@call=20", "the process died by SIGSEGV ("),
    "inline": ("inline=24576", "on an idle stream: h2d up to 24 KiB, every order; d2h none"),
    "order": ("late-source=64", "h2d stream in its turn; h2d any after its turn; d2h stream in its turn; d2h any af"),
    "registration": ("split=4096", "64 MiB in one call: registers; a copy across two registrations: batched refused"),
    "confidential": ("synchronous=1048576", "Confidential Computing: not known (the device is cpu); h2d and d2h"),
    "stalls": ("pinning=500000", "yes"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_probe_of_a_sound_device_gives_the_expected_answer(name: str) -> None:
    result = finding(name)
    assert result.answer.startswith(ANSWERS[name])
    assert result.expected


@pytest.mark.parametrize(
    ("alone_us", "longest_us", "answer"),
    [(4e3, 14_000, "no"), (4e3, 14_001, "yes"), (3e4, 60_000, "no"), (3e4, 60_001, "yes")],
)
def test_pinning_stalls_swaps_if_one_takes_far_longer_beside_it_in_every_round(
    monkeypatch: pytest.MonkeyPatch, alone_us: float, longest_us: float, answer: str
) -> None:
    rounds = [[5.0, 9.0], [longest_us + 9.0], [alone_us, 5.0], [7.0, longest_us], [5.0], [longest_us + 5.0]]
    monkeypatch.setattr(registration, "_times_us", mock.Mock(side_effect=rounds))
    device = open_device("cpu", FaultPlan())
    found = registration.stalls(ProbeBench(device, Stream(device.driver)))
    assert isinstance(found, ProbeFinding)
    assert (found.answer, found.expected, found.number) == (answer, answer == "no", longest_us / alone_us)


@pytest.mark.parametrize("name", FAULTS)
def test_a_probe_detects_the_fault_that_it_is_for(name: str) -> None:
    fault, answer = FAULTS[name]
    result = finding(name, fault)
    assert result.answer.startswith(answer)
    assert not result.expected


@pytest.mark.parametrize(("name", "size"), [("stalls", "16 MiB"), ("registration", "2 MiB")])
def test_a_probe_that_could_pin_nothing_says_so(name: str, size: str) -> None:
    result = finding(name, "pin-limit=1")
    assert result.answer == f"refused: register {size} OUT_OF_MEMORY"
    assert not result.expected


def test_a_refused_registration_is_counted() -> None:
    tries = "refused 2 of 2 times with memory of the device"
    expected = f"64 MiB in one call: {tries} free (OUT_OF_MEMORY), {tries} in use (OUT_OF_MEMORY); a copy across"
    assert finding("registration", "pin-limit=67108864").answer.startswith(expected)


def test_a_registration_of_no_bytes_that_the_driver_refuses_is_named() -> None:
    assert finding(ZERO).answer == "registers"
    assert finding(ZERO, "pin-limit=0").answer == "refused (OUT_OF_MEMORY)"


def test_the_limit_of_inline_copies_is_exact_to_512_bytes() -> None:
    assert finding("inline", "inline=25087").number == 24
    assert finding("inline", "inline=25088").number == 24.5


def test_a_hanging_stream_is_a_finding_and_its_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines_s, read_line = iter([TIMEOUT_S]), Supervised.read_line  # for its start, and then what is waited for
    monkeypatch.setattr(Supervised, "read_line", lambda process, _: read_line(process, next(deadlines_s, 1.0)))
    result = run_probe("count", "cpu", "hang@call=0").found
    assert isinstance(result, ProbeFinding)
    assert result.answer == "no answer within 1 s; the process was killed (1 mixed descriptors, h2d, call 1)"
    assert not result.expected
    assert not workers_of(os.getpid(), b"kvbench.probe")


def test_the_last_copy_shows_wrong_bytes() -> None:
    assert finding(HEALTH).expected
    assert not finding(HEALTH, "corrupt@descriptor=3").expected


# As its user runs it


def test_the_terminal_and_the_files_have_the_same_answers(tmp_path: Path) -> None:
    done = succeeds("probe", "confidential", "order", "--device=cpu", "--out=made", cwd=tmp_path)
    assert (tmp_path / "made" / probe.MARKDOWN_FILE).read_text() == done.stdout
    report = msgspec.json.decode((tmp_path / "made" / probe.JSON_FILE).read_bytes(), type=ProbeReport)
    assert [result.name for result in report.results] == ["confidential", "order"]
    assert probe.markdown_of(report) == done.stdout
    assert isinstance(report.health.found, ProbeFinding)
    assert report.health.found.expected
    done = succeeds("probe", "confidential", "--device=cpu", "--json", "--out=more", cwd=tmp_path)
    assert done.stdout == (tmp_path / "more" / probe.JSON_FILE).read_text()


def test_a_finding_is_not_an_error_but_a_missing_answer_is(tmp_path: Path) -> None:
    crash = kvbench_here("probe", "count", "--device=cpu", "--fault=crash@call=0", cwd=tmp_path)
    assert (crash.returncode, "surprising" in crash.stdout) == (0, True)
    error = kvbench_here("probe", "order", "--device=cpu", "--fault=error@call=0", cwd=tmp_path)
    assert (error.returncode, "no answer" in error.stdout) == (ExitCode.FAILED_CELLS, True)


HEALTHY = Result("health", "", ProbeFinding(answer="well", number=0, unit="", of="", expected=True), 1.0)
OFF = Result("stalls", "", Unanswered("too little memory", off=True), 1.0)
ILL = msgspec.structs.replace(HEALTHY, found=ProbeFinding(answer="ill", number=1, unit="", of="", expected=False))


@pytest.mark.parametrize(
    ("results", "health", "named", "code"),
    [
        ([OFF], HEALTHY, False, 0),
        ([OFF], HEALTHY, True, ExitCode.FAILED_CELLS),
        ([], ILL, False, ExitCode.FAILED_CELLS),
    ],
)
def test_a_disabled_probe_fails_only_if_it_was_named(
    results: list[Result], health: Result, named: bool, code: int
) -> None:
    report = ProbeReport(kvbench="", created="", device="cpu", results=results, health=health, took_s=1.0)
    assert probe.exit_code(report, named=named) == code
