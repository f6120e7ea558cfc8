"""The plan of a sweep on one device: which cells run, which are skipped and why, and their order."""

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kvbench.cells.axes import AxisValue, Memory, Neighbour, Reuse
from kvbench.cells.blocks import default_pool_bytes, sets_of
from kvbench.cells.cell import AXES, Cell
from kvbench.cells.facts import AUTO, BackendFacts, DeviceFacts, plug_ins_of, with_usual
from kvbench.cells.filter import Filter, refusal
from kvbench.cells.installed import Installed, installed, unknown_backend
from kvbench.ground.errors import UsageError
from kvbench.sweep.checks import ALL_SMS, Context, footprint, free_for_a_pool, usable_of_host, why_not
from kvbench.sweep.spec import Group, Sampling, SweepSpec

MAX_COMBINATIONS: Final = 200_000
# Sequences whose number of layers is the model's.
LAYERS_OF_MODEL: Final = ("layers", "at-once")


@dataclass(frozen=True, slots=True)
class PlannedSkip:
    """A requested cell that does not run. It keeps the requested values, even on axes that do not apply."""

    cell: Cell
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A sweep on a device. Every requested cell is in `cells` or `skipped`, or counted in `filtered`.

    `refusal` says which filter left no cell, "" if one is left. `side_bytes` is the memory that the largest cell takes
    on each side. `host_pools` of that size, each pinned by another method, exist at once. `plug_ins` are the packages
    of those backends that are plug-ins, `in_turn` the axes whose values are measured in turn.
    """

    cells: tuple[Cell, ...]
    skipped: tuple[PlannedSkip, ...]
    filtered: int
    side_bytes: int
    host_pools: int = 1
    refusal: str = ""
    plug_ins: Mapping[str, str] = field(default_factory=dict)
    in_turn: tuple[str, ...] = ()


# The cross product of one group for one backend: axis name -> values, in the order of AXES.
_Grid = tuple[BackendFacts, Mapping[str, tuple[AxisValue | None, ...]]]


@dataclass(frozen=True, slots=True)
class PlannedVisit:
    """One visit of a cell, or of several in turn, the arms of `group`.

    `round` and `attempt` count from 0; a disturbed visit is repeated with the next attempt.
    """

    round: int
    cells: tuple[Cell, ...]
    attempt: int = 0
    group: str | None = None

    @property
    def cell(self) -> Cell:
        return self.cells[0]

    def singly(self) -> list["PlannedVisit"]:
        return [replace(self, cells=(cell,)) for cell in self.cells]


def asked_for(spec: SweepSpec) -> list[Installed]:
    """The built-in backends and those that `spec` names, by name; raises UsageError for an unknown name."""
    backends, _ = installed()
    names = {name for name, backend in backends.items() if backend.own}
    for group in spec.groups:
        names.update(group.get("backend", [name for name, backend in backends.items() if not backend.engine]))
    for name in sorted(names - backends.keys()):
        raise unknown_backend(name, backends)
    return [backends[name] for name in sorted(names)]


def expand(spec: SweepSpec, device: DeviceFacts, backends: Sequence[BackendFacts]) -> Plan:
    """The plan of `spec` on `device`: its cells without duplicates, in the order of the groups and their axes.

    Raises UsageError for an unknown backend and for more than MAX_COMBINATIONS combinations.
    """
    by_name = {facts.name: facts for facts in backends}
    # Without a policy, auto duplicates another backend, so it runs only on request.
    on_request = {facts.name for facts in backends if facts.on_request} | ({AUTO} if spec.policy is None else set())
    by_default = tuple(name for name in by_name if name not in on_request)
    default_pool = default_pool_bytes(device.kind, free_for_a_pool(device, spec))
    groups = [_with_model_layers(group, spec) for group in spec.groups]
    grids = [grid for group in groups for grid in _grids(group.get("backend", by_default), group, device, by_name)]
    count = sum(math.prod(map(len, values.values())) for _, values in grids)
    if count > MAX_COMBINATIONS:
        raise UsageError(f"the sweep has {count} combinations; the maximum is {MAX_COMBINATIONS}: name fewer values")
    requested = dict.fromkeys(cell for grid in grids for cell in _grid_cells(grid, device, default_pool))
    filters = [Filter.parse(text) for text in spec.filters]
    selected = [cell for cell in requested if all(condition.holds(cell) for condition in filters)]
    reasons = {cell: why_not(cell, Context(device, by_name[cell.backend], spec)) for cell in selected}
    cells = tuple(cell for cell, reason in reasons.items() if reason is None)
    side_bytes = max((footprint(cell, spec.sampling, device.kind) for cell in cells), default=0)
    kinds, fitting = len(memories_of(cells)), usable_of_host(device, spec) // max(1, side_bytes)
    fitting -= device.has_one_memory  # the pool of the other side
    return Plan(
        cells=cells,
        skipped=tuple(PlannedSkip(cell, reason) for cell, reason in reasons.items() if reason is not None),
        filtered=len(requested) - len(selected),
        side_bytes=side_bytes,
        host_pools=max(1, min(kinds, fitting)),
        plug_ins=plug_ins_of(backends),
        in_turn=spec.in_turn,
        refusal="" if selected else refusal(filters, requested),
    )


def memories_of(cells: Iterable[Cell]) -> list[str]:
    """The methods that pin host memory: for `cells`, and for large copies."""
    return sorted({str(Memory.ALLOCATED), *(cell.memory for cell in cells if cell.memory is not None)})


def visits(plan: Plan, sampling: Sampling, seed: int) -> Iterator[PlannedVisit]:
    """Yield every cell once per round, in an order of its own that `seed` shuffles.

    What is compared closely is measured in turn, within a visit. To alternate the backends of a round as well spreads
    what a drift or a burst does to two cells no better than to shuffle.

    Where the host pools do not fit side by side, a round goes from one method of pinning memory to the next. The cells
    of each plug-in package follow each other, see `by_package`.
    """
    kinds = memories_of(plan.cells)
    groups = [kinds] if len(kinds) <= plan.host_pools else [[kind] for kind in kinds]
    for number in range(sampling.rounds):
        order: list[Cell] = []
        for group in groups:
            cells = [cell for cell in plan.cells if (cell.memory or Memory.ALLOCATED) in group]
            order += sorted(cells, key=lambda cell: cell.shuffle_key(number, seed))
        yield from by_package(with_arms(number, order, plan), plan.plug_ins)


def with_arms(number: int, cells: Iterable[Cell], plan: Plan) -> list[PlannedVisit]:
    """The visits of these cells in a round, those measured in turn together, in the order of their firsts."""
    arms: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        arms.setdefault(_question(cell, plan), []).append(cell)
    planned = []
    for together in arms.values():
        # Each arm needs a set of blocks in the pool: none moves what another has just moved through the caches.
        if len(together) > 1 and sets_of(together[0], len(together), len(together)) >= len(together):
            ids = ",".join(sorted(cell.id for cell in together))
            group = hashlib.blake2s(ids.encode(), digest_size=6).hexdigest()
            planned.append(PlannedVisit(number, tuple(together), group=group))
        else:
            planned += [PlannedVisit(number, (cell,)) for cell in together]
    return planned


def _question(cell: Cell, plan: Plan) -> tuple[object, ...]:
    """A key of cells that can be measured in turn: all but the axes in turn, and the process.

    Each arm needs blocks of its own in one pool, and nothing that runs beside its swaps.
    """
    beside = cell.neighbour != Neighbour.NONE or cell.opposite or cell.sequence != "whole" or cell.devices > 1
    if not plan.in_turn or beside or not cell.pool_bytes or cell.reuse is not Reuse.FRESH:
        return (cell,)
    methods = "backend" in plan.in_turn
    shared = [axis.field for axis in AXES.values() if axis.name not in plan.in_turn and not (methods and axis.chosen)]
    return plan.plug_ins.get(cell.backend, ""), *(getattr(cell, name) for name in shared)


def by_package(planned: Sequence[PlannedVisit], plug_ins: Mapping[str, str]) -> list[PlannedVisit]:
    """The visits of one attempt in a round with those of each plug-in package together, otherwise in order.

    A package has a worker of its own, so each change of the package costs the start of one. The order of packages
    alternates from round to round: none is always first, and a round begins with the last package of the one before.
    """
    backwards = any((visit.round + visit.attempt) % 2 for visit in planned[:1])
    return sorted(planned, key=lambda visit: plug_ins.get(visit.cell.backend, ""), reverse=backwards)


def _with_model_layers(group: Group, spec: SweepSpec) -> Group:
    """The group with its model's number of layers where a sequence leaves it to the model."""
    sequences = group.get("sequence", ())
    layers = next((swap.geometry.layers for swap in spec.models if swap.axes.items() <= group.items()), None)
    if layers is None and (sequence := next((text for text in sequences if text in LAYERS_OF_MODEL), None)):
        raise UsageError(f"axis sequence={sequence}: requires a model; choose one with --model, or write {sequence}-L")
    named = [f"{text}-{layers}" if text in LAYERS_OF_MODEL else text for text in sequences]
    return {**group, "sequence": tuple(dict.fromkeys(named))} if sequences else group


def _grids(
    names: Sequence[str], group: Group, device: DeviceFacts, backends: Mapping[str, BackendFacts]
) -> Iterator[_Grid]:
    for name in names:
        backend = backends.get(name)
        if backend is None:
            raise unknown_backend(name, backends)
        yield backend, {axis: _values(axis, group, device, backend) for axis in AXES}


def _values(axis: str, group: Group, device: DeviceFacts, backend: BackendFacts) -> tuple[AxisValue | None, ...]:
    """The values of one axis; if the backend does not support it: `unused`, then the values to skip."""
    if axis == "backend":
        return (backend.name,)
    requested = tuple(map(AXES[axis].parse_one, group.get(axis, ())))
    if AXES[axis].depends_on_backend and axis not in backend.axes:
        return requested if requested and AXES[axis].kept else (AXES[axis].unused, *requested[1:])
    if axis == "pool":
        return requested or (None,)  # None: the default pool, or what the swap takes
    wanted = requested or AXES[axis].default or (AXES[axis].unused,)
    if axis == "sms" and device.sm_count is not None:  # a missing number is left to the backend's rule
        return tuple(device.sm_count if value == ALL_SMS else value for value in wanted)
    return wanted


def _grid_cells(grid: _Grid, device: DeviceFacts, usual_pool_bytes: int) -> Iterator[Cell]:
    backend, axes = grid
    for values in itertools.product(*axes.values()):
        chosen = {AXES[name].field: value for name, value in zip(axes, values, strict=True)}
        cell = Cell(**chosen | {"pool_bytes": chosen["pool_bytes"] or 0})  # type: ignore[arg-type]  # as the axes read
        if chosen["pool_bytes"] is None:
            cell = replace(cell, pool_bytes=max(usual_pool_bytes, 1 << (cell.dense_bytes - 1).bit_length()))
        yield with_usual(cell, backend, device)
