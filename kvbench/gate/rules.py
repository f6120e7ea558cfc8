"""Reads a file of rules: TOML tables, each a statement about cells of one run, selected as by `--filter`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from kvbench.analysis.curves import MIN_HEIGHT
from kvbench.cells.filter import parse_filters
from kvbench.errors import UsageError
from kvbench.files import read_toml, shipped_folder
from kvbench.gate.rule_cells import CEILING, Limit, Selection
from kvbench.gate.rule_check import LARGEST, Bound, NoCliff, Rule, RuleSet
from kvbench.text import NAME_PATTERN, check_keys, convert, located

_MAX_RULES: Final = 1000
_FACTOR: Final = re.compile(r"\d{1,9}(?:\.\d{1,9})?")
_KINDS: Final[dict[str, type[Rule]]] = {"at_least": Bound, "at_most": Bound, "no_cliff_above": NoCliff}
KEYS: Final = {
    "cells": "the cells of the rule, in the grammar of `--filter`",
    "at_least": "lower bound on each of these cells: a number, or a factor followed by `ceiling` or by a filter",
    "at_most": "upper bound on each of these cells, written in the same way",
    "quantity": "the quantity that the bound is on, as the median of the cell (default: gbps)",
    "no_cliff_above": f"no curve of these cells has a higher cliff; a jump below {MIN_HEIGHT} is not a cliff",
}
_A_CONFIG: Final = msgspec.Meta(
    pattern=f"^{NAME_PATTERN}\\Z", extra={"meaning": 'the name of a config, such as "cliff"'}
)


class _RulesFile(msgspec.Struct, forbid_unknown_fields=True):
    rule: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    config: Annotated[str, _A_CONFIG] | None = None


def shipped_rules() -> Path:
    return shipped_folder() / "rules" / "gate.toml"


def load_rules(path: Path) -> RuleSet:
    """Read a file of rules; raises UsageError, which names the file, the rule's number, the key and what is right."""
    with located(f"--rules {path}"):
        if not path.exists():
            raise UsageError("file not found; a file of rules is TOML, for example configs/rules/gate.toml")
        file: _RulesFile = convert(read_toml(path), _RulesFile)
        if len(file.rule) > _MAX_RULES:
            raise UsageError(f"rule: {len(file.rule)} rules; the maximum is {_MAX_RULES}")
        rules = []
        for number, table in enumerate(file.rule, start=1):
            with located(f"rule {number}"):
                rules.append(read_rule(table))
    return RuleSet(rules, file.config)


def read_rule(table: Mapping[str, object]) -> Rule:
    """Read one `[[rule]]`; raises UsageError, which names the key, the value and what would be right."""
    check_keys(table, list(KEYS))
    kinds = [key for key in _KINDS if key in table]
    if len(kinds) != 1:
        raise UsageError(f"a rule needs exactly one of {', '.join(_KINDS)}; it has {' and '.join(kinds) or 'none'}")
    rule: Rule = convert(table, _KINDS[kinds[0]], read=_read)
    return rule


def _read(kind: Any, value: object) -> Any:
    try:
        return _limit(value) if kind is Limit else Selection(parse_filters(_text(value)))
    except UsageError as error:
        raise ValueError(str(error)) from None


def _limit(value: object) -> Limit:
    """Read a number, or a factor followed by `ceiling` or a filter; raises UsageError and ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LARGEST:
        return Limit(float(value))
    factor, *rest = _text(value).split(maxsplit=1)
    if not _FACTOR.fullmatch(factor) or float(factor) == 0:
        raise ValueError("Expected a factor")
    partner = rest[0].strip() if rest else None
    return Limit(float(factor), partner if partner in (None, CEILING) else Selection(parse_filters(_text(partner))))


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("Expected a text")  # begins like msgspec's errors, which `convert` completes
    return value
