"""The samples of two cells that were measured in turn, within each visit that they share."""

from collections.abc import Iterable, Sequence

from kvbench.results.schema import Visit


def paired_samples(
    base: Iterable[Visit], other: Iterable[Visit], time: str = "swap_us"
) -> list[tuple[list[float], list[float]]]:
    """Return a time of both arms, in microseconds, for each visit that they share, as `compare_in_turn` takes them.

    Tuples in which the time of one of the two is not known are left out, and visits without any other.
    """
    partners = {(one.group, one.round, one.span_ns): one for one in other}
    pairs = []
    for one in base:
        if one.group and (partner := partners.get((one.group, one.round, one.span_ns))):
            tuples = zip(_times(one, time), _times(partner, time), strict=True)
            if known := [both for both in tuples if all(us > 0 for us in both)]:
                first, second = zip(*known, strict=True)
                pairs.append((list(first), list(second)))
    return pairs


def _times(visit: Visit, time: str) -> Sequence[float]:
    times_us: Sequence[float] | None = visit.swap_us if time == "swap_us" else getattr(visit.samples, time)
    return times_us or []
