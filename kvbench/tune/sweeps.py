"""What `kvbench tune` measures: the sweep, and the search among its cells."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from kvbench.cells.cell import Cell
from kvbench.errors import UsageError, brief
from kvbench.models.presets import ModelChoice
from kvbench.policy import Choice
from kvbench.sweep.config import find_config, load_config
from kvbench.sweep.replay_swaps import Numbered, choose, selected
from kvbench.sweep.spec import SweepSpec, parse_assignments
from kvbench.tune.exports import ENGINE_BACKENDS, EXPORTS
from kvbench.tune.search import Search
from kvbench.tune.traced import label_of, parts_of
from kvbench.units import KIB

_SHAPES: Final = {
    "blocks": "16,128,1024,10000",
    "block_size": "1KiB,2KiB,4KiB,8KiB,16KiB,24KiB,32KiB,48KiB,64KiB,96KiB,128KiB,192KiB,256KiB",
}
# With two stream states, an engine's ways are measured at fewer shapes, to take three minutes.
_ENGINE_SHAPES: Final = {"blocks": "16,64,256,1024", "block_size": "4KiB,16KiB,32KiB,64KiB"}
# Whether blocks in runs would change the answer, at a few shapes.
_IN_RUNS: Final = {
    "blocks": "1024", "block_size": "4KiB,16KiB,64KiB", "backend": "merged,sm", "pattern": "runs-8,runs-32",
}  # fmt: skip
# Swaps of a trace in each direction.
_TRACE_SWAPS: Final = 60
# Swaps of shuffled blocks beside those of a trace are no larger: their choice no longer depends on the number.
_SHUFFLED_BYTES: Final = 200_000_000
_LAYOUTS: Final = {"pattern", "device_pattern", "host_pattern", "sizes"}
_FIRST_SIZES: Final = tuple(kib * KIB for kib in (1, 4, 16, 64, 256))
_SUSTAINED_COUNTS: Final = (128, 1024)
# After this time a search makes only necessary visits, so that tuning takes three minutes, start and end included.
_SECONDS: Final = 100.0


def sweep_for(
    models: ModelChoice,
    axes: Sequence[str],
    backends: Collection[str],
    *,
    neighbour: str | None = None,
    engine: str | None = None,
    trace: Path | None = None,
    seed: int = 0,
) -> SweepSpec:
    """Return what to measure: for the swaps of a trace, for the settings of an engine, or for a policy."""
    if trace:
        return trace_sweep(trace, axes, backends, seed)
    return engine_sweep(engine, axes) if engine else tuning_sweep(models, axes, neighbour, backends)


def tuning_sweep(
    models: ModelChoice, axes: Sequence[str], neighbour: str | None, backends: Collection[str]
) -> SweepSpec:
    """Return what to measure: every way to swap, or `backends` alone, beside a neighbour if one is named."""
    return _of_backends(_every_way(models, axes, neighbour), backends)


def _every_way(models: ModelChoice, axes: Sequence[str], neighbour: str | None) -> SweepSpec:
    settings = parse_assignments(axes)
    if neighbour is None:
        if several := sorted(name for name in _LAYOUTS & settings.keys() if "," in settings[name]):
            raise UsageError(f"-a {several[0]}={brief(settings[several[0]])}: an answer is for one layout; name one")
        spec = load_config(find_config("tune"), models).with_axes({**({} if models.models else _SHAPES), **settings})
        if models.models:  # the filter limits the shapes above; a model's swap is measured whatever its size
            spec = replace(spec, filters=())
        if (
            models.models
            or (_LAYOUTS | {"backend"}) & settings.keys()
            or "idle" not in settings.get("stream_state", "idle")
        ):
            return spec
        in_runs = load_config(find_config("runs")).with_axes({**_IN_RUNS, **settings, "stream_state": "idle"})
        return replace(spec, groups=spec.groups + in_runs.groups)
    if models.models:
        raise UsageError("--model: with --neighbour it needs RUN; to measure, use -a blocks=... and -a block_size=...")
    if "neighbour" in settings:
        raise UsageError("-a neighbour=...: --neighbour names it; leave it out")
    return load_config(find_config("neighbour")).with_axes({**settings, "neighbour": neighbour})


def trace_sweep(path: Path, axes: Sequence[str], backends: Collection[str], seed: int) -> SweepSpec:
    """Return what to measure for the swaps of a trace: every way, with their own ids and on shuffled blocks.

    Raises UsageError for a file that cannot be replayed.
    """
    ways = _of_backends(load_config(find_config("trace")), backends).with_axes(parse_assignments(axes))
    trace = choose(path, _TRACE_SWAPS, seed)
    replayed = ways.with_trace(trace)
    groups = [*replayed.groups]
    for direction, swaps in selected(trace).items():
        ids = [min(label, max(1, _SHUFFLED_BYTES // trace.block_bytes)) for label in labels_of(swaps)]
        if ids:
            blocks = ",".join(str(count * trace.descriptors) for count in sorted(set(ids)))
            size, pattern = str(trace.row_bytes), str(trace.pattern)
            shape = {"direction": direction, "blocks": blocks, "block_size": size, "pattern": pattern}
            groups += ways.with_axes({**shape, "stream_state": "idle"}).groups
    return replace(replayed, groups=tuple(groups))


def labels_of(swaps: Sequence[Numbered]) -> list[int]:
    """Return the number of ids of the swap that stands for each part of these swaps."""
    sizes = np.array([len(one.swap.gpu) for one in swaps], dtype=np.int64)
    return [label_of(sizes[part]) for part in parts_of(sizes)]


def engine_sweep(name: str, axes: Sequence[str]) -> SweepSpec:
    """Return what to measure for an engine: its own ways, in the directions that its settings act on, and others."""
    engine, spec = EXPORTS[name], load_config(find_config("engines"))
    left_out = ENGINE_BACKENDS - {*engine.backends}
    groups = tuple(group for group in spec.groups if not left_out & {*map(str, group["backend"])})
    engine_axes = {"direction": ",".join(engine.directions), "stream_state": ",".join(engine.states)}
    fewer = _ENGINE_SHAPES if len(engine.states) > 1 else {}
    return replace(spec, groups=groups).with_axes({**engine_axes, **fewer, **parse_assignments(axes)})


def search_among(keep: Callable[[Choice], bool], spec: SweepSpec) -> Callable[[Sequence[Cell]], Search]:
    """Return what starts a search, from now, for the best ways that `keep` accepts among the cells of a plan.

    It measures every swap of a model.
    """
    ends_s = time.monotonic() + _SECONDS
    sizes, counts = ((), ()) if spec.models else (_FIRST_SIZES, _SUSTAINED_COUNTS)

    def searching(cells: Sequence[Cell]) -> Search:
        allowed = [cell for cell in cells if keep(Choice.at(cell))]
        if not allowed:
            raise UsageError("nothing to choose from: no allowed backend runs on this machine")
        return Search(allowed, sizes, counts, spec.seed, lambda: time.monotonic() < ends_s)

    return searching


def _of_backends(spec: SweepSpec, backends: Collection[str]) -> SweepSpec:
    """Return the sweep with some backends alone, if any; raises UsageError for one that it does not measure."""
    if not backends:
        return spec
    known = dict.fromkeys(str(name) for group in spec.groups for name in group["backend"])
    if not set(backends) <= set(known):
        raise UsageError(f"--backends {brief(','.join(backends))}: kvbench tune measures only {', '.join(known)}")
    kept = ({**group, "backend": tuple(name for name in group["backend"] if name in backends)} for group in spec.groups)
    return replace(spec, groups=tuple(group for group in kept if group["backend"]))
