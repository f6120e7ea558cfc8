"""What commands share: options made from a struct, the version, and text that fits the terminal."""

import inspect
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import msgspec
import typer

from kvbench import __version__
from kvbench.ground.errors import UsageError, brief
from kvbench.ground.files import commit
from kvbench.ground.text import LOG_COLUMNS, WIDEST, longest_word, plain_type, printable, wrapped

if TYPE_CHECKING:
    from kvbench.report.model import DataTable
    from kvbench.tune.page import Grid


NO_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType({})
Fault = Annotated[str | None, msgspec.Meta(description="fault to inject (cpu device only; see CONTRIBUTING)")]
_CLICK_TYPES: Final = {msgspec.inspect.IntType: int, msgspec.inspect.FloatType: float}


@dataclass(frozen=True)
class FromStruct:
    """Marks a parameter that receives the given options of `kind`, except `leave_out`, as a mapping.

    Help shows them in the panel `panel`. `defaults` returns the default of each field, and where it is from.
    """

    kind: type[msgspec.Struct]
    leave_out: tuple[str, ...] = ()
    panel: str | None = None
    defaults: Callable[[], tuple[Mapping[str, object], str]] | None = None


def with_struct_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` with one option for every field of the structs that `FromStruct` marks."""
    hints = get_type_hints(command, include_extras=True)
    options = {}
    for name, hint in hints.items():
        for mark in getattr(hint, "__metadata__", ()):
            if isinstance(mark, FromStruct):
                options[name] = _options(mark)
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        parameters += options.get(name, [parameter.replace(annotation=hints[name])])

    @wraps(command)
    def spread(**given: Any) -> None:
        for name, struct_options in options.items():
            values = {option.name: given.pop(option.name) for option in struct_options}
            given[name] = {key: value for key, value in values.items() if value is not None}
        try:
            command(**given)
        except UsageError as error:
            name, _, why = str(error).partition(": ")
            asked = why and any(name in given[structure] for structure in options)
            names = [option.name for option in chain.from_iterable(options.values())]
            raise UsageError(f"{_flag(name)}: {_with_flags(why, names)}" if asked else str(error)) from None

    # typer makes an option of each parameter that `inspect.signature` returns; these stand in no function.
    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return spread


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _with_flags(why: str, names: Iterable[str]) -> str:
    """A reason with `min_samples`, a key of a TOML file, as the option of a command line."""
    keys = [name for name in names if "_" in name]
    return re.sub(rf"\b({'|'.join(keys)})\b", lambda key: _flag(key[0]), why) if keys else why


def _options(mark: FromStruct) -> list[inspect.Parameter]:
    info = msgspec.inspect.type_info(mark.kind)
    assert isinstance(info, msgspec.inspect.StructType)
    values, origin = mark.defaults() if mark.defaults else ({}, "")
    return [
        _option(field, mark.panel, f" (default: {values[field.name]}, {origin})" if field.name in values else "")
        for field in info.fields
        if field.name not in mark.leave_out
    ]


def _option(option: msgspec.inspect.Field, panel: str | None, default: str) -> inspect.Parameter:
    assert isinstance(option.type, msgspec.inspect.Metadata)
    description = str((option.type.extra_json_schema or {})["description"])
    kind = _CLICK_TYPES.get(type(plain_type(option.type)), str)
    text = f"{description[0].upper()}{description[1:]}{default}."
    typer_option = typer.Option(help=text, rich_help_panel=panel)
    annotation = Annotated[kind | None, typer_option]  # type: ignore[valid-type]  # known at run time only
    return inspect.Parameter(option.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation)


_FRACTION: Final = re.compile(r"(?P<percent>\d{1,4}(\.\d{1,6})?)%|(?P<fraction>0(\.\d{1,8})?)", re.ASCII)


def fraction_of(option: str, text: str) -> float:
    """Read 0.05 from "5%" and "0.05"; raises UsageError, also for 5, which could be meant as a percentage."""
    match = _FRACTION.fullmatch(text)
    if match is None:
        raise UsageError(f"{option} {brief(text)}: write a percentage (5%) or a fraction below 1 (0.05)")
    return float(match["percent"]) / 100 if match["percent"] else float(match["fraction"])


def version_line() -> str:
    """Return "kvbench VERSION (COMMIT)", without the commit if it is unknown; never raises."""
    commit_id = commit()
    return f"kvbench {__version__} ({commit_id})" if commit_id else f"kvbench {__version__}"


_BETWEEN = "  "


def room() -> int | None:
    """The columns of the terminal, or of the log of a CI; another pipe has no width."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return LOG_COLUMNS if "CI" in os.environ else None


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of plain text, wrapped at the width of the terminal, at most 80 columns."""
    width = min(WIDEST, room() or WIDEST)
    for line in lines:
        print(wrapped(line, width))


def print_rows(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> None:
    """Print rows of plain text in columns; where they have no room, the texts of few rows are wrapped first."""
    shown = [[printable(text) for text in row] for row in ([header, *rows] if header else rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    if columns := room():
        shown = _wrapped_rows(shown, widths, columns)
    for row in shown:
        print(_BETWEEN.join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def print_page(page: "Iterable[str | Grid]") -> None:
    """Print lines and tables, those tables as lines that have no room and can be written so."""
    for block in page:
        if not isinstance(block, str) and _has_room(block):
            print_rows(block.rows, block.header)
        else:
            print_lines([block] if isinstance(block, str) else block.narrow or ())


def _has_room(table: "Grid") -> bool:
    """Whether a table fits, or cannot be written as lines."""
    columns = zip(table.header, *table.rows, strict=True)
    width = sum(max(map(len, column)) + len(_BETWEEN) for column in columns)
    return table.narrow is None or (room() or width) >= width


def print_table(table: "DataTable") -> None:
    """Print a table of a report in the terminal, with its caption and its notes."""
    # rich takes as long to import as most commands take
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from kvbench.report.model import Strong, plain

    drawn = Table(box=box.SIMPLE_HEAD, title=Text(plain(table.title)), title_justify="left", pad_edge=False)
    for number, head in enumerate(table.header):
        drawn.add_column(Text(plain(head)), justify="left" if number < table.left else "right")
    for row in table.rows:
        drawn.add_row(*(Text(plain(text), "bold" if isinstance(text, Strong) else "") for text in row))
    Console(highlight=False).print(drawn)
    print_lines([plain(table.caption), *map(plain, table.notes), ""])


def _wrapped_rows(rows: Sequence[Sequence[str]], widths: list[int], columns: int) -> list[list[str]]:
    """Reduce `widths` until `columns` hold them where that wraps fewest texts, none below its longest word, and return
    the lines of these.
    """
    most = columns - len(_BETWEEN) * (len(widths) - 1)
    longest = [max(longest_word(text) for text in column) + len(_BETWEEN) for column in zip(*rows, strict=True)]
    while sum(widths) > most and (wide := [column for column, width in enumerate(widths) if width > longest[column]]):
        wrapping = {column: sum(len(row[column]) >= widths[column] for row in rows) for column in wide}
        widths[min(wide, key=lambda column: (wrapping[column], -widths[column]))] -= 1
    cells = ([wrapped(*pair).splitlines() for pair in zip(row, widths, strict=True)] for row in rows)
    return [[*line] for row in cells for line in zip_longest(*row, fillvalue="")]
