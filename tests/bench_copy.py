"""What a call of `kvbench.copy.BlockCopier` takes: `python -m tests.bench_copy [--device cuda:0]`.

Three ways to call are taken in turn: NumPy arrays with a handle, pinned tensors of torch with a stream of torch, and,
on a GPU, an empty launch of torch as the floor. Each is timed "tight", one call after the other, and "after a step": a
strided pass over a new array of 32 MiB, as an engine's step leaves the caches. Blocks of 4 KiB are other ones in every
call. Prints medians in microseconds of the call and until completion, and their ratios to the first way and the floor.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from kvbench.backends.auto import DEFAULTS, copier_for
from kvbench.copy import BlockCopier
from kvbench.engine.device import Buffer, Device, MemoryKind, Stream, open_device
from kvbench.engine.faults import FaultPlan

BLOCK_BYTES: Final = 4096
COUNTS: Final = (16, 64, 256, 1_024)
STEP_BYTES: Final = 32 << 20  # from this size on, malloc of glibc gives new pages each time
ROUNDS: Final = {"tight": 400, "after a step": 60}
LISTS: Final = 50

Call = Callable[[], object]


class Bench:
    """Pools on both sides, lists of random blocks, and the ways to call."""

    def __init__(self, device: Device, pool_bytes: int) -> None:
        self.device, self.blocks = device, pool_bytes // BLOCK_BYTES
        self.is_cuda = device.is_cuda
        if self.is_cuda:
            torch.cuda.init()
            self.stream = torch.cuda.Stream()
            self.handle, self.wait = self.stream.cuda_stream, self.stream.synchronize
            self.host = torch.zeros(pool_bytes, dtype=torch.uint8).pin_memory()
            self.card = torch.zeros(pool_bytes, dtype=torch.uint8, device="cuda")
            self.addresses = self.host.data_ptr(), self.card.data_ptr()
            self.small = torch.zeros(1, device="cuda")
        else:
            own = Stream(device.driver)
            self.stream, self.handle, self.wait = own, own.handle, own.synchronize
            self.pools = [Buffer(device.driver, kind, pool_bytes) for kind in (MemoryKind.allocated, MemoryKind.device)]
            self.addresses = self.pools[0].address, self.pools[1].address

    def lists(self, count: int) -> Iterator[tuple[NDArray[np.int64], ...]]:
        rng = np.random.default_rng(1)
        sizes = np.full(count, BLOCK_BYTES)
        for _ in range(LISTS):
            blocks = (rng.choice(self.blocks, count, replace=False) * BLOCK_BYTES for _ in range(2))
            yield (*(start + offsets for start, offsets in zip(self.addresses, blocks, strict=True)), sizes)

    def calls(self, copy: Callable[..., object], count: int) -> dict[str, Call]:
        """Return the ways to call, each with its next list at every call."""
        arrays = list(self.lists(count))
        tensors = [tuple(self._pinned(torch.from_numpy(array)) for array in each) for each in arrays]
        turn = {"arrays": 0, "tensors": 0}

        def arrays_next() -> None:
            turn["arrays"] += 1
            copy(*arrays[turn["arrays"] % LISTS], self.handle)

        def tensors_next() -> None:
            turn["tensors"] += 1
            copy(*tensors[turn["tensors"] % LISTS], self.stream if self.is_cuda else self.handle)

        ways: dict[str, Call] = {"arrays": arrays_next, "tensors": tensors_next}
        if self.is_cuda:
            ways["empty launch"] = self._launch
        return ways

    def _launch(self) -> None:
        with torch.cuda.stream(self.stream):
            self.small.zero_()

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory() if self.is_cuda else tensor

    def sample(self, call: Call) -> tuple[float, float]:
        """Return how many microseconds a call takes, and how many until completion."""
        began_ns = time.perf_counter_ns()
        call()
        returned_ns = time.perf_counter_ns()
        self.wait()
        return (returned_ns - began_ns) / 1e3, (time.perf_counter_ns() - began_ns) / 1e3


def step() -> float:
    """Do what an engine's step does to the caches of its CPU; return something of it."""
    array = np.empty(STEP_BYTES // 8)
    array[::8] = 1.0
    return float(array[::8].sum())


def measure(bench: Bench, copy: Callable[..., object], count: int, gap: str) -> dict[str, tuple[float, float]]:
    """Return for each way the medians of the call and until completion, taken in turn."""
    ways = bench.calls(copy, count)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(ROUNDS[gap]):
        for name in list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]:
            if gap == "tight":
                bench.sample(ways[name])
            else:
                step()
            samples[name].append(bench.sample(ways[name]))
    return {
        name: (median(called for called, _ in taken), median(done for _, done in taken))
        for name, taken in samples.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--policy")
    parser.add_argument("--pool-mib", type=int, default=256)
    options = parser.parse_args()
    device = open_device(options.device, FaultPlan())
    device.driver.bind_thread()
    bench = Bench(device, options.pool_mib << 20)
    # On the device cpu, memory and streams are known to the driver that made them.
    copy = (
        BlockCopier(options.device, options.policy).copy
        if device.is_cuda
        else copier_for(device, [DEFAULTS]).engine.copy
    )
    print(f"{'gap':<14}{'blocks':>7}  {'way':<14}{'call us':>9}{'done us':>9}{'x arrays':>10}{'x floor':>9}")
    for gap in ROUNDS:
        for count in COUNTS:
            times = measure(bench, copy, count, gap)
            floor = times.get("empty launch")
            for name, (called, done) in times.items():
                beside = f"{done / floor[1]:>9.2f}" if floor else f"{'':>9}"
                print(
                    f"{gap:<14}{count:>7}  {name:<14}{called:>9.2f}{done:>9.2f}"
                    f"{called / times['arrays'][0]:>10.2f}{beside}"
                )


if __name__ == "__main__":
    main()
