"""The words of an answer for swaps alone."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, zip_longest
from statistics import mean, median
from typing import Final, NamedTuple

from kvbench.analysis.compare import MIN_PAIRS, Comparison
from kvbench.analysis.margins import KNEE, TIED
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import SwapKind
from kvbench.cells.facts import BATCHED, COPIER, sms_text
from kvbench.cells.installed import Engine, engines
from kvbench.cells.policy import Choice
from kvbench.cells.units import size_text, two_digits
from kvbench.ground.text import counted, range_text
from kvbench.results.outcomes import grouped
from kvbench.tune.advice import Advice
from kvbench.tune.answer import LARGE, SMALL, Alone, RunLength, ShapeAnswer, shipped_choice, typical_shapes
from kvbench.tune.candidates import Measured
from kvbench.tune.rule import Rule, RulePart

_SHAPES: Final = (
    "Dir", "Stream", "Blocks", "Size", "Choice", "us", "95%", "GB/s", "Thread us", "Not told apart",
)  # fmt: skip
_OPEN: Final = f"Open: could be faster than the choice by more than {TIED.fraction:.0%} in another run"
_ALIKE: Final = f"Not told apart: within {TIED.fraction:.0%} of the choice, as far as the visits tell"


class Grid(NamedTuple):
    """Rows of plain text under a header, and the lines, if any, that say the same in a terminal with less room."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    narrow: Sequence[str] | None = None


def state_table(advice: Advice) -> Grid:
    """What to use by stream state, in a row for each direction and the states with the same choice: the times at a
    small and a large swap, those of batched copies and of engines as they ship, and the share of the ceiling.
    """
    rule, shipping = advice.alone.rule, [*engines().values()]
    shapes = {kind: typical_shapes(rule, kind) for kind in rule.parts}
    # The small swaps of all kinds, then the large ones, of those kinds that have two sizes.
    by_rank = zip_longest(*([measured.shape.size_text for measured in typical] for typical in shapes.values()))
    usual_sizes = [Counter(filter(None, sizes)).most_common(1)[0][0] for sizes in by_rank]
    rows = []
    for kinds in _kinds_with_one_choice(shapes, rule):
        first = kinds[0]
        row = [first.direction.value, ", ".join(kind.stream_state for kind in kinds), use_text(rule.parts[first])]
        for size, measured in zip_longest(usual_sizes, zip(*(shapes[kind] for kind in kinds), strict=True)):
            row += _times(measured, size, advice.alone, shipping) if measured else ["-"] * (3 + len(shipping))
        ceiling = advice.origin.ceilings_gbps.get(first.direction, math.nan)
        large = [shapes[kind][-1] for kind in kinds]
        shares = [measured.gbps_of(rule.choices[measured]) / ceiling for measured in large]
        rows.append([*row, range_text(shares, "{:.0%}".format) if ceiling > 0 else "-"])
    titles = [engine.title for engine in shipping]
    figures = chain.from_iterable((f"{size}, us", BATCHED, COPIER, *titles) for size in usual_sizes)
    columns = zip(["Dir", "Stream", "Use", *figures, "of ceiling"], *rows, strict=True)
    header, *body = map(list, zip(*(column for column in columns if {*column[1:]} != {"-"}), strict=True))
    caption = f"Swaps nearest to {SMALL} and {LARGE} blocks, each shape from the same rounds."
    return Grid(header, body, caption + _shipped_text(shipping, header, rule))


def _stand_in(engine: Engine, direction: Direction, rule: Rule) -> str:
    """What of an engine's code was measured in a direction in place of what it does by default, or ""."""
    of_direction = (measured for measured in rule.shapes if measured.shape.direction == direction)
    has_default = any(engine.default_choice(direction) in measured.methods for measured in of_direction)
    return "" if has_default else engine.measured.get(direction, "")


def _shipped_text(shipping: Sequence[Engine], header: Sequence[str], rule: Rule) -> str:
    """What the columns of engines and of the copier in a header are of."""
    in_header = [engine for engine in shipping if engine.title in header]
    titles = ", ".join(engine.title for engine in in_header)
    text = f" {titles}: the method it takes there." if titles else ""
    for engine in in_header:
        stand_ins = {direction: _stand_in(engine, direction, rule) for direction in Direction}
        text += "".join(f" {engine.title} {direction}: {method}." for direction, method in stand_ins.items() if method)
    return text + (f" {COPIER}: kvbench's, called from Python as engines are." if COPIER in header else "")


def _kinds_with_one_choice(shapes: Mapping[SwapKind, Sequence[Measured]], rule: Rule) -> list[list[SwapKind]]:
    """The directions and stream states of a rule, those of a direction together whose choices are the same."""
    states = [*StreamState]

    def choices(kind: SwapKind) -> tuple[object, ...]:
        parts = [(part.choice, part.sizes) for part in rule.parts[kind]]
        return kind.direction, *parts, *(measured.shape[2:] for measured in shapes[kind])

    in_order = sorted(shapes, key=lambda kind: (kind.direction == Direction.D2H, states.index(kind.stream_state)))
    return [*grouped(in_order, choices).values()]


def use_text(parts: Sequence[RulePart]) -> str:
    """What to use by size and number: "sm: 8 SMs up to 1 KiB, 4 SMs up to 16 KiB, 2 SMs from 24 KiB"."""
    if len(parts) == 1:
        return f"{parts[0].label}{_counts_text(parts[0])}{_against_text(parts[0])}"
    texts = []
    for method, parts_in_row in groupby(parts, key=lambda part: part.choice.without_sms):
        first, *more = parts_in_row
        if more:
            counts = (f"{sms_text([part.choice.sms])}{_extent_text(part)}" for part in (first, *more))
            texts.append(f"{method.label}: {', '.join(counts)}{_against_text(first)}")
        else:
            texts.append(f"{first.label}{_extent_text(first)}{_against_text(first)}")
    return "; ".join(texts)


def _extent_text(part: RulePart) -> str:
    """For which sizes and numbers of blocks a part is: " up to 16 KiB", " from 1024 blocks"."""
    low, high = (end and size_text(end) for end in part.sizes)
    sizes = "" if part.blocks[0] else f" up to {high}" if high else f" from {low}" if low else ""
    fewest, most = part.blocks
    if most:
        return f"{sizes} and {most} blocks" if sizes else f" up to {most} blocks"
    return sizes + (f" from {fewest} blocks" if fewest else "")


def _counts_text(part: RulePart) -> str:
    """Which of several SM counts suffice: ", 4 of 4 to 16 within 5% on average"."""
    if not part.choice.sms or len(part.counts) < 2:
        return ""
    return f", {part.choice.sms} of {range_text(part.counts, str)} within {KNEE.fraction:.0%} on average"


def _against_text(part: RulePart) -> str:
    others = ", ".join(dict.fromkeys(other.label for other in part.pick.open))
    return f", undecided against {others}" if others else ""


def methods_text(choices: Iterable[Choice]) -> str:
    """The methods of some choices, each with all its SM counts: "batched; sm (2 to 8 SMs)"."""
    counts: dict[Choice, list[int]] = {}
    for choice in choices:
        counts.setdefault(choice.without_sms, []).extend(filter(None, [choice.sms]))
    return "; ".join(method.label_with(sms) for method, sms in counts.items())


def _times(states: Sequence[Measured], usual_size: str, alone: Alone, shipping: Sequence[Engine]) -> list[str]:
    """The times at a shape, in one or more states, of the choice, of batched copies, and of engines with a copier
    beside them, from the runs that measured the choice and what the engines take.
    """
    columns: list[list[float]] = [[] for _ in range(3 + len(shipping))]
    for measured in states:
        choice = alone.rule.choices[measured]
        same_rounds = measured.in_rounds_of(choice)
        shipped = [shipped_choice(engine, same_rounds, alone.settings) for engine in shipping]
        same_rounds = same_rounds.in_rounds_of(next(filter(None, shipped), choice))
        copier = next(iter(same_rounds.called), None) if any(shipped) else None
        methods = [choice, same_rounds.best_of(BATCHED), copier, *shipped]
        compared = [*filter(None, methods)]
        for column, method in zip(columns, methods, strict=True):
            column += [measured.us_of(method, *compared)] if method else []
    texts = [range_text(column, three_digits) if column else "-" for column in columns]
    shape = states[0].shape.size_text
    return [texts[0] if shape == usual_size else f"{texts[0]} ({shape})", *texts[1:]]


def answer_lines(alone: Alone, listing: str = "", *, costs: bool = True) -> list[str]:
    """The lines about swaps alone: what is undecided, what the answer costs, and how engines compare; none where
    nothing was measured.

    `listing` is the option that lists what is undecided. Costs take as long as all else.
    """
    if not alone.shapes:
        return []
    lines = [_undecided_text(alone, listing), *([_cost_text(alone.losses)] if costs else [])]
    if alone.may_take_sms:
        how = "this driver may copy with SMs, unless overlap=on; kvbench probe engine tells whether it does"
        lines.append(f"{', '.join(alone.may_take_sms)}: {how}")
    gains: dict[str, list[str]] = {}
    for gain in alone.gains:
        if engine := engines().get(gain.over):
            other = _stand_in(engine, gain.kind.direction, alone.rule)
            kind = f"{gain.kind} against {other}" if other else str(gain.kind)
            gains.setdefault(engine.title, []).append(f"{kind} {_times_as_fast_text(gain.ratios)}")
    parts = [f"{title} {', '.join(texts)}" for title, texts in sorted(gains.items())]
    lines += [f"Against engines' code, times as fast in the median: {'; '.join(parts)}"] if parts else []
    return [*lines, *_in_runs(alone.merged_in_runs)]


def _undecided_text(alone: Alone, listing: str) -> str:
    """Say where nothing can be told apart from batched copies, and at how many shapes another run could differ."""
    rule, answers = alone.rule, alone.shapes
    stays = [str(kind) for kind, parts in rule.parts.items() if all(part.choice.backend == BATCHED for part in parts)]
    text = f"No method is told apart from {BATCHED}: {', '.join(stays)}. " if stays else ""
    undecided = [answer for answer in answers if not answer.decided]
    lacks_visits = any(len(answer.measured.visits_of(answer.choice)) < MIN_PAIRS for answer in undecided)
    why = f" (fewer than {MIN_PAIRS} visits decide nothing)" if lacks_visits else ""
    more_sms = sum(answer.decided and bool(answer.open) for answer in answers)
    text += f"{len(undecided)} of {counted(len(answers), 'shape')} undecided, each taken alone{why}"
    text += f"; at {more_sms} others another SM count could gain over {TIED.fraction:.0%}" if more_sms else ""
    return text + (f"; to list them, add {listing} to this command" if (undecided or more_sms) and listing else "")


def _cost_text(losses: Mapping[Measured, float]) -> str:
    what = "Cost against each shape's best, judged by other rounds"
    if not losses:
        return f"{what}: not measured"
    means = []
    for direction, shapes in grouped(losses, lambda measured: measured.shape.direction).items():
        means.append(f"{direction} {_percent_text(mean(losses[measured] for measured in shapes))}")
    worst = max(losses, key=losses.__getitem__)
    most = f"{_percent_text(losses[worst])} at worst ({worst.shape.kind}, {worst.shape.size_text})"
    return f"{what}: {', '.join(means)} on average of {counted(len(losses), 'choice')}; {most}"


def _percent_text(cost: float) -> str:
    return f"{two_digits(max(cost, 0.0) * 100)}%"


def _times_as_fast_text(ratios: Sequence[float]) -> str:
    middle, both_ends = f"{two_digits(median(ratios))}x", range_text(ratios, lambda ratio: f"{two_digits(ratio)}x")
    return f"{middle} ({both_ends}, {counted(len(ratios), 'shape')})"


def three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _in_runs(lengths: Mapping[Direction, RunLength]) -> Iterator[str]:
    """Yield what would change if the blocks lay in contiguous runs, for an answer about shuffled blocks."""
    if lengths:
        by_blocks = grouped(lengths, lambda direction: lengths[direction].blocks)
        texts = ", ".join(f"{blocks} blocks ({', '.join(directions)})" for blocks, directions in by_blocks.items())
        gbps = range_text([rate for length in lengths.values() for rate in length.gbps], two_digits)
        sms = "" if any(length.may_take_sms for length in lengths.values()) else ", no SMs"
        yield f"In contiguous runs of at least {texts}: merged, {gbps} GB/s{sms}"


def shapes_page(alone: Alone, *, table: bool, open_: bool) -> Iterator[str | Grid]:
    """Yield the choice for every shape taken alone, those that another run could make differently, or both."""
    if table:
        yield _ALIKE
        yield Grid(_SHAPES, [*map(_shape_row, alone.shapes)])
    if open_ and alone.shapes:
        points = _open_points(alone.shapes) or ["nothing"]
        yield from answer_lines(alone)
        yield _OPEN
        yield from (f"  {point}" for point in points)


def _open_points(answers: Sequence[ShapeAnswer]) -> list[str]:
    """The shapes whose choice is open, each with the best alternative, the largest gain first."""
    best = [(answer, *min(answer.open.items(), key=lambda item: item[1].ratio)) for answer in answers if answer.open]
    return [_doubt_text(*doubt) for doubt in sorted(best, key=lambda doubt: doubt[2].ratio)]


def _doubt_text(answer: ShapeAnswer, other: Choice, compared: Comparison) -> str:
    cost, low, high = (f"{(ratio - 1) * 100:+.1f}%" for ratio in (compared.ratio, compared.low, compared.high))
    interval = f" ({low} to {high})" if math.isfinite(compared.high) else ", too few visits for an interval"
    shape = answer.measured.shape
    return f"{shape.kind}, {shape.size_text}: {answer.choice.label}, or {other.label} for {cost}{interval} of the time"


def _shape_row(answer: ShapeAnswer) -> list[str]:
    measured, choice, shape = answer.measured, answer.choice, answer.measured.shape
    interval = measured.interval_of(choice)
    rates = [f"{measured.gbps_of(choice):.1f}", f"{measured.caller_us[choice]:.1f}"]
    swap = [shape.direction.value, shape.stream_state.value, str(shape.blocks), size_text(shape.block_bytes)]
    ends_us = "-" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}"
    others = methods_text(answer.others) or "-"
    return [*swap, choice.label, f"{measured.us_of(choice):.1f}", ends_us, *rates, others]
