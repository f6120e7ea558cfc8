"""The sections of a report, in their order: each file says what its section selects, finds, tabulates and draws."""

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Final

from kvbench.report.model import Section
from kvbench.report.sections import (
    auto,
    cliff,
    comparison,
    crossover_map,
    devices,
    engines,
    layers,
    locality,
    models,
    neighbour,
    pages,
    queue_depth,
    replay,
    runs,
    settings,
    sm_ladder,
    stages,
    stream_states,
    threshold,
)
from kvbench.report.view import View

_sizes: Final = attrgetter("block_sizes")
_created: Final = attrgetter("run.info.created")
SECTIONS: Final = (
    Section("replay", "Replay: the swaps of a trace", replay.make, of_all=True),
    Section("models", "Models: copy by copy against batched", models.make),
    Section("locality", "Locality: fresh, scattered blocks against hot, dense ones", locality.make),
    Section("runs", "Runs: throughput against the length of runs of blocks", runs.make),
    Section("pages", "Pages: swaps of blocks that lie in pages on the host", pages.make),
    Section("cliff", "Cliff: throughput against block size", cliff.make, weight=_sizes),
    Section("stream-states", "Stream states: idle, opened, gated, busy", stream_states.make),
    Section("sm-ladder", "SM ladder: throughput against SM count", sm_ladder.make),
    Section("engines", "Engines: their own code, and the best backend of the run", engines.make, of_all=True),
    Section("threshold", "Threshold: batched copies against the other backends", threshold.make, weight=_sizes),
    Section(
        "crossover-map",
        "Crossover map: time of batched copies over time of a kernel",
        crossover_map.make,
        weight=_sizes,
    ),
    Section("access-order", "Access order: STREAM against ANY", partial(settings.make, settings.ORDER)),
    Section("queue-depth", "Queue depth: submission time against queued swaps", queue_depth.make),
    Section("neighbour", "Neighbours: slowdown of work beside swaps", neighbour.make),
    Section("layers", "Layers: loads that a step waits for, layer by layer", layers.make, of_all=True),
    Section("devices", "Devices: swaps on all of them at once", devices.make, of_all=True),
    Section("stages", "Stages: time of the caller and of the rest", stages.make),
    Section("auto", "Auto: the backend auto against the fastest other backend", auto.make, weight=_created),
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
