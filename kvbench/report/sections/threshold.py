"""The threshold: above what block size batched copies are faster than a copy kernel, at one number of blocks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kvbench.analysis.compare import Verdict
from kvbench.cells.cell import EQUAL, Cell
from kvbench.cells.facts import BATCHED, NO_CHOICES
from kvbench.report.cells import by_axes, measured, outcomes_in, selected, where
from kvbench.report.model import Text
from kvbench.report.numbers import bytes_size, count, noun
from kvbench.report.sections.contrast import DIRECTION, Contrast, ContrastSide, Key, Line, any_of, backends, turns
from kvbench.report.tables import INCLUDES, microseconds
from kvbench.report.view import DIRECTIONS, STATES, Pinned, View, compare, is_measured
from kvbench.results.outcomes import Outcome

if TYPE_CHECKING:
    import pandas as pd

USUAL_BLOCKS: Final = 10_000
_MIN_SIZES: Final = 2
# Where a thread takes between these shares of the time of the swap, the swap takes what its submission takes.
_SUBMITTING: Final = (0.9, 1.1)
_SUBMITTED: Final = "†"
_caller_us: Final = microseconds("caller_us")
_ORDER: Final = ("sustained", *(state for state in STATES if state != "sustained"))


def _select(view: View) -> Pinned | None:
    """Return batched copies and the other backends at the number of blocks that most of them have."""
    pinned = view.pin(view.cells[~view.cells["backend"].isin(NO_CHOICES)], shown=("sizes",))
    timed = selected(pinned.cells, Outcome.times)
    names = set(timed["backend"])
    if BATCHED not in names or len(names) < 2:
        return None
    cells = where(pinned.cells, blocks=common_blocks(timed))
    cells = cells[cells["backend"].isin(names)]
    both = cells.groupby(["direction", "stream_state"])["backend"].transform(
        lambda backends: BATCHED in set(backends) and len(set(backends)) > 1
    )
    sizes = cells.groupby(["direction", "stream_state", "backend"])["block_bytes"].transform("nunique")
    enough = cells[both.astype(bool) & (sizes >= _MIN_SIZES)]
    return Pinned(enough, pinned.hidden) if len(enough) else None


def common_blocks(timed: "pd.DataFrame") -> int:
    """Return the number of blocks that most backends have: 10 000 if it is one, else the largest with most sizes."""
    kinds = timed.groupby("blocks")[["backend", "block_bytes"]].nunique()
    ranks = zip(kinds["backend"], kinds.index == USUAL_BLOCKS, kinds["block_bytes"], kinds.index, strict=True)
    return int(max(ranks)[-1])


def _by_state(cell: Cell) -> int:
    return _ORDER.index(cell.stream_state)


def _size_text(cell: Cell) -> str:
    mixed = "" if cell.sizes == EQUAL else f", {cell.sizes}"
    return f"{bytes_size(cell.block_bytes)}{mixed}"


def _crossovers(side: ContrastSide) -> Sequence[tuple[Sequence[str], Mapping[str, Text]]]:
    """Return a line for each direction and SM count: from which size batched copies are faster than each kernel."""
    pinned = side.view.pin(side.view.cells, shown=("sms",))
    cells = measured(where(pinned.cells, stream_state=side.cell.stream_state.value, blocks=side.cell.blocks))
    lines: list[tuple[Sequence[str], Mapping[str, Text]]] = []
    for direction in DIRECTIONS:
        of_direction = where(cells, direction=direction)
        batched = outcomes_in(where(of_direction, backend=BATCHED))
        kernels = of_direction[(of_direction["backend"] != BATCHED) & of_direction["sms"].notna()]
        for sms, of_sms in by_axes(kernels, "sms"):
            arms = by_axes(of_sms, "backend")
            texts = {backend: _crossover(batched, outcomes_in(kernel)) for backend, kernel in arms}
            if any(texts.values()):
                lines.append(((direction, f"crossover, {noun(sms, 'SM')}"), texts))
    return lines


def _crossover(batched: Iterable[Outcome], kernel: Iterable[Outcome]) -> str:
    """Return above what block size batched copies are faster than a kernel; "" with too few sizes."""
    copies = {outcome.cell.block_bytes: outcome for outcome in batched}
    shared = sorted((outcome for outcome in kernel if outcome.cell.block_bytes in copies), key=_size)
    if len(shared) < _MIN_SIZES:
        return ""
    faster = [compare(outcome, copies[_size(outcome)]).verdict is Verdict.FASTER for outcome in shared]
    last = max((index for index, is_faster in enumerate(faster) if not is_faster), default=-1)
    if last == len(faster) - 1:
        return f"none to {bytes_size(_size(shared[-1]))}"
    return f"from {bytes_size(_size(shared[last + 1]))}"


def _size(outcome: Outcome) -> int:
    return outcome.cell.block_bytes


def _find(side: ContrastSide) -> Iterable[Text]:
    """Say which backend is the fastest at which size, back to back or else in the first state that was measured."""
    if _by_state(side.cell) == min(_by_state(outcome.cell) for outcome in outcomes_in(side.pinned.cells)):
        equal = [line for line in side.lines if any_of(line).sizes == EQUAL]
        yield from turns(replace(side, lines=equal), _PAGE, f"N = {count(side.cell.blocks)}")


def _thread_us(line: Line) -> str:
    """The time of the thread that submits the batched copies, with a mark where it is that of the swap."""
    batched = line.get(BATCHED)
    if batched is None or not is_measured(batched):
        return ""
    share = batched.us("caller_us") / batched.us()
    return _caller_us(batched) + (_SUBMITTED if _SUBMITTING[0] <= share <= _SUBMITTING[1] else "")


def _notes(side: ContrastSide) -> list[Text]:
    notes: list[Text] = []
    if any(_SUBMITTED in _thread_us(line) for line in side.lines):
        low, high = _SUBMITTING
        notes.append(
            f"{_SUBMITTED} {low:g} to {high:g} of the swap: the row and its crossover measure how fast this CPU submits"
        )
    return [*notes, *[f"Crossover: from this size {BATCHED} is faster"] * bool(_crossovers(side))]


_PAGE: Final = Key("Block size", lambda cell: (cell.block_bytes, cell.sizes), _size_text)
THRESHOLD: Final = Contrast(
    needed=f"it needs {BATCHED} and another backend measured at {_MIN_SIZES} block sizes with the same number of "
    "blocks, direction and stream state",
    select=_select,
    apart=(_by_state,),
    keys=(DIRECTION, _PAGE),
    title=lambda side: (
        f"{'Back to back' if side.cell.stream_state == 'sustained' else side.cell.stream_state.capitalize()}, "
        f"N = {count(side.cell.blocks)}: GB/s of {BATCHED} against the other backends"
    ),
    columns=backends,
    includes=lambda side: INCLUDES[side.cell.stream_state],
    fastest=True,
    last=_crossovers,
    more=lambda _: {f"{BATCHED} thread, us": _thread_us},
    notes=_notes,
    find=_find,
)
