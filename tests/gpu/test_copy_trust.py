"""What the page of the copier guarantees, broken on purpose on a GPU, each case in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.engine.device import count_cuda_devices
from tests.gpu.trust_cases import ENVIRONMENT, ON_ONE, ON_TWO

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


def _run(case: Callable[[], None]) -> None:
    # The checkout comes last, as in tests/conftest.py: where kvbench is not editable, it lacks the compiled module.
    run = "runpy.run_module('tests.gpu.trust_cases', run_name='__main__')"
    start = f"import runpy, sys; sys.path.append({str(ROOT)!r}); {run}"
    command = [sys.executable, "-P", "-c", start, case.__name__]
    environment = {**os.environ, **ENVIRONMENT.get(case, {})}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", ON_ONE, ids=lambda case: case.__name__)
def test_a_hostile_call_is_refused_and_leaves_no_trace(case: Callable[[], None]) -> None:
    _run(case)


@pytest.mark.parametrize("case", ON_TWO, ids=lambda case: case.__name__)
def test_a_hostile_call_between_two_gpus_is_refused_and_leaves_no_trace(case: Callable[[], None]) -> None:
    if count_cuda_devices() < 2:
        pytest.skip("needs two GPUs")
    _run(case)
