"""The backend `auto` against the best of the others, cell by cell, where both were measured."""

from typing import Final

import pandas as pd

from kvbench.report.contests import time_ratio
from kvbench.report.model import DataTable, Part, Section, Strong, Text
from kvbench.report.numbers import ABSENT, bytes_size, count, figure
from kvbench.report.select import where
from kvbench.report.tables import Row, a_stream, caption, rows_of, swap_quartiles, undecided
from kvbench.report.view import View
from kvbench.text import short
from kvbench.tune.fit import choice_of, timed, tried
from kvbench.tune.table import AUTO

CLOSE: Final = 0.97
_MOST_SHOWN: Final = 12
_POINT: Final = ["direction", "stream_state", "block_bytes", "blocks"]
_INCLUDES: Final = (
    "Time of the fastest other backend over that of auto, both medians of swap_us: 1 where auto is as fast, below 1 "
    "where it is slower. The fastest is the lowest of several medians, which noise alone makes lower than auto's"
)
_MARKS: Final = (
    Strong("Bold"),
    f": below {CLOSE}. ≈: undecided, the quartiles of auto and of the fastest overlap. "
    f"{ABSENT}: auto or all the others were not measured",
)


def make(view: View) -> Part | str:
    cells = timed(tried(view.frame))
    found = _against_best(cells)
    if found.empty:
        return f"it needs {AUTO} and another backend measured at the same block size and number of blocks"
    tables = [_ratios(view, cells, kind) for _, kind in found.groupby(["direction", "stream_state"], sort=False)]
    missed = found[~found["close"]]
    return Part(
        _findings(view, found, missed), tables=tables if missed.empty else [*tables, _misses(view, cells, missed)]
    )


SECTION = Section("auto", "The backend auto against the best of the others", make)


def _against_best(cells: pd.DataFrame) -> pd.DataFrame:
    """Return a row per direction, state, size and number of blocks with auto and another backend.

    Its columns: auto_us and best_us, medians of swap_us of auto and of the fastest other one; what auto chose, ""
    where the run does not say; what was fastest; best over auto in `ratio`, `decided` and `close`.
    """
    found = []
    for point, here in cells.groupby(_POINT):
        own = where(here, backend=AUTO)
        others = here[here["backend"] != AUTO].sort_values("swap_us_median", kind="stable")
        if not own.empty and not others.empty:
            auto, best = (rows_of(arm.head(1))[0] for arm in (own, others))
            ratio = time_ratio(swap_quartiles(best), swap_quartiles(auto))
            chosen = short(auto["chosen"]) if isinstance(auto["chosen"], str) else ""
            times = (auto["swap_us_median"], best["swap_us_median"])
            found.append(
                (*point, *times, chosen, str(choice_of(best)), ratio.value, ratio.decided, ratio.value >= CLOSE)
            )
    names = [*_POINT, "auto_us", "best_us", "chosen", "fastest", "ratio", "decided", "close"]
    return pd.DataFrame(found, columns=names).sort_values(_POINT, ascending=[False, False, True, True])


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
        same, noisy = (missed["chosen"] == missed["fastest"]).sum(), (~missed["decided"]).sum()
        lines.append(
            f"Of the {count(len(missed))} other cells, auto ran the very choice that was fastest in "
            f"{count(same)}, and {count(noisy)} are undecided"
        )
    policy = view.run.info.spec.get("policy")
    if not policy:
        return [*lines, "It had no policy and chose by built-in defaults"]
    made = policy.get("made") if isinstance(policy, dict) else None
    return [*lines, f"It went by a policy measured on {str(made or 'an unknown day')[:10]}"]


def _ratios(view: View, cells: pd.DataFrame, kind: pd.DataFrame) -> DataTable:
    grid = {(row["block_bytes"], row["blocks"]): _ratio(row) for row in rows_of(kind)}
    sizes, counts = (sorted(set(kind[axis])) for axis in ("block_bytes", "blocks"))
    rows = [[bytes_size(size), *(grid.get((size, blocks), ABSENT) for blocks in counts)] for size in sizes]
    direction, state = kind[["direction", "stream_state"]].iloc[0]
    title = f"{direction}, {a_stream(state)}: time of the best / time of auto"
    header = ("Block size", *(f"N = {count(blocks)}" for blocks in counts))
    shown = where(cells, direction=direction, stream_state=state)
    return DataTable(title, header, rows, [_MARKS], caption(view, shown, _INCLUDES))


def _ratio(row: Row) -> Text:
    text = f"{row['ratio']:.2f}"
    marked = text if row["close"] else Strong(text)
    return marked if row["decided"] else undecided(marked)


def _misses(view: View, cells: pd.DataFrame, missed: pd.DataFrame) -> DataTable:
    header = ("Dir", "Stream", "Blocks", "Block size", "auto us", "Chose", "Best us", "Best", "Ratio")
    rows = []
    for row in rows_of(missed.sort_values("ratio", kind="stable").head(_MOST_SHOWN)):
        shape = (row["direction"], row["stream_state"], count(row["blocks"]), bytes_size(row["block_bytes"]))
        choices = (figure(row["auto_us"]), row["chosen"], figure(row["best_us"]), row["fastest"])
        rows.append([*shape, *choices, _ratio(row)])
    notes = [f"and {count(len(missed) - _MOST_SHOWN)} more"] if len(missed) > _MOST_SHOWN else []
    title = f"Where auto reached less than {CLOSE} of the best"
    return DataTable(title, header, rows, notes, caption(view, cells, _INCLUDES))
