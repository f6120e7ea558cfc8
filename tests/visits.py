"""Benches of a device, and visits of cells that are set up for one alone, by any installed backend."""

from collections.abc import Mapping

from kvbench.backends.base import Backend, backend_named
from kvbench.cells.cell import Cell
from kvbench.cells.faults import Fault, FaultPlan
from kvbench.cells.installed import installed
from kvbench.engine.device import Device, Stream, TimedRegion, open_device
from kvbench.measure.bench import Bench
from kvbench.measure.disturbance import GpuClocks, SteadyCpu
from kvbench.measure.pools import Pools
from kvbench.measure.samples import Arms, Sampler, set_up
from kvbench.measure.visit import visit
from kvbench.results import Visit
from kvbench.run.protocol import MeasureCells
from kvbench.sweep.spec import Sampling


def bench_of(pool_bytes: int, delay_us: int = 200, device: Device | None = None) -> Bench:
    """Return a bench whose pools have this size, on a device cpu of its own by default."""
    device = device or open_device("cpu", FaultPlan())
    stream = Stream(device.driver)
    region = TimedRegion(device.driver, stream.handle, delay_us * 1000)
    return Bench(device, stream, region, Pools(device, stream, pool_bytes), SteadyCpu(), GpuClocks(device.name, None))


def load_backends() -> Mapping[str, Backend]:
    every = ((name, backend_named(name)) for name, installation in installed()[0].items() if not installation.engine)
    return {name: backend for name, backend in every if backend is not None}


def measure(
    bench: Bench, backend: Backend, cell: Cell, sampling: Sampling, seed: int, fault: Fault | None, number: int = 0
) -> Visit:
    request = MeasureCells(cells=[cell.as_strings()], round=number, seed=seed, sampling=sampling)
    return visited(bench, set_up(bench, backend, cell, sampling, seed), request, fault)


def visited(bench: Bench, sampler: Sampler, request: MeasureCells, fault: Fault | None = None) -> Visit:
    """Return the visit of one cell."""
    (made,) = visit(bench, Arms(bench.device, [sampler], [fault]), request)
    return made
