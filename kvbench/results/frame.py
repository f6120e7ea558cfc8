"""Records to pandas: a row per cell with its figures, and the raw samples in long form."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvbench.axes import AXES, Cell, Direction, Order, StreamState
from kvbench.results.cells import CellIndex
from kvbench.results.schema import SAMPLE_COLUMNS, Ceiling, CellRecord, Failure, Record, Samples, Skip, Visit
from kvbench.units import gigabytes_per_second

Floats = npt.NDArray[np.float64]

TIMES: Final = ("prepare_us", "coalesce_us", "submit_us", "gpu_us", "wall_us", "cpu_us", "swap_us")
_RAW: Final = Samples.__struct_fields__
_NUMERIC_AXES: Final = frozenset({"blocks", "sms"})
_TEXT_AXES: Final = tuple(name for name in AXES if name not in _NUMERIC_AXES)
_FIGURES: Final = tuple(f"{time}_{part}" for time in TIMES for part in ("median", "q1", "q3"))
_COLUMNS: Final = (
    "device",
    *(part for name in AXES for part in ((name, "block_bytes") if name == "block_size" else (name,))),
    "swap_bytes", "status", "reason", "samples", "rounds", *_FIGURES, "gbps", "gbps_q1", "gbps_q3",
    "ceiling_gbps", "ceiling_share", "path", "order_note", "state_held", "execution_only", "stopped_by",
    "verified_bytes", "warnings", "cell_id", "command",
)  # fmt: skip
_ORDER: Final = (
    "backend", "direction", "stream_state", "blocks", "block_bytes", "sms", "order", "pattern", "memory",
    "descriptors_per_call", "coalesce", "overlap",
)  # fmt: skip


@dataclass(slots=True)
class _History:
    """What the journal says of one cell."""

    visits: list[Visit] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)

    def add(self, record: CellRecord) -> None:
        match record:
            case Visit():
                self.visits.append(record)
            case Failure():
                self.failures.append(record)
            case Skip():
                self.skips.append(record)

    @property
    def status(self) -> str:
        if self.failures:
            return "failed"
        return "ok" if any(len(visit.samples) for visit in self.visits) else "skipped" if self.skips else "failed"


def summarize(records: Sequence[Record], cells: CellIndex, device: str) -> pd.DataFrame:
    """Return a row per cell; a failed or skipped cell has its reason and no figures; `device` stands in every row."""
    histories = _histories(records, cells)
    measured = {cell: story.visits for cell, story in histories.items() if story.status == "ok"}
    ceilings = _ceilings(records)
    frame = pd.DataFrame(
        [_words(cell, story, ceilings) for cell, story in histories.items()],
        columns=[name for name in _COLUMNS if name not in _FIGURES],
    )
    figures = _figures(measured).reindex(range(len(frame)))
    figures.index = frame.index
    frame = frame.drop(columns=[name for name in figures if name in frame]).join(figures)
    frame["device"] = device
    frame["gbps"] = frame["swap_bytes"] / frame["swap_us_median"] / 1e3
    frame["gbps_q1"] = frame["swap_bytes"] / frame["swap_us_q3"] / 1e3
    frame["gbps_q3"] = frame["swap_bytes"] / frame["swap_us_q1"] / 1e3
    frame["ceiling_share"] = frame["gbps"] / frame["ceiling_gbps"]
    return _typed(frame[list(_COLUMNS)]).sort_values(list(_ORDER), ignore_index=True)


def long_samples(records: Sequence[Record], cells: CellIndex) -> pd.DataFrame:
    """Return a row per raw sample, in the journal's order: cell_id, round, sample, then `SAMPLE_COLUMNS`."""
    visits = [record for record in records if isinstance(record, Visit)]
    counts = [len(visit.samples) for visit in visits]
    owner = np.repeat(np.arange(len(visits)), counts)
    first = np.cumsum([0, *counts])[:-1]
    ids = np.array([cells[visit.cell].id for visit in visits], dtype=object)
    rounds = np.array([visit.round for visit in visits], dtype=np.int64)
    columns: dict[str, Any] = {
        "cell_id": pd.Series(ids[owner], dtype="str"),
        "round": rounds[owner],
        "sample": np.arange(len(owner)) - first[owner],
    }
    raw = {name: _gather(visits, name) for name in _RAW}
    idle = np.array([visit.cell["stream_state"] == StreamState.IDLE for visit in visits], dtype=bool)
    raw["swap_us"] = _swap_us(raw, idle[owner])
    frame = pd.DataFrame(columns | {name: raw[name] for name in SAMPLE_COLUMNS})
    return frame.astype({"pending_before": "int8", "pending_after": "int8"})


def _histories(records: Sequence[Record], cells: CellIndex) -> dict[Cell, _History]:
    """Return the cells in the order of their status: those with figures first, as `_figures` numbers them."""
    found: dict[Cell, _History] = {}
    for record in records:
        if isinstance(record, Skip | Visit | Failure):
            found.setdefault(cells[record.cell], _History()).add(record)
    return dict(sorted(found.items(), key=lambda item: item[1].status != "ok"))


def _words(cell: Cell, story: _History, ceilings: dict[str, float]) -> dict[str, Any]:
    visits = story.visits
    reasons = [f"{failure.kind}: {failure.message}" for failure in story.failures] or [
        skip.reason for skip in story.skips
    ]  # a visit without samples, which only a stranger's journal holds, has neither
    return cell.as_strings() | {
        "blocks": cell.blocks,
        "block_bytes": cell.block_bytes,
        "sms": cell.sms,
        "swap_bytes": cell.swap_bytes,
        "status": story.status,
        "reason": None if story.status == "ok" else _joined(reasons) or "no reason recorded",
        "rounds": len(visits),
        "ceiling_gbps": ceilings.get(cell.direction, float("nan")),
        "path": _joined(visit.path for visit in visits),
        "order_note": "any on d2h" if (cell.direction, cell.order) == (Direction.D2H, Order.ANY) else None,
        "stopped_by": _joined(visit.stopped_by for visit in visits),
        "verified_bytes": sum(visit.verified_bytes for visit in visits),
        "warnings": _joined(text for visit in visits for text in visit.warnings),
        "cell_id": cell.id,
        "command": next((failure.command for failure in story.failures), cell.command()),
    }


def _figures(measured: dict[Cell, list[Visit]]) -> pd.DataFrame:
    """Return a row per cell of `measured`: quartiles of every time, sample count, and how the stream's state held."""
    visits = [visit for stays in measured.values() for visit in stays]
    per_cell = np.array([sum(len(visit.samples) for visit in stays) for stays in measured.values()], dtype=np.int64)
    owner = np.repeat(np.arange(len(measured)), per_cell)
    raw = {name: _gather(visits, name) for name in _RAW}
    idle = np.array([cell.stream_state is StreamState.IDLE for cell in measured], dtype=bool)
    raw["swap_us"] = _swap_us(raw, idle[owner])
    columns: dict[str, Any] = {"samples": per_cell}
    for time in TIMES:
        low, middle, high = _grouped_quartiles(raw[time], owner, per_cell)
        columns |= {f"{time}_median": middle, f"{time}_q1": low, f"{time}_q3": high}
    before = _grouped_mean(raw["pending_before"], owner, per_cell)
    after = _grouped_mean(raw["pending_after"], owner, per_cell)
    columns["state_held"] = np.where(idle, 1 - before, before)
    columns["execution_only"] = np.where(idle, np.nan, after)
    return pd.DataFrame(columns)


def _swap_us(raw: dict[str, Floats], idle: npt.NDArray[np.bool_]) -> Floats:
    return np.where(idle, raw[StreamState.IDLE.swap_clock], raw[StreamState.BUSY.swap_clock])


def _gather(visits: Sequence[Visit], name: str) -> Floats:
    return np.array([value for visit in visits for value in getattr(visit.samples, name)], dtype=np.float64)


def _grouped_mean(values: Floats, owner: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Floats:
    return np.bincount(owner, weights=values, minlength=len(counts)) / counts


def _grouped_quartiles(
    values: Floats, owner: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> tuple[Floats, Floats, Floats]:
    """Return the quartiles of each group (numpy's linear rule); `values` lie group after group, none of them empty."""
    ordered = values[np.lexsort((values, owner))]
    first = np.cumsum(counts) - counts

    def at(share: float) -> Floats:
        place = share * (counts - 1)
        below = np.floor(place).astype(np.int64)
        above = np.minimum(below + 1, counts - 1)
        low, high = ordered[first + below], ordered[first + above]
        return np.asarray(low + (high - low) * (place - below))

    return at(0.25), at(0.5), at(0.75)


def _ceilings(records: Sequence[Record]) -> dict[str, float]:
    """Return direction -> median GB/s over every large copy of the run."""
    rates: dict[str, list[float]] = {}
    for record in records:
        if isinstance(record, Ceiling):
            rates.setdefault(record.direction, []).extend(
                gigabytes_per_second(record.swap_bytes, us) for us in record.gpu_us if us > 0
            )
    return {direction: float(np.median(all_)) for direction, all_ in rates.items() if all_}


def _joined(texts: Any) -> str | None:
    return "; ".join(dict.fromkeys(texts)) or None


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Give every column one type, whatever the run held: text, Int64, or float64."""
    whole = ("blocks", "sms", "block_bytes", "swap_bytes", "samples", "rounds", "verified_bytes")
    text = (
        *_TEXT_AXES,
        "device",
        "status",
        "reason",
        "path",
        "order_note",
        "stopped_by",
        "warnings",
        "cell_id",
        "command",
    )
    frame["samples"] = frame["samples"].fillna(0)
    kinds: dict[str, Any] = dict.fromkeys(_COLUMNS, "float64") | dict.fromkeys(whole, "Int64")
    return frame.astype(kinds | dict.fromkeys(text, "str"))


__all__ = ["TIMES", "long_samples", "summarize"]
