"""Layers: loads layer by layer, and how much of them a step hides whose layers wait for them."""

import math
from collections.abc import Sequence
from typing import Final

import pandas as pd

from kvbench.cells.blocks import AT_ONCE
from kvbench.cells.facts import method_label
from kvbench.cells.pattern import AS_PATTERN
from kvbench.errors import UsageError
from kvbench.models.geometry import swaps_from_plain
from kvbench.report.model import DataTable, Part, PartOrReason, Text
from kvbench.report.numbers import ABSENT, bytes_size, count, figure
from kvbench.report.tables import INCLUDES, comma_separated, measured_table, sms_of
from kvbench.report.view import Row, View, rows_of

# The share that counts as hidden, and the length of the loads that findings speak of.
HIDDEN: Final = 0.95
TOKENS: Final = 2048
_KEY: Final = ("blocks", "block_bytes", "pattern", "host_pattern")
_HIDDEN: Final = (
    "Hidden: 1 - (step with loads - step alone) / time until the last layer has arrived, with its 95% interval; "
    "below 0 where the loads delay the step by more than their own time. At once: one swap, for which all layers wait"
)
_NOTE: Final = (
    "First, last: from the caller's arrays until the first and the last layer have arrived, without the step. Slowest "
    "gap: the longest time between two layers. Caller: time of the thread that submits, for each layer. Step: alone, "
    f"then with the loads that its layers wait for, from the submission of the loads. {_HIDDEN}"
)
_TIMES: Final = {
    "First, us": "first_layer_us",
    "Last, us": "swap_us_median",
    "Slowest gap, us": "slowest_gap_us",
    "Caller, us a layer": "caller_of_layer_us",
    "Step, us": "neighbour_alone_us",
    "With loads, us": "neighbour_beside_us",
}


def make(view: View) -> PartOrReason:
    cells = view.only(view.measured, lambda cell: cell.layers > 0)
    if cells.empty:
        return "it needs swaps by layers (sequence=layers-L)"
    loads, unit = _named(view, cells)
    tables = [_table(view, str(what), unit, group) for what, group in loads.groupby("what", sort=False)]
    decided = loads[loads["hidden_share_low"].notna()]
    findings = [_finding(str(what), unit, rows_of(group)) for what, group in decided.groupby("what", sort=False)]
    return lambda: Part(findings, tables=tables)


def _named(view: View, cells: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the swaps by layers with columns `what` (is loaded, beside what), `size`, `method` and
    `caller_of_layer_us`; and the unit of sizes, tokens or blocks.
    """
    try:
        models = swaps_from_plain(view.run.info.spec.get("models", []))
    except UsageError:
        models = ()
    swaps = {(swap.blocks, swap.block_bytes, swap.pattern, swap.host_pattern): swap for swap in models}
    rows = rows_of(cells.assign(host_pattern=cells["host_pattern"].fillna(AS_PATTERN.kind)))
    known = [swaps.get(tuple(row[name] for name in _KEY)) for row in rows]
    tokens = all(known)
    what = [_what(row, swap.title if swap and tokens else "") for row, swap in zip(rows, known, strict=True)]
    sizes = [swap.tokens if swap and tokens else int(row["blocks"]) for row, swap in zip(rows, known, strict=True)]
    callers = [row["caller_us_median"] / _layers(row) for row in rows]
    methods = [
        comma_separated(method_label(row["backend"], sms_of(row)), "at once" * (AT_ONCE in row["sequence"]))
        for row in rows
    ]
    named = cells.assign(what=what, size=sizes, method=methods, caller_of_layer_us=callers)
    return named, "tokens" if tokens else "blocks"


def _layers(row: Row) -> int:
    return int(str(row["sequence"]).rpartition("-")[2])


def _what(row: Row, model: str) -> str:
    loads = model or f"{_layers(row)} layers of {bytes_size(row['block_bytes'])} blocks, {row['pattern']}"
    beside = f" beside {row['neighbour']}" if isinstance(row["neighbour"], str) and row["neighbour"] != "none" else ""
    return f"{loads}, {row['direction']}{beside}"


def _table(view: View, title: str, unit: str, cells: pd.DataFrame) -> DataTable:
    rows = sorted(rows_of(cells), key=lambda row: (row["size"], row["method"]))
    times = [[figure(row[name]) for name in _TIMES.values()] for row in rows]
    body = [[count(row["size"]), row["method"], *us, _share(row)] for row, us in zip(rows, times, strict=True)]
    header = (unit.capitalize(), "Method", *_TIMES, "Hidden")
    return measured_table(view, cells, INCLUDES["swap_us"], title, header, body, [_NOTE], left=2)


def _share(row: Row) -> str:
    if not math.isfinite(row["hidden_share"]):
        return ABSENT
    share, low, high = (f"{row[f'hidden_share{end}']:z.0%}" for end in ("", "_low", "_high"))
    return f"{share} ({low} to {high})" if math.isfinite(row["hidden_share_low"]) else f"≈ {share}"


def _finding(what: str, unit: str, rows: Sequence[Row]) -> Text:
    """Name the methods that hide the loads of TOKENS, or of the most that was loaded, and their submission times."""
    sizes = {row["size"] for row in rows}
    at = TOKENS if unit == "tokens" and TOKENS in sizes else max(sizes)
    loads = sorted((row for row in rows if row["size"] == at), key=lambda row: -row["hidden_share"])
    hiding = [row["method"] for row in loads if row["hidden_share_low"] >= HIDDEN]
    callers = sorted((row["caller_of_layer_us"], row["method"]) for row in loads if AT_ONCE not in row["sequence"])
    text = f"{what}, {count(at)} {unit}: "
    if hiding:
        text += f"{' and '.join(hiding)} {'hide' if len(hiding) > 1 else 'hides'} at least {HIDDEN:.0%} of the loads"
    else:
        text += (
            f"no backend clearly hides {HIDDEN:.0%} of the loads; {loads[0]['method']} hides most, {_share(loads[0])}"
        )
    if callers:
        (least_us, least), (most_us, most) = callers[0], callers[-1]
        text += f"; submission alone takes {figure(least_us)} us a layer ({least})"
        text += f" to {figure(most_us)} us ({most})" if most != least else ""
    return f"{text}."
