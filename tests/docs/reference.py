"""The tables of docs/reference, from the code alone."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, get_args

import msgspec

from kvbench.backends.base import backend_named
from kvbench.cells.cell import AXES
from kvbench.cells.facts import DeviceFacts
from kvbench.cli.sweep import WhereOptions
from kvbench.engine.faults import KINDS
from kvbench.errors import EXIT_CODES
from kvbench.gate.judgement import VERDICTS, GateVerdict
from kvbench.gate.rules import KEYS, QUANTITIES
from kvbench.models.presets import ModelChoice
from kvbench.results.columns import MEANINGS, SAMPLE_COLUMNS, TIMES
from kvbench.results.schema import Record
from kvbench.sweep.checks import FREE_SHARE
from kvbench.sweep.config import ConfigFile, load_config, shipped_configs
from kvbench.sweep.installed import engines as known_engines
from kvbench.sweep.installed import installed
from kvbench.sweep.spec import LIMITS
from kvbench.text import meaning
from tests.docs.markup import code, table
from tests.gate_rates import FILE, rates, read

A_GPU: Final = DeviceFacts("cuda:0", "cuda", "a GPU", 132, 80 << 30, 80 << 30, "cuMemcpyBatchAsync", 227 << 10)


def axes() -> str:
    rows = []
    for axis in AXES.values():
        usual = axis.default or (axis.unused,)
        # the pool that a cell has without one follows from the memory that is free
        default = ",".join(str(axis.show(value)) for value in usual if value is not None and axis.name != "pool")
        rows.append((code(axis.name), axis.help, code(f"-a {axis.name}={axis.example}"), code(default)))
    return table(("axis", "meaning", "example", "default"), rows)


def configs() -> str:
    rows = ((code(name), load_config(path).question) for name, path in shipped_configs().items())
    return table(("config", "the question that it answers"), rows)


def columns() -> str:
    return table(
        ("column", "meaning"), ((", ".join(map(code, names.split())), text) for names, text in MEANINGS.items())
    )


def sample_columns() -> str:
    return table(("sample column", "meaning"), ((code(name), text) for name, text in SAMPLE_COLUMNS.items()))


def records() -> str:
    rows = []
    for kind in get_args(Record):
        summary = re.sub(r"\s+", " ", (kind.__doc__ or "").partition("\n\n")[0])
        rows.append((code(kind.__struct_config__.tag), summary))
    return table(("type", "content"), rows)


def exit_codes() -> str:
    return table(("code", "meaning"), ((code(int(number)), text) for number, text in EXIT_CODES.items()))


def verdicts() -> str:
    return table(("verdict", "when"), ((code(verdict), VERDICTS[verdict]) for verdict in GateVerdict))


def quantities() -> str:
    rows = ((code(name), code(f"{name}_median" if name in TIMES else name)) for name in QUANTITIES)
    return table(("quantity", "column of the summary"), rows)


def rule_keys() -> str:
    return table(("key of a rule", "meaning"), ((code(name), text) for name, text in KEYS.items()))


def faults() -> str:
    return table(("kind", "what happens"), ((code(kind), text) for kind, text in KINDS.items()))


def config_keys() -> str:
    options = {name: said for name, _, _, said in _fields(WhereOptions)}
    settings = {*ModelChoice.__struct_fields__} - {"models"}  # the page on models has these
    rows = [(code(name), *about) for name, *about in _fields(ConfigFile) if name not in settings]
    free = f"{FREE_SHARE:.0%} of what is free"
    rows += [(code(f"limits.{name}"), "a size", free, options[name]) for name in LIMITS]
    return table(("key", "takes", "default", "meaning"), rows)


def backends() -> str:
    """The built-in ones, with the optional axes that they support on a GPU."""
    rows = []
    for name, installation in installed()[0].items():
        backend = backend_named(name)
        if installation.own and backend is not None:
            supported = [axis for axis in AXES if axis in backend.axes(A_GPU)]
            rows.append((code(name), backend.summary, ", ".join(map(code, supported))))
    return table(("backend", "how it copies", "optional axes on a GPU"), rows)


def exports() -> str:
    rows = [
        (code(name), ", ".join(map(code, engine.backends)), ", ".join(map(code, engine.settings)), engine.remark)
        for name, engine in known_engines().items()
        if engine.settings
    ]
    return table(("engine", "its own code", "settings", "remark"), rows)


def engines() -> str:
    rows = []
    for name, installation in installed()[0].items():
        backend = backend_named(name)
        if installation.engine and backend is not None:
            rows.append((code(name), backend.summary, ", ".join(map(code, sorted(backend.axes(A_GPU))))))
    return table(("backend", "what it runs", "optional axes"), rows)


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
    "backends": backends,
    "columns": columns,
    "config-keys": config_keys,
    "configs": configs,
    "exit-codes": exit_codes,
    "exports": exports,
    "engines": engines,
    "faults": faults,
    "gate-rates": lambda: rates(read(FILE)) if FILE.exists() else "No gates are committed yet.",
    "quantities": quantities,
    "records": records,
    "rule-keys": rule_keys,
    "sample-columns": sample_columns,
    "verdicts": verdicts,
}
