"""Which attempt of a visit counts: the least disturbed, first by how low the ceiling of its round was before it."""

from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import median

from kvbench.analysis.margins import CEILING
from kvbench.cells.units import gigabytes_per_second
from kvbench.results.schema import Ceiling, Disturbance, Record, Visit


class Ceilings:
    """The GB/s of the large copies of each direction, by round and the attempt before whose visits they were made."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._gbps: dict[str, dict[int, dict[int, float]]] = {}
        for record in records:
            self.note(record)

    def note(self, record: Record) -> None:
        if isinstance(record, Ceiling) and record.event_us and (copy_us := median(record.event_us)) > 0:
            gbps = gigabytes_per_second(record.swap_bytes, copy_us)
            self._gbps.setdefault(record.direction, {}).setdefault(record.round, {})[record.attempt] = gbps

    def low_by(self, direction: str, number: int, attempt: int) -> float:
        """By what share the ceiling of a round lay below the best before an attempt, 0 where it was not low."""
        rounds = self._gbps.get(direction, {})
        by_attempt = rounds.get(number, {})
        latest = max((measured for measured in by_attempt if measured <= attempt), default=None)
        if latest is None:
            return 0.0
        best = max(chain.from_iterable(attempts.values() for attempts in rounds.values()))
        return _low_by(by_attempt[latest], best)

    def low(self, before: int) -> list[tuple[str, int]]:
        """The directions and rounds whose ceilings before this attempt were all low, the lowest first."""
        low: dict[tuple[str, int], float] = {}
        for direction, rounds in self._gbps.items():
            best: dict[int, float] = {}
            for number, by_attempt in rounds.items():
                earlier = [gbps for attempt, gbps in by_attempt.items() if attempt < before]
                if earlier:
                    best[number] = max(earlier)
            for number, gbps in best.items():
                low[direction, number] = _low_by(gbps, max(best.values()))
        return sorted(filter(low.get, low), key=lambda key: -low[key])


def _low_by(gbps: float, best: float) -> float:
    return 1 - gbps / best if best > (1 + CEILING.fraction) * gbps else 0.0


def visits_that_count(records: Sequence[Record]) -> Sequence[Visit]:
    """The least disturbed attempt of every visit, of equals the first, in journal order; first by the ceiling.

    Arms that were measured in turn share the attempt. Of an attempt whose records a kill cut off, the later ones count.
    """
    visits = {(visit.cell.id, visit.round, visit.attempt): visit for visit in records if isinstance(visit, Visit)}
    attempts: dict[tuple[str, int], dict[int, list[Visit]]] = {}
    for visit in visits.values():
        by_attempt = attempts.setdefault((visit.group or visit.cell.id, visit.round), {})
        by_attempt.setdefault(visit.attempt, []).append(visit)
    ceilings = Ceilings(records)

    def disturbance(arms: Sequence[Visit]) -> tuple[float, ...]:
        return tuple(map(sum, zip(*(_disturbance(arm, ceilings) for arm in arms), strict=True)))

    counting: set[int] = set()  # by identity: a visit holds lists, and so has no hash
    for by_attempt in attempts.values():
        arms, *repeats = by_attempt.values()
        if repeats:  # most visits have one attempt, whose disturbance decides nothing
            arms = min(by_attempt.values(), key=disturbance)
        counting.update(map(id, arms))
    return [record for record in records if isinstance(record, Visit) and id(record) in counting]


def _disturbance(visit: Visit, ceilings: Ceilings) -> tuple[float, int, float]:
    """How low the ceiling of a visit's round was, the number of things that disturbed it, and how slow its CPU was.

    A slow CPU does not count where the caller takes more than half of the swap: an engine's thread meets both speeds,
    and so does the interval of the figure.
    """
    times_us, slow = visit.swap_times_us, Disturbance.SLOW_CPU in visit.disturbed
    low = ceilings.low_by(visit.cell.direction, visit.round, visit.attempt)
    mostly_call = bool(times_us) and 2 * median(visit.samples.caller_us) > median(times_us)
    if slow and mostly_call:
        return low, len(visit.disturbed) - 1, 0.0
    return low, len(visit.disturbed), (visit.slowdown or 0.0) if slow else 0.0
