"""Reads a file of rules: TOML tables, each a statement about cells of one run, selected as by `--filter`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from kvbench.analysis.curves import MIN_HEIGHT
from kvbench.cells.filter import parse_filters
from kvbench.errors import UsageError
from kvbench.files import read_toml, shipped_folder
from kvbench.gate.outcomes import QUANTITIES
from kvbench.gate.rule_cells import CEILING, Limit, Selection
from kvbench.gate.rule_check import LARGEST, Bound, NoCliff, Rule, RuleSet
from kvbench.text import NAME_PATTERN, check_keys, located, shown

_MAX_RULES: Final = 1000
_FACTOR: Final = re.compile(r"\d{1,9}(?:\.\d{1,9})?")
_KINDS: Final[dict[str, type[Rule]]] = {
    "at_least": Bound,
    "at_most": Bound,
    "no_cliff_above": NoCliff,
}
_A_LIMIT: Final = 'a number, "0.8 ceiling", or a factor and a filter such as "2 backend=batched"'
KEYS: Final = {
    "cells": "the cells of the rule, in the grammar of `--filter`",
    "at_least": "lower bound on each of these cells: a number, or a factor followed by `ceiling` or by a filter",
    "at_most": "upper bound on each of these cells, written in the same way",
    "quantity": "the quantity that the bound is on, as the median of the cell (default: gbps)",
    "no_cliff_above": f"no curve of these cells has a higher cliff; a jump below {MIN_HEIGHT} is not a cliff",
}
_RIGHT: Final = {
    "config": 'the name of a config, such as "cliff"',
    "rule": "a non-empty list of tables; write [[rule]]",
    "cells": 'a filter such as "backend=sm,direction=h2d"',
    "at_least": _A_LIMIT,
    "at_most": _A_LIMIT,
    "quantity": f"one of {', '.join(QUANTITIES)}",
    "no_cliff_above": f"a number from {MIN_HEIGHT}, below which a jump is not a cliff",
}


def shipped_rules() -> Path:
    """Return the shipped file of rules."""
    return shipped_folder() / "rules" / "gate.toml"


def load_rules(path: Path) -> RuleSet:
    """Read a file of rules; raises UsageError, which names the file, the rule's number, the key and what is right."""
    with located(f"--rules {path}"):
        if not path.exists():
            raise UsageError("file not found; a file of rules is TOML, for example configs/rules/gate.toml")
        table = read_toml(path)
        check_keys(table, ("config", "rule"))
        config, tables = table.get("config"), table.get("rule")
        if config is not None and not (isinstance(config, str) and re.fullmatch(NAME_PATTERN, config)):
            raise _wrong("config", config)
        if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables) or not tables:
            raise _wrong("rule", tables)
        if len(tables) > _MAX_RULES:
            raise UsageError(f"rule: {len(tables)} rules; the maximum is {_MAX_RULES}")
        rules = []
        for number, each in enumerate(tables, start=1):
            with located(f"rule {number}"):
                rules.append(read_rule(each))
    return RuleSet(rules, config)


def read_rule(table: Mapping[str, object]) -> Rule:
    """Read one `[[rule]]`; raises UsageError, which names the key, the value and what would be right."""
    check_keys(table, [key for key in _RIGHT if key not in ("config", "rule")])
    kinds = [key for key in _KINDS if key in table]
    if len(kinds) != 1:
        raise UsageError(f"a rule needs exactly one of {', '.join(_KINDS)}; it has {' and '.join(kinds) or 'none'}")
    kind = _KINDS[kinds[0]]
    check_keys(table, kind.__struct_fields__)
    try:
        return msgspec.convert(table, kind, dec_hook=_read)
    except msgspec.ValidationError as error:
        why = str(error.__cause__ or "")
        named = re.search(r"\$\.(\w+)|field `(\w+)`", str(error))
        if named is None:  # the error is of the whole table
            raise UsageError(why) from None
        key = named[1] or named[2]
        if key not in table:
            raise UsageError(f"{key} is missing; write {_RIGHT[key]}") from None
        raise _wrong(key, table[key], why) from None


def _wrong(key: str, value: object, why: str = "") -> UsageError:
    return UsageError(f"{key}: {shown(value)}{f': {why}' if why else f' is not {_RIGHT[key]}'}")


def _read(kind: Any, value: object) -> Any:
    try:
        return _limit(value) if kind is Limit else Selection(parse_filters(_text(value)))
    except UsageError as error:
        raise ValueError(str(error)) from None


def _limit(value: object) -> Limit:
    """Read a number, or a factor followed by `ceiling` or a filter; raises UsageError and TypeError."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LARGEST:
        return Limit(float(value))
    factor, *rest = _text(value).split(maxsplit=1)
    if not _FACTOR.fullmatch(factor) or float(factor) == 0:
        raise TypeError
    partner = rest[0].strip() if rest else None
    return Limit(float(factor), partner if partner in (None, CEILING) else Selection(parse_filters(_text(partner))))


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TypeError
    return value
