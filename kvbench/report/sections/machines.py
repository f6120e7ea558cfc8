"""Machines side by side: a column for each card and driver, with the cells that all of them have."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, product
from typing import Final, NamedTuple

from kvbench.analysis.compare import known_interval
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import SwapShape
from kvbench.cells.facts import BATCHED, method_label
from kvbench.cells.installed import of_engine
from kvbench.cells.policy import Choice
from kvbench.cells.units import KIB, gigabytes_per_second
from kvbench.ground.errors import UsageError
from kvbench.report.model import DataTable, Part, PartOrReason, Strong, Text
from kvbench.report.numbers import ABSENT, TIMES, bytes_size, count, with_interval
from kvbench.report.sections.cliff import curves_of
from kvbench.report.tables import INCLUDES
from kvbench.report.view import View, pin
from kvbench.report.whole_runs import ceilings_text
from kvbench.results.outcomes import grouped
from kvbench.tune.advice import ShapeAnswer, answers_of
from kvbench.tune.evidence import ceilings_of, dates_text, shapes_of
from kvbench.tune.page import situation_text, use_of
from kvbench.tune.situations import Answer

# Of the swaps that all machines have: a small one in us, and a large one in GB/s.
WANTED: Final = tuple(
    SwapShape(direction, StreamState.IDLE, *size)
    for direction, size in product(Direction, ((64, 4 * KIB), (10_000, 4 * KIB)))
)
MANY: Final = 1024
_CEILING: Final = "Ceiling h2d / d2h, GB/s"
_CHOSEN: Final = "Best: of the methods that are not told apart from the fastest, the one with the fewest SMs"
_NONE_IN_COMMON: Final = "No swap in common: batched, an idle stream, the same direction, number and size of blocks"


class MachineFigures(NamedTuple):
    """What a machine reaches for swaps of a shape: the best, batched copies, and the code of other packages by name."""

    answer: ShapeAnswer
    batched: Choice
    foreign: Mapping[str, tuple[ShapeAnswer, Choice]]


class _Row(NamedTuple):
    """A row of the table: its name, a text for each machine, and whether it stands at the head of a report."""

    name: str
    texts: Sequence[str]
    leads: bool = False


def make(view: View) -> PartOrReason:
    """Make a table of all runs with a column for each machine, a card with a driver."""
    machines = list(grouped((*view.earlier, view), lambda run: run.machine).values())
    return "it needs runs of several machines" if len(machines) < 2 else partial(_part, machines)


def machines_table(views: Sequence[View]) -> DataTable | None:
    """The table of some runs, None for runs of one machine."""
    part = make(views[-1])
    return None if isinstance(part, str) else part().tables[0]


def _part(machines: Sequence[Sequence[View]]) -> Part:
    swaps = [_swaps(runs) for runs in machines]
    rows = [_Row(name, [*map(text, machines)], name == _CEILING) for name, text in _FACTS.items()]
    shapes = _compared(set[SwapShape].intersection(*map(set, swaps)))
    ceilings_gbps = [*map(_ceilings, machines)]
    for shape in shapes:
        ceilings = [of_machine.get(shape.direction, 0.0) for of_machine in ceilings_gbps]
        rows += _swap_rows(shape, [reached[shape] for reached in swaps], ceilings)
    for situation, answers in answers_of_machines(machines).items():
        rows.append(_Row(f"Recommended, {situation}", [use_of(answer) if answer else ABSENT for answer in answers]))
    rows = [row for row in rows if {*row.texts} != {ABSENT}]
    shipped = _shipped(swaps, shapes)
    notes: list[Text] = [_CHOSEN] if shapes else [_NONE_IN_COMMON]
    notes += [f"The code of their own packages: {', '.join(shipped)}"] if shipped else []
    caption = f"{INCLUDES['idle']}. Medians" if shapes else ""
    cards = [runs[0].card for runs in machines]
    body = [(row.name, *row.texts) for row in rows]
    table = DataTable("Machines side by side", ("", *cards), body, notes, caption)
    heads = [_Row("Machines", cards), *(row for row in rows if row.leads)]
    short: list[Text] = [(Strong(row.name), f": {' | '.join(row.texts)}") for row in heads]
    return Part(tables=[table], short=short if shapes else [*short, _NONE_IN_COMMON])


def _cliff(runs: Sequence[View]) -> str:
    """The two sizes, the closest of any run, between which batched h2d copies on an idle stream jump."""
    curves = chain.from_iterable(curves_of(pin(view.outcomes, free=())) for view in runs)
    batched = [curve for curve in curves if curve.series == (BATCHED, "h2d", "idle")]
    cliffs = [curve.cliff for curve in batched if curve.cliff]
    if not cliffs:
        return "none" if batched else ABSENT
    closest = min(cliffs, key=lambda cliff: cliff.above_bytes / cliff.below_bytes)
    return f"{bytes_size(closest.below_bytes)} to {bytes_size(closest.above_bytes)}"


_FACTS: Final[Mapping[str, Callable[[Sequence[View]], str]]] = {
    "Link": lambda runs: runs[0].run.info.link or ABSENT,
    "Driver": lambda runs: runs[0].driver.removeprefix("driver "),
    "Date": lambda runs: dates_text([view.run.info for view in runs]),
    _CEILING: lambda runs: ceilings_text(_ceilings(runs)),
    "Cliff of batched h2d copies": _cliff,
}


def _ceilings(runs: Sequence[View]) -> Mapping[Direction, float]:
    return ceilings_of(view.run for view in runs)


def _swaps(runs: Sequence[View]) -> dict[SwapShape, MachineFigures]:
    """The rates of a machine on an idle stream by shape, where batched copies are among them.

    The figures of a shape are of one run, the one with the most cells of kvbench's own; only other packages' code may
    come from others.
    """
    backends = chain.from_iterable(view.run.info.backends for view in runs)
    others = {facts.name for facts in backends if facts.plug_in or facts.package.split("==")[0] not in ("", "kvbench")}
    swaps: dict[SwapShape, MachineFigures] = {}
    foreign: dict[SwapShape, dict[str, tuple[ShapeAnswer, Choice]]] = {}
    for view in sorted(runs, key=lambda view: -sum(cell.backend not in others for cell in view.run.outcomes)):
        try:
            shapes = shapes_of([view.run], lambda choice: choice.backend not in others)
        except UsageError:
            continue
        for answer in answers_of([swaps for swaps in shapes if swaps.shape.stream_state is StreamState.IDLE]):
            shape = answer.measured.shape
            shipped = foreign.setdefault(shape, {})
            # as its package ships it, where that was measured
            for choice in sorted(answer.measured.methods, key=lambda choice: len(choice.axes)):
                # An engine's kernel at another SM count is not what the engine does.
                if of_engine(choice.backend) and choice.sms:
                    continue
                if choice.backend in others:
                    name = method_label(choice.backend, plug_in=choice.plug_in)
                    shipped.setdefault(name, (answer, choice))
                elif choice.backend == BATCHED and shape not in swaps:
                    swaps[shape] = MachineFigures(answer, choice, shipped)
    return swaps


def _shipped(machines: Sequence[Mapping[SwapShape, MachineFigures]], shapes: Iterable[SwapShape]) -> list[str]:
    """The names of the engines' own code among the methods of some shapes: that of no plug-in."""
    names: set[str] = set()
    for machine, shape in product(machines, shapes):
        names |= {name for name, (_, choice) in machine[shape].foreign.items() if not choice.plug_in}
    return sorted(names)


def _compared(common: set[SwapShape]) -> list[SwapShape]:
    """The wanted shapes that all machines have, or the smallest and the largest of each direction."""
    wanted = [shape for shape in WANTED if shape in common]
    if wanted:
        return wanted
    shapes: dict[SwapShape, None] = {}
    for direction in Direction:
        side = sorted(shape for shape in common if shape.direction is direction)
        shapes |= dict.fromkeys((*side[:1], *side[-1:]))
    return [*shapes]


def _swap_rows(shape: SwapShape, swaps: Sequence[MachineFigures], ceilings: Sequence[float]) -> list[_Row]:
    swap = f"{shape.direction} {count(shape.blocks)} {TIMES} {bytes_size(shape.block_bytes)}"
    in_us = shape.blocks < MANY
    head = f"{swap}, {'us' if in_us else 'GB/s'}"

    def figure_text(answer: ShapeAnswer, choice: Choice) -> str:
        times_us = answer.measured.us_of(choice), *known_interval([*answer.measured.visits_of(choice).values()])
        if in_us:
            return with_interval(*times_us)
        middle, high, low = (gigabytes_per_second(shape.blocks * shape.block_bytes, us) for us in times_us)
        return with_interval(middle, low, high)

    rows = [_Row(f"{head}: {BATCHED}", [figure_text(swap.answer, swap.batched) for swap in swaps])]
    for name in sorted({*chain.from_iterable(swap.foreign for swap in swaps)}):
        pairs = (swap.foreign.get(name) for swap in swaps)
        rows += [_Row(f"{head}: {name}", [figure_text(*pair) if pair else ABSENT for pair in pairs])]
    best = [swap.answer for swap in swaps]
    texts = [f"{figure_text(answer, answer.choice)}: {answer.choice.label}" for answer in best]
    rows.append(_Row(f"{head}: best", texts, leads=True))
    rates = (answer.measured.gbps_of(answer.choice) for answer in best)
    shares = [f"{gbps / ceiling:.0%}" if ceiling else ABSENT for gbps, ceiling in zip(rates, ceilings, strict=True)]
    return rows if in_us else [*rows, _Row(f"{swap}, best of ceiling", shares)]


def answers_of_machines(machines: Iterable[Sequence[View]]) -> dict[str, list[Answer | None]]:
    """What to use on each machine for swaps of the usual blocks, by direction and situation; None: not measured."""
    columns = [{situation_text(answer): answer for answer in _answers(runs)} for runs in machines]
    return {situation: [column.get(situation) for column in columns] for situation in dict.fromkeys(chain(*columns))}


def _answers(runs: Sequence[View]) -> list[Answer]:
    try:
        return [answer for answer in runs[-1].advice.answers if answer.use]
    except UsageError:
        return []
