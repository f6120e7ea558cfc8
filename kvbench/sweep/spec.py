"""A sweep as asked for: the values on its axes, how cells are sampled, and the memory it may use."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Final

from kvbench.cells.axis import AxisValue
from kvbench.cells.cell import AXES, axis_named
from kvbench.cells.filter import Filter, parse_filters
from kvbench.errors import UsageError, brief
from kvbench.models.geometry import MODEL_AXES, ModelSwap, swaps_from_plain, swaps_to_plain
from kvbench.text import NAME_PATTERN, check_keys, check_whole, located, shown
from kvbench.tune.table import AUTO, Policy
from kvbench.units import parse_size

Group = Mapping[str, tuple[AxisValue, ...]]

_WHOLE: Final = {
    "rounds": (1, 1000),
    "warmups": (0, 10_000),
    "min_samples": (1, 100_000),
    "max_samples": (1, 100_000),
    "busy_delay_us": (1, 100_000),
    "controls": (0, 1000),
}
_REAL: Final = {"target": (0.0, 1.0), "cell_seconds": (0.001, 3600.0), "deadline_s": (0.1, 86_400.0)}
_MAX_BYTES: Final = 2**50
_MAX_SEED: Final = 2**63 - 1
_MAX_TEXT: Final = 500


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a cell is sampled. Raises UsageError when a number is of the wrong type or out of its range.

    `rounds` visits a cell; each visit does `warmups` swaps, then samples until the median's interval is within
    `target` (relative half-width; 0 never stops early) but at least `min_samples`, at most `max_samples`, and no
    further sample after `cell_seconds`. `busy_delay_us` is the delay kernel in front of a busy sample; a worker that
    says nothing for `deadline_s` counts as hung. `controls` is the number of large copies without the engine, each way
    and round (0: none).
    """

    rounds: int = 3
    warmups: int = 2
    min_samples: int = 5
    max_samples: int = 15
    target: float = 0.01
    cell_seconds: float = 1.0
    busy_delay_us: int = 200
    deadline_s: float = 60.0
    controls: int = 0

    def __post_init__(self) -> None:
        for name, (lowest, highest) in _WHOLE.items():
            check_whole(name, getattr(self, name), lowest, highest)
        for name, (low, high) in _REAL.items():
            _check_real(name, getattr(self, name), low, high)
        if self.max_samples < self.min_samples:
            raise UsageError(f"max_samples: {self.max_samples} is less than min_samples, {self.min_samples}")


@dataclass(frozen=True, slots=True)
class Limits:
    """The memory that a sweep may use on either side, in bytes; None means what is free."""

    host_bytes: int | None = None
    device_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("host_bytes", "device_bytes"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1, _MAX_BYTES)


@dataclass(frozen=True, slots=True)
class SweepSpec:
    """A sweep: the union of its groups' cross products, less what its filters drop.

    A group maps axis names to the values asked for; an axis that it does not name takes its default, and no
    `backend` means every backend there is, `auto` only with a policy. `device` is "auto", "cpu", "cuda" or
    "cuda:N". `fault` is an opaque text for the engine of the cpu device, `policy` what the backend `auto` goes by.
    `models` are those whose swaps the groups hold. Raises UsageError for impossible values.
    """

    name: str
    question: str = ""
    device: str = "auto"
    groups: tuple[Group, ...] = ({},)
    filters: tuple[Filter, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    seed: int = 0
    fault: str | None = None
    policy: Policy | None = None
    models: tuple[ModelSwap, ...] = ()

    def __post_init__(self) -> None:
        _check_text("name", self.name, NAME_PATTERN, "1 to 64 letters, digits, '_', '.' or '-'")
        _check_line("question", self.question)
        _check_text("device", self.device, r"auto|cpu|cuda(:[0-9]{1,3})?", "auto, cpu, cuda or cuda:N")
        check_whole("seed", self.seed, 0, _MAX_SEED)
        if self.fault is not None:
            _check_line("fault", self.fault)
        if not self.groups:
            raise UsageError("groups: a sweep needs at least one")

    def with_axes(self, assignments: Mapping[str, str]) -> "SweepSpec":
        """Return the sweep with these axes (name -> values in the grammar of `-a`) in place of its own."""
        chosen = {name: axis_named(name).parse(text) for name, text in assignments.items()}
        decided = next((name for name in chosen if name in MODEL_AXES), None)
        if self.models and decided is not None:
            raise UsageError(f"-a {decided}: the model decides {', '.join(MODEL_AXES)}; leave it out")
        return replace(self, groups=_once({**group, **chosen} for group in self.groups))

    def with_models(self, swaps: Sequence[ModelSwap]) -> "SweepSpec":
        """Return the sweep with the swaps of these models in every group; without any, the sweep as it is."""
        if not swaps:
            return self
        groups = _once({**group, **swap.axes} for group in self.groups for swap in swaps)
        return replace(self, groups=groups, models=tuple(swaps))

    def with_filters(self, texts: Iterable[str]) -> "SweepSpec":
        """Return the sweep with the conditions of these `--filter` texts added to its own."""
        added = (condition for text in texts for condition in parse_filters(text))
        return replace(self, filters=tuple(dict.fromkeys((*self.filters, *added))))

    def with_sampling(self, changes: Mapping[str, int | float | None]) -> "SweepSpec":
        """Return the sweep with these fields of its sampling changed; None leaves a field as it is."""
        check_keys(changes, [option.name for option in fields(Sampling)])
        given = {name: value for name, value in changes.items() if value is not None}
        return replace(self, sampling=Sampling(**{**asdict(self.sampling), **given}))

    def with_limits(self, host_memory: str | None = None, device_memory: str | None = None) -> "SweepSpec":
        """Return the sweep with the sizes of `--host-memory` and `--device-memory`; None leaves a limit as it is."""
        limits = self.limits
        if host_memory is not None:
            limits = replace(limits, host_bytes=read_memory("--host-memory", host_memory))
        if device_memory is not None:
            limits = replace(limits, device_bytes=read_memory("--device-memory", device_memory))
        return replace(self, limits=limits)

    def with_options(
        self,
        *,
        device: str | None = None,
        seed: int | None = None,
        fault: str | None = None,
        policy: Policy | None = None,
    ) -> "SweepSpec":
        """Return the sweep on another device, with another seed, a fault or a policy; None leaves each as it is."""
        return replace(
            self,
            device=self.device if device is None else device,
            seed=self.seed if seed is None else seed,
            fault=self.fault if fault is None else fault,
            policy=self.policy if policy is None else policy,
        )

    @property
    def asks_for_auto(self) -> bool:
        """Whether the backend that goes by a policy is among those asked for, or would be with one."""
        return any(AUTO in group.get("backend", (AUTO,)) for group in self.groups)

    def to_plain(self) -> dict[str, object]:
        """Return the sweep as JSON takes it; `from_plain` reads it back."""
        return {
            "name": self.name,
            "question": self.question,
            "device": self.device,
            "groups": [
                {name: [AXES[name].write(value) for value in values] for name, values in group.items()}
                for group in self.groups
            ],
            "filters": [str(condition) for condition in self.filters],
            "sampling": asdict(self.sampling),
            "limits": asdict(self.limits),
            "seed": self.seed,
            "fault": self.fault,
            "policy": None if self.policy is None else self.policy.to_plain(),
            "models": swaps_to_plain(self.models),
        }

    @classmethod
    def from_plain(cls, plain: object) -> "SweepSpec":
        """Read what `to_plain` wrote, strictly: it may come from a stranger. Raises UsageError."""
        # A run from before there were policies and models has none.
        whole = {"policy": None, "models": [], **plain} if isinstance(plain, dict) else plain
        table = _exact_table(whole, _names(cls), "spec")
        groups = tuple(_plain_group(group) for group in _list_of(dict, table["groups"], "spec groups"))
        filters = tuple(Filter.parse(str(text)) for text in _list_of(str, table["filters"], "spec filters"))
        sampling = _exact_table(table["sampling"], _names(Sampling), "spec sampling")
        limits = _exact_table(table["limits"], _names(Limits), "spec limits")
        rest = {name: table[name] for name in ("name", "question", "device", "seed", "fault")}
        with located("spec"):
            return cls(
                **rest,  # type: ignore[arg-type]  # each is checked on construction
                policy=None if table["policy"] is None else Policy.from_plain(table["policy"]),
                groups=groups,
                filters=filters,
                sampling=Sampling(**sampling),  # type: ignore[arg-type]
                limits=Limits(**limits),  # type: ignore[arg-type]
                models=swaps_from_plain(table["models"]),
            )


def parse_assignments(items: Iterable[str]) -> dict[str, str]:
    """Split the `axis=values` of repeated `-a` options; raises UsageError, also for an axis given twice."""
    assignments: dict[str, str] = {}
    for item in items:
        name, equals, values = (part.strip() for part in item.partition("="))
        if not (name and equals and values):
            raise UsageError(f"-a {brief(item)}: write axis=values, for example -a blocks=16,64,256")
        if name in assignments:
            both = brief(f"{name}={assignments[name]},{values}")
            raise UsageError(f"-a {brief(item)}: axis {name} is given twice; write -a {both}")
        assignments[axis_named(name).name] = values
    return assignments


def read_memory(where: str, value: object) -> int:
    """Return the bytes of a memory limit (a size or whole bytes); raises UsageError that names `where`."""
    with located(where):
        try:
            size = parse_size(value) if isinstance(value, str) else value
        except ValueError as error:
            raise UsageError(str(error)) from None
        return check_whole("bytes", size, 1, _MAX_BYTES)


def _check_real(name: str, value: object, low: float, high: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise UsageError(f"{name}: {shown(value)} is not a number from {low:g} to {high:g}")


def _check_text(name: str, value: object, pattern: str, meaning: str) -> None:
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise UsageError(f"{name}: {shown(value)} is not {meaning}")


def _check_line(name: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > _MAX_TEXT or not value.isprintable():
        raise UsageError(f"{name}: {shown(value)} is not one line of at most {_MAX_TEXT} characters")


def _once(groups: Iterable[Group]) -> tuple[Group, ...]:
    kept: list[Group] = []
    for group in groups:
        if group not in kept:
            kept.append(group)
    return tuple(kept)


def _names(kind: type[SweepSpec | Sampling | Limits]) -> list[str]:
    return [part.name for part in fields(kind)]


def _exact_table(value: object, names: Sequence[str], where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: {shown(value)} is not a table")
    with located(where):
        check_keys(value, names)
    missing = [name for name in names if name not in value]
    if missing:
        raise UsageError(f"{where}: without {', '.join(missing)}")
    return value


def _list_of(kind: type, value: object, where: str) -> list[object]:
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise UsageError(f"{where}: {shown(value)} is not a list of {'tables' if kind is dict else 'strings'}")
    return value


def _plain_group(group: object) -> Group:
    assert isinstance(group, dict)
    with located("spec groups"):
        check_keys(group, list(AXES))
    values: dict[str, tuple[AxisValue, ...]] = {}
    for name, texts in group.items():
        where = f"spec groups {name}"
        with located(where):
            read = tuple(AXES[name].parse_one(str(text)) for text in _list_of(str, texts, where))
        if not read or len(set(read)) < len(read):
            raise UsageError(f"{where}: {shown(texts)} is empty or names a value twice")
        values[name] = read
    return values
