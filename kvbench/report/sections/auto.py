"""The backend `auto` against the best of the others, cell by cell, where both were measured."""

from typing import Final

import pandas as pd

from kvbench.errors import UsageError
from kvbench.report.model import DataTable, Part, Section, Strong, Text
from kvbench.report.numbers import bytes_size, count, figure
from kvbench.report.select import where
from kvbench.report.tables import (
    SAME,
    Footnotes,
    Row,
    a_stream,
    caption,
    family,
    few_visits,
    grid_table,
    rows_of,
    unsure,
)
from kvbench.report.view import View
from kvbench.text import short
from kvbench.tune.fit import choice_of, tried
from kvbench.tune.table import AUTO, Policy

CLOSE: Final = 0.97
_MOST_SHOWN: Final = 12
_POINT: Final = ["direction", "stream_state", "block_bytes", "blocks"]
_INCLUDES: Final = (
    "Time of the fastest other backend over that of auto: 1 where auto is as fast, below 1 where it is slower. The "
    "fastest is the lowest of several medians, which noise alone makes lower than auto's"
)
_MARKS: Final = (Strong("Bold"), f": below {CLOSE}. ≈: auto and the fastest are not told apart: {SAME}; or undecided")


def make(view: View) -> Part | str:
    cells = tried(view.frame)
    cells = cells[cells["cell_id"].isin(view.visits)]
    found = _against_best(view, cells)
    if found.empty:
        return f"it needs {AUTO} and another backend measured at the same block size and number of blocks"
    tables = [_ratios(view, kind) for _, kind in found.groupby(["direction", "stream_state"], sort=False)]
    missed = found[found["ratio"] < CLOSE].sort_values("ratio", kind="stable")
    return Part(_findings(view, found, missed), tables=tables if missed.empty else [*tables, _misses(view, missed)])


SECTION = Section("auto", "The backend auto against the best of the others", make)


def _against_best(view: View, cells: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of auto's cells with what was fastest of the others, of which there must be one.

    More columns: best, best_us, fastest (its choice in words), best over auto in `ratio`, that with its interval in
    `compared`.
    """
    found = []
    for _, here in cells.groupby(_POINT):
        own, others = where(here, backend=AUTO), here[here["backend"] != AUTO]
        if not own.empty and not others.empty:
            auto = rows_of(own.head(1))[0]
            best = rows_of(others.sort_values("swap_us_median", kind="stable").head(1))[0]
            compared = view.compare(auto["cell_id"], best["cell_id"])
            auto["chosen"] = short(auto["chosen"]) if isinstance(auto["chosen"], str) else ""
            fastest = {"best": best["cell_id"], "best_us": best["swap_us_median"], "fastest": str(choice_of(best))}
            found.append(auto | fastest | {"ratio": compared.ratio, "compared": compared})
    order = [False, False, True, True]
    return pd.DataFrame(found).sort_values(_POINT, ascending=order) if found else pd.DataFrame()


def _findings(view: View, found: pd.DataFrame, missed: pd.DataFrame) -> list[str]:
    close = len(found) - len(missed)
    worst = rows_of(found.sort_values("ratio", kind="stable").head(1))[0]
    lines = [
        f"auto was within {1 - CLOSE:.0%} of the fastest other backend, or faster, in {count(close)} of "
        f"{count(len(found))} cells ({close / len(found):.1%}). At worst it reached {worst['ratio']:.2f} of its "
        f"speed: {worst['direction']}, {a_stream(worst['stream_state'])}, N = {count(worst['blocks'])} of "
        f"{bytes_size(worst['block_bytes'])}, where it chose {worst['chosen'] or 'something unsaid'} and "
        f"{worst['fastest']} was fastest"
    ]
    if not missed.empty:
        same, noisy = (
            (missed["chosen"] == missed["fastest"]).sum(),
            sum(not found.told_apart for found in missed["compared"]),
        )
        lines.append(
            f"Of the {count(len(missed))} other cells, auto ran the very choice that was fastest in "
            f"{count(same)}, and {count(noisy)} are not told apart"
        )
    return [*lines, *_policy_words(view, found)]


def _policy_words(view: View, found: pd.DataFrame) -> list[str]:
    """Return what auto went by, and how well it did at points that its policy was not made from."""
    plain = view.run.info.spec.get("policy")
    if not plain:
        return ["It had no policy and chose by built-in defaults"]
    try:
        policy = Policy.from_plain(plain)
    except UsageError:
        return ["It went by a policy that cannot be read"]
    grids = {(t.direction.value, t.stream_state.value): (set(t.block_bytes), set(t.blocks)) for t in policy.tables}
    none: tuple[set[int], set[int]] = (set(), set())
    known = []
    for row in rows_of(found):
        sizes, counts = grids.get((row["direction"], row["stream_state"]), none)
        known.append(row["block_bytes"] in sizes and row["blocks"] in counts)
    new = found[[not own for own in known]]
    line = f"It went by a policy measured on {policy.made[:10] or 'an unknown day'}"
    if new.empty:
        return [f"{line}, at these very points: this says that the policy repeats, not how well it serves others"]
    close = int((new["ratio"] >= CLOSE).sum())
    return [f"{line}. At points that it was not measured at, auto was as close in {count(close)} of {count(len(new))}"]


def _ratios(view: View, kind: pd.DataFrame) -> DataTable:
    header, rows = grid_table(kind, Footnotes(), _ratio)
    direction, state = kind[["direction", "stream_state"]].iloc[0]
    title = f"{direction}, {a_stream(state)}: time of the best / time of auto"
    notes = [_MARKS, *few_visits(kind), *family(len(kind))]
    return DataTable(title, header, rows, notes, _caption(view, kind))


def _ratio(row: Row) -> Text:
    text = f"{unsure(row['compared'])}{row['ratio']:.2f}"
    return Strong(text) if row["ratio"] < CLOSE else text


def _misses(view: View, missed: pd.DataFrame) -> DataTable:
    header = ("Dir", "Stream", "Blocks", "Block size", "auto us", "Chose", "Best us", "Best", "Ratio")
    rows = []
    for row in rows_of(missed.head(_MOST_SHOWN)):
        shape = (row["direction"], row["stream_state"], count(row["blocks"]), bytes_size(row["block_bytes"]))
        choices = (figure(row["swap_us_median"]), row["chosen"], figure(row["best_us"]), row["fastest"])
        rows.append([*shape, *choices, _ratio(row)])
    notes = [f"and {count(len(missed) - _MOST_SHOWN)} more"] if len(missed) > _MOST_SHOWN else []
    return DataTable(f"Where auto reached less than {CLOSE} of the best", header, rows, notes, _caption(view, missed))


def _caption(view: View, found: pd.DataFrame) -> Text:
    both = view.measured[view.measured["cell_id"].isin({*found["cell_id"], *found["best"]})]
    return caption(view, both, _INCLUDES)
