"""Text from users and files: names, hints, checks with the one line that refuses, and lines that are safe to show."""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from kvbench.errors import UsageError, brief

# Names of sweeps, models and baselines.
NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"


def name_of(text: str, otherwise: str) -> str:
    """Return a name by `NAME_PATTERN` that is as near to `text` as can be; `otherwise` where nothing is left of it."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text).lstrip("-._")[:64] or otherwise


def check_whole(name: str, value: object, lowest: int, highest: int) -> int:
    """Return `value` when it is a whole number in range; raises UsageError that names it."""
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise UsageError(f"{name}: {shown(value)} is not a whole number from {lowest} to {highest}")
    return value


def check_keys(table: Iterable[str], known: Sequence[str]) -> None:
    """Raise UsageError for the first key that is not `known`, with the nearest one that is."""
    for key in table:
        if key not in known:
            raise UsageError(f"unknown key {shown(key)}; {hint(key, known, 'there are ' + ', '.join(known))}")


def hint(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return the question whether the nearest known word was meant, `otherwise` where none is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]}?" if near else otherwise


def shown(value: object) -> str:
    """Return `value` for a message: as JSON and TOML write it, on one line and short."""
    try:
        return brief(json.dumps(value, ensure_ascii=False, default=str))
    except ValueError:  # Python refuses to write a number of thousands of digits
        return "a huge number"


@contextmanager
def located(where: str) -> Iterator[None]:
    """Put `where` in front of the message of a UsageError raised inside."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def printable(text: object) -> str:
    """Return `text` as one line that is safe on a terminal: what does not print becomes U+FFFD."""
    return "".join(char if char.isprintable() else "\ufffd" for char in str(text))


def short(text: str, most: int = 400) -> str:
    """Return `text` in at most `most` characters; what is cut off is an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
