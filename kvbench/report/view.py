"""A run as a report looks at it: its table and samples read once, and which of its cells a table or chart shows."""

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from statistics import median, multimode
from typing import TYPE_CHECKING, Final

from kvbench.analysis.compare import MIN_PAIRS, Comparison, compare_visits
from kvbench.analysis.margins import IN_TURN
from kvbench.cells.axes import Direction, ListPlace, Reuse, Role, StreamState
from kvbench.cells.blocks import is_alone
from kvbench.cells.cell import AXES, SwapShape, axes_of
from kvbench.cells.facts import FLOORS
from kvbench.ground.text import short
from kvbench.results import Run
from kvbench.results.outcomes import Outcome, grouped, is_measured
from kvbench.tune.advice import Advice, advise

if TYPE_CHECKING:
    import pandas as pd

SERIES: Final = axes_of(Role.SERIES)
STATES: Final = tuple(state.value for state in StreamState)
# An engine's load waits for an event, or runs behind other work: what authors measured comes first, an idle stream, on
# which the CPU makes small copies, stands beside it.
AS_ENGINES: Final = ("gated", "opened", "unwaited-event", "busy", "unwaited", "idle", "sustained")
DIRECTIONS: Final = tuple(Direction)
QUEUE: Final = axes_of(Role.QUEUE)
SIDE_AXES: Final = axes_of(Role.SIDE)
# Side axes that came later, and what a cell that leaves them out has there: it does so that its id stays as it was.
LATER: Final = {name: str(AXES[name].show(AXES[name].unused)) for name in SIDE_AXES if AXES[name].later}
_USUAL: Final = {name: AXES[name].usual for name in SIDE_AXES if AXES[name].usual is not None}
_HOT: Final = {"pool": "dense", "reuse": Reuse.SAME.value}
_PREFERRED: Final = LATER | _USUAL | {"order": "stream"}
# What an engine's swap has on the axes: captions name what differs.
_FRESH: Final = {"reuse": Reuse.FRESH.value, "pool": "16GiB"}
_ORDINARY: Final = {
    side: LATER | _USUAL | _FRESH | {"order": order} for side, order in {"h2d": "any", "d2h": "stream"}.items()
}


@dataclass(frozen=True, slots=True)
class Pinned:
    """Cells that differ in free axes alone; `hidden` are the others, which a table leaves out."""

    cells: "pd.DataFrame"
    hidden: Sequence[str]

    def settings(self, outcomes: Sequence[Outcome]) -> str:
        """The values in `outcomes` of axes that are not shown, where they are out of the ordinary."""
        return "; ".join(filter(None, (_axis_text(outcomes, axis) for axis in self.hidden if axis != "sms")))


def _hidden(free: Collection[str]) -> list[str]:
    # the workload first: what a backend's rule chooses depends on it
    return sorted((axis for axis in SIDE_AXES if axis not in free), key=lambda axis: axis not in _HOT)


def pin(outcomes: Iterable[Outcome], free: Collection[str]) -> list[Outcome]:
    """Keep, per backend and direction, one value of every side axis that is not `free`: the one with most cells.

    SMs are the exception that a rule makes: a swap keeps the count that swaps of its size have elsewhere.
    Where a backend was measured without an axis, cells that were skipped for a value on it go. Cells with a queue, and
    gathers by ids on the GPU, have sections of their own: they stay only where `QUEUE` or `list` is free.
    """
    if not set(QUEUE) <= set(free):
        outcomes = (outcome for outcome in outcomes if is_alone(outcome.cell))
    if "list" not in free:
        outcomes = (outcome for outcome in outcomes if outcome.cell.list_place is not ListPlace.GPU)
    kept: list[Outcome] = []
    # Axis by axis, since the value of most cells on one axis depends on what is left by those before it.
    for left in grouped(outcomes, lambda outcome: (outcome.cell.backend, outcome.cell.direction)).values():
        for axis in _hidden(free):
            values = _values(left, axis)
            # A value of which nothing was measured is shown where no other was measured either.
            measured = list(filter(is_measured, left)) or left
            chosen = _usual(axis, [values[outcome] for outcome in measured])
            keep = {outcome for outcome in left if values[outcome] in (None, chosen)}
            keep = _usual_sms(left, keep) if axis == "sms" and chosen else keep
            left = [outcome for outcome in left if outcome in keep]
        kept += left
    return kept


def _values(outcomes: Sequence[Outcome], axis: str) -> dict[Outcome, str | None]:
    """The values of cells on an axis: of a later one also of cells that leave it out, where others were measured."""
    values = {outcome: outcome.cell.text(axis) for outcome in outcomes}
    if any(value is not None and outcome.status != "skipped" for outcome, value in values.items()):
        return {outcome: LATER.get(axis) if value is None else value for outcome, value in values.items()}
    return values


def compare(base: Outcome, other: Outcome, time: str = "swap_us") -> Comparison:
    """How a time of `other` differs from that of `base`, of the same run."""
    return compare_visits(base.times(time), other.times(time), IN_TURN)


def _usual_sms(outcomes: Sequence[Outcome], keep: Set[Outcome]) -> set[Outcome]:
    """The cells of a kernel with the SM count that its rule takes, as far as they tell.

    A swap measured with one count alone has it. Where a ladder measured several, it is that of other swaps of the same
    block size; `keep` has those of the count that most cells have, for what is left.
    """
    shapes = {outcome: SwapShape.of_cell(outcome.cell) for outcome in outcomes}
    sms = {outcome: outcome.cell.sms for outcome in outcomes if outcome.cell.sms is not None}
    ladders = grouped(sms, lambda outcome: shapes[outcome])
    single_shapes = {shape for shape, ladder in ladders.items() if len({sms[rung] for rung in ladder}) == 1}
    single = {outcome for outcome in outcomes if shapes[outcome] in single_shapes}
    by_size = grouped(single & sms.keys(), lambda outcome: outcome.cell.block_bytes)
    # Of the counts that most swaps of a size have, the largest.
    usual = {size: max(multimode(map(sms.__getitem__, alike))) for size, alike in by_size.items()}
    by_rule = single | {outcome for outcome, number in sms.items() if number == usual.get(outcome.cell.block_bytes)}
    decided = {shapes[outcome] for outcome in by_rule}
    return by_rule | {outcome for outcome in keep if shapes[outcome] not in decided}


def _usual(axis: str, values: Sequence[str | None]) -> str | None:
    """The value of most cells on an axis, None if none has one."""
    # The hot end of pool and reuse counts only if there is little else: an engine swaps fresh blocks.
    used = [value for value in values if value is not None]
    fresh = [value for value in used if value != _HOT.get(axis)]
    candidates = _in_order(multimode(fresh if 3 * len(fresh) >= len(values) else used))
    preferred = _PREFERRED.get(axis)
    return preferred if preferred in candidates else next(reversed(candidates), None)


def _axis_text(outcomes: Iterable[Outcome], axis: str) -> str:
    values: dict[str, set[str]] = {side: set() for side in DIRECTIONS}
    for outcome in outcomes:
        if (value := outcome.cell.text(axis)) is not None:
            values[outcome.cell.direction].add(value)
    texts = {side: "/".join(_in_order(used)) for side, used in values.items() if used - {_ORDINARY[side].get(axis)}}
    if not texts:
        return ""
    text, *different = dict.fromkeys(texts.values())
    if different:
        text = ", ".join(f"{text} for {side}" for side, text in texts.items())
    return f"{axis} {text}"


def _in_order(values: Iterable[str]) -> list[str]:
    """Sort values of an axis so that whole numbers ascend."""
    return sorted(values, key=lambda value: (len(value), value))


@dataclass(frozen=True)
class View:
    """A run, the label, unique in the report, that its files and paragraphs go by, and the runs before it.

    `card` names its machine where the runs are of several.
    """

    run: Run
    label: str
    earlier: "Sequence[View]" = ()
    card: str = ""

    @cached_property
    def outcomes(self) -> Sequence[Outcome]:
        """Every cell of the run, in the order of `Run.outcomes`."""
        return list(self.run.outcomes.values())

    @cached_property
    def measured(self) -> Sequence[Outcome]:
        """The cells with figures whose blocks were copied."""
        return [outcome for outcome in self.outcomes if is_measured(outcome) and outcome.cell.backend not in FLOORS]

    @cached_property
    def cells(self) -> "pd.DataFrame":
        """The outcomes as a table, by the axes of their cells."""
        from kvbench.report.cells import cells_of  # pandas takes most of a second, which not every reader needs

        return cells_of(self.outcomes)

    def pin(self, cells: "pd.DataFrame", free: Collection[str]) -> Pinned:
        """Those of some cells that `pin` keeps."""
        kept = set(pin(cells["outcome"], free))
        return Pinned(cells[cells["outcome"].isin(kept)], _hidden(free))

    @cached_property
    def pinned(self) -> Pinned:
        """The cells of a table that shows no side axis."""
        return self.pin(self.cells, free=())

    @cached_property
    def weight(self) -> tuple[float, int, int]:
        """How much a run has to say: the visits of a cell, as far as a verdict needs them, block sizes, then cells."""
        # More visits than a verdict needs decide nothing more: then the run with more sizes says more.
        visits = median([outcome.rounds for outcome in self.measured] or [0])
        sizes = {outcome.cell.block_bytes for outcome in self.measured}
        return min(float(visits), float(MIN_PAIRS)), len(sizes), len(self.measured)

    @property
    def on_host(self) -> bool:
        return self.run.info.device.get("kind") == "cpu"

    @property
    def title(self) -> str:
        device = self.run.info.device
        return short(str(device.get("title") or device.get("name") or "device unknown"), 80)

    @property
    def driver(self) -> str:
        version = self.run.info.identity.get("driver_version")
        if version is None:
            return "no GPU driver" if self.on_host else "driver unknown"
        return f"driver {short(str(version), 40)}"

    @property
    def host(self) -> str:
        """The host, as far as it is known: half of what a swap takes is its CPU's."""
        identity = self.run.info.identity
        cpus, nodes, near = (identity.get(name) for name in ("logical_cpus", "numa_nodes", "gpu_numa_node"))
        virtual = "virtual machine" if identity.get("hypervisor") is True else "no virtual machine"
        near_text = f"{nodes} NUMA nodes, GPU near {near}"
        parts = [
            short(str(identity.get("cpu_model") or "CPU unknown"), 80),
            f"{cpus} CPUs" if cpus else "",
            virtual if "hypervisor" in identity else "",
            near_text if isinstance(nodes, int) and nodes > 1 else "1 NUMA node" if nodes else "",
            f"CUDA {short(str(cuda), 20)}" if (cuda := identity.get("cuda_driver_api")) else "",
        ]
        return ", ".join(filter(None, parts)) if identity.get("cpu_model") else ""

    @property
    def machine(self) -> tuple[str, str]:
        """What runs of one machine share: its card and driver."""
        return self.title, self.driver

    @property
    def of_machine(self) -> "list[View]":
        """The runs of this machine, up to this one."""
        return [view for view in (*self.earlier, self) if view.machine == self.machine]

    @cached_property
    def advice(self) -> Advice:
        """What to use on this machine, by its runs up to this one; raises UsageError where these do not tell."""
        return advise([view.run for view in self.of_machine])

    @property
    def date(self) -> str:
        return self.run.info.created[:10]

    @property
    def heading(self) -> str:
        return f"{self.title}, {self.driver}, {self.date}"

    @property
    def commit(self) -> str:
        """The commit of the kvbench that measured, behind its command; "" where it is not known."""
        return f" ({short(commit, 80)})" if (commit := self.run.info.commit) else ""

    @property
    def command(self) -> str:
        return short(shlex.join(self.run.reproducing()), 2000)


def views_of(runs: Sequence[Run]) -> list[View]:
    """The runs with labels from the names of their folders and, where there are several machines, of these.

    Where several have a name, as the devices of two sweeps, the folder above is named too.
    """
    views: list[View] = []
    machines = [View(run, "").machine for run in runs]
    drivers = Counter(title for title, _ in set(machines))
    paths = [Path(run.path).absolute() for run in runs]
    names = Counter(zip(machines, (path.name for path in paths), strict=True))
    for run, path, (title, driver) in zip(runs, paths, machines, strict=True):
        short_title = title.removeprefix("NVIDIA ")
        card = f"{short_title}, {driver}" if drivers[title] > 1 else short_title if drivers.total() > 1 else ""
        folder = f"{path.parent.name} {path.name}" if names[(title, driver), path.name] > 1 else path.name
        # It becomes a part of file names and of links to them.
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{card} {folder}").strip("-") or "run"
        taken = {view.label for view in views}
        labels = chain([name], (f"{name}-{number}" for number in count(2)))
        label = next(label for label in labels if label not in taken)
        views.append(View(run, label, tuple(views), card=card))
    return views
