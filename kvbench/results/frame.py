"""Convert records to pandas: one row per cell with its figures, and the raw samples in long form."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, Final

import numpy as np
import pandas as pd

from kvbench.analysis.compare import Floats, grouped_quartiles
from kvbench.cells.axes import Direction, Order
from kvbench.cells.blocks import SCATTERED_FROM_BYTES
from kvbench.cells.cell import AXES, Cell
from kvbench.results.columns import OF_CELL, SAMPLE_COLUMNS, TIMES, TYPES
from kvbench.results.outcomes import Outcome, by_cell, cost_figures, distinct_texts, opposite_rate, share_of_flags
from kvbench.results.roofs import Rate, SmReach, reached
from kvbench.results.schema import Opposite, Record, RunInfo, Visit

_FORMULA: Final = re.compile(r"[=@\t\r]|[+-](?![\d.,]*%?$)")


def summarize(
    info: RunInfo,
    records: Sequence[Record],
    outcomes: Sequence[Outcome],
    visits: Sequence[Visit],
    ceilings_gbps: Mapping[Direction, float],
) -> pd.DataFrame:
    """One row per outcome of a run, with its figures; `visits` are those that count."""
    sm_copies = {direction: reached(records, direction) for direction in Direction}
    visits_of = by_cell(visits)
    rows = [
        _row(outcome, visits_of.get(outcome.cell, ())) | _limits(outcome.cell, ceilings_gbps, sm_copies)
        for outcome in outcomes
    ]
    # A failed cell has no quartiles, whatever it sampled.
    sampled = [visits_of[outcome.cell] if outcome.medians else () for outcome in outcomes]
    frame = pd.DataFrame(rows, columns=list(TYPES)).assign(device=_device_label(info), **_quartiles(sampled))
    # The slowest time is the lowest rate.
    for rate, time in (("_q1", "q3"), ("_q3", "q1"), ("_low", "high"), ("_high", "low")):
        frame[f"gbps{rate}"] = (frame["swap_bytes"] / frame[f"swap_us_{time}"] / 1e3).where(frame["gbps"].notna())
    frame["roof_share"] = frame["gbps"] / frame["roof_gbps"]
    frame["ceiling_share"] = frame["gbps"] / frame["ceiling_gbps"]
    # The same types, whatever the run holds. The copy puts columns of one together: pandas warns about many blocks.
    return frame[list(TYPES)].astype(TYPES).copy()


def _device_label(info: RunInfo) -> str:
    """The name of the GPU, "cuda:N", or, for the host device, a label that cannot be mistaken for one."""
    if info.device.get("kind") == "cpu":
        return "cpu (host copies, no GPU)"
    name = info.device.get("name")
    return name if isinstance(name, str) and re.fullmatch(r"cuda:\d{1,4}", name) else "unknown"


def as_csv(frame: pd.DataFrame) -> bytes:
    """A table as CSV; text that a spreadsheet would read as a formula starts with an apostrophe."""
    texts = frame.select_dtypes(["object", "str", "category"])
    safe = {str(name): texts[name].map(_no_formula) for name in texts}
    return frame.assign(**safe).to_csv(index=False).encode()


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def _limits(
    cell: Cell, ceilings_gbps: Mapping[Direction, float], sm_copies: Mapping[Direction, SmReach | None]
) -> dict[str, float]:
    """The ceiling, the translation limit and the roof of the cell; NaN if the run does not have them."""
    ceiling = ceilings_gbps.get(cell.direction, math.nan)
    limit = roof = Rate(math.nan)
    sm_reach = sm_copies[cell.direction]
    if sm_reach is not None:
        limit = sm_reach.limit
        roof = Rate(ceiling) if cell.sms is None else sm_reach.gbps
        if cell.pool_bytes >= SCATTERED_FROM_BYTES and math.isfinite(limit.rate):
            roof = min(roof, limit.scaled(cell.block_bytes / 1e9), key=lambda rate: rate.rate)
    columns = dict(zip(("roof_gbps", "roof_gbps_low", "roof_gbps_high"), roof, strict=True))
    return {"ceiling_gbps": ceiling, "limit_blocks_per_s": limit.rate, **columns}


def _row(outcome: Outcome, visits: Sequence[Visit]) -> dict[str, Any]:
    """The row of a cell, without what `_quartiles` takes from its samples."""
    cell, (low_us, high_us) = outcome.cell, outcome.interval()
    is_execution = bool(outcome.medians) and cell.stream_state.pending
    return {
        **axis_columns(cell),
        **cost_figures([*outcome.costs.values()]),
        **{column: opposite_rate(outcome.opposite, column)[0] for column in Opposite.__struct_fields__},
        **{f"{time}_median": outcome.us(time) for time in TIMES},
        "swap_us_low": low_us,
        "swap_us_high": high_us,
        "gbps": outcome.gbps,
        f"{cell.stream_state.quantity}_gbps": outcome.gbps,
        "swap_bytes": cell.swap_bytes,
        "status": outcome.status,
        "reason": outcome.reason or None,
        "samples": outcome.samples,
        "rounds": outcome.rounds,
        "outliers": outcome.spread.outliers if outcome.medians else None,
        "state_held": outcome.state_held,
        "execution_only": share_of_flags(visit.samples.pending_after for visit in visits) if is_execution else math.nan,
        "depth_held": outcome.depth_held,
        "path": outcome.path,
        "chosen": distinct_texts(visit.chosen for visit in visits if visit.chosen is not None),
        "order_note": "any on d2h" if (cell.direction, cell.order) == (Direction.D2H, Order.ANY) else None,
        "stopped_by": distinct_texts(visit.stopped_by for visit in visits),
        "repeated": outcome.visits_made - len(visits),
        "disturbed": len(outcome.disturbed),
        "verified_bytes": outcome.verified_bytes,
        "warnings": distinct_texts(outcome.warnings),
        "cell_id": cell.id,
        "command": outcome.command,
    }


def _quartiles(visits_of_cells: Sequence[Sequence[Visit]]) -> dict[str, Floats]:
    """The quartiles of each cell's samples, by column of the summary."""
    visits = [*chain.from_iterable(visits_of_cells)]
    per_cell = np.array([sum(len(visit.samples) for visit in of_cell) for of_cell in visits_of_cells], dtype=np.int64)
    columns: dict[str, Floats] = {}
    for time in TIMES:
        low, _, high = grouped_quartiles(_gather(visits, time), per_cell)
        columns |= {f"{time}_q1": low, f"{time}_q3": high}
    return columns


def long_samples(visits: Sequence[Visit]) -> pd.DataFrame:
    """One row per raw sample of `visits`, in order: cell_id, the axes of the cell, round, sample, `SAMPLE_COLUMNS`.

    Axes of text are categories.
    """
    counts = [len(visit.samples) for visit in visits]
    types = {"cell_id": "str", **OF_CELL, "round": "int64"}
    axes_of = {cell: axis_columns(cell) for cell in by_cell(visits)}
    rows = [{"cell_id": visit.cell.id, **axes_of[visit.cell], "round": visit.round} for visit in visits]
    texts = [name for name, kind in OF_CELL.items() if kind == "str"]
    of_visits = pd.DataFrame(rows, columns=list(types)).astype(types).astype(dict.fromkeys(texts, "category"))
    axes = of_visits.take(np.repeat(np.arange(len(visits)), counts)).reset_index(drop=True)
    columns = {"sample": np.concatenate([np.arange(0), *map(np.arange, counts)])}
    columns |= {name: _gather(visits, name) for name in SAMPLE_COLUMNS}
    types_of_flags = {"pending_before": "int8", "pending_after": "int8", "depth_held": "Int8"}
    return pd.concat([axes, pd.DataFrame(columns).astype(types_of_flags)], axis="columns")


def axis_columns(cell: Cell) -> dict[str, Any]:
    """The columns of a cell's axes: its texts, and its numbers."""
    return {**cell.spelled_out(), **{axis.field: getattr(cell, axis.field) for axis in AXES.values() if axis.number}}


def _gather(visits: Sequence[Visit], name: str) -> Floats:
    lists: list[Iterable[float]] = []
    for visit in visits:
        values = visit.swap_us if name == "swap_us" else getattr(visit.samples, name)
        lists.append(repeat(math.nan, len(visit.samples)) if values is None else values)
    return np.fromiter(chain.from_iterable(lists), dtype=np.float64)
