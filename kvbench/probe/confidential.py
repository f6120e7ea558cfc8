"""Whether Confidential Computing is on, and whether copies between host and device are synchronous with the host."""

from functools import partial
from typing import Final

from kvbench.cells.axes import Direction
from kvbench.cells.units import MIB
from kvbench.engine.device import DIRECTIONS, Buffer, MemoryKind, copy
from kvbench.machine.sources import Sources, open_machine, reason_of
from kvbench.probe.common import ProbeFinding
from kvbench.probe.probe_bench import ProbeBench

_BYTES: Final = 16 * MIB


def confidential(bench: ProbeBench) -> ProbeFinding:
    """Ask NVML, and see whether a copy returns while its stream is busy; with bounce buffers it cannot."""
    driver = bench.device.driver
    host, card = (Buffer(driver, kind, _BYTES) for kind in (MemoryKind.allocated, MemoryKind.device))
    waits = []
    for direction in Direction:
        bench.step(f"a copy behind a busy stream, {direction}")
        to, source = (card, host) if direction is Direction.H2D else (host, card)
        arguments = to.address, source.address, _BYTES, DIRECTIONS[direction], bench.stream.handle
        _, held = bench.gated(partial(copy, driver, *arguments))
        waits += [] if held else [str(direction)]
    state, is_on = _state(bench)
    copies = f"{' and '.join(waits)} copies of pinned memory wait for the stream" if waits else "copies do not wait"
    return ProbeFinding(
        answer=f"Confidential Computing: {state}; {copies}",
        number=len(waits),
        unit="of 2",
        of="directions whose copies are synchronous with the host",
        expected=not waits and not is_on,
    )


def _state(bench: ProbeBench) -> tuple[str, bool]:
    with open_machine(bench.device.name, bench.device.driver.info.pci_bus_id or None, Sources()) as machine:
        try:
            is_on = bool(machine.nvml("nvmlSystemGetConfComputeState").ccFeature)
        except Exception as error:  # NVML of an old driver, or no GPU
            return f"not known ({reason_of(error)})", False
    return "on" if is_on else "off", is_on
