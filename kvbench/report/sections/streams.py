"""What a submission meets: the state of the stream, an access order, queued swaps, and an engine's step before it."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Final

import pandas as pd

from kvbench.analysis.curves import QueueKnee, find_queue_knee
from kvbench.analysis.margins import QUEUE_KNEE
from kvbench.cells.axes import Neighbour, Priority, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.facts import BATCHED, EMPTY, FLOORS, PER_BLOCK
from kvbench.cells.units import two_digits
from kvbench.ground.text import a_stream
from kvbench.report.cells import copied, ladders, measured, outcomes_in, rows_with, selected
from kvbench.report.model import Text
from kvbench.report.numbers import TIMES, count, figure, noun, slower_text, with_interval
from kvbench.report.sections import contrast
from kvbench.report.sections.contrast import Contrast, ContrastSide, Figure, Key, Line
from kvbench.report.tables import INCLUDES, change_text, main_path, microseconds, milliseconds, swap_text
from kvbench.report.view import AS_ENGINES, QUEUE, Pinned, View
from kvbench.results.outcomes import Outcome, grouped, over_starts

_swap_us: Final = microseconds("swap_us")
_caller_us: Final = microseconds("caller_us")
_wall_us: Final = microseconds("wall_us")


_ORDERS: Final = ("stream", "any")


def _both_orders(view: View) -> Pinned:
    pinned = view.pin(copied(view.cells), free=("order",))
    cells = _with_twins(pinned.cells[pinned.cells["order"].isin(_ORDERS)], lambda cell: replace(cell, order=None))
    return Pinned(cells, pinned.hidden)


def _with_twins(cells: pd.DataFrame, plain: Callable[[Cell], Cell]) -> pd.DataFrame:
    """The cells that another one equals, once both are made `plain`."""
    twins = Counter(plain(outcome.cell) for outcome in outcomes_in(cells))
    return selected(cells, lambda outcome: twins[plain(outcome.cell)] > 1)


def _half_intervals(side: ContrastSide) -> Sequence[Text]:
    """Say how small a difference would have shown: half an interval."""
    judged = [(line, compared) for line, compared in side.comparisons if math.isfinite(compared.high)]
    halves = [((compared.high - compared.low) / 2, line) for line, compared in judged]
    resolution = []
    if halves:
        worst, line = max(halves, key=lambda half: half[0])
        cell = contrast.first_of(line).cell
        middle = median(half for half, _ in halves)
        swap = f"{cell.direction} {swap_text(cell)}"
        resolution = [f"Resolution, half an interval: {middle:.1%} in the median, {worst:.1%} at worst ({swap})"]
    return [*resolution, "ANY on d2h may read before earlier work wrote"]


def _order_findings(side: ContrastSide) -> Sequence[Text]:
    """Say in how many cells of the first table both orders differ."""
    if not contrast.is_first(side, _by_engines):
        return ()
    return contrast.changes(side, f"ANY against STREAM, {side.backend} on {a_stream(side.cell.stream_state)}")


def _by_engines(cell: Cell) -> int:
    return AS_ENGINES.index(cell.stream_state)


def _order_columns(side: ContrastSide) -> Mapping[str, Callable[[Line], Text]]:
    """The time of the thread, the path, and the same swap on an idle stream where that is another table's."""
    columns: dict[str, Callable[[Line], Text]] = {
        "Submission STREAM us": lambda line: _caller_us(line["stream"]),
        "ANY us": lambda line: _caller_us(line["any"]),
        "Path": lambda line: main_path(line["stream"]),
    }
    idle = outcomes_in(rows_with(side.pinned.cells, stream_state="idle", order="stream"))
    beside = {_but_state(outcome.cell): outcome for outcome in idle}
    if beside and side.cell.stream_state is not StreamState.IDLE:
        columns["Idle stream, ms (path)"] = lambda line: _with_path(beside.get(_but_state(line["stream"].cell)))
    return columns


def _but_state(cell: Cell) -> Cell:
    return replace(cell, stream_state=StreamState.IDLE)


def _with_path(outcome: Outcome | None) -> str:
    return f"{milliseconds(outcome)} ({main_path(outcome)})" if outcome else ""


ORDER: Final = Contrast(
    needed="it needs cells measured with order=stream and with order=any that are otherwise equal",
    select=_both_orders,
    tables_by=(contrast.backend, _by_engines),
    keys=(contrast.DIRECTION, contrast.BLOCKS, contrast.SIZE),
    title=lambda side: f"STREAM against ANY, {side.backend}, {side.cell.stream_state} stream",
    columns=lambda _: [Figure("STREAM med ms", "stream", milliseconds), Figure("ANY med ms", "any", milliseconds)],
    includes=(INCLUDES["swap_us"], "Delta: ANY / STREAM - 1, in turn", INCLUDES["caller_us"]),
    arm=lambda outcome: str(outcome.cell.order),
    compared=("stream", "any"),
    ratio="Delta (95%)",
    show_ratio=change_text,
    more=_order_columns,
    notes=_half_intervals,
    find=_order_findings,
)


def _both_priorities(view: View) -> Pinned:
    cells = _with_twins(copied(view.cells), lambda cell: replace(cell, priority=Priority.NONE))
    return Pinned(cells, view.pin(view.cells, free=("priority",)).hidden)


def _lost_columns(side: ContrastSide) -> Mapping[str, Callable[[Line], Text]]:
    """What each GB takes from the step that runs beside the swaps, with either priority."""

    def lost(arm: Priority, line: Line) -> Text:
        costs = line[arm].costs.values()
        return with_interval(*over_starts(costs, lambda cost: cost.lost_ms_per_gb)) if costs else ""

    beside = side.cell.neighbour != Neighbour.NONE
    return {f"{arm}: lost, ms/GB": partial(lost, arm) for arm in (Priority.NONE, Priority.LOW) if beside}


def _neighbour_text(side: ContrastSide) -> str:
    return "nothing" if side.cell.neighbour == Neighbour.NONE else str(side.cell.neighbour)


PRIORITY: Final = Contrast(
    needed="it needs cells measured with priority=none and with priority=low that are otherwise equal",
    select=_both_priorities,
    tables_by=(lambda cell: str(cell.neighbour),),
    keys=(contrast.DIRECTION, contrast.METHOD, contrast.SWAP),
    title=lambda side: f"us of swaps on a stream of no and of the lowest priority, beside {_neighbour_text(side)}",
    columns=lambda _: [Figure(arm.value, arm.value, _swap_us) for arm in (Priority.NONE, Priority.LOW)],
    includes=INCLUDES["swap_us"],
    arm=lambda outcome: outcome.cell.priority.value,
    compared=(Priority.NONE.value, Priority.LOW.value),
    ratio="low / none",
    more=_lost_columns,
    find=lambda side: contrast.changes(side, f"The lowest priority against none, beside {_neighbour_text(side)}"),
)


MIN_DEPTHS: Final = 4  # two shallow ones are what deeper ones are held against
MIN_STREAM_COUNTS: Final = 3  # one stream against a pool is a column of the table of depths
_BEGUN: Final = "†"


def _queue_arm(outcome: Outcome) -> str:
    return f"{outcome.backend_name}, {swap_text(outcome.cell)}, {noun(outcome.cell.streams, 'stream')}"


def _depths(view: View) -> Pinned | None:
    if len({outcome.cell.queued for outcome in view.measured}) < MIN_DEPTHS:
        return None
    pinned = view.pin(view.cells, free=QUEUE)
    busy = rows_with(pinned.cells, stream_state="busy")
    deep = ladders(busy, "queued", MIN_DEPTHS, "block_bytes", "direction", "backend", "blocks", "streams")
    return Pinned(deep.sort_values(["blocks", "block_bytes", "backend", "streams", "queued"]), pinned.hidden)


def _stream_counts(view: View) -> Pinned:
    pinned = view.pin(view.cells, free=QUEUE)
    busy = rows_with(pinned.cells, stream_state="busy")
    alike = ("block_bytes", "direction", "backend", "blocks", "queued")
    cells = ladders(busy[busy["queued"] > 0], "streams", MIN_STREAM_COUNTS, *alike)
    return Pinned(cells.sort_values([*alike, "streams"]), pinned.hidden)


def _submission(outcome: Outcome) -> str:
    return f"{_caller_us(outcome)}{_BEGUN if outcome.depth_held < 0.5 else ''}"


def _submissions(side: ContrastSide) -> list[Figure]:
    return [Figure(arm, arm, _submission) for arm in side.arms]


def _knees(side: ContrastSide) -> dict[str, QueueKnee | None]:
    knees = {}
    for arm in side.arms:
        timed = {outcome.cell.queued: outcome.times("caller_us") for outcome in _cells_of(side, arm)}
        knees[arm] = find_queue_knee({depth: times for depth, times in timed.items() if times})
    return knees


def _full_between(side: ContrastSide, arm: str) -> str:
    """Between how many queued copies, or calls, the queue of the backend and the number of streams of an arm is full,
    by all cells of them: "512 and 1 024 copies"; "" where all fit.

    Where it did not hold all queued swaps, a submission found it full: the wait fell on the swaps queued before.
    """
    first = _cells_of(side, arm)[0].cell
    queue = first.backend, first.streams
    same_queue = [outcome for outcome in side.measured if (outcome.cell.backend, outcome.cell.streams) == queue]
    depths = [(_operations(outcome.cell), outcome.depth_held >= 0.5) for outcome in same_queue if outcome.cell.queued]
    too_many = min((number for number, fits in depths if not fits), default=0)
    fitting = max((number for number, fits in depths if fits and number < too_many), default=0)
    unit = "copies" if first.backend == PER_BLOCK else "calls"
    return f"{count(fitting)} and {count(too_many)} {unit}" if too_many else ""


def _operations(cell: Cell) -> int:
    """How many operations the queued swaps are for the driver: block by block, or a call each."""
    return cell.queued * (cell.blocks if cell.backend == PER_BLOCK else 1)


def _knee_line(side: ContrastSide) -> Sequence[tuple[Sequence[str], Mapping[str, Text]]]:
    texts = {}
    for arm, knee in _knees(side).items():
        full = _full_between(side, arm)
        bound = f"full between {full}" if full else "none"
        texts[arm] = f"{count(knee.depth)} ({TIMES}{figure(knee.height)})" if knee else bound
    return [(["knee"], texts)]


def _knee_findings(side: ContrastSide) -> Iterable[Text]:
    knees = _knees(side)
    for arm, knee in knees.items():
        if knee:
            yield (
                f"{arm}, {side.cell.direction}: a submission behind {count(knee.depth)} swaps "
                f"{slower_text(knee.height)} ({two_digits(knee.shallow_us)} to {two_digits(knee.submit_us)} us)."
            )
    arms: dict[tuple[str, int], str] = {}
    for arm in side.arms:
        first = _cells_of(side, arm)[0]
        arms.setdefault((first.backend_name, first.cell.streams), arm)
    bounds = {queue: _full_between(side, arm) for queue, arm in arms.items()}
    filled = {queue: full for queue, full in bounds.items() if full}
    for (name, streams), full in filled.items():
        yield f"{name}, {noun(streams, 'stream')}, {side.cell.direction}: the driver's queue is full between {full}."
    if knees and not any(knees.values()) and not filled:
        yield f"{side.cell.direction}: no number of queued swaps makes a submission clearly slower."


def _full_notes(side: ContrastSide) -> list[Text]:
    is_full = any(outcome.depth_held < 0.5 for outcome in side.measured)
    return [f"{_BEGUN} in most samples the driver's queue did not hold all"] if is_full else []


def _cells_of(side: ContrastSide, arm: str) -> list[Outcome]:
    return [line[arm] for line in side.lines if arm in line]


QUEUE_DEPTH: Final = Contrast(
    needed=f"it needs a backend measured on a busy stream behind {MIN_DEPTHS} numbers of queued swaps or more",
    select=_depths,
    tables_by=(contrast.by_direction,),
    keys=(Key("Queued", lambda cell: cell.queued, lambda outcome: count(outcome.cell.queued)),),
    title=lambda side: f"{side.cell.direction}: us a submission, by queued swaps of the same kind",
    arm=_queue_arm,
    columns=_submissions,
    includes=INCLUDES["caller_us"],
    last=_knee_line,
    notes=lambda side: [
        f"Knee: first depth above {1 + QUEUE_KNEE.fraction:g}x the longer time of the two smallest",
        *_full_notes(side),
    ],
    find=_knee_findings,
)


QUEUE_STREAMS: Final = Contrast(
    needed=f"it needs a backend measured behind queued swaps on {MIN_STREAM_COUNTS} numbers of streams or more",
    select=_stream_counts,
    tables_by=(contrast.by_direction,),
    keys=(Key("Streams", lambda cell: cell.streams, lambda outcome: count(outcome.cell.streams)),),
    title=lambda side: f"{side.cell.direction}: us a submission, by the streams that queued swaps are distributed over",
    arm=lambda outcome: f"{outcome.backend_name}, {swap_text(outcome.cell)}, {count(outcome.cell.queued)} queued",
    columns=_submissions,
    includes=INCLUDES["caller_us"],
    notes=_full_notes,
)


_GATES: Final = (StreamState.GATED.value, StreamState.OPENED.value)
_SHOWN: Final = (StreamState.IDLE, StreamState.OPENED, StreamState.GATED, StreamState.BUSY)


def _gate_findings(side: ContrastSide) -> Iterable[Text]:
    """Say how much it changes the time of a backend that the event of a gate has fired before: where most."""
    judged = [pair for pair in side.comparisons if math.isfinite(pair[1].high)]
    for name, pairs in grouped(judged, lambda pair: pair[0][_GATES[0]].backend_name).items():
        line, compared = max(pairs, key=lambda pair: abs(math.log(pair[1].ratio)) if pair[1].significant else 0.0)
        closed, opened = (line[state] for state in _GATES)
        head = f"{name} {closed.cell.direction}"
        if not compared.significant:
            yield f"{head}: no clear difference between an open and a closed gate."
            continue
        ratio = max(compared.ratio, 1 / compared.ratio)
        when, (slow, fast) = ("has already fired", (opened, closed))
        if compared.ratio < 1:
            when, (slow, fast) = ("has not fired yet", (closed, opened))
        path, other = (main_path(outcome) for outcome in (slow, fast))
        paths = (f" (path {path})", f" ({other})") if path != other else ("", f" (path {path})")
        yield (
            f"{head}: a swap takes up to {two_digits(ratio)} times as long if the event it waits for {when}: "
            f"{swap_text(closed.cell)} takes {_swap_us(slow)} us{paths[0]}, otherwise {_swap_us(fast)} us{paths[1]}."
        )


def _state_columns(side: ContrastSide) -> list[Figure]:
    states = [state for state in _SHOWN if state in side.arms]
    times = [Figure(f"{state.value.capitalize()} us", state.value, _swap_us) for state in states]
    return [*times, *(Figure(f"Caller us, {state}", state, _caller_us) for state in reversed(_GATES))]


def _paths(line: Line) -> str:
    closed, opened = (main_path(line[state]) for state in _GATES)
    return opened if opened == closed else f"{opened} / {closed}"


def _stream_states(name: str, *, of_batched: bool) -> Contrast:
    """The table of batched copies, which the driver makes by the state of the stream, or of the others."""

    def select(view: View) -> Pinned | None:
        pinned = view.pin(copied(view.cells), free=())
        cells = pinned.cells[(pinned.cells["backend"] == BATCHED) == of_batched]
        return Pinned(cells, pinned.hidden) if {*_GATES} <= set(cells["stream_state"]) else None

    return Contrast(
        needed="it needs cells measured with stream_state=gated and with stream_state=opened that are otherwise equal",
        select=select,
        tables_by=(contrast.by_direction,),
        keys=(contrast.METHOD, contrast.BLOCKS, contrast.SIZE),
        title=lambda side: f"{side.cell.direction}, {name}: us per swap by stream state",
        columns=_state_columns,
        includes=INCLUDES["swap_us"],
        arm=lambda outcome: outcome.cell.stream_state.value,
        compared=_GATES,
        ratio="Opened / gated",
        more=lambda _: {"Path, opened / gated": _paths},
        notes=lambda _: ["Opened / gated: time if the event has fired, over the time from when it fires"],
        find=_gate_findings,
    )


STREAM_STATES: Final = (
    _stream_states("batched copies", of_batched=True),
    _stream_states("the other backends", of_batched=False),
)


_TIGHT, _AFTER = "tight", "after a step"


def _calls(view: View) -> Pinned | None:
    """The cells of a run that has the floor beside them: its pause is like an engine's step."""
    called = measured(view.cells)
    if EMPTY not in set(called["backend"]):
        return None
    pinned = view.pin(rows_with(called, stream_state="idle"), free=("pause",))
    return pinned if {_TIGHT, _AFTER} <= {_call_of(outcome) for outcome in outcomes_in(pinned.cells)} else None


def _call_of(outcome: Outcome) -> str:
    return _AFTER if outcome.cell.pause_us else _TIGHT


def _call_findings(side: ContrastSide) -> Iterable[Text]:
    """Say what the call takes after an engine's step, against a tight loop, where it differs most."""
    backends = [pair for pair in side.comparisons if pair[0][_TIGHT].cell.backend not in FLOORS]
    differing = [pair for pair in backends if pair[1].significant]
    if differing:
        line, _ = max(differing, key=lambda pair: pair[1].ratio)
        tight, after = line[_TIGHT], line[_AFTER]
        yield (
            f"{contrast.METHOD.text(tight)} {tight.cell.direction}, {swap_text(tight.cell)}: the call takes "
            f"{_caller_us(tight)} us of the thread in a tight loop and {_caller_us(after)} us after a step of an "
            f"engine, until completion {_wall_us(tight)} and {_wall_us(after)} us."
        )


CALL: Final = Contrast(
    needed="it needs empty launches beside swaps with pause=0 and with a pause (kvbench sweep call)",
    select=_calls,
    tables_by=(contrast.by_direction,),
    keys=(contrast.BLOCKS, contrast.SIZE, contrast.METHOD),
    title=lambda side: f"{side.cell.direction}: us of the thread, and until completion",
    columns=lambda _: [
        Figure("Thread us, tight", _TIGHT, _caller_us),
        Figure("Completion us, tight", _TIGHT, _wall_us),
        Figure("Thread us, after a step", _AFTER, _caller_us),
        Figure("Completion us, after a step", _AFTER, _wall_us),
    ],
    includes=(
        "Medians in us on an idle stream, from the caller's list. Thread: until the call returns. Completion: until "
        "the host sees it. Tight: one call behind the other. After a step: the thread works between two calls, as an "
        "engine does, in other memory and code. empty launches a kernel that copies nothing: the floor; empty_torch "
        "launches one through torch, as engines' code is called: their floor"
    ),
    arm=_call_of,
    compared=(_TIGHT, _AFTER),
    time="caller_us",
    ratio="Thread, after / tight",
    find=_call_findings,
)
