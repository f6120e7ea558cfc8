"""Every probe answers on a GPU within a minute, the same way each time, and leaves nothing behind."""

import pytest

from kvbench.engine.device import Device
from kvbench.errors import ExitCode
from kvbench.probe.command import exit_code
from kvbench.probe.common import HEALTH, PROBES, ProbeFinding, ProbeReport, run_probe
from tests.unit.probe.test_probe import children

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]
RUNS = 2


def probed() -> ProbeReport:
    results = [run_probe(name, "cuda:0") for name in PROBES]
    health = run_probe(HEALTH, "cuda:0")
    took_s = sum(result.took_s for result in (*results, health))
    return ProbeReport(kvbench="", created="", device="cuda:0", results=results, health=health, took_s=took_s)


def test_runs_give_the_same_answers(gpu: Device) -> None:
    free_before, _ = gpu.driver.free_memory()
    runs = [probed() for _ in range(RUNS)]
    for run in runs:
        assert exit_code(run, named=True) == ExitCode.DONE, run
    for number, name in enumerate(PROBES):
        findings = [run.results[number].found for run in runs]
        answers = {one.answer for one in findings if isinstance(one, ProbeFinding)}
        assert len(answers) == 1, (name, answers)
    assert not [process for process in children() if "kvbench.probe" in process]
    free_after, _ = gpu.driver.free_memory()
    assert free_after >= free_before
