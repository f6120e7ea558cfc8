"""How many descriptors one call takes, of mixed sizes and repeated, and from how many on it blocks its caller."""

from typing import Final

from kvbench.cells.axes import Direction
from kvbench.probe.common import ProbeFinding
from kvbench.probe.probe_bench import Blocks, ProbeBench
from kvbench.units import KIB

# 51 828 mixed descriptors crashed a driver in public, and more than 8192 another.
_COUNTS: Final = (1, 1024, 8192, 32_768, 51_828, 65_536, 131_072, 200_000)
_REPEATS: Final = 2
_SIZES: Final = (64, 256, 500, 1024)
_GATE_MS: Final = 30


def _sizes(count: int) -> list[int]:
    """Return mixed sizes: mostly small, one in 256 too large for a copy by the CPU."""
    return [28 * KIB if i % 256 == 255 else _SIZES[i % len(_SIZES)] for i in range(count)]


def probe(bench: ProbeBench) -> ProbeFinding:
    """Copy up to 200 000 blocks in one call, on an idle and on a busy stream, in both directions, and compare them."""
    wrong = blocking = 0
    us_each = taken_us = 0.0
    figures: dict[str, float] = {}
    for count in _COUNTS:
        blocks = Blocks(bench, _sizes(count))
        for direction in Direction:
            arrays = blocks.arrays(direction)
            for repeat in range(_REPEATS):
                bench.step(f"{count} mixed descriptors, {direction}, call {repeat + 1}", count, "descriptors")
                blocks.load(direction)
                bench.submit(arrays, direction)
                wrong += blocks.wrong(direction)
            bench.step(f"{count} mixed descriptors, {direction}, on a busy stream", count, "descriptors")
            # Three times what the descriptors took so far: a call that lasts longer waits for the stream.
            opened = bench.gate(_GATE_MS + 3 * us_each * count / 1e3)
            taken_us = bench.submit(arrays, direction)[0] / count
            if not opened.completed():
                us_each = taken_us
            elif not blocking:
                blocking = count
            bench.stream.synchronize()
            figures[f"{direction}_{count}_busy_us_a_descriptor"] = taken_us
    blocks_from = f"blocks the caller from {blocking} on" if blocking else "never blocks"
    return ProbeFinding(
        answer=f"{wrong} blocks are wrong" if wrong else f"up to {_COUNTS[-1]} work, repeated; the call {blocks_from}",
        number=taken_us,
        unit="us",
        of=f"a descriptor of {_COUNTS[-1]}, d2h, on a busy stream",
        expected=not wrong,
        figures={name: round(value, 4) for name, value in figures.items()},
    )
