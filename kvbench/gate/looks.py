"""The planned looks at paired times and the false-alarm rate of each look, fixed before anything is measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvbench.analysis.compare import MIN_PAIRS, Verdict, paired_interval, verdict_of
from kvbench.analysis.intervals import CONFIDENCE, Floats


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the first `pairs` pairs; its interval misses the true value with probability `alpha`."""

    pairs: int
    alpha: float


# Together the looks have an error probability of 5%, like one look at 95%. CONTRIBUTING shows the resulting rates.
PLAN: Final = (Look(12, 0.01), Look(24, 0.01), Look(40, 0.015), Look(60, 0.015))
# One look at all pairs.
ONCE: Final = (Look(1_000_000, 1 - CONFIDENCE),)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The centre of paired log ratios, its interval and verdict; `settled` if more pairs cannot change the verdict.

    `not_slower` is true if the interval excludes a slowdown beyond the margin. Without pairs the centre is NaN; with
    too few pairs the interval is (-inf, inf) and `reason` says so.
    """

    centre: float
    low: float
    high: float
    verdict: Verdict
    settled: bool
    pairs: int
    not_slower: bool = False

    @property
    def reason(self) -> str:
        return f"{self.pairs} pairs; an interval requires {MIN_PAIRS}" if self.pairs < MIN_PAIRS else ""


def look_at(logs: Floats, margin: float, looks: Sequence[Look], unsure: float = 0.0) -> Estimate:
    """Return the estimate of the first look that settles the verdict, or of the last look that has enough pairs.

    SAME settles at once. SLOWER and FASTER require two consecutive looks, or the last one, because heavy tails rarely
    cause a false verdict twice. If there are fewer pairs than the next look needs, they are used for a last look.
    `margin` is a log ratio. By `unsure`, a log ratio too, a machine may have moved without being noticed: SLOWER and
    FASTER must exceed the margin by as much.
    """
    earlier = None
    for place, look in enumerate(looks):
        seen = logs[: look.pairs]
        if not seen.size:
            break
        centre, low, high = paired_interval(seen, 1 - look.alpha)
        verdict = verdict_of(low, high, margin)
        if verdict not in (Verdict.SAME, verdict_of(low, high, margin + unsure)):
            verdict = Verdict.UNDECIDED
        short = seen.size < look.pairs
        again = verdict is not Verdict.UNDECIDED and (verdict in (Verdict.SAME, earlier) or place == len(looks) - 1)
        if again or short or place == len(looks) - 1:
            return Estimate(centre, low, high, verdict, again and not short, seen.size, bool(high <= margin))
        earlier = verdict
    return Estimate(math.nan, -math.inf, math.inf, Verdict.UNDECIDED, settled=False, pairs=0)
