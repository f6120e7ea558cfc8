"""The inspections of `kvbench doctor` in a separate process: which components load, and the device under load."""

import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any, Final

import msgspec

from kvbench.cells.device_facts import CEILING_BYTES
from kvbench.machine.doctor import EngineReport
from kvbench.machine.observation import observe
from kvbench.results import Ceiling
from kvbench.run.protocol import MeasureCeiling
from kvbench.run.worker_process import Interpreter, WorkerSlot
from kvbench.sweep.spec import SweepSpec

_DEADLINE_S: Final = 180.0
_LOAD_SAMPLES: Final = 40
_SETTLE_S: Final = 0.3


def describe() -> EngineReport:
    """Return which components load and which devices exist; a crash of the inspection is part of the report."""
    command = Interpreter().command("-m", "kvbench.measure.inspection")
    try:
        done = subprocess.run(command, capture_output=True, timeout=_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        return EngineReport(engine_error=f"no answer within {_DEADLINE_S:g} s")
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return EngineReport(engine_error=f"the process ended with {done.returncode}: {''.join(last)}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=EngineReport)


def observe_under_load(device: str) -> Mapping[str, Any]:
    """Return `observe` of `device` while a worker copies over its link. Raises KvbenchError."""
    with closing(WorkerSlot(SweepSpec(name="doctor", device=device))) as slot:
        opened = slot.start()
        slot.reserve(CEILING_BYTES[opened.device.kind])
        request = MeasureCeiling(direction="h2d", round=0, samples=_LOAD_SAMPLES)
        with ThreadPoolExecutor(1) as thread:
            copying = thread.submit(slot.ask, request, Ceiling, _DEADLINE_S)
            wait((copying,), _SETTLE_S)
            observed = observe(opened.device.name, opened.pci_bus_id, own_pids=slot.pids)
        copying.result()
        return observed
