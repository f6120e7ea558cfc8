"""Whether the attributes of a batched copy are read beyond their count: both arrays end at an unreadable page."""

import ctypes
import mmap

import numpy as np

from kvbench.cells.axes import Direction
from kvbench.probe.common import ProbeFinding
from kvbench.probe.probe_bench import Blocks, ProbeBench
from kvbench.units import KIB

_COUNTS = (1, 64, 4096)


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


def probe(bench: ProbeBench) -> ProbeFinding:
    """Copy with one attribute for up to 4096 descriptors, in both directions."""
    wrong = 0
    for count in _COUNTS:
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
        answer=answer, number=_COUNTS[-1], unit="descriptors", of="largest call with one entry", expected=not wrong
    )
