"""A file of rules: TOML with one key, `rules`, a list of strings."""

from pathlib import Path
from typing import Final

from kvbench.errors import UsageError
from kvbench.files import read_toml, shipped_folder
from kvbench.gate.rules import Rule, parse_rule
from kvbench.text import check_keys, located, shown

_MAX_RULES: Final = 1000


def shipped_rules() -> Path:
    """Return the file of rules that comes with kvbench, beside its configs."""
    return shipped_folder() / "rules" / "gate.toml"


def load_rules(path: Path) -> tuple[Rule, ...]:
    """Read the rules of a file; raises UsageError that names the file, the rule and what would be right."""
    with located(f"--rules {path}"):
        table = read_toml(path) if path.exists() else None
        if table is None:
            raise UsageError("no such file; a file of rules is TOML, for example configs/gate.toml")
        check_keys(table, ("rules",))
        texts = table.get("rules")
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise UsageError(f"rules: {shown(texts)} is not a list of strings, at least one")
        if len(texts) > _MAX_RULES:
            raise UsageError(f"rules: {len(texts)} are more than {_MAX_RULES}")
        return tuple(parse_rule(text) for text in texts)
