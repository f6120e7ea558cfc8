"""A swap in several launches: its descriptors in several prepared swaps, submitted one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvbench.backends.base import Backend, PreparedSwap, SwapRequest


def create_launches(backend: Backend, request: SwapRequest) -> list[PreparedSwap]:
    """Return the swap of `request` as prepared swaps of at most `launch_bytes` each; a block is never split."""
    cell = request.cell
    step = max(1, cell.launch_bytes // cell.block_bytes) if cell.launch_bytes else cell.blocks
    if step >= cell.blocks:
        return [backend.create(request)]
    starts = range(0, cell.blocks, step)
    return [backend.create(replace(request, memory=request.memory.part(start, start + step))) for start in starts]


def joined(launches: Sequence[PreparedSwap]) -> PreparedSwap:
    if len(launches) == 1:
        return launches[0]
    timed = [launch.sm_us for launch in launches if launch.sm_us is not None]
    return replace(
        launches[0],
        swap=SplitSwap(launches),
        staging_bytes=sum(launch.staging_bytes or 0 for launch in launches) or None,
        sm_us=(lambda stream: sum(time_us(stream) for time_us in timed)) if timed else None,
    )


@dataclass(frozen=True)
class SplitSwap:
    """Submits all launches in order."""

    launches: Sequence[PreparedSwap]

    @property
    def calls(self) -> int:
        return sum(launch.swap.calls for launch in self.launches)

    def submit(self, stream: int) -> None:
        for launch in self.launches:
            launch.swap.submit(stream)
