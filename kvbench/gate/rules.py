"""A file of rules: tables in TOML, each a statement about cells of one run, chosen as by `--filter`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from kvbench.analysis.curves import MIN_HEIGHT
from kvbench.cells.cell import Cell
from kvbench.cells.filter import Filter, parse_filters
from kvbench.errors import UsageError
from kvbench.files import read_toml, shipped_folder
from kvbench.gate.pairs import QUANTITIES
from kvbench.text import NAME_PATTERN, check_keys, located, shown
from kvbench.units import parse_size

CEILING: Final = "ceiling"
_DEFAULT_QUANTITY: Final = "gbps"
_MAX_RULES: Final = 1000
_LARGEST: Final = 1e9
_FACTOR: Final = re.compile(r"\d{1,9}(?:\.\d{1,9})?")


class Selection:
    """The cells that meet all of `filters`."""

    def __init__(self, filters: tuple[Filter, ...] = ()) -> None:
        self.filters = filters

    def __str__(self) -> str:
        return ",".join(map(str, self.filters)) or "all cells"

    @classmethod
    def read(cls, value: object) -> "Selection":
        """Read conditions as `--filter` takes them; raises UsageError and TypeError."""
        return cls(parse_filters(_text(value)))

    @property
    def axes(self) -> frozenset[str]:
        """The names of the axes that the filters set."""
        return frozenset(condition.axis for condition in self.filters)

    def hold(self, cell: Cell) -> bool:
        """Tell whether `cell` is one of them."""
        return all(condition.holds(cell) for condition in self.filters)

    def of_backend(self, name: str) -> "Selection":
        """Return those of one backend."""
        return Selection((Filter("backend", "=", (name,)), *self.filters))


class Limit:
    """What a quantity is held against: `factor` times that of `partner`; the factor alone if `partner` is None.

    `partner` is `CEILING` (of the cell's direction), or cells: those with the same values on every axis that the
    selection leaves open.
    """

    def __init__(self, factor: float, partner: Selection | str | None = None) -> None:
        self.factor = factor
        self.partner = partner

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.factor:.9g}", str(self.partner or ""))))

    @classmethod
    def read(cls, value: object) -> "Limit":
        """Read a number, or a factor with `ceiling` or a filter behind it; raises UsageError and TypeError."""
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LARGEST:
            return cls(float(value))
        factor, *rest = _text(value).split(maxsplit=1)
        if not _FACTOR.fullmatch(factor) or float(factor) == 0:
            raise TypeError
        partner = rest[0].strip() if rest else None
        return cls(float(factor), partner if partner in (None, CEILING) else Selection.read(partner))


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """`quantity` of every one of `cells` is at least, or at most, what the one limit says."""

    cells: Selection
    at_least: Limit | None = None
    at_most: Limit | None = None
    quantity: Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(QUANTITIES)})\\Z")] = _DEFAULT_QUANTITY

    def __post_init__(self) -> None:
        if self.limit.partner == CEILING and self.quantity != _DEFAULT_QUANTITY:
            raise ValueError(f"quantity: the ceiling is GB/s and {self.quantity} is not; leave the quantity out")

    def __str__(self) -> str:
        return f"{self.cells}: {self.quantity} {'at most' if self.at_least is None else 'at least'} {self.limit}"

    @property
    def limit(self) -> Limit:
        limit = self.at_most if self.at_least is None else self.at_least
        assert limit is not None  # `read_rule` takes a table for a bound by this key
        return limit


class NoCliff(msgspec.Struct, frozen=True, kw_only=True):
    """No curve of `cells` has a cliff higher than `no_cliff_above`."""

    cells: Selection
    no_cliff_above: Annotated[float, msgspec.Meta(ge=MIN_HEIGHT, lt=_LARGEST)]

    def __str__(self) -> str:
        return f"{self.cells}: no cliff above {self.no_cliff_above:g}"


_Backend = Annotated[str, msgspec.Meta(pattern=f"^{NAME_PATTERN}\\Z")]


class CrossoverBetween(msgspec.Struct, frozen=True, kw_only=True):
    """The faster of the two backends `crossover` changes, and only between these two block sizes."""

    crossover: tuple[_Backend, _Backend]
    between: tuple[str, str]
    cells: Selection = msgspec.field(default_factory=Selection)

    def __post_init__(self) -> None:
        if self.crossover[0] == self.crossover[1]:
            raise ValueError(f"crossover: {shown(self.crossover)} is one backend twice; name two")
        for axis in sorted(self.cells.axes & {"backend", "block_size"}):
            raise ValueError(f"cells: a crossover is that of two backends over block sizes; leave {axis} out")
        try:
            low_bytes, high_bytes = self.span_bytes
        except ValueError as error:
            raise ValueError(f"between: {error}") from None
        if low_bytes >= high_bytes:
            raise ValueError(f"between: {shown(self.between)}: the smaller size comes first")

    def __str__(self) -> str:
        return f"{self.cells}: crossover {'/'.join(self.crossover)} between {' and '.join(self.between)}"

    @property
    def span_bytes(self) -> tuple[int, int]:
        """The two block sizes of `between`."""
        low, high = self.between
        return parse_size(low), parse_size(high)


Rule = Bound | NoCliff | CrossoverBetween
_KINDS: Final[dict[str, type[Rule]]] = {
    "at_least": Bound,
    "at_most": Bound,
    "no_cliff_above": NoCliff,
    "crossover": CrossoverBetween,
}
_A_LIMIT: Final = 'a number, "0.8 ceiling", or a factor and a filter such as "2 backend=batched"'
_RIGHT: Final = {
    "config": 'the name of a config, such as "cliff"',
    "rule": "a list of tables, at least one; write [[rule]]",
    "cells": 'a filter such as "backend=sm,direction=h2d"',
    "at_least": _A_LIMIT,
    "at_most": _A_LIMIT,
    "quantity": f"one of {', '.join(QUANTITIES)}",
    "no_cliff_above": f"a number from {MIN_HEIGHT}, below which a jump is not a cliff",
    "crossover": 'two backends, such as ["batched", "sm"]',
    "between": 'two block sizes, such as ["16KiB", "256KiB"]',
}


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules, at least one, and the name of the config whose runs they are for, None for any."""

    rules: Sequence[Rule]
    config: str | None = None


def shipped_rules() -> Path:
    """Return the file of rules that comes with kvbench, beside its configs."""
    return shipped_folder() / "rules" / "gate.toml"


def load_rules(path: Path) -> RuleSet:
    """Read a file of rules; raises UsageError that names the file, the rule's number, the key and what is right."""
    with located(f"--rules {path}"):
        if not path.exists():
            raise UsageError("no such file; a file of rules is TOML, for example configs/rules/gate.toml")
        table = read_toml(path)
        check_keys(table, ("config", "rule"))
        config, tables = table.get("config"), table.get("rule")
        if config is not None and not (isinstance(config, str) and re.fullmatch(NAME_PATTERN, config)):
            raise _wrong("config", config)
        if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables) or not tables:
            raise _wrong("rule", tables)
        if len(tables) > _MAX_RULES:
            raise UsageError(f"rule: {len(tables)} are more than {_MAX_RULES}")
        rules = []
        for number, each in enumerate(tables, start=1):
            with located(f"rule {number}"):
                rules.append(read_rule(each))
    return RuleSet(rules, config)


def read_rule(table: Mapping[str, object]) -> Rule:
    """Read one `[[rule]]`; raises UsageError that names the key, the value and what would be right."""
    check_keys(table, [key for key in _RIGHT if key not in ("config", "rule")])
    kinds = [key for key in _KINDS if key in table]
    if len(kinds) != 1:
        raise UsageError(f"write one of {', '.join(_KINDS)}; there is {' and '.join(kinds) or 'none'}")
    kind = _KINDS[kinds[0]]
    check_keys(table, kind.__struct_fields__)
    try:
        return msgspec.convert(table, kind, dec_hook=_read)
    except msgspec.ValidationError as error:
        why = str(error.__cause__ or "")
        place = re.search(r"\$\.(\w+)|field `(\w+)`", str(error))
        if place is None:  # of the table as a whole
            raise UsageError(why) from None
        key = place[1] or place[2]
        if key not in table:
            raise UsageError(f"{key} is missing; write {_RIGHT[key]}") from None
        raise _wrong(key, table[key], why) from None


def _wrong(key: str, value: object, why: str = "") -> UsageError:
    return UsageError(f"{key}: {shown(value)}{f': {why}' if why else f' is not {_RIGHT[key]}'}")


def _read(kind: Any, value: object) -> Any:
    try:
        return kind.read(value)
    except UsageError as error:
        raise ValueError(str(error)) from None


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TypeError
    return value
