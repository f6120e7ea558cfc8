"""Text from users and files: names, hints, checks with the one line that refuses, and lines that are safe to show."""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final, TypeVar

import msgspec

from kvbench.errors import UsageError, brief

# Names of sweeps and models.
NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
# One line of text in a file: a sweep's question, a policy's device.
MAX_LINE: Final = 500
Line = Annotated[
    str,
    msgspec.Meta(
        max_length=MAX_LINE,
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*$",
        extra={"meaning": f"one line of at most {MAX_LINE} characters"},
    ),
]
_AT: Final = re.compile(r"(.*?) - at `\$\.?(.*)`", re.DOTALL)
_STEP: Final = re.compile(r"\[(\d+)\]|\[\.\.\.\]|\.?([^.\[\]]+)")

T = TypeVar("T")


def name_of(text: str, otherwise: str) -> str:
    """Return a name by `NAME_PATTERN` that is as near to `text` as can be; `otherwise` where nothing is left of it."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text).lstrip("-._")[:64] or otherwise


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


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 cell", "2 cells"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def printable_tree(plain: Any) -> Any:
    """Return what JSON holds with every text in it printable, keys too."""
    if isinstance(plain, str):
        return printable(plain)
    if isinstance(plain, list):
        return [printable_tree(item) for item in plain]
    if isinstance(plain, dict):
        return {printable(key): printable_tree(value) for key, value in plain.items()}
    return plain


def convert(plain: object, kind: type[T] | Any, name: str = "") -> T:
    """Return `plain`, as JSON or TOML hold it, as a `kind` whose constraints it meets.

    Raises UsageError that names the key (below `name`), the value and what would be right.
    """
    try:
        converted: T = msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise UsageError(_refusal(str(error), plain, kind, name)) from None
    return converted


def meaning(info: Any) -> str:
    """Return in words what a type of `msgspec.inspect` takes: "a whole number from 1 to 1000"."""
    match info:
        case msgspec.inspect.Metadata():
            return str((info.extra or {}).get("meaning") or meaning(info.type))
        case msgspec.inspect.UnionType():
            return " or ".join(meaning(one) for one in info.types if not isinstance(one, msgspec.inspect.NoneType))
        case msgspec.inspect.IntType():
            return f"a whole number from {info.ge} to {info.le}"
        case msgspec.inspect.FloatType():
            return f"a number from {info.ge:g} to {info.le:g}"
        case msgspec.inspect.StrType():
            return "a string"
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.EnumType():
            return f"one of {', '.join(str(word.value) for word in info.cls)}"
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            return f"a {'non-empty ' if info.min_length else ''}list of {_plural(plain_type(info.item_type))}"
        case _:
            return "a table"


def _plural(info: Any) -> str:
    if isinstance(info, msgspec.inspect.StrType | msgspec.inspect.IntType):
        return "strings" if isinstance(info, msgspec.inspect.StrType) else "whole numbers"
    return "lists" if hasattr(info, "item_type") else "tables"


def _refusal(message: str, plain: object, kind: Any, name: str) -> str:
    found = _AT.fullmatch(message)
    text, path = (found[1], found[2]) if found else (message, "")
    value: Any = plain
    info: Any = msgspec.inspect.type_info(kind)
    for index, key in _STEP.findall(path):
        value, info = _step(value, info, index, key)
    where = name + (path if path.startswith("[") or not name else f".{path}" if path else "")
    lead = f"{where}: " if where else ""
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        known = [field.encode_name for field in plain_type(info).fields]
        return f"{lead}unknown key {shown(unknown[1])}; {hint(unknown[1], known, 'there are ' + ', '.join(known))}"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", text):
        return f"{lead}without {missing[1]}"
    if info is None or not text.startswith(("Expected ", "Number ", "Invalid ")):
        return f"{lead}{printable(text)[:300]}"
    return f"{lead}{shown(value)} is not {meaning(info)}"


def _step(value: Any, info: Any, index: str, key: str) -> tuple[Any, Any]:
    """Return the value and the type one step down a path of msgspec; None for a type that the path does not tell."""
    if not (index or key) or info is None:  # some key of a mapping, which one is not said
        return None, None
    inner = plain_type(info)
    if index:
        return value[int(index)], getattr(inner, "item_type", None)
    fields = {field.encode_name: field.type for field in getattr(inner, "fields", ())}
    return value[key], fields.get(key)


def plain_type(info: Any) -> Any:
    """Return the type without its constraints, and of "X or nothing" X."""
    while isinstance(info, msgspec.inspect.Metadata | msgspec.inspect.UnionType):
        if isinstance(info, msgspec.inspect.Metadata):
            info = info.type
        else:
            info = next(one for one in info.types if not isinstance(one, msgspec.inspect.NoneType))
    return info
