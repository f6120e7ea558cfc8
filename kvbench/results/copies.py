"""The large plain copies of a run, which no swap is part of: ceilings and controls, as rates."""

from collections.abc import Iterable, Sequence

from kvbench.results.schema import Ceiling, Control, Record
from kvbench.units import gigabytes_per_second


def ceiling_rates(records: Iterable[Record]) -> dict[str, list[float]]:
    """Return direction -> GB/s of every copy for the ceiling, in the journal's order."""
    return _rates((r.direction, r.swap_bytes, r.gpu_us) for r in records if isinstance(r, Ceiling))


def control_rates(records: Iterable[Record]) -> dict[str, list[float]]:
    """Return direction -> GB/s of every control copy, in the journal's order; empty for a run without controls."""
    return _rates((r.direction, r.copy_bytes, r.gpu_us) for r in records if isinstance(r, Control))


def _rates(copies: Iterable[tuple[str, int, Sequence[float]]]) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {}
    for direction, copy_bytes, times_us in copies:
        rates.setdefault(direction, []).extend(gigabytes_per_second(copy_bytes, us) for us in times_us if us > 0)
    return rates
