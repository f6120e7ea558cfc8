"""The tables of docs/reference, from the code alone."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, get_args

import msgspec

from kvbench.backends.base import backend_named
from kvbench.cells.cell import AXES
from kvbench.cells.faults import KINDS
from kvbench.cells.installed import Installed, installed
from kvbench.cells.installed import engines as known_engines
from kvbench.cli.sweep import WhereOptions
from kvbench.gate.rules import KEYS
from kvbench.ground.text import meaning
from kvbench.models.presets import ModelChoice
from kvbench.report import markdown
from kvbench.results.columns import MEANINGS, SAMPLE_COLUMNS
from kvbench.results.schema import Record
from kvbench.sweep.checks import FREE_SHARE
from kvbench.sweep.spec import LIMITS, ConfigFile, load_config, shipped_configs
from tests.gate_rates import FILE, rates, read
from tests.strategies import H200


def code(text: object) -> str:
    """Return text as code; what is empty stays so."""
    return markdown.code(str(text)) if str(text) else ""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return markdown.table(headings, rows, left=len(headings))


def described(headings: tuple[str, str], texts: Mapping[Any, str]) -> str:
    return table(headings, ((code(name), text) for name, text in texts.items()))


def axes() -> str:
    rows = []
    for axis in AXES.values():
        usual = axis.default or (axis.unused,)
        # the pool that a cell has without one follows from the memory that is free
        default = ",".join(str(axis.show(value)) for value in usual if value is not None and axis.name != "pool")
        rows.append((code(axis.name), axis.help, code(f"-a {axis.name}={axis.example}"), code(default)))
    return table(("axis", "meaning", "example", "default"), rows)


def columns() -> str:
    return table(
        ("column", "meaning"), ((", ".join(map(code, names.split())), text) for names, text in MEANINGS.items())
    )


def records() -> str:
    rows = []
    for kind in get_args(Record):
        summary = re.sub(r"\s+", " ", (kind.__doc__ or "").partition("\n\n")[0])
        rows.append((code(kind.__struct_config__.tag), summary))
    return table(("type", "content"), rows)


def config_keys() -> str:
    options = {name: said for name, _, _, said in _fields(WhereOptions)}
    settings = {*ModelChoice.__struct_fields__} - {"models"}  # the page on models has these
    rows = [(code(name), *about) for name, *about in _fields(ConfigFile) if name not in settings]
    free = f"{FREE_SHARE:.0%} of what is free"
    rows += [(code(f"limits.{name}"), "a size", free, options[name]) for name in LIMITS]
    return table(("key", "takes", "default", "meaning"), rows)


def backends(heading: str, chosen: Callable[[Installed], bool]) -> str:
    """Some backends, with the optional axes that they support on a GPU."""
    known = [(name, backend_named(name)) for name, installation in installed()[0].items() if chosen(installation)]
    rows = [
        (code(name), one.summary, ", ".join(code(axis) for axis in AXES if axis in one.axes(H200)))
        for name, one in known
        if one is not None
    ]
    return table(("backend", heading, "optional axes on a GPU"), rows)


def exports() -> str:
    rows = [
        (code(name), ", ".join(map(code, engine.backends)), ", ".join(map(code, engine.settings)), engine.remark)
        for name, engine in known_engines().items()
        if engine.settings
    ]
    return table(("engine", "its own code", "settings", "remark"), rows)


def _fields(kind: Any) -> Iterator[tuple[str, str, str, str]]:
    """Yield of each field of a struct its name, what it takes, its default and its description."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    for field in info.fields:
        said = (getattr(field.type, "extra_json_schema", None) or {}).get("description", "")
        assert said, f"{kind.__name__}.{field.name} has no description"
        usual = field.default if isinstance(field.default, str | int | float) else ""
        yield field.name, meaning(field.type), code(usual), said


MAKERS: Final[Mapping[str, Callable[[], str]]] = {
    "axes": axes,
    "backends": lambda: backends("how it copies", lambda one: bool(one.own)),
    "columns": columns,
    "config-keys": config_keys,
    "configs": lambda: described(
        ("config", "the question that it answers"),
        {name: load_config(path).question for name, path in shipped_configs().items()},
    ),
    "exports": exports,
    "engines": lambda: backends("what it runs", lambda one: bool(one.engine)),
    "faults": lambda: described(("kind", "what happens"), KINDS),
    "gate-rates": lambda: rates(read(FILE)) if FILE.exists() else "No gates are committed yet.",
    "records": records,
    "rule-keys": lambda: described(("key of a rule", "meaning"), KEYS),
    "sample-columns": lambda: described(("sample column", "meaning"), SAMPLE_COLUMNS),
}
