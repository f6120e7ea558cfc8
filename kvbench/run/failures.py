"""Failures as they are told: the first of a kind at once, the others by their number at the end."""

from collections import Counter
from collections.abc import Iterator

from kvbench.results import Failure
from kvbench.text import counted


class FailuresTold:
    """Which failures were told; two are of one kind if they are of one thing, such as a backend, and say the same."""

    def __init__(self) -> None:
        self._failed: Counter[tuple[str, str, str]] = Counter()

    def first(self, of: str, failure: Failure) -> bool:
        """Count a failure of `of`; return whether it is the first of its kind."""
        kind = of, failure.kind, failure.message
        self._failed[kind] += 1
        return self._failed[kind] == 1

    def others(self) -> Iterator[str]:
        """Yield a line for every kind that was counted more than once."""
        for (of, kind, message), count in self._failed.items():
            if count > 1:
                yield f"FAILED ({kind}) {counted(count - 1, 'more cell')} of {of}: {message}"
