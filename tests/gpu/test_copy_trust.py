"""What the page of the copier guarantees, broken on purpose on a GPU, each case in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from kvbench.engine.device import count_cuda_devices
from tests.gpu.trust_cases import ENVIRONMENT, ON_ONE, ON_TWO, SKIPPED, a_long_list_after_many_in_flight

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


CASES = [*ON_ONE, *ON_TWO]
# Most of a case's time is the import of torch. They share one GPU, so not all run at once.
AT_ONCE = 8
# It looks at the free memory of the machine.
ALONE = a_long_list_after_many_in_flight

Ended = dict[str, Future[subprocess.CompletedProcess[str]]]


def _run(case: Callable[[], None]) -> subprocess.CompletedProcess[str]:
    # The checkout comes last, as in tests/conftest.py: where kvbench is not editable, it lacks the compiled module.
    run = "runpy.run_module('tests.gpu.trust_cases', run_name='__main__')"
    start = f"import runpy, sys; sys.path.append({str(ROOT)!r}); {run}"
    command = [sys.executable, "-P", "-c", start, case.__name__]
    environment = {**os.environ, **ENVIRONMENT.get(case, {})}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def ended(request: pytest.FixtureRequest) -> Iterator[Ended]:
    """The processes of all cases that were selected."""
    selected = {item.name for item in request.session.items}
    missing = () if count_cuda_devices() >= 2 else ON_TWO
    cases = [case for case in CASES if f"{TEST}[{case.__name__}]" in selected and case not in missing]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        running = {}
        for case in sorted(cases, key=lambda case: case is not ALONE):
            running[case.__name__] = threads.submit(_run, case)
            if case is ALONE:
                wait(running.values())
        yield running
        threads.shutdown(cancel_futures=True)


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_a_hostile_call_is_refused_and_leaves_no_trace(case: str, ended: Ended) -> None:
    if case not in ended:
        pytest.skip("needs two GPUs")
    done = ended[case].result()
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr


TEST = test_a_hostile_call_is_refused_and_leaves_no_trace.__name__
