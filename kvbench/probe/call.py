"""What a call accepts: streams and captures, and numbers of descriptors."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kvbench.cells.axes import Direction
from kvbench.cells.units import KIB
from kvbench.engine.device import EngineError, begin_capture, end_capture
from kvbench.probe.common import ProbeFinding
from kvbench.probe.probe_bench import Blocks, ProbeBench

# The driver's handles: CU_STREAM_LEGACY, which is also what 0 means, and CU_STREAM_PER_THREAD.
_LEGACY, _PER_THREAD = 0, 2


def capture(bench: ProbeBench) -> ProbeFinding:
    """Call on each stream and in a capture, in both directions; the answer names the error of each refusal."""
    blocks = Blocks(bench, [16 * KIB] * 16)

    def on(stream: int, direction: Direction) -> None:
        bench.submit(blocks.arrays(direction), direction, stream)
        bench.device.driver.synchronize(stream)

    def captured(direction: Direction) -> None:
        driver, stream, arrays = bench.device.driver, bench.stream.handle, blocks.arrays(direction)
        begin_capture(driver, stream)
        try:
            bench.submit(arrays, direction)
        except EngineError:
            with suppress(EngineError):  # the refused call can have ended the capture
                end_capture(driver, stream)
            raise
        end_capture(driver, stream)

    calls = {
        "legacy stream": lambda direction: on(_LEGACY, direction),
        "per-thread stream": lambda direction: on(_PER_THREAD, direction),
        "capture": captured,
    }
    refusals = {name: _refusal(bench, name, work) for name, work in calls.items()}
    answer = "; ".join(f"{name}: {why or 'allowed'}" for name, why in refusals.items())
    return ProbeFinding(
        answer=answer,
        number=sum(map(bool, refusals.values())),
        unit="of 3",
        of="places that refuse the call",
        expected=bool(refusals["legacy stream"]) and not refusals["per-thread stream"],
    )


def _refusal(bench: ProbeBench, name: str, work: Callable[[Direction], None]) -> str:
    refusals = []
    for direction in Direction:
        bench.step(f"{name}, {direction}")
        try:
            work(direction)
        except EngineError as error:
            refusals.append(f"{direction} refused ({error.name})")
    both = {refusal.partition(" ")[2] for refusal in refusals}
    return both.pop() if len(refusals) == len(Direction) and len(both) == 1 else ", ".join(refusals)


# 51 828 mixed descriptors crashed a driver in public, and more than 8192 another.
_COUNTS: Final = (1, 1024, 8192, 32_768, 51_828, 65_536, 131_072, 200_000)
_REPEATS: Final = 2
_SIZES: Final = (64, 256, 500, 1024)
_GATE_MS: Final = 30


def _sizes(count: int) -> list[int]:
    """Return mixed sizes: mostly small, one in 256 too large for a copy by the CPU."""
    return [28 * KIB if i % 256 == 255 else _SIZES[i % len(_SIZES)] for i in range(count)]


def count(bench: ProbeBench) -> ProbeFinding:
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
