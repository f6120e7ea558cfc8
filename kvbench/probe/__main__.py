"""The process of one probe: `python -m kvbench.probe NAME DEVICE FAULT` writes a line of JSON for each message."""

import importlib
import sys

import msgspec

from kvbench.engine.device import EngineError, Stream, die_with_parent, open_device
from kvbench.engine.faults import parse_faults
from kvbench.errors import KvbenchError
from kvbench.probe.common import ProbeFinding, Unanswered
from kvbench.probe.probe_bench import ProbeBench


def _probe(name: str, device: str, fault: str) -> ProbeFinding | Unanswered:
    plan = parse_faults(fault)
    try:
        opened = open_device(device, plan)
        opened.driver.bind_thread()
        bench = ProbeBench(opened, Stream(opened.driver))
        opened.arm(plan.faults[0] if plan.faults else None)
        answer: ProbeFinding | Unanswered = importlib.import_module(f"kvbench.probe.{name}").probe(bench)
    except (EngineError, KvbenchError) as error:
        return Unanswered(str(error))
    return answer


if __name__ == "__main__":
    die_with_parent()
    answer = _probe(*sys.argv[1:])
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
