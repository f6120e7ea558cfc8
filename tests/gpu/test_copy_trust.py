"""What the page of the copier guarantees, broken on purpose on a GPU, each case in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvbench.engine.device import count_cuda_devices
from tests.gpu.trust_cases import ON_ONE, ON_TWO, memory_that_is_mapped_in_pieces

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


def _run(case: str) -> None:
    # The checkout comes last, as in tests/conftest.py: where kvbench is not editable, it lacks the compiled module.
    run = "runpy.run_module('tests.gpu.trust_cases', run_name='__main__')"
    start = f"import runpy, sys; sys.path.append({str(ROOT)!r}); {run}"
    command = [sys.executable, "-P", "-c", start, case]
    # torch reads it when it is imported
    segments = (
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
        if case == memory_that_is_mapped_in_pieces.__name__
        else {}
    )
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **segments}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", [case.__name__ for case in ON_ONE])
def test_a_hostile_call_is_refused_and_leaves_no_trace(case: str) -> None:
    _run(case)


@pytest.mark.parametrize("case", [case.__name__ for case in ON_TWO])
def test_a_hostile_call_between_two_gpus_is_refused_and_leaves_no_trace(case: str) -> None:
    if count_cuda_devices() < 2:
        pytest.skip("needs two GPUs")
    _run(case)
