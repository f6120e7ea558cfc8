"""Text from users and files: names, hints, checks with one-line errors, and text that is safe to print."""

import difflib
import json
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final, TypeVar

import msgspec

from kvbench.ground.errors import UsageError, brief

# The pattern of names of sweeps and models.
NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
# One line of text in a file, such as a sweep's question or a policy's device.
MAX_LINE: Final = 500
Line = Annotated[
    str,
    msgspec.Meta(
        max_length=MAX_LINE,
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*$",
        extra={"meaning": f"one line of at most {MAX_LINE} characters"},
    ),
]
# Sentences are wrapped at this many columns, or at the width of a narrower terminal.
WIDEST: Final = 80
# The width of a line in a log.
LOG_COLUMNS: Final = 120
_A_COMMAND: Final = re.compile(r"([\w; ]*to [\w ]+: |\s*)(?=kvbench )")
_AT: Final = re.compile(r"(.*?) - at `\$\.?(.*)`", re.DOTALL)
# A number stays on the line of its unit, and of the digits and the word behind it.
_JOINED: Final = re.compile(r"(?<=\d) (?=[0-9A-Za-z])")
_STEP: Final = re.compile(r"\[(\d+)\]|\[\.\.\.\]|\.?([^.\[\]]+)")

T = TypeVar("T")
Ordered = TypeVar("Ordered", int, float, str)


def name_of(text: str, otherwise: str) -> str:
    """`text` reduced to a name that matches `NAME_PATTERN`, or `otherwise` if nothing remains."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text).lstrip("-._")[:64] or otherwise


def check_keys(table: Iterable[str], allowed: Sequence[str]) -> None:
    """Raise UsageError for the first key that is not allowed; the message suggests the nearest that is."""
    for key in table:
        if key not in allowed:
            raise UsageError(f"unknown key {quoted(key)}; {hint(key, allowed)}")


# Below it, words of other meaning are alike: "nope" and "copier".
_NEAR: Final = 0.7


def hint(word: str, candidates: Iterable[str], otherwise: str = "") -> str:
    """Ask "did you mean …?" with the nearest candidate, or if none is near `otherwise`, by default all candidates."""
    words = list(candidates)
    near = difflib.get_close_matches(word, words, n=1, cutoff=_NEAR)
    near = near or [candidate for candidate in words if word and candidate.startswith(word)]
    return f"did you mean {near[0]}?" if near else otherwise or f"use one of {', '.join(words)}"


def quoted(value: object) -> str:
    """`value` for a message: in JSON and TOML notation, on one line and shortened."""
    try:
        return brief(json.dumps(value, ensure_ascii=False, default=str))
    except ValueError:  # Python refuses to format integers with thousands of digits
        return "a number with thousands of digits"


@contextmanager
def located(place: str) -> Iterator[None]:
    """Prefix the message of a UsageError raised inside with `place`, once."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{place}: {str(error).removeprefix(f'{place}: ')}") from None


def printable(text: object) -> str:
    """`text` as one line that is safe on a terminal: unprintable characters become U+FFFD."""
    return "".join(char if char.isprintable() else "\ufffd" for char in str(text))


def short(text: str, most: int = 400) -> str:
    """`text` with at most `most` characters; a truncated text ends in an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def longest_word(text: str) -> int:
    """The letters of the longest part of a text that `wrapped` does not break."""
    return max(map(len, _JOINED.sub("\N{NO-BREAK SPACE}", text).split(" ")))


def wrapped(text: str, width: int) -> str:
    """Text in lines of at most `width`, later ones indented; no line ends inside a number or before its unit."""
    joined = _JOINED.sub("\N{NO-BREAK SPACE}", text)
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    lines = textwrap.fill(joined, width, subsequent_indent=indent, break_on_hyphens=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def folded(text: str, *, terminal: bool) -> str:
    """Text for a terminal, which folds it, or in lines for a log; a command goes on behind a backslash."""
    text = printable(text)
    if terminal or len(text) <= LOG_COLUMNS:
        return text
    before = _A_COMMAND.match(text)
    if before is None:
        return wrapped(text, LOG_COLUMNS)
    parts: list[str] = []
    for word in map(shlex.quote, shlex.split(text[before.end() :])):
        if parts and parts[-1].startswith("-") and " " not in parts[-1] and not word.startswith("-"):
            parts[-1] += f" {word}"  # an option with its value
        else:
            parts.append(word)
    lines = [before[0] + parts[0]]
    for part in parts[1:]:
        if len(f"{lines[-1]} {part} \\") > LOG_COLUMNS:
            lines.append("   ")
        lines[-1] += f" {part}"
    return " \\\n".join(lines)


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def range_text(values: Iterable[Ordered], show: Callable[[Ordered], str]) -> str:
    """The least of one or more values to the most, "2 to 12", or one of them where they look the same."""
    ordered = sorted(values)
    return " to ".join(dict.fromkeys((show(ordered[0]), show(ordered[-1]))))


def printable_tree(plain: Any) -> Any:
    """JSON-compatible data with every string, keys included, made printable."""
    if isinstance(plain, str):
        return printable(plain)
    if isinstance(plain, list):
        return [printable_tree(item) for item in plain]
    if isinstance(plain, dict):
        return {printable(key): printable_tree(value) for key, value in plain.items()}
    return plain


def convert(plain: object, kind: type[T] | Any, name: str = "", read: Callable[[type, Any], Any] | None = None) -> T:
    """`plain`, which is data from JSON or TOML, converted to `kind` with its constraints checked.

    `read` reads the types that msgspec does not know. Raises UsageError, which names the key (below `name`), the value
    and what would be right.
    """
    try:
        converted: T = msgspec.convert(plain, kind, dec_hook=read)
    except msgspec.ValidationError as error:
        raise UsageError(_refusal(str(error), plain, kind, name)) from None
    return converted


def meaning(info: Any) -> str:
    """Describe the values that a type of `msgspec.inspect` accepts: "a whole number from 1 to 1000"."""
    match info:
        case msgspec.inspect.Metadata():
            return str((info.extra or {}).get("meaning") or meaning(info.type))
        case msgspec.inspect.UnionType():
            return " or ".join(meaning(part) for part in info.types if not isinstance(part, msgspec.inspect.NoneType))
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
            items: dict[type, str] = {msgspec.inspect.StrType: "strings", msgspec.inspect.IntType: "whole numbers"}
            item = items.get(type(plain_type(info.item_type)), "tables")
            return f"a {'non-empty ' if info.min_length else ''}list of {item}"
        case _:
            return "a table"


def _refusal(message: str, plain: object, kind: Any, name: str) -> str:
    """The message of msgspec with the path as a user writes it, the value there, and a hint where the type has one.

    Of the message only the path is read, so that any wording of msgspec serves.
    """
    match = _AT.fullmatch(message)
    text, path = match.groups() if match else (message, "")
    value: Any = plain
    info: Any = msgspec.inspect.type_info(kind)
    for index, key in _STEP.findall(path):
        container = plain_type(info)
        types: Any = {field.encode_name: field.type for field in getattr(container, "fields", ())}
        info = getattr(container, "item_type", None) if index else types.get(key)
        if info is None:  # below a mapping, of which msgspec names no key
            break
        value = value[int(index) if index else key]
    place = f"{name}.{path}" if name and path and not path.startswith("[") else name + path
    lead, inner = f"{place}: " if place else "", plain_type(info)
    if isinstance(inner, msgspec.inspect.StructType) and isinstance(value, Mapping):
        fields = {field.encode_name: field.required for field in inner.fields}
        if inner.forbid_unknown_fields and (unknown := [key for key in value if key not in fields]):
            return f"{lead}unknown key {quoted(unknown[0])}; {hint(unknown[0], fields)}"
        if missing := [key for key, required in fields.items() if required and key not in value]:
            return f"{lead}{missing[0]} is missing"
    elif inner is not None and (not isinstance(inner, msgspec.inspect.CustomType) or text.startswith("Expected ")):
        return f"{lead}{quoted(value)} is not {meaning(info)}"
    return f"{lead}{short(printable(text), 600)}"


def plain_type(info: Any) -> Any:
    """The type without its constraints, and `X` for `X | None`."""
    while isinstance(info, msgspec.inspect.Metadata | msgspec.inspect.UnionType):
        if isinstance(info, msgspec.inspect.Metadata):
            info = info.type
        else:
            info = next(part for part in info.types if not isinstance(part, msgspec.inspect.NoneType))
    return info


def a_stream(state: str) -> str:
    """A stream state, or several, as a noun: "an idle stream", "a busy or gated stream"."""
    return f"{'an' if state.startswith(('idle', 'opened')) else 'a'} {state} stream"
