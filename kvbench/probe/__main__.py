"""The process of one probe: `python -m kvbench.probe NAME DEVICE FAULT` writes a line of JSON for each message."""

import sys
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from kvbench.cells.axes import Direction
from kvbench.cells.faults import parse_faults
from kvbench.cells.units import KIB, MIB
from kvbench.engine.device import EngineError, Stream, die_with_parent, open_device
from kvbench.ground.errors import KvbenchError
from kvbench.machine.probes import identity
from kvbench.probe import HEALTH, ZERO, ProbeFinding, Unanswered
from kvbench.probe.path import confidential, count, engine, inline, order
from kvbench.probe.probe_bench import Blocks, ProbeBench
from kvbench.probe.registration import RegistrationRefusedError, registration, stalls, zero


def _probe(name: str, device: str, fault: str) -> ProbeFinding | Unanswered:
    plan = parse_faults(fault)
    try:
        opened = open_device(device, plan)
        opened.driver.bind_thread()
        bench = ProbeBench(opened, Stream(opened.driver))
        opened.arm(plan.faults[0] if plan.faults else None)
        return _FUNCTIONS[name](bench)
    except RegistrationRefusedError as refused:
        size_mib = refused.size_bytes / MIB
        return ProbeFinding(
            answer=f"refused: {refused}", number=size_mib, unit="MiB", of="refused registration", expected=False
        )
    except (EngineError, KvbenchError) as error:
        return Unanswered(str(error))


def _health(bench: ProbeBench) -> ProbeFinding:
    blocks, wrong = Blocks(bench, [16 * KIB] * 256), 0
    for direction in Direction:
        blocks.load(direction)
        bench.submit(blocks.arrays(direction), direction)
        wrong += blocks.wrong(direction)
    info = bench.device.driver.info
    fields = identity(bench.device.name, "", pci_bus_id=info.pci_bus_id or None, sm_count=info.sm_count)
    return ProbeFinding(
        answer=f"{wrong} of 512 blocks are wrong" if wrong else "a fresh process copies correctly",
        number=wrong,
        unit="blocks",
        of="wrong",
        expected=wrong == 0,
        figures={"title": info.title, **{name: value for name, value in fields.items() if value not in (None, "")}},
    )


_FUNCTIONS: Final[Mapping[str, Callable[[ProbeBench], ProbeFinding | Unanswered]]] = {
    probe.__name__: probe for probe in (confidential, count, engine, inline, order, registration, stalls)
} | {HEALTH: _health, ZERO: zero}


if __name__ == "__main__":
    die_with_parent()
    answer = _probe(*sys.argv[1:])
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
