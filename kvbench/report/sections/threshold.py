"""The threshold: above what block size batched copies are faster than a copy kernel, at one number of blocks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pandas as pd

from kvbench.analysis.compare import Verdict
from kvbench.cells.cell import EQUAL
from kvbench.cells.facts import BATCHED, NO_CHOICES
from kvbench.report.model import Text
from kvbench.report.numbers import bytes_size, count, noun
from kvbench.report.sections.contrast import DIRECTION, Contrast, ContrastSide, Key, backends, turns
from kvbench.report.tables import INCLUDES
from kvbench.report.view import DIRECTIONS, STATES, Pinned, Row, View, grouped, rows_of, where

USUAL_BLOCKS: Final = 10_000
_MIN_SIZES: Final = 2
_ORDER: Final = ("sustained", *(state for state in STATES if state != "sustained"))


def _select(view: View) -> Pinned | None:
    """Return batched copies and the other backends at the number of blocks that most of them have."""
    pinned = view.pin(view.frame[~view.frame["backend"].isin(NO_CHOICES)], shown=("sizes",))
    cells = pinned.cells.assign(sizes=pinned.cells["sizes"].fillna(EQUAL))
    measured = cells[cells["cell_id"].isin(view.visits)]
    if BATCHED not in set(measured["backend"]) or measured["backend"].nunique() < 2:
        return None
    cells = where(cells, blocks=common_blocks(measured))
    cells = cells[cells["backend"].isin(set(measured["backend"]))]
    kinds = cells.groupby(["direction", "stream_state"])
    enough = cells.groupby(["direction", "stream_state", "backend"])["block_bytes"].transform("nunique") >= _MIN_SIZES
    both = kinds["backend"].transform(lambda names: BATCHED in set(names) and len(set(names)) > 1).astype(bool)
    cells = cells[enough & both]
    return Pinned(cells.assign(nth=cells["stream_state"].map(_ORDER.index)), pinned.hidden) if len(cells) else None


def common_blocks(measured: pd.DataFrame) -> int:
    """Return the number of blocks that most backends have: 10 000 if it is one, else that with most sizes, the largest.

    `measured` has the columns backend, block_bytes and blocks and is not empty.
    """
    kinds = measured.groupby("blocks")[["backend", "block_bytes"]].nunique()
    ranks = zip(kinds["backend"], kinds.index == USUAL_BLOCKS, kinds["block_bytes"], kinds.index, strict=True)
    return int(max(ranks)[-1])


def _size_text(row: Row) -> str:
    mixed = "" if row["sizes"] == EQUAL else f", {row['sizes']}"
    return f"{bytes_size(row['block_bytes'])}{mixed}"


def _crossovers(side: ContrastSide) -> Sequence[tuple[Sequence[str], Mapping[str, Text]]]:
    """Return a line for each direction and SM count: from which size batched copies are faster than each kernel."""
    first = side.first
    cells = where(
        side.view.pin(side.view.frame, shown=("sms",)).cells, stream_state=first["stream_state"], blocks=first["blocks"]
    )
    known = rows_of(where(cells[cells["sms"].notna() | (cells["backend"] == BATCHED)], status="ok"))
    lines: list[tuple[Sequence[str], Mapping[str, Text]]] = []
    for direction in DIRECTIONS:
        of_direction = [row for row in known if row["direction"] == direction]
        batched = {row["block_bytes"]: row for row in of_direction if row["backend"] == BATCHED}
        kernels = (row for row in of_direction if row["backend"] != BATCHED)
        for sms, rows in sorted(grouped(kernels, lambda row: int(row["sms"])).items()):
            texts = {
                backend: text
                for backend, of_backend in grouped(rows, lambda row: str(row["backend"])).items()
                if (text := _crossover(side.view, batched, of_backend))
            }
            lines += [((direction, f"crossover, {noun(sms, 'SM')}"), texts)] if texts else []
    return lines


def _crossover(view: View, batched: Mapping[int, Row], kernel: Iterable[Row]) -> str:
    """Return above what block size batched copies are faster than a kernel; "" with too few sizes."""
    shared = sorted((row for row in kernel if row["block_bytes"] in batched), key=lambda row: int(row["block_bytes"]))
    if len(shared) < _MIN_SIZES:
        return ""
    faster = [
        view.compare(row["cell_id"], batched[row["block_bytes"]]["cell_id"]).verdict is Verdict.FASTER for row in shared
    ]
    last = max((index for index, is_faster in enumerate(faster) if not is_faster), default=-1)
    if last == len(faster) - 1:
        return f"none to {bytes_size(shared[-1]['block_bytes'])}"
    return f"from {bytes_size(shared[last + 1]['block_bytes'])}"


def _find(side: ContrastSide) -> Iterable[Text]:
    """Say which backend is the fastest at which size, back to back or else in the first state that was measured."""
    if side.cells["nth"].iloc[0] == side.pinned.cells["nth"].min():
        equal = [line for line in side.lines if all(row["sizes"] == EQUAL for row in line.values())]
        yield from turns(replace(side, lines=equal), _PAGE, f"N = {count(side.first['blocks'])}")


_PAGE: Final = Key("Block size", ("block_bytes", "sizes"), _size_text)
THRESHOLD: Final = Contrast(
    needed=f"it needs {BATCHED} and another backend measured at {_MIN_SIZES} block sizes with the same number of "
    "blocks, direction and stream state",
    select=_select,
    apart=("nth",),
    keys=(DIRECTION, _PAGE),
    title=lambda side: (
        f"{'Back to back' if side.first['stream_state'] == 'sustained' else side.first['stream_state'].capitalize()}, "
        f"N = {count(side.first['blocks'])}: GB/s of {BATCHED} against the other backends"
    ),
    columns=backends,
    includes=lambda side: INCLUDES[side.first["stream_state"]],
    arm="backend",
    fastest=True,
    last=_crossovers,
    notes=lambda _: [f"Crossover: from this size {BATCHED} is faster"],
    find=_find,
)
