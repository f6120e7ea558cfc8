"""A swap by layers: a mark behind each, and a step whose layers wait for the marks."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import Final

from kvbench.backends.base import Backend, PreparedSwap, SwapRequest
from kvbench.cells.axes import Neighbour
from kvbench.cells.cell import Cell
from kvbench.cells.layers import layer_blocks, layer_tensors
from kvbench.engine.device import Device, Event, Sample, Stream
from kvbench.engine.memory import SwapMemory, TensorGrid
from kvbench.measure.beside import FlowSample
from kvbench.measure.neighbour import NeighbourError

# A layer of the step beside `neighbour=idle`, which computes nothing.
IDLE_LAYER_US: Final = 100


@dataclass(frozen=True, slots=True)
class LayerSample(FlowSample):
    """A swap by layers: when the first has arrived, on the clock of the swap, and the longest time between two."""

    first_layer_us: float = 0.0
    slowest_gap_us: float = 0.0


class LayeredSwap:
    """Submits the swap of every layer, and a mark behind each; an event of the device, with a time stamp."""

    def __init__(self, device: Device, layers: Sequence[PreparedSwap]) -> None:
        self._layers = [(layer.swap, Event(device.driver)) for layer in layers]

    @property
    def calls(self) -> int:
        return sum(swap.calls for swap, _ in self._layers)

    @property
    def marks(self) -> list[Event]:
        """A mark for each layer that is swapped by itself."""
        return [mark for _, mark in self._layers]

    def submit(self, stream: int) -> None:
        for swap, mark in self._layers:
            swap.submit(stream)
            mark.record(stream)

    def timed(self, sample: Sample, clock: str) -> LayerSample:
        """Return the sample of the last submission with the times of its layers; `clock` says when the last arrived."""
        gaps = [later.us_since(mark) for mark, later in pairwise(self.marks)]
        known = {field.name: getattr(sample, field.name) for field in fields(FlowSample)}
        first_us = getattr(sample, clock) - sum(gaps)
        return LayerSample(**known, first_layer_us=first_us, slowest_gap_us=max(gaps, default=0.0))


def create_swap(backend: Backend, request: SwapRequest) -> PreparedSwap:
    """Return the swap of a cell, by layers if its sequence says so. Raises any error of the backend."""
    if not request.cell.layers:
        return backend.create(request)
    cells = [replace(request.cell, blocks=blocks, sequence="whole") for blocks in layer_blocks(request.cell)]
    memories = _memories(request.memory, request.cell, [cell.blocks for cell in cells])
    layers = [
        backend.create(replace(request, cell=cell, memory=memory)) for cell, memory in zip(cells, memories, strict=True)
    ]
    return replace(layers[0], swap=LayeredSwap(request.device, layers))


def _memories(memory: SwapMemory, cell: Cell, blocks: Sequence[int]) -> list[SwapMemory]:
    """Return the memory of every layer: views of `memory`, so that what is written there reaches them."""
    if len(blocks) == 1:
        return [memory]
    each = layer_tensors(cell)
    starts = ((grid, at) for grid in memory.grids for at in range(0, len(grid.source_bases), each))
    grids: list[tuple[TensorGrid, ...]] = [(grid.tensors(at, at + each),) for grid, at in starts]
    bounds = pairwise(accumulate(blocks, initial=0))
    return [memory.part(*ends, tensors) for ends, tensors in zip(bounds, grids or [()] * len(blocks), strict=True)]


class LayeredStep:
    """One step of an engine on a stream of its own: layer by layer, each after its mark.

    The layers of `neighbour=idle` wait for a fixed time; those of `decode` are a CUDA graph each, with the waits
    between them. One graph with external event nodes would need events of torch's own as marks, and could not share
    this code with the device cpu.
    """

    def __init__(self, device: Device, cell: Cell) -> None:
        self._stream = Stream(device.driver)
        self.end = Event(device.driver)
        self._thread: Callable[[], AbstractContextManager[object]] = nullcontext
        if cell.neighbour is Neighbour.IDLE:
            handle = self._stream.handle
            self._layers: Sequence[Callable[[], object]] = [
                lambda: device.driver.delay(IDLE_LAYER_US * 1000, handle)
            ] * cell.layers
            return
        from kvbench.measure.torch_work import TorchWork

        work = TorchWork(cell.neighbour, int(device.name.partition(":")[2]), self._stream.handle, cell.layers)
        self._layers, self._thread = work.parts, work.thread

    def submit(self, stream: int, marks: Sequence[Event]) -> None:
        """Submit the step, layers evenly over `marks`, and make later work on `stream` wait for its end.

        Raises NeighbourError.
        """
        handle, each = self._stream.handle, len(self._layers) // len(marks)
        try:
            with self._thread():
                for number, layer in enumerate(self._layers):
                    if number % each == 0:
                        marks[number // each].hold(handle)
                    layer()
            self.end.record(handle)
            self.end.hold(stream)
        except Exception as error:  # any error costs its cell, not the sweep
            raise NeighbourError(f"the neighbour died: {type(error).__name__}: {error}") from error
