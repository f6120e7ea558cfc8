"""The sections of a report, in their order: the cliff and what explains it first, then what is specific."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from operator import attrgetter
from typing import Final

from kvbench.report.model import PartOrReason, Section
from kvbench.report.sections import (
    auto,
    cliff,
    comparison,
    contrast,
    kernels,
    layers,
    machines,
    models,
    neighbour,
    placement,
    replay,
    submission,
)
from kvbench.report.view import View
from kvbench.sweep.installed import ENGINES_SECTION


def _contrast(name: str, title: str, *contrasts: contrast.Contrast, **options: object) -> Section:
    return Section(name, title, partial(contrast.make, contrasts), **options)  # type: ignore[arg-type]


def _of_guest(path: str) -> Callable[[View], PartOrReason]:
    """Return the function that makes a guest's section, imported when it is called: the core imports no guest."""
    module, _, name = path.partition(":")

    def make(view: View) -> PartOrReason:
        part: PartOrReason = getattr(import_module(module), name)(view)
        return part

    return make


_sizes: Final = attrgetter("block_sizes")
_created: Final = attrgetter("run.info.created")
SECTIONS: Final = (
    Section("machines", "Machines: side by side", machines.make, of_all=True),
    Section("cliff", "Cliff: throughput against block size", cliff.make, weight=_sizes),
    _contrast("stream-states", "Stream states: idle, opened, gated, busy", *submission.STREAM_STATES),
    _contrast("threshold", "Threshold: batched copies against the other backends", kernels.THRESHOLD, weight=_sizes),
    Section(
        "crossover-map", "Crossover map: time of batched copies over time of a kernel", kernels.make_map, weight=_sizes
    ),
    _contrast("sm-ladder", "SM ladder: throughput against SM count", kernels.SM_LADDER),
    _contrast("locality", "Locality: fresh, scattered blocks against hot, dense ones", placement.LOCALITY),
    _contrast("runs", "Adjacent blocks: throughput against their number", placement.RUNS),
    _contrast("pages", "Pages: swaps of blocks that lie in pages on the host", placement.PAGES),
    Section("models", "Models: copy by copy against batched", models.make),
    Section("replay", "Replay: the swaps of a trace", replay.make, of_all=True),
    Section(
        "engines", "Engines: their own code, and the best backend of the run", _of_guest(ENGINES_SECTION), of_all=True
    ),
    _contrast("call", "An engine's call: the thread's time, tight and after a step", submission.CALL),
    _contrast("stages", "Stages: time of the caller and of the rest", submission.STAGES),
    Section("auto", "Auto: the backend auto against the fastest other backend", auto.make, weight=_created),
    Section("neighbour", "Neighbours: slowdown of work beside swaps", neighbour.make),
    Section("layers", "Layers: loads that a step waits for, layer by layer", layers.make, of_all=True),
    _contrast("devices", "Devices: swaps on all of them at once", placement.DEVICES, of_all=True),
    _contrast("access-order", "Access order: STREAM against ANY", *submission.ACCESS_ORDER),
    _contrast("queue-depth", "Queue depth: submission time against queued swaps", submission.QUEUE_DEPTH),
)
COMPARISON: Final = Section(
    "comparison", "Comparison: runs against each other", comparison.make, weight=comparison.shared_cells
)


def sections_of(views: Sequence[View]) -> Sequence[Section]:
    """Return the sections of a report on these runs.

    The comparison comes first where it has all runs and machine, driver or build differ, otherwise last.
    """
    pairs = [(view, base) for view in views if (base := view.base)]
    apart = any(view.run.info.identity_hash != base.run.info.identity_hash for view, base in pairs)
    has_all = len({view.run.path for pair in pairs for view in pair}) == len(views)
    return (COMPARISON, *SECTIONS) if apart and has_all else (*SECTIONS, COMPARISON)
