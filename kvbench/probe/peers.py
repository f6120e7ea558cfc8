"""Whether blocks aligned to 16 bytes, to 4 bytes or not at all differ in path or speed."""

from statistics import median
from typing import Final

from kvbench.cells.axes import Direction
from kvbench.cells.units import KIB, gigabytes_per_second
from kvbench.engine.device import Event
from kvbench.probe.common import ProbeFinding
from kvbench.probe.probe_bench import Blocks, ProbeBench

_ALIGNMENTS: Final = (16, 4, 1)
# At 4 KiB the CPU's copy takes hardly longer than a descriptor (driver 580), so that the paths look alike.
_SIZES: Final = (16 * KIB, 64 * KIB)
_BLOCKS: Final = 256
_TRIES: Final = 15
# An alignment below this share of the speed at 16 bytes is called slower.
_SLOWER: Final = 0.5


def peers(bench: ProbeBench) -> ProbeFinding:
    """Compare path (inside the call or not) and speed behind a gate, for two block sizes and both directions."""
    paths: dict[tuple[int, Direction, int], bool] = {}
    rates: dict[tuple[int, Direction, int], float] = {}
    for size in _SIZES:
        for alignment in _ALIGNMENTS:
            blocks = Blocks(bench, [size] * _BLOCKS, stride=size + 16, shift=alignment % 16)
            for direction in Direction:
                bench.step(f"blocks of {size} bytes aligned to {alignment}, {direction}", alignment, "bytes")
                key = size, direction, alignment
                paths[key] = bench.copies_inline(blocks.arrays(direction), direction)
                rates[key] = median(_rate(bench, blocks, direction) for _ in range(_TRIES))
    ratios = {key: rate / rates[*key[:2], 16] for key, rate in rates.items()}
    answers = [f"{alignment}-byte {_answer(alignment, paths, ratios)}" for alignment in _ALIGNMENTS[1:]]
    return ProbeFinding(
        answer=f"against 16-byte alignment: {'; '.join(answers)}",
        number=min(ratios.values()),
        unit="of that at 16 bytes",
        of="lowest speed",
        expected=all(answer.endswith("same path, same speed") for answer in answers),
        figures={
            f"{direction}_{size}_aligned_{by}_gbps": round(rate, 2) for (size, direction, by), rate in rates.items()
        },
    )


def _rate(bench: ProbeBench, blocks: Blocks, direction: Direction) -> float:
    """Return GB/s between the opening of a gate and the end of one call's copies."""
    arrays, ended = blocks.arrays(direction), Event(bench.device.driver)
    opened = bench.gate(2)
    bench.submit(arrays, direction)
    ended.record(bench.stream.handle)
    bench.stream.synchronize()
    return gigabytes_per_second(int(arrays.sizes.sum()), ended.us_since(opened))


def _answer(
    alignment: int, paths: dict[tuple[int, Direction, int], bool], ratios: dict[tuple[int, Direction, int], float]
) -> str:
    other = [key for key in paths if key[2] == alignment and paths[key] != paths[*key[:2], 16]]
    slower = [key for key in ratios if key[2] == alignment and ratios[key] < _SLOWER]
    where = ", ".join(f"{size // KIB} KiB {direction}" for size, direction, _ in slower)
    return f"{'another' if other else 'same'} path, {f'slower ({where})' if slower else 'same speed'}"
