"""Slowdown at equal GB/s: what each way to swap costs a neighbour where all move as much."""

from collections.abc import Sequence
from typing import Final

import pandas as pd

from kvbench.report.model import DataTable, Strong, Text
from kvbench.report.numbers import noun, two_digits
from kvbench.report.tables import Row, caption, grouped, rows_of
from kvbench.report.view import View
from kvbench.report.ways import axes_apart, sms_of, way_of
from kvbench.results.cost import AtRate, at_rate, costs_of
from kvbench.results.frame import visits_that_count

_HEADER: Final = ("Neighbour", "Dir", "Swaps", "From", "GB/s", "Slowdown (95%)")
_INCLUDES: Final = (
    "Slowdown as above, at these GB/s: the share of its time that the neighbour loses, on a line between the two cells "
    "of the way that are next to that rate, by SM count or rate cap; between no swaps and the slowest where no cell is "
    "slower"
)
_NOTES: Final = (
    (Strong("Bold"), ": the least at this rate, intervals aside. ≈: no cell is as slow, or too few visits"),
)


def equal_rates(view: View, cells: pd.DataFrame, rates: Sequence[float]) -> pd.DataFrame:
    """Return a row for each way to swap and each of `rates` (GB/s) that it reaches, the cheapest first.

    The columns are neighbour, direction, swaps, gbps, slowdown, slowdown_low, slowdown_high, from. `cells` are those
    with a slowdown.
    """
    apart = [name for name in axes_apart(cells) if name != "rate_cap"]
    costs = costs_of(visits_that_count(view.run.records))
    found = []
    ways = grouped(rows_of(cells), lambda row: (str(row["neighbour"]), str(row["direction"]), way_of(row, apart)))
    for (neighbour, direction, way), rows in ways.items():
        by_id = {str(row["cell_id"]): row for row in rows}
        own = {cell: costs[cell] for cell in by_id if cell in costs}
        for rate in rates:
            if (at := at_rate(rate, own)) is not None:
                words = _from(at, by_id)
                found.append((neighbour, direction, way, rate, at.slowdown, at.low, at.high, words))
    names = ("neighbour", "direction", "swaps", "gbps", "slowdown", "slowdown_low", "slowdown_high", "from")
    made = pd.DataFrame(found, columns=list(names))
    return made.sort_values(["neighbour", "direction", "gbps", "slowdown"], ignore_index=True, kind="stable")


def equal_table(view: View, cells: pd.DataFrame, equal: pd.DataFrame) -> DataTable:
    """Return the table of `equal`, which `equal_rates` made of `cells`."""
    body: list[list[Text]] = []
    last = None
    for row in rows_of(equal):
        place = row["neighbour"], row["direction"], row["gbps"]
        least, last = place != last, place
        slowdown = _slowdown(row)
        shown = Strong(slowdown) if least else slowdown
        body.append([row["neighbour"], row["direction"], row["swaps"], row["from"], f"{row['gbps']:.0f}", shown])
    return DataTable("Slowdown at equal GB/s", _HEADER, body, _NOTES, caption(view, cells, _INCLUDES), left=4)


def _slowdown(row: Row) -> str:
    text = f"{row['slowdown']:.2f}"
    interval = f" ({row['slowdown_low']:.2f} to {row['slowdown_high']:.2f})" if row["slowdown_low"] > 0 else ""
    return f"{text}{interval}" if interval and not row["from"].startswith("no swaps") else f"≈ {text}{interval}"


def _from(at: AtRate, rows: dict[str, Row]) -> str:
    """Return the cells that the slowdown comes from: "1 SM at 20 GB/s, 2 SMs at 41 GB/s"."""
    return ", ".join("no swaps" if cell is None else _point(rows[cell]) for cell in at.between)


def _point(row: Row) -> str:
    sms, cap = sms_of(row), row["rate_cap"]
    settings = [*([noun(sms, "SM")] if sms else []), *([f"rate_cap {cap}"] if isinstance(cap, int) and cap else [])]
    return f"{' '.join(settings)} at {two_digits(row['swaps_beside_gbps'])} GB/s".strip().removeprefix("at ")
