"""The sections of a report, in their order: each file says what its section selects, finds, tabulates and draws."""

from collections.abc import Sequence
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

SECTIONS: Final = (
    replay.SECTION, models.SECTION, locality.SECTION, runs.SECTION, pages.SECTION, cliff.SECTION, stream_states.SECTION,
    sm_ladder.SECTION, engines.SECTION, threshold.SECTION, crossover_map.SECTION, settings.ACCESS_ORDER,
    queue_depth.SECTION, neighbour.SECTION, layers.SECTION, devices.SECTION, stages.SECTION, settings.MERGING,
    auto.SECTION,
)  # fmt: skip


def sections_of(views: Sequence[View]) -> Sequence[Section]:
    """Return the sections of a report on these runs.

    The comparison comes first where it has all runs and machine, driver or build differ, otherwise last.
    """
    pairs = [(view, base) for view in views if (base := view.base)]
    apart = any(view.run.info.identity_hash != base.run.info.identity_hash for view, base in pairs)
    has_all = len({view.run.path for pair in pairs for view in pair}) == len(views)
    return (comparison.SECTION, *SECTIONS) if apart and has_all else (*SECTIONS, comparison.SECTION)
