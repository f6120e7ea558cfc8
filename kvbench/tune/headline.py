"""The answer in a few lines: the rule, what it loses and gains, and what would change it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Final

from kvbench.analysis.compare import MIN_PAIRS
from kvbench.analysis.margins import TIED
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.pattern import SHUFFLED
from kvbench.errors import UsageError
from kvbench.policy import Choice
from kvbench.results import Run
from kvbench.results.replays import trace_of
from kvbench.text import ends, terminal_rows
from kvbench.tune.answer import Answer, answers_of, by_kind, machine_words, speed_words, words_of, workload_of
from kvbench.tune.exports import ENGINE_BACKENDS, ENGINES
from kvbench.tune.fit import Point, candidates, decide_all, kind_words, workload_axes
from kvbench.tune.layouts import MERGED, runs_line
from kvbench.tune.rule import MOST_LINES, WORST, Line, Range, SmallestRule, rule_of
from kvbench.tune.traced import losses_by
from kvbench.units import size_words, two_digits

# The most rows of a terminal that the answer takes.
ROWS: Final = 12
_COMPARED: Final[Mapping[str, Sequence[str]]] = {
    "batched": ("batched",),
    **{name: engine.backends for name, engine in ENGINES.items()},
}


def summary(runs: Sequence[Run], rows: int = ROWS) -> list[str]:
    """Return the answer of runs of one machine and clock. Raises UsageError where there is nothing to choose from."""
    return headline(rule_of(answers_of(runs, lambda choice: choice.backend not in ENGINE_BACKENDS)), runs, rows)


def origin(runs: Sequence[Run]) -> str:
    """Return what a rule is about: the machine, and which blocks are swapped."""
    return f"{machine_words(*runs)}; {workload_of(runs)}"


def headline(rule: SmallestRule, runs: Sequence[Run], rows: int = ROWS) -> list[str]:
    """Return the answer of a rule of `runs`, in lines that take at most `rows` rows of a terminal.

    They say what to use, what that loses and gains, and how sure it is.
    """
    losses = rule.losses.values()
    average, worst = (f"{two_digits(max(loss, 0.0) * 100)}%" for loss in (mean(losses), max(losses)))
    loss = f"Loss against the best of each size and count: {average} on average, {worst} at worst"
    if rule.beyond:
        kinds = ", ".join(map(kind_words, rule.beyond))
        loss += f"; more than {TIED.fraction:.0%} or {WORST:.0%} with {MOST_LINES} choices: {kinds}"
    uses, beside = _uses(rule), [*_rivals(rule), *_in_runs(rule, runs), *_gate(rule.answers)]
    tail = [*_as_shuffled(rule, runs), _open(rule.answers)]
    gains, pooled = ([*_gains(rule, pooled=pooled)] for pooled in (False, True))
    whole = [(len(uses), gains, len(beside)), *((len(uses), pooled, shown) for shown in range(len(beside), -1, -1))]
    for kept, gained, shown in [*whole, *((kept, pooled, 0) for kept in range(len(uses) - 2, 0, -1))]:
        left_out = len(uses) - kept
        more = [f"{left_out} more, of other directions and stream states: kvbench tune --stream STATE"] * bool(left_out)
        lines = [origin(runs), *uses[:kept], *more, loss, *gained, *beside[:shown], *tail]
        if terminal_rows(lines) <= rows:
            break
    return lines


def _uses(rule: SmallestRule) -> list[str]:
    """Return a line for all stream states of a direction with the same choices: "h2d idle, opened: sm with 4 SMs"."""
    states: dict[tuple[Direction, str], list[StreamState]] = {}
    for (direction, state), lines in rule.lines.items():
        states.setdefault((direction, _choices(lines)), []).append(state)
    return [f"{direction} {', '.join(alike)}: {choices}" for (direction, choices), alike in states.items()]


def _choices(lines: Sequence[Line]) -> str:
    """Return the choices of a rule: "sm with 4 SMs up to 4 KiB, 2 from 16 KiB"."""
    parts: list[str] = []
    before = None
    for line in lines:
        alike = before is not None and before.backend == line.choice.backend == "sm" and len(line.choice.axes) == 1
        choice = dict(line.choice.axes)["sms"] if alike else words_of(line.choice)
        parts.append(" ".join(filter(None, (choice, _ranges(line)))))
        before = line.choice
    more = len(parts) - MOST_LINES
    return ", ".join(parts[:MOST_LINES]) + (f" and {more} more (tune --table)" if more > 0 else "")


def _ranges(line: Line) -> str:
    counts = _range(line.counts, str)
    return " and ".join(filter(None, (_range(line.sizes, size_words), counts and f"{counts} blocks")))


def _range(span: Range, show: Callable[[int], str]) -> str:
    low, high = (None if end is None else show(end) for end in span)
    if low is None or high is None:
        return f"up to {high}" if high else f"from {low}" if low else ""
    return f"at {low}" if low == high else f"from {low} to {high}"


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times the speed of `over`, batched copies or the code of an engine, the choices of a rule have.

    There is a ratio for each shape whose choice is decided, in one direction and some stream states.
    """

    over: str
    direction: Direction
    states: Sequence[StreamState]
    ratios: Sequence[float]


def gains_of(rule: SmallestRule, *, pooled: bool = False) -> list[Gain]:
    """Return the gains by the quantity that stream states measure, or `pooled` over all states, and by direction."""
    found: dict[tuple[str, str, Direction], list[tuple[StreamState, float]]] = {}
    for over, backends in _COMPARED.items():
        for answer, choice in rule.choices.items():
            other = answer.best_of(*backends) if answer.decided else None
            if other is not None:
                key = over, "" if pooled else answer.state.quantity, answer.direction
                found.setdefault(key, []).append((answer.state, answer.ratio(choice, other)))
    return [
        Gain(over, direction, [*dict.fromkeys(state for state, _ in own)], [ratio for _, ratio in own])
        for (over, _, direction), own in found.items()
    ]


def _gains(rule: SmallestRule, *, pooled: bool) -> Iterator[str]:
    """Yield lines over batched copies, then over each engine whose own code was measured."""
    every = {state for _, state in rule.lines}
    lines: dict[tuple[str, str], list[str]] = {}
    for gain in gains_of(rule, pooled=pooled):
        states = "all" if len(every) > 1 and every == {*gain.states} else ", ".join(gain.states)
        parts, middle = lines.setdefault((gain.over, states), []), median(gain.ratios)
        words = f"{two_digits(middle)}x" if parts else speed_words(middle, gain.over)
        parts.append(f"{gain.direction} {words} ({ends(gain.ratios, lambda ratio: f'{two_digits(ratio)}x')})")
    for (_, states), parts in lines.items():
        yield f"Gain, {states}: {', '.join(parts)}"


def _gate(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield what batched copies take behind a gate that is closed, against one that is open."""
    closed, opened = (
        {
            (one.direction, one.point): one.time_of(choice)
            for one in answers
            if one.state is state and (choice := one.best_of("batched"))
        }
        for state in (StreamState.GATED, StreamState.OPENED)
    )
    parts = [
        f"{ends([100 * ratio for ratio in ratios], two_digits)}% ({direction})"
        for direction in Direction
        if (ratios := [closed[key] / opened[key] for key in closed.keys() & opened.keys() if key[0] is direction])
    ]
    if parts:
        yield f"batched from the opening of a gate takes {', '.join(parts)} of its time behind an open one"


def _as_shuffled(rule: SmallestRule, runs: Sequence[Run]) -> Iterator[str]:
    """Yield what the swaps of a trace would take by the choices for shuffled blocks, where these were measured."""
    if not all(map(trace_of, runs)):
        return
    chosen: dict[Direction, dict[Point, Choice]] = {}
    try:
        contests = candidates(runs).to_choose
    except UsageError:
        return
    for (direction, _), points in contests.items():
        chosen[direction] = {point: decision.choice for point, decision in decide_all(points).items()}
    measured = {
        kind[0]: {own.point: own.measured for own in answers} for kind, answers in by_kind(rule.answers).items()
    }
    parts = [f"{loss:.1%} for {direction}" for direction, loss in losses_by(chosen, measured)]
    if parts:
        yield f"By the choices for shuffled blocks, these swaps take {', '.join(parts)} longer"


def _in_runs(rule: SmallestRule, runs: Sequence[Run]) -> Iterator[str]:
    """Yield what would change if the blocks lay in runs, for an answer about shuffled blocks."""
    if all(map(trace_of, runs)):
        return
    idle = {kind[0]: lines for kind, lines in rule.lines.items() if kind[1] is StreamState.IDLE}
    other = [way for way, lines in idle.items() if any(line.choice.backend != MERGED for line in lines)]
    found = [*runs_line(runs, other)]
    if found and workload_axes(runs)["pattern"] == str(SHUFFLED):
        yield from found


def _rivals(rule: SmallestRule) -> Iterator[str]:
    """Yield the other choice that is nearest to replacing one of the rule."""
    every = [
        (abs(line.rival[1]), kind_words(kind), line, line.rival)
        for kind, lines in rule.lines.items()
        for line in lines
        if line.rival is not None
    ]
    if every:
        _, kind, line, (choice, more) = min(every, key=lambda one: one[0])
        where = " ".join(filter(None, (kind, _ranges(line))))
        words = f"{abs(more):.1%} {'slower' if more > 0 else 'faster'}" if abs(more) >= 0.0005 else "as fast"
        yield f"Closest call: {where}, where {words_of(choice)} is {words}"


def _open(answers: Sequence[Answer]) -> str:
    undecided = [answer for answer in answers if not answer.decided]
    few = any(len(answer.visits_of(answer.choice)) < MIN_PAIRS for answer in undecided)
    why = f"fewer than {MIN_PAIRS} visits decide nothing" if few else "another run could differ (tune --open)"
    return f"Open for {len(undecided)} of {len(answers)} sizes and counts" + (f": {why}" if undecided else "")
