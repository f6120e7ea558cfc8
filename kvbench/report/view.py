"""A run as a report looks at it: its table and samples read once, and which of its cells a table or chart shows."""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from statistics import median, multimode
from typing import Any, Final, TypeVar

import numpy as np
import pandas as pd

from kvbench.analysis.compare import MIN_PAIRS, Comparison, Visits, compare_visits
from kvbench.analysis.margins import IN_TURN
from kvbench.cells.axes import ListPlace, Reuse, Role, StreamState
from kvbench.cells.blocks import is_alone
from kvbench.cells.cell import AXES, Cell, SwapShape, axes_of
from kvbench.cells.facts import FLOORS, marked, plug_ins_of
from kvbench.report.numbers import ABSENT, figure, noun
from kvbench.results import Run
from kvbench.results.outcomes import BETWEEN, Outcome
from kvbench.text import short

SERIES: Final = axes_of(Role.SERIES)
STATES: Final = tuple(state.value for state in StreamState)
DIRECTIONS: Final = ("h2d", "d2h")
QUEUE: Final = axes_of(Role.QUEUE)
SIDE_AXES: Final = axes_of(Role.SIDE)
# Side axes that came later, and what a cell that leaves them out has there: it does so that its id stays as it was.
LATER: Final = {name: str(AXES[name].show(AXES[name].unused)) for name in SIDE_AXES if AXES[name].later}
_USUAL: Final = {name: usual for name in SIDE_AXES if (usual := AXES[name].usual) is not None}
_HOT: Final = {"pool": "dense", "reuse": Reuse.SAME.value}
_PREFERRED: Final = LATER | _USUAL | {"order": "stream"}
# What an engine's swap has on the axes: captions name what differs.
_FRESH: Final = {"reuse": Reuse.FRESH.value, "pool": "16GiB"}
_ORDINARY: Final = {
    side: LATER | _USUAL | _FRESH | {"order": order} for side, order in {"h2d": "any", "d2h": "stream"}.items()
}
_NUMBER: Final = re.compile(r"[0-9]{1,12}")
Row = dict[str, Any]
Item = TypeVar("Item")
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Pinned:
    """Cells that differ in the shown axes alone; `hidden` are the others, which a table leaves out."""

    cells: pd.DataFrame
    hidden: Sequence[str]

    def settings(self, cells: pd.DataFrame) -> str:
        """The values in `cells` of axes that are not shown, where they are out of the ordinary."""
        return "; ".join(filter(None, (_axis_text(cells, axis) for axis in self.hidden if axis != "sms")))


def _hidden(shown: Collection[str]) -> list[str]:
    # the workload first: what a backend's rule chooses depends on it
    return sorted((axis for axis in SIDE_AXES if axis not in shown), key=lambda axis: axis not in _HOT)


def pin(outcomes: Iterable[Outcome], shown: Collection[str]) -> list[Outcome]:
    """Keep, per backend and direction, one value of every side axis that is not shown: the one with most cells.

    SMs are the exception that a rule makes: a swap keeps the count that swaps of its size have elsewhere.
    Where a backend was measured without an axis, cells that were skipped for a value on it go. Cells with a queue, and
    gathers by ids on the GPU, have sections of their own: they stay only where `QUEUE` or `list` is shown.
    """
    if not set(QUEUE) <= set(shown):
        outcomes = (one for one in outcomes if is_alone(one.cell))
    if "list" not in shown:
        outcomes = (one for one in outcomes if one.cell.list_place is not ListPlace.GPU)
    kept: list[Outcome] = []
    for left in grouped(outcomes, lambda one: (one.cell.backend, one.cell.direction)).values():
        for axis in _hidden(shown):
            values = _values(left, axis)
            measured = [one for one in left if one.status == "ok"] or left
            chosen = _usual(axis, [values[one] for one in measured])
            keep = {one for one in left if values[one] in (None, chosen)}
            keep = _usual_sms(left, keep) if axis == "sms" and chosen else keep
            left = [one for one in left if one in keep]
        kept += left
    return kept


def _values(outcomes: Sequence[Outcome], axis: str) -> dict[Outcome, str | None]:
    """The values of cells on an axis: of a later one also of cells that leave it out, where others were measured."""
    values = {one: one.cell.text(axis) for one in outcomes}
    if any(value is not None and one.status != "skipped" for one, value in values.items()):
        return {one: LATER.get(axis) if value is None else value for one, value in values.items()}
    return values


def where(cells: pd.DataFrame, **values: str | int) -> pd.DataFrame:
    # one copy of the rows, however many columns decide: a copy of a hundred columns takes most of the time
    masks = [(cells[column] == value).to_numpy(bool, na_value=False) for column, value in values.items()]
    return cells[np.logical_and.reduce(masks)]


def rows_of(cells: pd.DataFrame) -> list[Row]:
    """Return the rows of `cells` as {column: value}.

    `DataFrame.to_dict("records")`, or a look-up of each column, takes ten times as long on as many as a run has.
    """
    keys = tuple(map(str, cells))
    return [dict(zip(keys, row, strict=True)) for row in cells.to_numpy(dtype=object).tolist()]


def by_direction(cells: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {way: side for way in DIRECTIONS if len(side := where(cells, direction=way))}


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _usual_sms(outcomes: Sequence[Outcome], keep: Set[Outcome]) -> set[Outcome]:
    """The cells of a kernel with the SM count that its rule takes, as far as they tell.

    A swap measured with one count alone has it. Where a ladder measured several, it is that of other swaps of the same
    block size; `keep` has those of the count that most cells have, for what is left.
    """
    shapes = {one: SwapShape.of(one.cell) for one in outcomes}
    sms = {one: count for one in outcomes if (count := one.cell.sms) is not None}
    ladders = grouped(sms, lambda one: shapes[one])
    alone = {one for one in outcomes if len({sms[each] for each in ladders.get(shapes[one], ())}) == 1}
    of_size = grouped(alone & sms.keys(), lambda one: one.cell.block_bytes)
    usual = {size: max(multimode(sms[one] for one in same)) for size, same in of_size.items()}
    known = alone | {one for one, count in sms.items() if count == usual.get(one.cell.block_bytes)}
    decided = {shapes[one] for one in known}
    return known | {one for one in keep if shapes[one] not in decided}


def _usual(axis: str, values: Sequence[str | None]) -> str | None:
    """Return the value of most cells on an axis, None if none has one."""
    # the hot end of pool and reuse counts only if there is little else: an engine swaps fresh blocks
    known = [value for value in values if value is not None]
    fresh = [value for value in known if value != _HOT.get(axis)]
    candidates = _in_order(multimode(fresh if 3 * len(fresh) >= len(values) else known))
    preferred = _PREFERRED.get(axis)
    return preferred if preferred in candidates else next(reversed(candidates), None)


def _axis_text(cells: pd.DataFrame, axis: str) -> str:
    pairs = set(zip(cells["direction"].tolist(), cells[axis].tolist(), strict=True))
    values = {side: {str(value) for of, value in pairs if of == side and not pd.isna(value)} for side in DIRECTIONS}
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
    def frame(self) -> pd.DataFrame:
        """A row per cell, with a mark at the names of plug-ins' backends."""
        frame = self.run.table
        # pandas keeps columns of objects together, as those of int64, and takes rows of them in half the time
        whole = {name: "int64" for name, kind in frame.dtypes.items() if kind == "Int64" and frame[name].notna().all()}
        frame = frame.astype(dict.fromkeys(frame.select_dtypes(["str"]), "object") | whole).copy()
        names = {name: marked(name) for name in plug_ins_of(self.run.info.backends)}
        return frame.assign(backend=frame["backend"].replace(names)) if names else frame

    @cached_property
    def called(self) -> pd.DataFrame:
        """The cells with figures, those that copy nothing included."""
        return self.frame[self.frame["status"] == "ok"]

    @cached_property
    def measured(self) -> pd.DataFrame:
        """The cells whose blocks were copied."""
        return self.called[~self.called["backend"].isin(FLOORS)]

    @cached_property
    def _outcomes(self) -> Mapping[str, Outcome]:
        return {cell.id: one for cell, one in self.run.outcomes.items()}

    def pin(self, cells: pd.DataFrame, shown: Collection[str]) -> Pinned:
        """Return those of some cells of the frame that `pin` keeps."""
        kept = {one.cell.id for one in pin((self._outcomes[cell] for cell in cells["cell_id"]), shown)}
        return Pinned(cells[cells["cell_id"].isin(kept)].reset_index(drop=True), _hidden(shown))

    def only(self, cells: pd.DataFrame, keep: Callable[[Cell], bool]) -> pd.DataFrame:
        """Return those of some cells of the frame that `keep` accepts."""
        return cells[np.array([keep(self._outcomes[cell].cell) for cell in cells["cell_id"]], dtype=bool)]

    @cached_property
    def pinned(self) -> Pinned:
        """The cells of a table that shows no side axis."""
        return self.pin(self.frame, shown=())

    @cached_property
    def visits(self) -> Mapping[str, Visits]:
        """What is compared: the median of swap_us in every visit, by cell id."""
        return self.run.visit_times()

    def compare(self, base: str, other: str) -> Comparison:
        """Compare the times of a swap of two cells of this run, by their ids."""
        return compare_visits(self.visits.get(base, {}), self.visits.get(other, {}), IN_TURN)

    @cached_property
    def weight(self) -> tuple[float, int, int]:
        """How much a run has to say: the visits of a cell, as far as a verdict needs them, block sizes, then cells."""
        visits = self.measured["rounds"].median() if len(self.measured) else 0.0
        return min(float(visits), float(MIN_PAIRS)), self.measured["block_bytes"].nunique(), len(self.measured)

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
    def machine(self) -> tuple[str, str]:
        """What runs of one machine share: its card and driver."""
        return self.title, self.driver

    @property
    def of_machine(self) -> "list[View]":
        """The runs of this machine, up to this one."""
        return [view for view in (*self.earlier, self) if view.machine == self.machine]

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
    """Return the runs with labels from the names of their folders and, where there are several machines, of these."""
    views: list[View] = []
    machines = [View(run, "").machine for run in runs]
    drivers = Counter(title for title, _ in set(machines))
    for run, (title, driver) in zip(runs, machines, strict=True):
        short_title = title.removeprefix("NVIDIA ")
        card = f"{short_title}, {driver}" if drivers[title] > 1 else short_title if drivers.total() > 1 else ""
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{card} {Path(run.path).absolute().name}").strip("-") or "run"
        taken = {view.label for view in views}
        label = next(label for number in count(1) if (label := f"{name}-{number}" if number > 1 else name) not in taken)
        views.append(View(run, label, tuple(views), card=card))
    return views


def cell_warnings(measured: pd.DataFrame) -> list[str]:
    """Return the warnings of cells; those that differ in their numbers alone make one line, with the largest."""
    known = measured["warnings"].dropna()
    texts = [(cell, text) for cell, joined in known.items() for text in str(joined).split(BETWEEN)]
    lines = []
    for alike in grouped(texts, lambda one: _NUMBER.sub("", one[1])).values():
        cells, different = {cell for cell, _ in alike}, {text for _, text in alike}
        worst = max(sorted(different), key=lambda text: [int(number) for number in _NUMBER.findall(text)])
        at_worst = ", at worst" if len(different) > 1 else ""
        lines.append((len(cells), f"{noun(len(cells), 'cell')}{at_worst}: {short(worst)}"))
    return [line for _, line in sorted(lines, key=lambda one: -one[0])]


def ceiling_of(cells: pd.DataFrame) -> float | None:
    """Return the ceiling in GB/s of cells of one direction, None where it was not measured."""
    known = cells["ceiling_gbps"].dropna()
    return None if known.empty else float(known.iloc[0])


def ceiling_in(views: Sequence[View], direction: str) -> float:
    """Return the ceiling of runs of one machine in GB/s, 0 if it was not measured."""
    return median([rate for view in views for rate in view.run.ceilings().get(direction, ())] or [0.0])


def ceilings_text(views: Sequence[View]) -> str:
    return " / ".join(figure(rate) if (rate := ceiling_in(views, way)) else ABSENT for way in DIRECTIONS)
