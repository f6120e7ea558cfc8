"""The answer in a few lines: the rule, what it loses and gains, and what would change it."""

from collections.abc import Callable, Iterator, Sequence
from statistics import mean, median
from typing import Final

from kvbench.analysis.compare import MIN_PAIRS
from kvbench.analysis.margins import TIED
from kvbench.cells.axes import Direction, StreamState
from kvbench.results import Run
from kvbench.text import ends, terminal_rows
from kvbench.tune.answer import Answer, answers_of, choice_text, machine_text, speed_text, workload_of
from kvbench.tune.exports import ENGINE_BACKENDS
from kvbench.tune.figures import closest_call, gains_of, gate_shares, losses_as_shuffled, merged_from
from kvbench.tune.fit import kind_text
from kvbench.tune.rule import MOST_LINES, WORST, Line, Range, SmallestRule, rule_of
from kvbench.units import size_text, two_digits

# The most rows of a terminal that the answer takes.
ROWS: Final = 12


def rule_for_all(runs: Sequence[Run]) -> SmallestRule:
    """Return the rule of runs of one machine, without the code of engines, which serves only these.

    Raises UsageError where there is nothing to choose from.
    """
    return rule_of(answers_of(runs, lambda choice: choice.backend not in ENGINE_BACKENDS))


def summary(runs: Sequence[Run], rows: int = ROWS) -> list[str]:
    """Return the answer of `rule_for_all`."""
    return headline(rule_for_all(runs), runs, rows)


def origin(runs: Sequence[Run]) -> str:
    """Return what a rule is about: the machine, and which blocks are swapped."""
    return f"{machine_text(*runs)}; {workload_of(runs)}"


def headline(rule: SmallestRule, runs: Sequence[Run], rows: int = ROWS) -> list[str]:
    """Return the answer of a rule of `runs`, in lines that take at most `rows` rows of a terminal.

    They say what to use, what that loses and gains, and how sure it is.
    """
    losses = rule.losses.values()
    average, worst = (f"{two_digits(max(loss, 0.0) * 100)}%" for loss in (mean(losses), max(losses)))
    loss = f"Loss against the best of each size and count: {average} on average, {worst} at worst"
    if rule.beyond:
        kinds = ", ".join(map(kind_text, rule.beyond))
        loss += f"; beyond {TIED.fraction:.0%} or {WORST:.0%} with {MOST_LINES} choices: {kinds}"
    uses, beside = _uses(rule), [*_rival(rule), *_in_runs(rule, runs), *_gate(rule.answers)]
    tail = [*_as_shuffled(rule, runs), _open(rule.answers)]
    gains, pooled = ([*_gains(rule, pooled=pooled)] for pooled in (False, True))
    whole = [(len(uses), gains, len(beside)), *((len(uses), pooled, shown) for shown in range(len(beside), -1, -1))]
    for kept, gained, shown in [*whole, *((kept, pooled, 0) for kept in range(len(uses) - 2, 0, -1))]:
        left_out = len(uses) - kept
        more = f"{left_out} more, of other directions and stream states: kvbench tune RUN --stream STATE"
        lines = [origin(runs), *uses[:kept], *([more] if left_out else []), loss, *gained, *beside[:shown], *tail]
        if terminal_rows(lines) <= rows:
            break
    return lines


def _uses(rule: SmallestRule) -> list[str]:
    """Return a line for all stream states of a direction with the same choices: "h2d idle, opened: sm with 4 SMs"."""
    states: dict[tuple[Direction, str], list[StreamState]] = {}
    for (direction, state), lines in rule.lines.items():
        states.setdefault((direction, f"{_only(lines)}: {_choices(lines)}"), []).append(state)
    return [f"{direction} {', '.join(alike)}{rest}" for (direction, rest), alike in states.items()]


def _only(lines: Sequence[Line]) -> str:
    """Return the block size and the number of blocks where a rule has one: " (16 KiB)"."""
    answers = [answer for line in lines for answer in line.answers]
    sizes, counts = {answer.block_bytes for answer in answers}, {answer.blocks for answer in answers}
    parts = [*map(size_text, sizes)] * (len(sizes) == 1) + [f"{count} blocks" for count in counts] * (len(counts) == 1)
    return f" ({', '.join(parts)})" if parts else ""


def _choices(lines: Sequence[Line]) -> str:
    """Return the choices of a rule: "sm with 4 SMs up to 4 KiB, 2 from 16 KiB"."""
    parts: list[str] = []
    before = None
    for line in lines:
        axes = dict(line.choice.axes)
        only_sms = axes.keys() == {"sms"} and before is not None and before.backend == line.choice.backend
        choice = axes["sms"] if only_sms else choice_text(line.choice)
        parts.append(" ".join(filter(None, (choice, _ranges(line)))))
        before = line.choice
    more = len(parts) - MOST_LINES
    return ", ".join(parts[:MOST_LINES]) + (f" and {more} more (tune --table)" if more > 0 else "")


def _ranges(line: Line) -> str:
    counts = _range(line.counts, str)
    return " and ".join(filter(None, (_range(line.sizes, size_text), counts and f"{counts} blocks")))


def _range(span: Range, show: Callable[[int], str]) -> str:
    low, high = (None if end is None else show(end) for end in span)
    if low is None or high is None:
        return f"up to {high}" if high else f"from {low}" if low else ""
    return f"at {low}" if low == high else f"from {low} to {high}"


def _gains(rule: SmallestRule, *, pooled: bool) -> Iterator[str]:
    """Yield lines over batched copies, then over each engine whose own code was measured."""
    every = {state for _, state in rule.lines}
    lines: dict[tuple[str, str], list[str]] = {}
    for gain in gains_of(rule, pooled=pooled):
        states = "all" if len(every) > 1 and every == {*gain.states} else ", ".join(gain.states)
        parts, middle = lines.setdefault((gain.over, states), []), median(gain.ratios)
        speed = f"{two_digits(middle)}x" if parts else speed_text(middle, gain.over)
        parts.append(f"{gain.direction} {speed} ({ends(gain.ratios, lambda ratio: f'{two_digits(ratio)}x')})")
    for (_, states), parts in lines.items():
        yield f"Gain, {states}: {', '.join(parts)}"


def _gate(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield what batched copies take behind a gate that is closed, against one that is open."""
    shares = gate_shares(answers)
    parts = [f"{ends([100 * share for share in shares[way]], two_digits)}% ({way})" for way in shares]
    if parts:
        yield f"batched from the opening of a gate takes {', '.join(parts)} of its time behind an open one"


def _as_shuffled(rule: SmallestRule, runs: Sequence[Run]) -> Iterator[str]:
    """Yield what the swaps of a trace would take by the choices for shuffled blocks, where these were measured."""
    parts = [f"{loss:.1%} for {direction}" for direction, loss in losses_as_shuffled(rule, runs).items()]
    if parts:
        yield f"By the choices for shuffled blocks, these swaps take {', '.join(parts)} longer"


def _in_runs(rule: SmallestRule, runs: Sequence[Run]) -> Iterator[str]:
    """Yield what would change if the blocks lay in runs, for an answer about shuffled blocks."""
    if lengths := merged_from(rule, runs):
        directions: dict[int, list[str]] = {}
        for direction, length in lengths.items():
            directions.setdefault(length.blocks, []).append(direction)
        where = ", ".join(f"{blocks} ({', '.join(of_length)})" for blocks, of_length in directions.items())
        gbps = ends([rate for length in lengths.values() for rate in length.gbps], two_digits)
        yield f"In runs of blocks, from {where}: merged, {gbps} GB/s, no SMs"


def _rival(rule: SmallestRule) -> Iterator[str]:
    """Yield the other choice that is nearest to replacing one of the rule."""
    if call := closest_call(rule):
        where = " ".join(filter(None, (kind_text(call.kind), _ranges(call.line))))
        percent = 100 * abs(call.slower)
        speed = f"{two_digits(percent)}% {'slower' if call.slower > 0 else 'faster'}" if percent >= 0.05 else "as fast"
        yield f"Closest call: {where}, where {choice_text(call.other)} is {speed}"


def _open(answers: Sequence[Answer]) -> str:
    undecided = [answer for answer in answers if not answer.decided]
    few = any(len(answer.visits_of(answer.choice)) < MIN_PAIRS for answer in undecided)
    why = f"fewer than {MIN_PAIRS} visits decide nothing" if few else "another run could differ (tune --open)"
    return f"Open for {len(undecided)} of {len(answers)} sizes and counts" + (f": {why}" if undecided else "")
