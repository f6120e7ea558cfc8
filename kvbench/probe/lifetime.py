"""When the caller may reuse the arrays of a call: they are overwritten at its return, and the bytes are compared."""

from functools import partial
from typing import Final

import numpy as np

from kvbench.cells.axes import Direction
from kvbench.probe.common import ProbeFinding, Unanswered
from kvbench.probe.probe_bench import Arrays, Blocks, ProbeBench
from kvbench.units import KIB

_COUNTS: Final = (1, 16, 1024, 10_000)


def probe(bench: ProbeBench) -> ProbeFinding | Unanswered:
    """Overwrite the arrays of a call whose stream is still busy with those of a copy between other buffers."""
    wrong = total = 0
    for count in _COUNTS:
        blocks, decoy = (Blocks(bench, [4 * KIB] * count) for _ in range(2))
        for direction in Direction:
            bench.step(f"{count} descriptors, {direction}", count, "descriptors")
            _, held = bench.gated(partial(_reuse, bench, blocks, decoy, direction), partial(blocks.load, direction))
            if not held:
                return Unanswered(f"a call of {count} descriptors returns only when the stream is free")
            wrong += blocks.wrong(direction)
            total += count
    answer = "later than at the return of the call" if wrong else "at the return of the call"
    return ProbeFinding(answer=answer, number=wrong, unit=f"of {total} blocks", of="wrong", expected=not wrong)


def _reuse(bench: ProbeBench, blocks: Blocks, decoy: Blocks, direction: Direction) -> Arrays:
    """Call, and overwrite every array; return them, so that they outlive the stream's work."""
    arrays, others = blocks.arrays(direction), decoy.arrays(direction)
    bench.submit(arrays, direction)
    for field in ("destinations", "sources", "sizes"):
        np.copyto(getattr(arrays, field), getattr(others, field))
    arrays.attributes.fill(-1)
    arrays.firsts.fill(7)
    return arrays
