"""Fragments of pages that several ranks share: GB/s by fragment size and number of ranks."""

from collections.abc import Iterable
from typing import Final

from kvbench.cells.facts import BATCHED, method_label
from kvbench.report.model import Text
from kvbench.report.numbers import TIMES, bytes_size, figure
from kvbench.report.sections.contrast import SIZE, Contrast, ContrastSide, Key, backends
from kvbench.report.tables import INCLUDES, rate, sms_of
from kvbench.report.view import Pinned, View, pin, where

_PATTERN: Final = r"^fragments-\d+x(\d+)"
_RANKS: Final = Key("Ranks", ("ranks",), lambda row: str(row["ranks"]))
_FEW: Final = 2


def _fragments(view: View) -> Pinned | None:
    cells = where(view.frame, stream_state="idle")
    of_host, of_both = (cells[name].astype("string").str.extract(_PATTERN)[0] for name in ("host_pattern", "pattern"))
    ranks = of_host.fillna(of_both)
    if ranks.isna().all():
        return None
    known = cells[ranks.notna()].assign(ranks=ranks.dropna().astype("int64"))
    pinned = pin(known, shown=("pattern", "host_pattern"))
    several = where(pinned.cells, status="ok")["backend"].nunique() >= _FEW
    return pinned if several else None


def _gap(side: ContrastSide) -> Iterable[Text]:
    """Say by how much the fastest backend exceeds batched copies, where by most."""
    gaps = []
    for line in side.lines:
        measured = [row for row in line.values() if row["status"] == "ok"]
        base = next((row for row in measured if row["backend"] == BATCHED), None)
        best = min(measured, key=lambda row: float(row["swap_us_median"]), default=None)
        if base and best and (compared := side.view.compare(best["cell_id"], base["cell_id"])).told_apart:
            gaps.append((compared.ratio, base, best))
    if gaps:
        ratio, base, best = max(gaps, key=lambda gap: gap[0])
        name = method_label(best["backend"], sms_of(best))
        yield (
            f"{base['direction']} of fragments of {bytes_size(base['block_bytes'])}, {base['ranks']} ranks: {name} "
            f"moves {rate(best)} GB/s, {BATCHED} {rate(base)} ({figure(ratio)}{TIMES})."
        )


FRAGMENTS: Final = Contrast(
    needed="it needs two backends measured on fragments (pattern=fragments-16x8)",
    select=_fragments,
    apart=("direction",),
    keys=(_RANKS, SIZE),
    title=lambda side: f"{side.first['direction']}, idle stream: GB/s of fragments by their size",
    columns=backends,
    includes=lambda _: INCLUDES["idle"],
    arm="backend",
    fastest=True,
    notes=lambda _: [
        "Fragments: pieces of a page that all ranks share, one descriptor each; those of a rank are adjacent on the "
        "device, and on the host as far apart as the row of all ranks is long"
    ],
    find=_gap,
)
