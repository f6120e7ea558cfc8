"""The reporting of failures: the first of each kind at once, the number of the others at the end."""

from collections import Counter
from collections.abc import Iterator

from kvbench.results import Failure
from kvbench.text import counted


class ReportedFailures:
    """The reported failures; two are of the same kind if they have the same source, such as a backend, and message."""

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
