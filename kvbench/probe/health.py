"""A copy there and back in a fresh process: it shows that the device is well after the probes."""

from kvbench.cells.axes import Direction
from kvbench.machine.observation import identity
from kvbench.probe.common import ProbeFinding
from kvbench.probe.probe_bench import Blocks, ProbeBench
from kvbench.units import KIB


def probe(bench: ProbeBench) -> ProbeFinding:
    """Copy 256 blocks in both directions and compare them."""
    blocks, wrong = Blocks(bench, [16 * KIB] * 256), 0
    for direction in Direction:
        blocks.load(direction)
        bench.submit(blocks.arrays(direction), direction)
        wrong += blocks.wrong(direction)
    info = bench.device.driver.info
    known = identity(bench.device.name, "", pci_bus_id=info.pci_bus_id or None, sm_count=info.sm_count)
    return ProbeFinding(
        answer=f"{wrong} of 512 blocks are wrong" if wrong else "a fresh process copies correctly",
        number=wrong,
        unit="blocks",
        of="wrong",
        expected=wrong == 0,
        figures={"title": info.title, **{name: value for name, value in known.items() if value not in (None, "")}},
    )
