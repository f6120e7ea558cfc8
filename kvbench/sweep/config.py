"""Sweep configs in TOML files: the shipped ones, found by name, and users' own files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from kvbench.cells.axes import Axis, on_off
from kvbench.cells.cell import AXES
from kvbench.cells.filter import SWAP_BYTES, Filter
from kvbench.ground.errors import UsageError
from kvbench.ground.files import read_toml, shipped_folder
from kvbench.ground.text import Line, check_keys, convert, hint, located, name_of, quoted
from kvbench.models.geometry import MODEL_AXES
from kvbench.models.presets import ModelChoice
from kvbench.sweep.spec import LIMITS, DeviceName, InTurnAxis, Limits, Sampling, Seed, SweepSpec, read_memory

_RawAxes = dict[str, Any]


class ConfigFile(ModelChoice, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A config as written in TOML, including the keys of `ModelChoice`; each axis checks its own values."""

    # fmt: off
    question: Annotated[Line, msgspec.Meta(description="the question that the sweep answers, one line")] = ""
    diagnostic: Annotated[bool, msgspec.Meta(
        description="whether it examines kvbench or a machine, and helps to choose no backend")] = False
    device: Annotated[DeviceName, msgspec.Meta(description="the device, as `--device` takes it")] = "auto"
    seed: Annotated[Seed, msgspec.Meta(description="seed of bytes, places and order")] = 0
    in_turn: Annotated[tuple[InTurnAxis, ...], msgspec.Meta(
        description="axes whose values are measured in turn, sample by sample, where cells differ in nothing else: "
        "a list of order, sms, overlap and backend")] = ()
    filters: Annotated[tuple[str, ...], msgspec.Meta(
        description="conditions that every cell meets, each as `--filter` takes it")] = ()
    axes: Annotated[_RawAxes, msgspec.Meta(
        description="table: values on axes, for all groups")] = msgspec.field(default_factory=dict)
    group: Annotated[list[_RawAxes], msgspec.Meta(min_length=1,
        description="tables `[[group]]`: values on axes; the sweep is the union of its groups, "
        "each the cross product of its values")] = msgspec.field(default_factory=lambda: [{}])
    sampling: Annotated[Sampling, msgspec.Meta(description="table: how cells are sampled")] = Sampling()
    limits: Annotated[_RawAxes, msgspec.Meta(
        description="table: the memory that may be used, `host_memory` and `device_memory`")] = msgspec.field(
        default_factory=dict)
    # fmt: on


def shipped_configs() -> dict[str, Path]:
    return {path.stem: path for path in sorted(shipped_folder().glob("*.toml"), key=lambda path: path.stem)}


def find_config(name_or_path: str) -> Path:
    """The file of a shipped config's name ("quick"), or the path itself when it ends in .toml.

    Raises UsageError if no shipped config has that name.
    """
    shipped = shipped_configs()
    if name_or_path in shipped:
        return shipped[name_or_path]
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        return Path(name_or_path)
    near = hint(name_or_path, shipped, f"use one of {', '.join(shipped)}, or a path ending in .toml")
    raise UsageError(f"config {quoted(name_or_path)}: kvbench ships no config of that name; {near}")


def load_config(path: Path, choice: ModelChoice | None = None) -> SweepSpec:
    """Read a sweep from a TOML file; the model settings in `choice` override those in the file.

    Raises UsageError, which names the file, the key and what would be right.
    """
    with located(str(path)):
        if not path.exists():
            raise UsageError(f"file not found; shipped configs: {', '.join(shipped_configs())}")
        table = read_toml(path)
        if not table:
            raise UsageError("is empty; to sweep the default config, leave the argument out")
        misplaced = [key for key in table if key in AXES]
        if misplaced:
            raise UsageError(f"{misplaced[0]} is an axis; write it under [axes] or [[group]]")
        file: ConfigFile = convert(table, ConfigFile)
        common = _axes(file.axes, "[axes]")
        groups = tuple(common | _axes(group, f"[[group]] {number}") for number, group in enumerate(file.group, start=1))
        decided = next((axis for axis in MODEL_AXES if file.models and any(axis in group for group in groups)), None)
        if decided is not None:
            raise UsageError(f"{decided}: is set by the models; leave it out")
        spec = SweepSpec(
            name=name_of(path.stem, "sweep"),
            question=file.question,
            device=file.device,
            groups=groups,
            sampling=file.sampling,
            limits=_limits(file.limits),
            seed=file.seed,
            in_turn=file.in_turn,
        ).with_filters(file.filters)
    swaps = (choice or ModelChoice()).over(file).swaps()
    if swaps and not file.models:  # the filters limit the sizes of the file, which the models replace
        of_sizes = (*MODEL_AXES, SWAP_BYTES.name)
        spec = replace(spec, filters=tuple(text for text in spec.filters if Filter.parse(text).axis not in of_sizes))
    return replace(spec.with_models(swaps), step_model=(choice or ModelChoice()).step_model())


def _axes(table: dict[str, object], name_of_table: str) -> dict[str, tuple[str, ...]]:
    values: dict[str, tuple[str, ...]] = {}
    with located(name_of_table):
        check_keys(table, list(AXES))
        for name, raw in table.items():
            items = raw if isinstance(raw, list) else [raw]
            if not items:
                raise UsageError(f"{name}: the list is empty; leave the axis out to use its default")
            values[name] = AXES[name].texts(",".join(_as_text(AXES[name], item) for item in items))
    return values


def _as_text(axis: Axis, value: object) -> str:
    switch = axis.read is on_off
    if isinstance(value, str):
        return value
    if isinstance(value, bool) and switch:
        return "on" if value else "off"
    if isinstance(value, int) and not isinstance(value, bool) and axis.ranged:
        return quoted(value)
    right = "true, false, " if switch else "a number, " if axis.ranged else ""
    right += f"a string such as {quoted(axis.example)}, or a list of these"
    raise UsageError(f"{axis.name}: {quoted(value)} is not {right}")


def _limits(options: Mapping[str, object]) -> Limits:
    with located("[limits]"):
        check_keys(options, list(LIMITS))
    return Limits(**{LIMITS[name]: read_memory(f"[limits] {name}", value) for name, value in options.items()})
