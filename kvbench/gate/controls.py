"""Controls: did large plain copies, which no build changes, stay where they were from one side to the other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.analysis.intervals import MIN_PAIRS, Floats
from kvbench.cells.axes import Direction
from kvbench.gate.judgement import Control, Margins
from kvbench.gate.verdict import Verdict, effects, ratio_of, verdict, without_slot_bias
from kvbench.results import Run


@dataclass(frozen=True, slots=True)
class ControlTimes:
    """Paired log ratios of the controls' times, of shape (directions, rounds); `warnings` say what they are not."""

    directions: Sequence[str]
    log_ratios: Floats
    warnings: Sequence[str]


def control_times(base: Sequence[Run], cand: Sequence[Run]) -> ControlTimes:
    """Pair the controls of two lists of runs; where a run has none, the ceilings stand in for them, and it is said."""
    sides = [[run.controls() for run in runs] for runs in (base, cand)]
    warnings = []
    if not all(set(rates) == set(Direction) for runs in sides for rates in runs):
        warnings = ["not every run has control copies: the engine's own large copies, the ceilings, stand in for them"]
        sides = [[run.ceilings() for run in runs] for runs in (base, cand)]
    ways = sorted({way for runs in sides for rates in runs for way in rates})
    if not ways:
        warnings = ["no run has control copies or ceilings: whether the machine was steady is not known"]
    shape = (len(ways), len(base))
    gbps = [
        np.array([np.median(rates[way]) if rates.get(way) else np.nan for way in ways for rates in runs]).reshape(shape)
        for runs in sides
    ]
    return ControlTimes(ways, np.log(gbps[0] / gbps[1]), warnings)


def judge_controls(times: ControlTimes, order: Floats, margins: Margins) -> list[Control]:
    """Return how far each control moved; `order` is `slots` of the rounds.

    One is steady while its whole interval lies within the margin; with too few pairs for an interval, its median.
    """
    found = effects(without_slot_bias(times.log_ratios, order).log_ratios)
    margin = math.log1p(margins.control)
    controls = []
    for place, way in enumerate(times.directions):
        low, high, median = found.low[place], found.high[place], found.median[place]
        pairs = int(found.pairs[place])
        enough = pairs >= MIN_PAIRS
        steady = verdict(low, high, margin) is Verdict.UNCHANGED if enough else not abs(median) > margin
        controls.append(Control(way, ratio_of(median), ratio_of(low), ratio_of(high), pairs, steady))
    return controls
