"""How bad input is refused: with one error, whose text is one line that a terminal can show."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvbench.ground.errors import UsageError


@contextmanager
def refused_with(*parts: str) -> Iterator[None]:
    """Expect a usage error that has each of `parts` in its text."""
    with pytest.raises(UsageError) as caught:
        yield
    text = str(caught.value)
    assert text.isprintable()
    assert [part for part in parts if part not in text] == [], text
