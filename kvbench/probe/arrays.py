"""The arrays of a call: whether the driver reads beyond them, and until when it reads them."""

import ctypes
import mmap
from functools import partial
from typing import Final

import numpy as np

from kvbench.cells.axes import Direction
from kvbench.cells.units import KIB
from kvbench.probe.common import ProbeFinding, Unanswered
from kvbench.probe.probe_bench import Arrays, Blocks, ProbeBench

_GUARDED_COUNTS = (1, 64, 4096)


class _Guarded:
    """Bytes that end where an unreadable page begins; a read beyond them kills the process."""

    def __init__(self, content: bytes) -> None:
        page = mmap.PAGESIZE
        self._pages = mmap.mmap(-1, 2 * page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = np.frombuffer(self._pages, np.uint8).ctypes.data
        self._pages[page - len(content) : page] = content
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + page), page, 0) != 0:
            raise OSError("mprotect failed")
        self.address = start + page - len(content)


def attributes(bench: ProbeBench) -> ProbeFinding:
    """Copy with one attribute for up to 4096 descriptors, in both directions."""
    wrong = 0
    for count in _GUARDED_COUNTS:
        blocks = Blocks(bench, [4 * KIB] * count)
        for direction in Direction:
            arrays = blocks.arrays(direction)
            attributes, firsts = _Guarded(arrays.attributes.tobytes()), _Guarded(arrays.firsts.tobytes())
            blocks.load(direction)
            bench.step(f"one attribute for {count} descriptors, {direction}", count, "descriptors")
            bench.submit(arrays, direction, attributes=(attributes.address, firsts.address))
            wrong += blocks.wrong(direction)
    answer = "no: one attribute at the end of a page serves every descriptor"
    if wrong:
        answer = "not read beyond, but blocks are wrong"
    return ProbeFinding(
        answer=answer,
        number=_GUARDED_COUNTS[-1],
        unit="descriptors",
        of="largest call with one entry",
        expected=not wrong,
    )


_REUSED_COUNTS: Final = (1, 16, 1024, 10_000)


def lifetime(bench: ProbeBench) -> ProbeFinding | Unanswered:
    """Overwrite the arrays of a call whose stream is still busy with those of a copy between other buffers."""
    wrong = total = 0
    for count in _REUSED_COUNTS:
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
