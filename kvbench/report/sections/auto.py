"""The backend `auto` against the best of the others, cell by cell, where both were measured."""

import math
from functools import partial
from typing import Final

import pandas as pd

from kvbench.cells.backend_facts import AUTO
from kvbench.cells.policy import Choice, Policy
from kvbench.errors import UsageError
from kvbench.report.model import DataTable, Finding, Part, PartOrReason, Strong, Text
from kvbench.report.numbers import TIMES, bytes_size, count, figure, noun, size, slower_text
from kvbench.report.tables import caption, grid_table, measured_table
from kvbench.report.view import Row, View, rows_of
from kvbench.text import convert, short
from kvbench.tune.fit import choice_of, tried

CLOSE: Final = 0.97
_MOST_SHOWN: Final = 12
_POINT: Final = ["direction", "stream_state", "block_bytes", "blocks"]
_INCLUDES: Final = (
    "Time of the fastest other backend over that of auto: 1 where auto is as fast, below 1 where it is slower. The "
    "fastest is the lowest of several medians, which noise alone makes lower than that of auto"
)
_MARKS: Final = (
    Strong("Bold"),
    f": whole interval below {CLOSE}. Unmarked: whole interval from there on. ≈: undecided",
)
_KNOWN: Final = (
    "In parentheses: sizes and counts that the policy was measured at. They show that its choice repeats, not how well "
    "it serves others, and are left out of the verdict"
)


def make(view: View) -> PartOrReason:
    needed = f"it needs {AUTO} and another backend measured at the same block size and number of blocks"
    if AUTO not in set(view.measured["backend"]):
        return needed
    cells = tried(view.frame)
    compared = _against_best(view, cells[cells["cell_id"].isin(view.visits)])
    if compared.empty:
        return needed
    policy = _policy_of(view)
    compared = compared.assign(known=_known(compared, policy))
    return partial(_part, view, compared, policy)


def _part(view: View, compared: pd.DataFrame, policy: Policy | str) -> Part:
    tables = [_ratios(view, kind) for _, kind in compared.groupby(["direction", "stream_state"], sort=False)]
    new = compared[~compared["known"]]
    missed = new[new["below"]].sort_values("ratio", kind="stable")
    findings = _verdict(new, missed, policy)
    if same := int((missed["chosen"] == missed["fastest"]).sum()):
        findings.append(Finding(f"{noun(len(missed), 'slower cell')}: {count(same)} with the fastest choice itself"))
    findings.append(Finding(_policy_text(policy, compared)))
    return Part(findings, tables=tables if missed.empty else [*tables, _misses(view, missed)])


def _against_best(view: View, cells: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of auto's cells with what was fastest of the others, of which there must be one.

    More columns: best, best_us, fastest (its choice as text), best over auto in `ratio`; whether the whole interval of
    that lies from CLOSE on (`close`) or `below`.
    """
    rows = []
    by_auto = cells["backend"] == AUTO
    for _, point in cells.groupby(_POINT):
        autos = rows_of(point[by_auto[point.index]].head(1))
        others = rows_of(point[~by_auto[point.index]].sort_values("swap_us_median", kind="stable").head(1))
        for auto, best in zip(autos, others, strict=False):
            compared = view.compare(auto["cell_id"], best["cell_id"])
            auto["chosen"] = short(auto["chosen"]) if isinstance(auto["chosen"], str) else ""
            fastest = {"best": best["cell_id"], "best_us": best["swap_us_median"], "fastest": str(choice_of(best))}
            sides = {"close": compared.low >= CLOSE, "below": compared.high < CLOSE}
            rows.append(auto | fastest | sides | {"ratio": compared.ratio})
    order = [False, False, True, True]  # h2d and idle first
    return pd.DataFrame(rows).sort_values(_POINT, ascending=order) if rows else pd.DataFrame()


def _verdict(new: pd.DataFrame, missed: pd.DataFrame, policy: Policy | str) -> list[Finding]:
    """Return how close auto came to the fastest at shapes that its policy was not measured at, and where it did not."""
    decided = new[new["close"] | new["below"]]
    if decided.empty:
        return []
    cells = noun(len(new), "cell") + ("" if isinstance(policy, str) else " new to its policy")
    text = f"auto is within {1 - CLOSE:.0%} of the fastest in {count(new['close'].sum())} of {cells}"
    text += f", undecided in {count(len(new) - len(decided))}" if len(decided) < len(new) else ""
    for worst in rows_of(missed.head(1)):
        text += (
            f"; at worst it {slower_text(1 / worst['ratio'])} ({worst['direction']}, {worst['stream_state']}, "
            f"{count(worst['blocks'])} {TIMES} {bytes_size(worst['block_bytes'])}: "
            f"{_choice_text(worst['chosen'])} instead of {_choice_text(worst['fastest'])})"
        )
    return [Finding(f"{text}.", abs(math.log(decided["ratio"].min())))]


def _choice_text(choice: str) -> str:
    try:
        return size(Choice.parse(choice).label)
    except UsageError:  # a run of another version, or an untrusted one
        return choice or "an unknown choice"


def _policy_of(view: View) -> Policy | str:
    plain = view.run.info.spec.get("policy")
    try:
        return convert(plain, Policy, "policy") if plain else "auto had no policy and used built-in defaults"
    except UsageError:
        return "auto used a policy that cannot be read"


def _known(compared: pd.DataFrame, policy: Policy | str) -> list[bool]:
    """Return of each row whether the policy was measured at its shape."""
    shapes = {
        (table.direction.value, table.stream_state.value, size, blocks)
        for table in (() if isinstance(policy, str) else policy.tables)
        for size, choices in zip(table.block_bytes, table.choices, strict=True)
        for blocks, choice in zip(table.blocks, choices, strict=True)
        if choice
    }
    return [tuple(row[name] for name in _POINT) in shapes for row in rows_of(compared)]


def _policy_text(policy: Policy | str, compared: pd.DataFrame) -> str:
    if isinstance(policy, str):
        return policy
    line = f"auto used a policy measured on {policy.made[:10] or 'an unknown day'}"
    known = compared[compared["known"]]
    close = count(known["close"].sum())
    repeated = f". In {noun(len(known), 'cell')} that the policy was measured at, auto was as close in {close}"
    return line if known.empty else f"{line}{repeated}"


def _ratios(view: View, kind: pd.DataFrame) -> DataTable:
    header, rows = grid_table(kind, _ratio)
    direction, state = kind[["direction", "stream_state"]].iloc[0]
    title = f"{direction}, {state} stream: time of the fastest / time of auto"
    notes: list[Text] = [_MARKS, *([_KNOWN] if kind["known"].any() else [])]
    return measured_table(view, _both(view, kind), _INCLUDES, title, header, rows, notes, compared=len(kind))


def _ratio(row: Row) -> Text:
    text = f"{'' if row['close'] or row['below'] else '≈ '}{row['ratio']:.2f}"
    if row["known"]:
        return f"({text})"
    return Strong(text) if row["below"] else text


def _misses(view: View, missed: pd.DataFrame) -> DataTable:
    header = ("Dir", "Stream", "Choice", "Fastest", "Blocks", "Block size", "auto us", "Fastest us", "Ratio")
    rows = []
    for row in rows_of(missed.head(_MOST_SHOWN)):
        cells = (row["direction"], row["stream_state"], row["chosen"], row["fastest"])
        times = (figure(row["swap_us_median"]), figure(row["best_us"]), _ratio(row))
        rows.append([*cells, count(row["blocks"]), bytes_size(row["block_bytes"]), *times])
    more = len(missed) - _MOST_SHOWN
    notes = [f"{count(more)} more; report.html looks up every cell"] if more > 0 else []
    title = f"Where auto is below {CLOSE} of the fastest, interval included"
    return DataTable(title, header, rows, notes, caption(view, _both(view, missed), _INCLUDES), left=4)


def _both(view: View, compared: pd.DataFrame) -> pd.DataFrame:
    return view.measured[view.measured["cell_id"].isin({*compared["cell_id"], *compared["best"]})]
