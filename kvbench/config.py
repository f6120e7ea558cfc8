"""Sweeps in TOML files: those that come with kvbench, found by name, and those of its users."""

import difflib
import re
import tomllib
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any, Final

from kvbench.axes import AXES, Axis, AxisValue, Cell
from kvbench.errors import UsageError
from kvbench.filters import Filter, parse_filters
from kvbench.spec import Group, Limits, Sampling, SweepSpec, check_keys, located, read_memory, shown

_KEYS: Final = ("question", "device", "seed", "filters", "axes", "group", "sampling", "limits")
_LIMITS: Final = {"host_memory": "host_bytes", "device_memory": "device_bytes"}
_SWITCHES: Final = frozenset(part.name for part in fields(Cell) if part.type == (bool | None))
_MAX_FILE_BYTES: Final = 2**20


def shipped_configs() -> dict[str, Path]:
    """Return name -> file of the configs that come with kvbench."""
    return {path.stem: path for path in sorted(_shipped_folder().glob("*.toml"))}


def find_config(name_or_path: str) -> Path:
    """Return the file of a shipped config's name ("quick"), or the path itself when it ends in .toml.

    Raises UsageError for a name that no shipped config has.
    """
    shipped = shipped_configs()
    if name_or_path in shipped:
        return shipped[name_or_path]
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        return Path(name_or_path)
    near = difflib.get_close_matches(name_or_path, shipped, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(shipped)}, or give a path ending in .toml"
    raise UsageError(f"config {shown(name_or_path)}: kvbench comes with no such config; {hint}")


def load_config(path: Path) -> SweepSpec:
    """Read a sweep from a TOML file; raises UsageError that names the file, the key and what would be right."""
    with located(str(path)):
        table = _read_toml(path)
        misplaced = [key for key in table if key in AXES]
        if misplaced:
            raise UsageError(f"{misplaced[0]} is an axis; write it below [axes] or [[group]]")
        check_keys(table, _KEYS)
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", path.stem).lstrip("-._")[:64] or "sweep"
        return SweepSpec(
            name=name,
            question=table.get("question", ""),  # checked on construction, as are device and seed
            device=table.get("device", "auto"),
            groups=_groups(table),
            filters=_filters(table.get("filters", [])),
            sampling=_sampling(table),
            limits=_limits(table),
            seed=table.get("seed", 0),
        )


def _shipped_folder() -> Path:
    checkout = Path(__file__).resolve().parents[1]
    # First, since an editable install also holds a copy, as old as the installation.
    if (checkout / "pyproject.toml").is_file() and (checkout / "configs").is_dir():
        return checkout / "configs"
    packaged = resources.files("kvbench") / "configs"
    assert isinstance(packaged, Path)
    return packaged


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        if path.is_dir():
            raise UsageError("is a directory, not a TOML file")
        if not path.exists():
            raise UsageError(f"no such file; shipped with kvbench: {', '.join(shipped_configs())}")
        if not path.is_file() or path.stat().st_size > _MAX_FILE_BYTES:
            raise UsageError("is not a TOML file of at most 1 MiB")
        return tomllib.loads(path.read_bytes().decode())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot be read as TOML: {reason}") from None
    except RecursionError:
        raise UsageError("cannot be read as TOML: nested too deep") from None


def _table(parent: dict[str, object], key: str) -> dict[str, object]:
    value = parent.get(key, {})
    if not isinstance(value, dict):
        raise UsageError(f"{key}: {shown(value)} is not a table; write [{key}]")
    return value


def _groups(table: dict[str, object]) -> tuple[Group, ...]:
    common = _axes(_table(table, "axes"), "[axes]")
    groups = table.get("group", [{}])
    if not isinstance(groups, list) or not groups or not all(isinstance(group, dict) for group in groups):
        raise UsageError(f"group: {shown(groups)} is not a list of tables; write [[group]]")
    return tuple({**common, **_axes(group, f"[[group]] {place}")} for place, group in enumerate(groups, start=1))


def _axes(table: dict[str, object], where: str) -> Group:
    with located(where):
        check_keys(table, list(AXES))
    values: dict[str, tuple[AxisValue, ...]] = {}
    for name, raw in table.items():
        with located(where):
            items = raw if isinstance(raw, list) else [raw]
            if not items:
                raise UsageError(f"{name}: an empty list; leave the axis out for its default")
            values[name] = AXES[name].parse(",".join(_as_text(AXES[name], item) for item in items))
    return values


def _as_text(axis: Axis, value: object) -> str:
    switch = axis.field in _SWITCHES
    if isinstance(value, bool) and switch:
        return "on" if value else "off"
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool) and axis.ranged):
        return value if isinstance(value, str) else shown(value)
    right = "true, false, " if switch else "a number, " if axis.ranged else ""
    raise UsageError(f"{axis.name}: {shown(value)} is not {right}a string such as {axis.example!r}, or a list of these")


def _filters(value: object) -> tuple[Filter, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise UsageError(f"filters: {shown(value)} is not a list of strings, for example ['swap_bytes<=2GiB']")
    return tuple(dict.fromkeys(condition for text in value for condition in parse_filters(text)))


def _sampling(table: dict[str, object]) -> Sampling:
    options = _table(table, "sampling")
    with located("[sampling]"):
        check_keys(options, [option.name for option in fields(Sampling)])
        return Sampling(**options)  # type: ignore[arg-type]  # checked on construction


def _limits(table: dict[str, object]) -> Limits:
    options = _table(table, "limits")
    with located("[limits]"):
        check_keys(options, list(_LIMITS))
    return Limits(**{_LIMITS[name]: read_memory(f"[limits] {name}", value) for name, value in options.items()})
