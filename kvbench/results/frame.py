"""Records to pandas: a row per cell with its figures, and the raw samples in long form."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvbench.axes import AXES, Cell, Direction, Order, StreamState, command_of
from kvbench.results.cells import CellIndex
from kvbench.results.copies import ceiling_rates
from kvbench.results.schema import SAMPLE_COLUMNS, CellRecord, Failure, Record, Samples, Skip, Visit
from kvbench.stats import Floats, grouped_outliers, grouped_quartiles

TIMES: Final = ("prepare_us", "coalesce_us", "submit_us", "gpu_us", "wall_us", "cpu_us", "swap_us")
_RAW: Final = Samples.__struct_fields__
_NUMERIC_AXES: Final = frozenset({"blocks", "sms", "queued", "streams"})
_TEXT_AXES: Final = tuple(name for name in AXES if name not in _NUMERIC_AXES)
# Stands between the texts of one column that differ from visit to visit; of paths, that of most visits comes first.
BETWEEN: Final = "; "
_FIGURES: Final = tuple(f"{time}_{part}" for time in TIMES for part in ("median", "q1", "q3"))
_COLUMNS: Final = (
    "device",
    *(part for name in AXES for part in ((name, "block_bytes") if name == "block_size" else (name,))),
    "swap_bytes", "status", "reason", "samples", "rounds", "outliers", *_FIGURES, "gbps", "gbps_q1", "gbps_q3",
    "ceiling_gbps", "ceiling_share", "path", "chosen", "order_note", "state_held", "execution_only", "depth_held",
    "stopped_by", "verified_bytes", "warnings", "cell_id", "command",
)  # fmt: skip
_ORDER: Final = (
    "backend", "direction", "stream_state", "blocks", "block_bytes", "sms", "order", "pattern", "memory",
    "descriptors_per_call", "coalesce", "overlap", "queued", "streams",
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


def summarize(records: Sequence[Record], cells: CellIndex, device: str, samples: pd.DataFrame) -> pd.DataFrame:
    """Return a row per cell; a failed or skipped cell has its reason and no figures.

    `device` stands in every row; `samples` are those of `long_samples`.
    """
    histories = _histories(records, cells)
    measured = [cell for cell, story in histories.items() if story.status == "ok"]
    ceilings = _ceilings(records)
    frame = pd.DataFrame(
        [_words(cell, cells, story, ceilings) for cell, story in histories.items()],
        columns=[name for name in _COLUMNS if name not in _FIGURES],
    )
    figures = _figures(measured, cells, samples).reindex(range(len(frame)))
    figures.index = frame.index
    frame = frame.drop(columns=[name for name in figures if name in frame]).join(figures)
    frame["device"] = device
    frame["gbps"] = frame["swap_bytes"] / frame["swap_us_median"] / 1e3
    frame["gbps_q1"] = frame["swap_bytes"] / frame["swap_us_q3"] / 1e3
    frame["gbps_q3"] = frame["swap_bytes"] / frame["swap_us_q1"] / 1e3
    frame["ceiling_share"] = frame["gbps"] / frame["ceiling_gbps"]
    return _typed(frame[list(_COLUMNS)]).sort_values(list(_ORDER), ignore_index=True)


def unqueued(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the cells whose swaps had no queue in front of them and no pool of streams."""
    return frame[(frame["queued"] == 0) & (frame["streams"] == 1)]


def long_samples(records: Sequence[Record], cells: CellIndex) -> pd.DataFrame:
    """Return a row per raw sample, in the journal's order: cell_id, round, sample, then `SAMPLE_COLUMNS`."""
    visits = [record for record in records if isinstance(record, Visit)]
    counts = [len(visit.samples) for visit in visits]
    owner = np.repeat(np.arange(len(visits)), counts)
    first = np.cumsum([0, *counts])[:-1]
    ids = pd.Series([cells.id(cells[visit.cell]) for visit in visits], dtype="str")
    rounds = np.array([visit.round for visit in visits], dtype=np.int64)
    columns: dict[str, Any] = {
        "cell_id": ids.take(owner).reset_index(drop=True),
        "round": rounds[owner],
        "sample": np.arange(len(owner)) - first[owner],
    }
    raw = {name: _gather(visits, name) for name in _RAW}
    idle = np.array([visit.cell["stream_state"] == StreamState.IDLE for visit in visits], dtype=bool)
    raw["swap_us"] = _swap_us(raw, idle[owner])
    frame = pd.DataFrame(columns | {name: raw[name] for name in SAMPLE_COLUMNS})
    return frame.astype({"pending_before": "int8", "pending_after": "int8", "depth_held": "Int8"})


def _histories(records: Sequence[Record], cells: CellIndex) -> dict[Cell, _History]:
    """Return the cells in the order of their status: those with figures first, as `_figures` numbers them."""
    found: dict[str, tuple[Cell, _History]] = {}
    for record in records:
        if isinstance(record, CellRecord):
            cell = cells[record.cell]
            cell_id = cells.id(cell)
            if cell_id not in found:
                found[cell_id] = cell, _History()
            found[cell_id][1].add(record)
    return dict(sorted(found.values(), key=lambda story: story[1].status != "ok"))


def _words(cell: Cell, cells: CellIndex, story: _History, ceilings: dict[str, float]) -> dict[str, Any]:
    visits, strings = story.visits, cells.strings(cell)
    reasons = [f"{failure.kind}: {failure.message}" for failure in story.failures] or [
        skip.reason for skip in story.skips
    ]  # a visit without samples, which only a stranger's journal holds, has neither
    return strings | {
        "blocks": cell.blocks,
        "block_bytes": cell.block_bytes,
        "sms": cell.sms,
        "queued": cell.queued,
        "streams": cell.streams,
        "swap_bytes": cell.swap_bytes,
        "status": story.status,
        "reason": None if story.status == "ok" else _joined(reasons) or "no reason recorded",
        "rounds": len(visits),
        "ceiling_gbps": ceilings.get(cell.direction, float("nan")),
        "path": _joined(path for path, _ in Counter(visit.path for visit in visits).most_common()),
        "chosen": _joined(visit.chosen for visit in visits if visit.chosen is not None),
        "order_note": "any on d2h" if (cell.direction, cell.order) == (Direction.D2H, Order.ANY) else None,
        "stopped_by": _joined(visit.stopped_by for visit in visits),
        "verified_bytes": sum(visit.verified_bytes for visit in visits),
        "warnings": _joined(text for visit in visits for text in visit.warnings),
        "cell_id": cells.id(cell),
        "command": next((failure.command for failure in story.failures), command_of(strings)),
    }


def _figures(measured: Sequence[Cell], cells: CellIndex, samples: pd.DataFrame) -> pd.DataFrame:
    """Return a row per cell of `measured`: quartiles of every time, sample count, and how the stream's state held."""
    owner = pd.Index([cells.id(cell) for cell in measured], dtype="str").get_indexer(pd.Index(samples["cell_id"]))
    order = np.argsort(owner, kind="stable")[(owner < 0).sum() :]  # failed cells, which are none of these, come first
    owner = owner[order]
    raw = {name: samples[name].to_numpy(np.float64, na_value=np.nan)[order] for name in SAMPLE_COLUMNS}
    per_cell = np.bincount(owner, minlength=len(measured))
    starts = np.flatnonzero(samples["sample"].to_numpy()[order] == 0)
    marked = grouped_outliers(raw["swap_us"], np.diff(starts, append=len(order)))
    outliers = np.bincount(owner, weights=marked, minlength=len(measured)).astype(np.int64)
    columns: dict[str, Any] = {"samples": per_cell, "outliers": outliers}
    for time in TIMES:
        low, middle, high = grouped_quartiles(raw[time], per_cell)
        columns |= {f"{time}_median": middle, f"{time}_q1": low, f"{time}_q3": high}
    idle = np.array([cell.stream_state is StreamState.IDLE for cell in measured], dtype=bool)
    before = _grouped_mean(raw["pending_before"], owner, per_cell)
    after = _grouped_mean(raw["pending_after"], owner, per_cell)
    columns["state_held"] = np.where(idle, 1 - before, before)
    columns["execution_only"] = np.where(idle, np.nan, after)
    columns["depth_held"] = _grouped_mean(raw["depth_held"], owner, per_cell)
    return pd.DataFrame(columns)


def _swap_us(raw: dict[str, Floats], idle: npt.NDArray[np.bool_]) -> Floats:
    return np.where(idle, raw[StreamState.IDLE.swap_clock], raw[StreamState.BUSY.swap_clock])


def _gather(visits: Sequence[Visit], name: str) -> Floats:
    """Return one field of all samples, nan where a visit does not have it."""
    lists = (
        repeat(math.nan, len(visit.samples)) if (values := getattr(visit.samples, name)) is None else values
        for visit in visits
    )
    return np.fromiter(chain.from_iterable(lists), dtype=np.float64)


def _grouped_mean(values: Floats, owner: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Floats:
    return np.bincount(owner, weights=values, minlength=len(counts)) / counts


def _ceilings(records: Sequence[Record]) -> dict[str, float]:
    """Return direction -> median GB/s over every large copy of the run."""
    return {direction: float(np.median(all_)) for direction, all_ in ceiling_rates(records).items() if all_}


def _joined(texts: Any) -> str | None:
    return BETWEEN.join(dict.fromkeys(texts)) or None


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Give every column one type, whatever the run held: text, Int64, or float64."""
    whole = (*_NUMERIC_AXES, "block_bytes", "swap_bytes", "samples", "rounds", "outliers", "verified_bytes")
    text = (
        *_TEXT_AXES,
        "device",
        "status",
        "reason",
        "path",
        "chosen",
        "order_note",
        "stopped_by",
        "warnings",
        "cell_id",
        "command",
    )
    frame["samples"] = frame["samples"].fillna(0)
    kinds: dict[str, Any] = dict.fromkeys(_COLUMNS, "float64") | dict.fromkeys(whole, "Int64")
    return frame.astype(kinds | dict.fromkeys(text, "str"))
