"""The planned looks at paired times and the false-alarm rate of each look, fixed before anything is measured."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from kvbench.analysis.compare import MIN_PAIRS, Verdict, paired_interval, verdict_of
from kvbench.analysis.intervals import Floats


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the first `pairs` pairs; its interval misses the true value with probability `alpha`."""

    pairs: int
    alpha: float


# Together the looks have an error probability of 5%, like one look at 95%: docs/how-to/gate.md has the rates.
PLAN: Final = (Look(12, 0.01), Look(24, 0.01), Look(40, 0.015), Look(60, 0.015))


@dataclass(frozen=True, slots=True)
class Estimate:
    """The ratio of the candidate's time to the base's with its interval, and a verdict.

    It is `settled` if more pairs cannot change the verdict, and `not_slower` if the interval excludes a slowdown beyond
    the margin. `unconfirmed` is a verdict, SLOWER or FASTER, that several processes of each side did not confirm, so
    that it is UNDECIDED. Without pairs the ratio is NaN; with too few the interval is (0, inf) and `reason` says so.
    """

    ratio: float = math.nan
    low: float = 0.0
    high: float = math.inf
    verdict: Verdict = Verdict.UNDECIDED
    settled: bool = False
    pairs: int = 0
    not_slower: bool = False
    unconfirmed: Verdict | None = None

    @property
    def reason(self) -> str:
        if self.low == 0 and math.isinf(self.high):
            return f"{self.pairs} pairs are too few for an interval"
        return f"{self.unconfirmed}, but not in several processes of each side" if self.unconfirmed else ""


def look_at(logs: Floats, processes: Floats, margin: float, unsure: float = 0.0) -> Estimate:
    """Return the estimate of the first look that settles the verdict, or of the last look that has enough pairs.

    SAME settles at once. SLOWER and FASTER require two consecutive looks, or the last one, because heavy tails rarely
    cause a false verdict twice. If there are fewer pairs than the next look needs, they are used for a last look.
    A NaN among `logs` is no pair; `margin` is a log ratio. By `unsure`, a log ratio too, a machine may have moved
    without being noticed: SLOWER and FASTER must exceed the margin by as much. `processes` has a number for each of
    `logs` that increases with new processes of both sides: two processes of one build can differ in all their visits,
    so SLOWER and FASTER require several, and that the centre of the pairs of each lies beyond the margin (of each six
    pairs, where processes made fewer).
    """
    known = np.isfinite(logs)
    logs, processes = logs[known], processes[known]
    earlier = None
    for look in PLAN:
        seen = logs[: look.pairs]
        if not seen.size:
            break
        centre, low, high = paired_interval(seen, 1 - look.alpha)
        verdict = verdict_of(low, high, margin)
        if verdict not in (Verdict.SAME, verdict_of(low, high, margin + unsure)):
            verdict = Verdict.UNDECIDED
        short, last = seen.size < look.pairs, look is PLAN[-1]
        confirmed = _confirmed(verdict, seen, margin, processes)
        again = verdict in (Verdict.SAME, earlier) or (last and verdict is not Verdict.UNDECIDED)
        settles = again and confirmed
        if settles or short or last:
            final, unconfirmed = (verdict, None) if confirmed else (Verdict.UNDECIDED, verdict)
            settled, not_slower = settles and not short, bool(high <= margin)
            ratio, low, high = np.exp([centre, low, high]).tolist()
            return Estimate(ratio, low, high, final, settled, seen.size, not_slower, unconfirmed)
        earlier = None if verdict is Verdict.UNDECIDED else verdict
    return Estimate()


def _confirmed(verdict: Verdict, seen: Floats, margin: float, processes: Floats) -> bool:
    """Whether several processes confirm a verdict about the pairs `seen`, if it needs to be confirmed."""
    if verdict in (Verdict.SAME, Verdict.UNDECIDED):
        return True
    numbers = processes[: seen.size]
    groups = [seen[:0]]
    for process in np.unique(numbers):
        # Where a plug-in has a worker of its own, every round has new processes: those in a row are judged together.
        before = groups.pop() if groups[-1].size < MIN_PAIRS else seen[:0]
        groups.append(np.append(before, seen[numbers == process]))
    centres = [paired_interval(group)[0] for group in groups]
    return len(centres) > 1 and all(verdict_of(centre, centre, margin) is verdict for centre in centres)
