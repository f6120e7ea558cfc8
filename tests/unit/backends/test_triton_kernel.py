"""The Triton kernel without a GPU: run by Triton's interpreter, and compiled to look at its loads and stores."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvbench.backends.triton import PIECE_BYTES, shape_of
from tests.swaps import POISON

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")

INTERPRET = Path(__file__).with_name("run_kernel.py")
COMPILE = """
import json
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kvbench.backends.triton_kernel import copy_descriptors

signature = {"table_address": "i64", "items": "i32", "pieces": "i32", "piece_bytes": "constexpr", "lanes": "constexpr"}
source = ASTSource(copy_descriptors, signature=signature, constexprs={"piece_bytes": 16384, "lanes": 1024})
print(json.dumps(triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8}).asm["ptx"]))
"""

Bytes = NDArray[np.uint8]
Descriptors = list[tuple[int, int, int]]


def python(*arguments: str | Path, cache: Path) -> str:
    """Run Python without Triton's interpreter, unless the program chooses it, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-P", *arguments],
        env=environment | {"TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def spread(sizes_and_alignments: list[tuple[int, int, int]], at: int = 0) -> Descriptors:
    """Lay (size, source alignment, destination alignment) out with gaps, from multiples of 16 on."""
    descriptors, start = [], at
    for size, source_alignment, destination_alignment in sizes_and_alignments:
        descriptors.append((start + source_alignment, start + destination_alignment, size))
        start += -(-(size + 32) // 16) * 16
    return descriptors


def end_of(descriptors: Descriptors) -> int:
    return -(-(max(max(start, to) + size for start, to, size in descriptors) + 32) // 16) * 16


def copies() -> tuple[dict[str, Any], Bytes]:
    """Return launches of the copy kernel, and the destination as they should leave it: offsets that are multiples of
    anything on either side, every size around a word and a piece, and any grid.
    """
    rng = np.random.default_rng(4)
    around = [*range(1, 40), 127, 128, 129, 576, 656, 4097, 16_383, 16_384, 16_385]
    mixed = [(size, *rng.integers(0, 16, 2).tolist()) for size in (1, 35_000, 15, 16, 17, 2048, 3)]
    wanted = [(5, [(37, *sides) for at in range(16) for sides in ((at, 0), (0, at), (at, at), (at, 15 - at))])]
    wanted += [(2, [(size, 0, 0) for size in around])]
    wanted += [(2, [(size, *alignment) for size in around[::3]]) for alignment in ((4, 8), (1, 3))]
    wanted += [(grid, mixed) for grid in (1, 5, 64)]
    launches: list[tuple[int, Descriptors]] = []
    for grid, blocks in wanted:
        launches.append((grid, spread(blocks, end_of(launches[-1][1]) if launches else 0)))
    every = [descriptor for _, descriptors in launches for descriptor in descriptors]
    source = rng.integers(0, 256, max(start + size for start, _, size in every), dtype=np.uint8)
    expected = np.full(max(to + size for _, to, size in every) + 64, POISON, dtype=np.uint8)
    given = {"source": source, "destination": expected.copy()}
    for start, to, size in every:
        expected[to : to + size] = source[start : start + size]
    rows = [(*d, number) for number, (_, descriptors) in enumerate(launches) for d in descriptors]
    shapes = [(grid, shape_of(np.array([size for *_, size in ds], dtype=np.uint64))) for grid, ds in launches]
    shown = [(grid, shape.items, shape.pieces, PIECE_BYTES, shape.lanes) for grid, shape in shapes]
    return given | {"swaps": np.array(rows), "launches": np.array(shown)}, expected


def gathers() -> tuple[dict[str, Any], Bytes]:
    """Return gathers of more rows than a grid of two moves at a time, so that programs go round; words of 8, 4 and 1
    bytes.
    """
    rng, places, rows = np.random.default_rng(5), 400, 150
    sizes = (576, 656, 1152, 100, 13)
    source = rng.integers(0, 256, places * max(sizes), dtype=np.uint8)
    expected = np.full(places * max(sizes), POISON, dtype=np.uint8)
    given, gathers = {"row_source": source, "row_destination": expected.copy()}, []
    for size in sizes:
        from_ids, to_ids = (rng.permutation(places)[:rows] for _ in range(2))
        to_rows, from_rows = (side[: places * size].reshape(places, size) for side in (expected, source))
        to_rows[to_ids] = from_rows[from_ids]
        gathers.append([size, 2, *from_ids, *to_ids])
    return given | {"gathers": np.array(gathers)}, expected


def test_the_kernels_move_every_byte_once_and_write_nothing_else(tmp_path: Path) -> None:
    """In one process: Triton takes seconds to load."""
    (given, copied), (rows, gathered) = copies(), gathers()
    np.savez(tmp_path / "in.npz", **given, **rows)
    python(INTERPRET, tmp_path / "in.npz", tmp_path / "out.npz", cache=tmp_path)
    with np.load(tmp_path / "out.npz") as result:
        for name, expected in (("destination", copied), ("row_destination", gathered)):
            wrong = np.flatnonzero(result[name] != expected)
            assert not len(wrong), f"{name}: {len(wrong)} wrong bytes, the first at {wrong[0]}"


def test_aligned_bytes_move_in_accesses_of_sixteen_bytes(tmp_path: Path) -> None:
    ptx = json.loads(python("-c", COMPILE, cache=tmp_path))
    for access in ("ld", "st"):
        widths = set(re.findall(rf"{access}\.global\.(\S+)", ptx))
        assert widths & {"v2.b64", "v4.b32"}, widths
        assert {"b32", "b8"} <= widths
