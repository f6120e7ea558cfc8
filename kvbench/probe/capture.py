"""Whether the batched copy is allowed in a graph capture, on the legacy stream and on the per-thread stream."""

from collections.abc import Callable
from contextlib import suppress

from kvbench.cells.axes import Direction
from kvbench.engine.device import EngineError, begin_capture, end_capture
from kvbench.probe.common import ProbeFinding
from kvbench.probe.probe_bench import Blocks, ProbeBench
from kvbench.units import KIB

# The driver's handles: CU_STREAM_LEGACY, which is also what 0 means, and CU_STREAM_PER_THREAD.
_LEGACY, _PER_THREAD = 0, 2


def probe(bench: ProbeBench) -> ProbeFinding:
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
