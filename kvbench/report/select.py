"""Which cells a table or chart shows, when a run holds more axes than a page has."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final

import pandas as pd

from kvbench.cells.axes import Reuse, StreamState
from kvbench.cells.axis import Role
from kvbench.cells.cell import AXES, axes_of
from kvbench.report.numbers import size
from kvbench.results.frame import unqueued

SERIES: Final = axes_of(Role.SERIES)
STATES: Final = tuple(state.value for state in StreamState)
DIRECTIONS: Final = ("h2d", "d2h")
BATCHED: Final = "batched"
_SHAPE: Final = ("stream_state", "blocks", "block_bytes")
QUEUE: Final = axes_of(Role.QUEUE)
SIDE_AXES: Final = axes_of(Role.SIDE)
# Side axes that came later, and what a cell that leaves them out has there: it does so that its id stays as it was.
LATER: Final = {name: str(AXES[name].show(AXES[name].unused)) for name in SIDE_AXES if AXES[name].later}
_USUAL: Final = {name: usual for name in SIDE_AXES if (usual := AXES[name].usual) is not None}
_HOT: Final = {"pool": "dense", "reuse": Reuse.SAME.value}
_PREFERRED: Final = LATER | _USUAL | {"order": "stream"}


@dataclass(frozen=True, slots=True)
class Pinned:
    """Cells that differ in the shown axes alone; `hidden` are the values of the others that a table leaves out."""

    cells: pd.DataFrame
    hidden: Mapping[str, Set[str]]

    def words(self, cells: pd.DataFrame) -> str:
        """Return what the axes that are not shown were set to in `cells`, and what is left out."""
        return "; ".join(filter(None, (_axis_words(cells, axis, others) for axis, others in self.hidden.items())))


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
    kept = []
    # the columns that decide, since each step copies what is left
    narrow = cells[["backend", "direction", "status", *_SHAPE, *axes]]
    for _, group in narrow.groupby(["backend", "direction"], sort=False):
        for axis in axes:
            measured = group[group["status"] == "ok"]
            chosen = _usual(_of_an_engine((group if measured.empty else measured)[axis]), _PREFERRED.get(axis))
            if chosen is None:
                group = group[group[axis].isna()]
            else:
                values = group[axis].astype("string")
                hidden[axis] |= set(values.dropna()) - {chosen}
                keep = (values == chosen).fillna(value=True)
                group = group[_usual_sms(group, keep) if axis == "sms" and values.notna().any() else keep]
        kept.append(group)
    return Pinned(cells.loc[pd.concat(kept).index].reset_index(drop=True) if kept else cells, hidden)


def spelled_out(frame: pd.DataFrame) -> pd.DataFrame:
    """Give the cells of a run that leave a later axis out their value on it, where the run has swept their backend."""
    for axis, value in LATER.items():
        # a backend without the axis was skipped wherever it was asked for
        swept = frame.loc[frame[axis].notna() & (frame["status"] != "skipped"), "backend"]
        if not swept.empty:
            left_out = frame[axis].isna() & frame["backend"].isin(set(swept))
            frame = frame.assign(**{axis: frame[axis].mask(left_out, value)})
    return frame


def where(cells: pd.DataFrame, **values: str | int) -> pd.DataFrame:
    """Keep the cells with these values on these columns."""
    for column, value in values.items():
        cells = cells[cells[column] == value]
    return cells


def fullest(cells: pd.DataFrame, axis: str, over: str) -> int:
    """Return the value of `axis` for which most different values of `over` exist, the largest of several."""
    numbers = cells.groupby(axis)[over].nunique()
    return int(max(numbers[numbers == numbers.max()].index))


def _usual_sms(group: pd.DataFrame, keep: "pd.Series[bool]") -> "pd.Series[bool]":
    """Return which cells of a kernel have the SM count that its rule takes, as far as the cells tell.

    A swap measured with one count alone has it. Where a ladder measured several, it is that of other swaps of the same
    block size; `keep` has those of the count that most cells have, for what is left.
    """
    shape = [group[name] for name in _SHAPE]
    alone = group["sms"].groupby(shape).transform("nunique") == 1
    usual = group[alone].groupby("block_bytes")["sms"].agg(lambda counts: counts.mode().iloc[-1])
    of_its_size = group["block_bytes"].map(usual)
    told = alone | (group["sms"] == of_its_size).fillna(value=False)
    return told | (keep & ~told.groupby(shape).transform("any"))


def _of_an_engine(values: "pd.Series[str]") -> "pd.Series[str]":
    """Leave out the hot end of the axes pool and reuse, unless there is little else: an engine swaps fresh blocks."""
    others = values[values != _HOT.get(str(values.name))].dropna()
    return others if 3 * len(others) >= len(values) else values


def _usual(values: "pd.Series[str]", preferred: str | None) -> str | None:
    candidates = _in_order(set(values.dropna().astype(str).mode()))
    if not candidates:
        return None
    return preferred if preferred in candidates else candidates[-1]


def _axis_words(cells: pd.DataFrame, axis: str, others: Set[str]) -> str:
    known = cells[["direction", axis]].drop_duplicates().dropna()
    values = [(str(way), str(value)) for way, value in known.itertuples(index=False)]
    by_way = {way: "/".join(map(size, _in_order({value for of, value in values if of == way}))) for way in DIRECTIONS}
    texts = {way: text for way, text in by_way.items() if text}
    if not texts:
        return ""
    same = len(set(texts.values())) == 1
    text = next(iter(texts.values())) if same else ", ".join(f"{text} for {way}" for way, text in texts.items())
    left_out = _in_order(others - {value for _, value in values})
    more = f" (not shown: {', '.join(map(size, left_out))})" if left_out else ""
    return f"{axis} {text}{more}"


def _in_order(values: Set[str]) -> list[str]:
    """Sort values of an axis so that whole numbers ascend."""
    return sorted(values, key=lambda value: (len(value), value))
