"""Convert records to pandas: one row per cell with its figures, and the raw samples in long form."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from statistics import median
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvbench.analysis.intervals import Floats, grouped_outliers, grouped_quartiles, median_interval
from kvbench.cells.axes import Direction, Neighbour, Order, StreamState
from kvbench.cells.axis import Role
from kvbench.cells.blocks import SCATTERED_FROM_BYTES, TRACE
from kvbench.cells.cell import AXES, Cell, axes_of, command_of
from kvbench.results.columns import NO_FIGURE, SAMPLE_COLUMNS, TIMES, TYPES
from kvbench.results.cost import layer_figures, median_or_nan, neighbour_figures
from kvbench.results.schema import CellRecord, EffectivePath, Failure, Record, Roof, RunInfo, Skip, Visit

# Separates the texts of one column that differ between visits; the most frequent path comes first.
BETWEEN: Final = "; "
# If scattered small blocks take less than this factor times the time of the same blocks laid out densely, no
# translation limit is in reach.
_LIMITED: Final = 1.1
_FORMULA: Final = re.compile(r"[=@\t\r]|[+-](?![\d.,]*%?$)")
_ORDER: Final = tuple(
    AXES[name].columns[-1]
    for role in (Role.SERIES, Role.SHAPE, Role.SIDE, Role.QUEUE, Role.BESIDE)
    for name in axes_of(role)
)


class _Rate(NamedTuple):
    """The highest rate that was reached, a median of rounds, and its interval: NaN with fewer than six rounds."""

    rate: float
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def of(cls, amount: float, times_us: Sequence[float]) -> Self:
        """Return the rate of `amount` in the times of the rounds, per microsecond; NaN for a time of 0."""
        ends_us = median_interval(times_us)
        low, high = (amount / us if 0 < us < math.inf else math.nan for us in reversed(ends_us))
        middle_us = median(times_us)
        return cls(amount / middle_us if middle_us > 0 else math.nan, low, high)

    def times(self, factor: float) -> "_Rate":
        return _Rate(*(factor * value for value in self))


def summarize(
    info: RunInfo,
    records: Sequence[Record],
    visits: Sequence[Visit],
    samples: pd.DataFrame,
    ceilings: Mapping[str, Sequence[float]],
) -> pd.DataFrame:
    """Return one row per cell of a run, from its parts: of the visits those that count, with their `long_samples`. A
    failed or skipped cell has its reason and no figures.
    """
    records_of_cell = _records_of_cell(visits, records)
    limits = {direction: median(rates) for direction, rates in ceilings.items() if rates}
    reached = {direction: _reached(records, direction) for direction in Direction}
    measured = [cell for cell, of_cell in records_of_cell.items() if _status(of_cell) == "ok"]
    made = Counter(record.cell for record in records if isinstance(record, Visit))
    rows = [
        _row(cell, of_cell, made[cell]) | _limits(cell, limits, reached[cell.direction])
        for cell, of_cell in records_of_cell.items()
    ]
    frame = pd.DataFrame(rows, columns=list(TYPES))
    figures = _figures(measured, samples).reindex(frame.index)
    frame[figures.columns] = figures
    frame["device"] = _device_label(info)
    # A queue measures the submission, whose time every sample has.
    without = (frame["status"] == "ok") & frame["swap_us_median"].isna() & (frame["queued"] == 0)
    frame.loc[without, ["status", "reason"]] = "no figure", NO_FIGURE
    for rate, time in (("", "median"), ("_q1", "q3"), ("_q3", "q1"), ("_low", "high"), ("_high", "low")):
        frame[f"gbps{rate}"] = frame["swap_bytes"] / frame[f"swap_us_{time}"] / 1e3
    # the swaps of a trace differ in size, and an empty launch has none
    rates = [name for name in TYPES if name.startswith("gbps")]
    frame[rates] = frame[rates].mask((frame["sequence"] == TRACE) | frame["path"].eq(EffectivePath.NOTHING))
    quantities = frame["stream_state"].map({state.value: state.quantity for state in StreamState})
    for quantity in dict.fromkeys(state.quantity for state in StreamState):
        frame[f"{quantity}_gbps"] = frame["gbps"].where(quantities == quantity)
    frame["roof_share"] = frame["gbps"] / frame["roof_gbps"]
    frame["ceiling_share"] = frame["gbps"] / frame["ceiling_gbps"]
    frame["samples"] = frame["samples"].fillna(0)
    # the same types, whatever the run holds
    others: dict[str, Any] = {name: kind for name, kind in TYPES.items() if frame.dtypes[name] != kind}
    in_order = sorted(range(len(rows)), key=lambda number: [_key(rows[number].get(name)) for name in _ORDER])
    typed = frame.assign(**{name: frame[name].astype(kind) for name, kind in others.items()}).iloc[in_order]
    # The copy consolidates columns of one type: pandas warns about more than a hundred blocks.
    return typed[list(TYPES)].reset_index(drop=True).copy()


def _key(value: Any) -> tuple[bool, Any]:
    """Return a key that sorts a value of an axis before its absence."""
    return value is None, value


def _device_label(info: RunInfo) -> str:
    """Return "cuda:N", or, for the host device, a label that cannot be mistaken for a GPU."""
    if info.device.get("kind") == "cpu":
        return "cpu (host copies, no GPU)"
    name = info.device.get("name")
    return name if isinstance(name, str) and re.fullmatch(r"cuda:\d{1,4}", name) else "unknown"


def as_csv(frame: pd.DataFrame) -> bytes:
    """Return a table as CSV; text that a spreadsheet would read as a formula starts with an apostrophe."""
    texts = frame.select_dtypes(["object", "str", "category"])
    safe = {str(name): texts[name].map(_no_formula) for name in texts}
    return frame.assign(**safe).to_csv(index=False).encode()


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def unqueued(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the cells without queued swaps, without a pool of streams, without a neighbour and without layers."""
    lonely = (frame["devices"] == 1) & (frame["neighbour"].isna() | (frame["neighbour"] == Neighbour.NONE.value))
    return frame[(frame["queued"] == 0) & (frame["streams"] == 1) & lonely & whole(frame)]


def whole(frame: pd.DataFrame) -> "pd.Series[bool]":
    """Return which cells have swaps of one size whose layers nothing waits for."""
    return ~by_layers(frame) & (frame["sequence"].astype(object) != TRACE)


def by_layers(frame: pd.DataFrame) -> "pd.Series[bool]":
    """Return which cells have swaps of layers, or a step whose layers wait for them."""
    layers = [isinstance(one, str) and one[-1:].isdigit() for one in frame["sequence"].tolist()]
    return pd.Series(layers, frame.index, dtype=bool)


def visit_times(frame: pd.DataFrame, samples: pd.DataFrame, time: str = "swap_us") -> dict[str, dict[int, float]]:
    """Return cell id -> round -> median of one of `TIMES` in that visit, for the cells of `frame` with a figure.

    `frame` is from `summarize`, `samples` from `long_samples`; a visit without a positive time is omitted.
    """
    with_figure = frame.loc[frame[f"{time}_median"] > 0, "cell_id"]
    medians = samples[samples["cell_id"].isin(with_figure)].groupby(["cell_id", "round"], sort=False)[time].median()
    medians = medians[(medians > 0) & np.isfinite(medians)]
    times: dict[str, dict[int, float]] = {}
    for (cell, number), us in zip(medians.index.tolist(), medians.tolist(), strict=True):
        times.setdefault(str(cell), {})[number] = us
    return times


def long_samples(visits: Sequence[Visit]) -> pd.DataFrame:
    """Return one row per raw sample of `visits`, in order: cell_id, round, sample, then `SAMPLE_COLUMNS`."""
    counts = [len(visit.samples) for visit in visits]
    owner = np.repeat(np.arange(len(visits)), counts)
    first = np.cumsum([0, *counts])[:-1]
    ids = pd.Series([visit.cell.id for visit in visits], dtype="str")
    rounds = np.array([visit.round for visit in visits], dtype=np.int64)
    columns: dict[str, Any] = {
        "cell_id": ids.take(owner).reset_index(drop=True),
        "round": rounds[owner],
        "sample": np.arange(len(owner)) - first[owner],
    }
    frame = pd.DataFrame(columns | {name: _gather(visits, name) for name in SAMPLE_COLUMNS})
    return frame.astype({"pending_before": "int8", "pending_after": "int8", "depth_held": "Int8"})


def _records_of_cell(visits: Sequence[Visit], records: Sequence[Record]) -> dict[Cell, list[CellRecord]]:
    """Return the records of every cell; cells with figures come first, as `_figures` numbers them."""
    records_of_cell: dict[Cell, list[CellRecord]] = {}
    others = (record for record in records if isinstance(record, Failure | Skip))
    for record in (*visits, *others):
        records_of_cell.setdefault(record.cell, []).append(record)
    return dict(sorted(records_of_cell.items(), key=lambda item: _status(item[1]) != "ok"))


def _status(records: Sequence[CellRecord]) -> str:
    if any(isinstance(record, Failure) for record in records):
        return "failed"
    if any(isinstance(record, Visit) and len(record.samples) for record in records):
        return "ok"
    # Only a journal not written by kvbench has visits without samples.
    return "skipped" if any(isinstance(record, Skip) for record in records) else "failed"


def _reached(records: Sequence[Record], direction: Direction) -> tuple[_Rate, _Rate] | None:
    """Return what SM copies reach in a direction, in GB/s in large blocks, and the translation limit in scattered
    blocks per second, NaN where it is not in reach; None if the run measured neither.
    """
    roofs = [one for one in records if isinstance(one, Roof) and one.direction == direction]
    roofs = [roof for roof in roofs if min(map(min, (roof.copy_us, roof.scattered_us, roof.dense_us))) > 0]
    if not roofs:
        return None
    scattered_us, dense_us, copy_us = (
        [median(getattr(roof, name)) for roof in roofs] for name in ("scattered_us", "dense_us", "copy_us")
    )
    limited = median(scattered_us) > _LIMITED * median(dense_us)
    limit = _Rate.of(roofs[0].blocks, scattered_us).times(1e6) if limited else _Rate(math.nan)
    return _Rate.of(roofs[0].copy_bytes, copy_us).times(1e-3), limit


def _limits(cell: Cell, ceilings: Mapping[str, float], reached: tuple[_Rate, _Rate] | None) -> dict[str, float]:
    """Return the ceiling, the translation limit and the roof of the cell; NaN if the run does not have them."""
    ceiling = ceilings.get(cell.direction, math.nan)
    limit = roof = _Rate(math.nan)
    if reached is not None:
        sm_gbps, limit = reached
        roof = _Rate(ceiling) if cell.sms is None else sm_gbps
        if cell.pool_bytes >= SCATTERED_FROM_BYTES and math.isfinite(limit.rate):
            roof = min(roof, limit.times(cell.block_bytes / 1e9), key=lambda one: one.rate)
    columns = dict(zip(("roof_gbps", "roof_gbps_low", "roof_gbps_high"), roof, strict=True))
    return {"ceiling_gbps": ceiling, "limit_blocks_per_s": limit.rate, **columns}


def _row(cell: Cell, records: Sequence[CellRecord], made: int) -> dict[str, Any]:
    """Return the row of a cell from its records; `made` visits were made, with repeated ones."""
    visits = [record for record in records if isinstance(record, Visit)]
    failures = [record for record in records if isinstance(record, Failure)]
    skips = [record.reason for record in records if isinstance(record, Skip)]
    reasons = [f"{failure.kind}: {failure.message}" for failure in failures] or skips
    status, texts = _status(records), cell.spelled_out()
    return {
        **texts,
        **{axis.field: getattr(cell, axis.field) for axis in AXES.values() if axis.number},
        **layer_figures(cell, visits),
        **neighbour_figures([visit.beside for visit in visits if visit.beside is not None]),
        "swap_bytes": cell.swap_bytes,
        "status": status,
        "reason": None if status == "ok" else _joined(reasons) or "no reason recorded",
        # A queue measures the submission.
        "rounds": len(visits) if cell.queued else sum(bool(visit.swap_times_us) for visit in visits),
        "path": _joined(path for path, _ in Counter(visit.path for visit in visits).most_common()),
        "staging_bytes": max((visit.staging_bytes or 0 for visit in visits), default=0) or math.nan,
        "sm_us": median_or_nan(visit.sm_us for visit in visits if visit.sm_us is not None),
        "chosen": _joined(visit.chosen for visit in visits if visit.chosen is not None),
        "order_note": "any on d2h" if (cell.direction, cell.order) == (Direction.D2H, Order.ANY) else None,
        "stopped_by": _joined(visit.stopped_by for visit in visits),
        "repeated": made - len(visits),
        "disturbed": sum(bool(visit.disturbed) for visit in visits),
        "verified_bytes": sum(visit.verified_bytes for visit in visits),
        "warnings": _joined(text for visit in visits for text in visit.warnings),
        "cell_id": cell.id,
        "command": next((failure.command for failure in failures), command_of(texts)),
    }


def _figures(measured: Sequence[Cell], samples: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell of `measured`: its times, its sample count, and how often the stream state held.

    The median of a time is the median of the visits' medians; its quartiles, which show the spread, are of all samples.
    The interval of swap_us comes from the visits. On a busy stream, swap_us is missing in visits whose delay ended
    before the submission did in more than half of the samples.
    """
    owner = pd.Index([cell.id for cell in measured], dtype="str").get_indexer(pd.Index(samples["cell_id"]))
    # Samples of failed cells (owner < 0) come first and are dropped.
    order = np.argsort(owner, kind="stable")[(owner < 0).sum() :]
    owner = owner[order]
    raw = {name: samples[name].to_numpy(np.float64, na_value=np.nan)[order] for name in SAMPLE_COLUMNS}
    per_cell = np.bincount(owner, minlength=len(measured))
    starts = np.flatnonzero(samples["sample"].to_numpy()[order] == 0)
    per_visit = np.diff(starts, append=len(order))
    marked = grouped_outliers(raw["swap_us"], per_visit)
    outliers = np.bincount(owner, weights=marked, minlength=len(measured)).astype(np.int64)
    columns: dict[str, Any] = {"samples": per_cell, "outliers": outliers}
    visits_of = np.bincount(owner[starts], minlength=len(measured))
    for time in TIMES:
        low, _, high = grouped_quartiles(raw[time], per_cell)
        _, of_visits, _ = grouped_quartiles(raw[time], per_visit)
        _, middle, _ = grouped_quartiles(of_visits, visits_of)
        columns |= {f"{time}_median": middle, f"{time}_q1": low, f"{time}_q3": high}
        if time == "swap_us":
            by_cell = np.split(of_visits, np.cumsum(visits_of))[:-1]
            ends = np.array([_known_interval(medians[~np.isnan(medians)]) for medians in by_cell]).reshape(-1, 2)
            columns |= {"swap_us_low": ends[:, 0], "swap_us_high": ends[:, 1]}
    states = np.array([cell.stream_state.value for cell in measured], dtype=str)
    before = _grouped_mean(raw["pending_before"], owner, per_cell)
    after = _grouped_mean(raw["pending_after"], owner, per_cell)
    pending, free = (
        np.isin(states, [state.value for state in StreamState if state.quantity == quantity])
        for quantity in ("execution", "latency")
    )
    columns["state_held"] = np.select([pending, free], [before, 1 - before], np.nan)
    columns["execution_only"] = np.where(pending, after, np.nan)
    columns["depth_held"] = _grouped_mean(raw["depth_held"], owner, per_cell)
    return pd.DataFrame(columns)


def _known_interval(medians: Floats) -> tuple[float, float]:
    """Return the interval of the median of some visits, NaN where they are too few for one."""
    low, high = median_interval(medians) if len(medians) else (-math.inf, math.inf)
    return (low, high) if math.isfinite(low) else (math.nan, math.nan)


def _gather(visits: Sequence[Visit], name: str) -> Floats:
    owners = visits if name == "swap_us" else [visit.samples for visit in visits]
    lists = (
        repeat(math.nan, len(visit.samples)) if (values := getattr(owner, name)) is None else values
        for visit, owner in zip(visits, owners, strict=True)
    )
    return np.fromiter(chain.from_iterable(lists), dtype=np.float64)


def _grouped_mean(values: Floats, owner: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Floats:
    return np.bincount(owner, weights=values, minlength=len(counts)) / counts


def _joined(texts: Any) -> str | None:
    return BETWEEN.join(dict.fromkeys(texts)) or None
