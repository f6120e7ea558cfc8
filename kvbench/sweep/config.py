"""Sweeps in TOML files: those that come with kvbench, found by name, and those of its users."""

from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from kvbench.cells.axis import Axis, AxisValue, on_off
from kvbench.cells.cell import AXES
from kvbench.cells.filter import Filter, parse_filters
from kvbench.errors import UsageError
from kvbench.files import read_toml, shipped_folder
from kvbench.models.geometry import MODEL_AXES
from kvbench.models.presets import ModelChoice
from kvbench.sweep.spec import Group, Limits, Sampling, SweepSpec, read_memory
from kvbench.text import check_keys, hint, located, name_of, shown

_MODEL_KEYS: Final = tuple(part.name for part in fields(ModelChoice))
_KEYS: Final = ("question", "device", "seed", "filters", *_MODEL_KEYS, "axes", "group", "sampling", "limits")
_LIMITS: Final = {"host_memory": "host_bytes", "device_memory": "device_bytes"}


def shipped_configs() -> dict[str, Path]:
    """Return name -> file of the configs that come with kvbench."""
    return {path.stem: path for path in sorted(shipped_folder().glob("*.toml"))}


def find_config(name_or_path: str) -> Path:
    """Return the file of a shipped config's name ("quick"), or the path itself when it ends in .toml.

    Raises UsageError for a name that no shipped config has.
    """
    shipped = shipped_configs()
    if name_or_path in shipped:
        return shipped[name_or_path]
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        return Path(name_or_path)
    near = hint(name_or_path, shipped, f"there are {', '.join(shipped)}, or give a path ending in .toml")
    raise UsageError(f"config {shown(name_or_path)}: kvbench comes with no such config; {near}")


def load_config(path: Path, choice: ModelChoice | None = None) -> SweepSpec:
    """Read a sweep from a TOML file; what `choice` says of models takes the place of what the file says.

    Raises UsageError that names the file, the key and what would be right.
    """
    own, spec = _read_config(path)
    return spec.with_models((choice or ModelChoice()).over(own).swaps())


def _read_config(path: Path) -> tuple[ModelChoice, SweepSpec]:
    with located(str(path)):
        if not path.exists():
            raise UsageError(f"no such file; shipped with kvbench: {', '.join(shipped_configs())}")
        table = read_toml(path)
        misplaced = [key for key in table if key in AXES]
        if misplaced:
            raise UsageError(f"{misplaced[0]} is an axis; write it below [axes] or [[group]]")
        check_keys(table, _KEYS)
        models = _models(table)
        groups = _groups(table)
        decided = next((axis for axis in MODEL_AXES if models.models and any(axis in group for group in groups)), None)
        if decided is not None:
            raise UsageError(f"{decided}: the models decide it; leave it out")
        return models, SweepSpec(
            name=name_of(path.stem, "sweep"),
            question=table.get("question", ""),  # checked on construction, as are device and seed
            device=table.get("device", "auto"),
            groups=groups,
            filters=_filters(table.get("filters", [])),
            sampling=_sampling(table),
            limits=_limits(table),
            seed=table.get("seed", 0),
        )


def _table(parent: dict[str, object], key: str) -> dict[str, object]:
    value = parent.get(key, {})
    if not isinstance(value, dict):
        raise UsageError(f"{key}: {shown(value)} is not a table; write [{key}]")
    return value


def _models(table: dict[str, Any]) -> ModelChoice:
    choice = {name: table[name] for name in _MODEL_KEYS if name in table}
    models = choice.pop("models", [])
    if not isinstance(models, list) or not all(isinstance(name, str) for name in models):
        raise UsageError(f"models: {shown(models)} is not a list of strings, for example ['llama-3-8b']")
    return ModelChoice(tuple(models), **choice)  # the settings are checked when the swaps are made


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
    switch = axis.read is on_off
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
