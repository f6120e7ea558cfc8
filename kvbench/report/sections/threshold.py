"""The threshold: above what block size batched copies are faster than a copy kernel, at one number of blocks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pandas as pd

from kvbench.analysis.compare import Verdict
from kvbench.cells.cell import EQUAL, Cell
from kvbench.cells.facts import BATCHED, NO_CHOICES, SM, TRITON
from kvbench.cells.installed import engines
from kvbench.report.cells import by_axes, measured, outcomes_in, rows_with, selected
from kvbench.report.model import Chart, LinePlot, PlotLine, PlotPanel, Text
from kvbench.report.numbers import bytes_size, count, noun
from kvbench.report.sections import contrast
from kvbench.report.sections.cliff import BLOCK_SIZES, GBPS
from kvbench.report.sections.contrast import DIRECTION, Contrast, ContrastSide, Key, Line
from kvbench.report.tables import INCLUDES, chart_of, interval_band, label_of, line_of, microseconds
from kvbench.report.view import DIRECTIONS, STATES, Pinned, View, compare
from kvbench.results.outcomes import Outcome, grouped, is_measured

USUAL_BLOCKS: Final = 10_000
_MIN_SIZES: Final = 2  # one below the crossover, one above
# Where a thread takes between these shares of the time of the swap, the swap takes what its submission takes.
_SUBMITTING: Final = (0.9, 1.1)
_SUBMITTED: Final = "†"
_caller_us: Final = microseconds("caller_us")
_ORDER: Final = ("sustained", *(state for state in STATES if state != "sustained"))


def _select(view: View) -> Pinned | None:
    """Batched copies and the other backends at the number of blocks that most of them have."""
    pinned = view.pin(view.cells[~view.cells["backend"].isin(NO_CHOICES)], free=("sizes",))
    timed = selected(pinned.cells, Outcome.times)
    names = set(timed["backend"])
    if BATCHED not in names or len(names) < 2:
        return None
    cells = rows_with(pinned.cells, blocks=common_blocks(timed))
    cells = cells[cells["backend"].isin(names)]
    comparable = cells.groupby(["direction", "stream_state"])["backend"].transform(
        lambda backends: BATCHED in set(backends) and len(set(backends)) > 1
    )
    sizes = cells.groupby(["direction", "stream_state", "backend"])["block_bytes"].transform("nunique")
    cells = cells[comparable.astype(bool) & (sizes >= _MIN_SIZES)]
    return Pinned(cells, pinned.hidden)


def common_blocks(timed: pd.DataFrame) -> int:
    """The number of blocks that most backends have: 10 000 if it is one, else the largest with most sizes."""
    kinds = timed.groupby("blocks")[["backend", "block_bytes"]].nunique()
    ranks = zip(kinds["backend"], kinds.index == USUAL_BLOCKS, kinds["block_bytes"], kinds.index, strict=True)
    return int(max(ranks)[-1])


def _by_state(cell: Cell) -> int:
    return _ORDER.index(cell.stream_state)


def _size_text(outcome: Outcome) -> str:
    cell = outcome.cell
    mixed = "" if cell.sizes == EQUAL else f", {cell.sizes}"
    return f"{bytes_size(cell.block_bytes)}{mixed}"


def _crossovers(side: ContrastSide) -> Sequence[tuple[Sequence[str], Mapping[str, Text]]]:
    """A line for each direction and SM count: from which size batched copies are faster than each kernel."""
    pinned = side.view.pin(side.view.cells, free=("sms",))
    cells = measured(rows_with(pinned.cells, stream_state=side.cell.stream_state.value, blocks=side.cell.blocks))
    lines: list[tuple[Sequence[str], Mapping[str, Text]]] = []
    for direction in DIRECTIONS:
        side_cells = rows_with(cells, direction=direction)
        batched = outcomes_in(rows_with(side_cells, backend=BATCHED))
        kernels = side_cells[(side_cells["backend"] != BATCHED) & side_cells["sms"].notna()]
        for sms, with_sms in by_axes(kernels, "sms"):
            arms = by_axes(with_sms, "backend")
            texts = {backend: _crossover(batched, outcomes_in(kernel)) for backend, kernel in arms}
            if any(texts.values()):
                lines.append(((direction, f"crossover, {noun(sms, 'SM')}"), texts))
    return lines


def _crossover(batched: Iterable[Outcome], kernel: Iterable[Outcome]) -> Text:
    """Above what block size batched copies are faster than a kernel; "" with too few sizes.

    Where the largest size does not decide, neither "none" nor a size can be said: only from where on it is open.
    """
    verdicts = _verdicts(batched, kernel)
    if len(verdicts) < _MIN_SIZES:
        return ""
    sizes, first = [*verdicts], _first_faster([*verdicts.values()])
    if first < len(sizes):
        return f"from {bytes_size(sizes[first])}"
    decided = [size for size, verdict in verdicts.items() if verdict is not Verdict.UNDECIDED]
    if decided and decided[-1] == sizes[-1]:
        return f"none to {bytes_size(sizes[-1])}"
    return f"undecided above {bytes_size(decided[-1])}" if decided else "undecided"


def _verdicts(batched: Iterable[Outcome], kernel: Iterable[Outcome]) -> Mapping[int, Verdict]:
    """Whether batched copies are faster than a kernel at each block size that both have, ascending."""
    copies = {_size(outcome): outcome for outcome in batched}
    shared = sorted((outcome for outcome in kernel if _size(outcome) in copies), key=_size)
    return {_size(outcome): compare(outcome, copies[_size(outcome)]).verdict for outcome in shared}


def _first_faster(verdicts: Sequence[Verdict]) -> int:
    """The index from which on every verdict is faster; their number where the last is not."""
    faster = [verdict is Verdict.FASTER for verdict in verdicts]
    return 1 + max((index for index, is_faster in enumerate(faster) if not is_faster), default=-1)


def _size(outcome: Outcome) -> int:
    return outcome.cell.block_bytes


def _chart(side: ContrastSide) -> Chart | None:
    """GB/s against block size of h2d swaps of equal blocks, with the edge; none of a later state."""
    if not contrast.is_first(side, _by_state):
        return None
    cells = measured(rows_with(side.pinned.cells, direction=DIRECTIONS[0], stream_state=side.cell.stream_state.value))
    equal_blocks = [outcome for outcome in outcomes_in(cells) if outcome.cell.sizes == EQUAL]
    arms = grouped(sorted(equal_blocks, key=_size), lambda outcome: outcome.cell.backend)
    rivals = _rivals()
    drawn = [name for name in (BATCHED, *rivals, SM) if len(arms.get(name, ())) >= _MIN_SIZES]
    rival = next((name for name in rivals if name in drawn), None)
    if BATCHED not in drawn or rival is None:
        return None
    title = f"{DIRECTIONS[0]}, {side.cell.stream_state} stream, N = {count(side.cell.blocks)}"
    lines = [_plot_line(arms[name], variant) for variant, name in enumerate(drawn)]
    divided = _divided(arms[BATCHED], arms[rival])
    panel = PlotPanel(title, lines, side.view.run.ceilings_gbps.get(DIRECTIONS[0]), divided=divided)
    edge = f". Edge: {BATCHED} against {rival}" if divided else ""
    footer = f"{INCLUDES[side.cell.stream_state]}. Band: 95%{edge}"
    plot = LinePlot(BLOCK_SIZES, GBPS, [panel])
    return chart_of(side.view, "threshold", "Threshold: GB/s against block size", footer, plot)


def _rivals() -> list[str]:
    """The copy kernels that engines hold against batched copies: their own before kvbench's Triton kernel."""
    return [*(engine.kernel for engine in engines().values() if engine.takes and engine.same_as), TRITON]


def _plot_line(outcomes: Sequence[Outcome], variant: int) -> PlotLine:
    sizes = [float(_size(outcome)) for outcome in outcomes]
    return line_of(label_of(outcomes), outcomes[0].cell.backend, sizes, [*map(interval_band, outcomes)], variant)


def _divided(batched: Sequence[Outcome], kernel: Sequence[Outcome]) -> tuple[float, str, str] | None:
    """The edge between the sizes where a kernel and where batched copies are faster, None where none is told."""
    verdicts = _verdicts(batched, kernel)
    sizes, first = [*verdicts], _first_faster([*verdicts.values()])
    if not 0 < first < len(sizes) or verdicts[sizes[first - 1]] is not Verdict.SLOWER:
        return None
    below, above = sizes[first - 1 : first + 1]
    return (
        math.sqrt(below * above),
        f"{bytes_size(below)}: {kernel[0].backend_name} faster",
        f"{bytes_size(above)}: {BATCHED} faster",
    )


def _fastest_by_size(side: ContrastSide) -> Iterable[Text]:
    """Say which backend is the fastest at which size, back to back or else in the first state that was measured."""
    if contrast.is_first(side, _by_state):
        equal = [line for line in side.lines if contrast.first_of(line).cell.sizes == EQUAL]
        yield from contrast.turns(replace(side, lines=equal), _PAGE, f"N = {count(side.cell.blocks)}")


def _thread_us(line: Line) -> str:
    """The time of the thread that submits the batched copies, with a mark where it is that of the swap."""
    batched = line.get(BATCHED)
    if batched is None or not is_measured(batched):
        return ""
    share = batched.us("caller_us") / batched.us()
    return _caller_us(batched) + (_SUBMITTED if _SUBMITTING[0] <= share <= _SUBMITTING[1] else "")


def _notes(side: ContrastSide) -> list[Text]:
    if not any(_SUBMITTED in _thread_us(line) for line in side.lines):
        return []
    low, high = _SUBMITTING
    return [
        f"{_SUBMITTED} {low:g} to {high:g} of the swap: the row and its crossover measure how fast this CPU submits"
    ]


_PAGE: Final = Key("Block size", lambda cell: (cell.block_bytes, cell.sizes), _size_text)
THRESHOLD: Final = Contrast(
    needed=f"it needs {BATCHED} and another backend measured at {_MIN_SIZES} block sizes with the same number of "
    "blocks, direction and stream state",
    select=_select,
    tables_by=(_by_state,),
    keys=(DIRECTION, _PAGE),
    title=lambda side: (
        f"{'Back to back' if side.cell.stream_state == 'sustained' else side.cell.stream_state.capitalize()}, "
        f"N = {count(side.cell.blocks)}: GB/s of {BATCHED} against the other backends"
    ),
    columns=contrast.backends,
    fastest=True,
    last=_crossovers,
    last_note=f"Crossover: from this size {BATCHED} is faster",
    more=lambda _: {f"{BATCHED} thread, us": _thread_us},
    notes=_notes,
    find=_fastest_by_size,
    chart=_chart,
)
