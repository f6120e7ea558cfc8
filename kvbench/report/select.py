"""Which cells a table or chart shows, when a run holds more axes than a page has."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import pandas as pd

from kvbench.cells.axes import Reuse, StreamState
from kvbench.cells.axis import Role
from kvbench.cells.cell import AXES, axes_of
from kvbench.report.numbers import size
from kvbench.results.frame import unqueued

SERIES: Final = axes_of(Role.SERIES)
STATES: Final = tuple(state.value for state in StreamState)
DIRECTIONS: Final = ("h2d", "d2h")
_SHAPE: Final = ("stream_state", "blocks", "block_bytes")
QUEUE: Final = axes_of(Role.QUEUE)
SIDE_AXES: Final = axes_of(Role.SIDE)
# Side axes that came later, and what a cell that leaves them out has there: it does so that its id stays as it was.
LATER: Final = {name: str(AXES[name].show(AXES[name].unused)) for name in SIDE_AXES if AXES[name].later}
_USUAL: Final = {name: usual for name in SIDE_AXES if (usual := AXES[name].usual) is not None}
_HOT: Final = {"pool": "dense", "reuse": Reuse.SAME.value}
_PREFERRED: Final = LATER | _USUAL | {"order": "stream"}
Item = TypeVar("Item")
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Pinned:
    """Cells that differ in the shown axes alone; `hidden` are the values of the others that a table leaves out."""

    cells: pd.DataFrame
    hidden: Mapping[str, Set[str]]

    def settings(self, cells: pd.DataFrame) -> str:
        """Return what the axes that are not shown were set to in `cells`, and what is left out."""
        return "; ".join(filter(None, (_axis_text(cells, axis, others) for axis, others in self.hidden.items())))


def pin(cells: pd.DataFrame, shown: tuple[str, ...]) -> Pinned:
    """Keep, per backend and direction, one value of every side axis that is not shown: the one with most cells.

    SMs are the exception that a rule makes: a swap keeps the count that swaps of its size have elsewhere.
    Where a backend was measured without an axis, cells that were skipped for a value on it go. Cells with a queue have
    a section of their own: they stay only where `QUEUE` is shown. `cells` are rows of a view, which are `spelled_out`.
    """
    if not set(QUEUE) <= set(shown):
        cells = unqueued(cells)
    # the workload first: what a backend's rule chooses depends on it
    axes = sorted((axis for axis in SIDE_AXES if axis not in shown), key=lambda axis: axis not in _HOT)
    hidden: dict[str, set[str]] = {axis: set() for axis in axes}
    texts = {name: texts_of(cells[name]) for name in ("backend", "direction", "status", *_SHAPE, *axes)}
    kept: list[int] = []
    for rows in grouped(range(len(cells)), lambda row: (texts["backend"][row], texts["direction"][row])).values():
        for axis in axes:
            values = texts[axis]
            measured = [row for row in rows if texts["status"][row] == "ok"] or rows
            chosen = _usual(axis, [values[row] for row in measured])
            keep = {row for row in rows if values[row] in (None, chosen)}
            if chosen is not None:
                hidden[axis] |= {text for row in rows if (text := values[row]) is not None} - {chosen}
                keep = _usual_sms(texts, rows, keep) if axis == "sms" else keep
            rows = [row for row in rows if row in keep]
        kept += rows
    return Pinned(cells.iloc[kept].reset_index(drop=True), hidden)


def spelled_out(frame: pd.DataFrame) -> pd.DataFrame:
    """Give the cells of a run that leave a later axis out their value on it, where the run has swept their backend."""
    skipped = (frame["status"] == "skipped").to_numpy(bool)
    for axis, value in LATER.items():
        absent = frame[axis].isna().to_numpy()
        if not absent.any() or absent.all():
            continue
        # a backend without the axis was skipped wherever it was asked for
        swept = set(frame["backend"][~absent & ~skipped])
        frame = frame.assign(**{axis: frame[axis].mask(absent & frame["backend"].isin(swept), value)})
    return frame


def where(cells: pd.DataFrame, **values: str | int) -> pd.DataFrame:
    """Keep the cells with these values on these columns."""
    # one copy of the rows, however many columns decide: a copy of a hundred columns takes most of the time
    masks = [(cells[column] == value).to_numpy(bool, na_value=False) for column, value in values.items()]
    return cells[np.logical_and.reduce(masks)]


def by_direction(cells: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the cells of each direction that has any."""
    sides = {direction: where(cells, direction=direction) for direction in DIRECTIONS}
    return {direction: side for direction, side in sides.items() if len(side)}


def fullest(cells: pd.DataFrame, axis: str, over: str) -> int:
    """Return the value of `axis` for which most different values of `over` exist, the largest of several."""
    numbers = cells.groupby(axis)[over].nunique()
    return int(max(numbers[numbers == numbers.max()].index))


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by their key, in the order in which the keys come."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def texts_of(column: "pd.Series[Any]") -> list[str | None]:
    """Return the values of a column as text, None where there is none."""
    # not by isna, which takes longer than all else: NA is one object, and NaN differs from itself
    return [None if value is None or value is pd.NA or value != value else str(value) for value in column.tolist()]


def _usual_sms(texts: Mapping[str, Sequence[str | None]], rows: Sequence[int], keep: Set[int]) -> set[int]:
    """Return which rows of a kernel have the SM count that its rule takes, as far as the cells tell.

    A swap measured with one count alone has it. Where a ladder measured several, it is that of other swaps of the same
    block size; `keep` has those of the count that most cells have, for what is left.
    """
    shapes = {row: tuple(texts[name][row] for name in _SHAPE) for row in rows}
    sms = {row: count for row in rows if (count := texts["sms"][row]) is not None}
    ladders = grouped(sms, lambda row: shapes[row])
    alone = {row for row in rows if len({sms[one] for one in ladders.get(shapes[row], ())}) == 1}
    of_size = grouped(alone & sms.keys(), lambda row: texts["block_bytes"][row])
    usual = {size: _most_frequent([sms[row] for row in same])[-1] for size, same in of_size.items()}
    known = alone | {row for row, count in sms.items() if count == usual.get(texts["block_bytes"][row])}
    decided = {shapes[row] for row in known}
    return known | {row for row in keep if shapes[row] not in decided}


def _usual(axis: str, values: Sequence[str | None]) -> str | None:
    """Return the value of most cells on an axis, None if none has one."""
    # the hot end of pool and reuse counts only if there is little else: an engine swaps fresh blocks
    known = [value for value in values if value is not None]
    fresh = [value for value in known if value != _HOT.get(axis)]
    candidates = _most_frequent(fresh if 3 * len(fresh) >= len(values) else known)
    preferred = _PREFERRED.get(axis)
    return preferred if preferred in candidates else next(reversed(candidates), None)


def _most_frequent(values: Sequence[str]) -> list[str]:
    counts = Counter(values)
    most = max(counts.values(), default=0)
    return _in_order({value for value, count in counts.items() if count == most})


def _axis_text(cells: pd.DataFrame, axis: str, others: Set[str]) -> str:
    pairs = set(zip(cells["direction"].tolist(), texts_of(cells[axis]), strict=True))
    values = {side: {value for of, value in pairs if of == side and value is not None} for side in DIRECTIONS}
    texts = {side: "/".join(map(size, _in_order(used))) for side, used in values.items() if used}
    if not texts:
        return ""
    text, *different = dict.fromkeys(texts.values())
    if different:
        text = ", ".join(f"{text} for {side}" for side, text in texts.items())
    left_out = _in_order(others - set[str]().union(*values.values()))
    more = f" (not shown: {', '.join(map(size, left_out))})" if left_out else ""
    return f"{axis} {text}{more}"


def _in_order(values: Set[str]) -> list[str]:
    """Sort values of an axis so that whole numbers ascend."""
    return sorted(values, key=lambda value: (len(value), value))
