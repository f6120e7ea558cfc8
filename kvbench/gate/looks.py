"""When paired times are looked at, and what each look may cost in false alarms: known before anything is measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvbench.analysis.compare import MIN_PAIRS, Verdict, paired_interval, verdict_of
from kvbench.analysis.intervals import CONFIDENCE, Floats


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the first `pairs` pairs, whose interval may miss the truth with a chance of `alpha`."""

    pairs: int
    alpha: float


# Together they may miss it with a chance of 5%, as one look of 95% may. CONTRIBUTING says what this comes to.
PLAN: Final = (Look(12, 0.01), Look(24, 0.01), Look(40, 0.015), Look(60, 0.015))
# At everything that there is.
ONCE: Final = (Look(1_000_000, 1 - CONFIDENCE),)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The centre of paired log ratios with its interval and what that says; `settled` where more would change nothing.

    Without pairs the centre is NaN; with too few the interval is (-inf, inf) and `reason` says so.
    """

    centre: float
    low: float
    high: float
    verdict: Verdict
    settled: bool
    pairs: int

    @property
    def reason(self) -> str:
        return f"{self.pairs} pairs; an interval takes {MIN_PAIRS}" if self.pairs < MIN_PAIRS else ""


def look_at(logs: Floats, margin: float, looks: Sequence[Look]) -> Estimate:
    """Return the estimate of the first look that settles it, or of the last one that there are pairs for.

    SAME settles it. SLOWER and FASTER must be seen at two looks in a row, or at the last one: what heavy tails make
    look slower does so once. Pairs that fall short of a look are looked at as if it were the last. `margin` is a log
    ratio.
    """
    earlier = None
    for place, look in enumerate(looks):
        seen = logs[: look.pairs]
        if not seen.size:
            break
        centre, low, high = paired_interval(seen, 1 - look.alpha)
        verdict = verdict_of(low, high, margin)
        short = seen.size < look.pairs
        again = verdict is not Verdict.UNDECIDED and (verdict in (Verdict.SAME, earlier) or place == len(looks) - 1)
        if again or short or place == len(looks) - 1:
            return Estimate(centre, low, high, verdict, settled=again and not short, pairs=seen.size)
        earlier = verdict
    return Estimate(math.nan, -math.inf, math.inf, Verdict.UNDECIDED, settled=False, pairs=0)
