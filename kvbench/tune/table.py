"""The words of the answer: six rows, and the lines below them."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from kvbench.analysis.compare import MIN_PAIRS
from kvbench.cells.axes import Direction, Situation
from kvbench.cells.pattern import SHUFFLED
from kvbench.cells.units import size_text
from kvbench.text import ends
from kvbench.tune.situations import GENTLE, WAYS, Advice, Answer, Arm, Method, arms_of_size
from kvbench.tune.text import methods_text, three_digits, use_text

# What else there is beside steps.
OTHERS: Final = (
    "Dir", "Beside", "A swap takes", f"Fastest, step at most {GENTLE:.0%} longer", "Fastest at any price",
    "Not told apart from the choice",
)  # fmt: skip
HEADER: Final = ("Dir", "Beside", "Use", "GB/s", "Step takes", "Lost + thread, ms/GB", "Otherwise")
# The columns of `HEADER` that are text.
TEXTS: Final = 3
NOTHING: Final = "-"


def rows_of(advice: Advice) -> list[list[str]]:
    """Return a row for each direction and situation."""
    return [_row(answer) for answer in advice.answers]


def _row(answer: Answer) -> list[str]:
    first = [answer.direction.value, answer.situation.beside]
    if answer.use is None:
        return [*first, answer.none, *[NOTHING] * (len(HEADER) - 4), _otherwise(answer)]
    use = answer.use
    return [*first, use_of(answer), _rate(answer, use), _step(use), _cost(use), _otherwise(answer)]


def use_of(answer: Answer) -> str:
    """Return the choice, alone also by the number of blocks: "sm: 4 SMs up to 256 blocks, 2 SMs from 1024 blocks"."""
    if answer.use is None:
        return answer.none
    if answer.situation is Situation.ALONE:
        return use_text([replace(part, sizes=(None, None)) for part in answer.parts])
    return answer.use.choice.label


def place_of(answer: Answer) -> str:
    """Return "alone" or "beside decode"."""
    return "alone" if answer.situation is Situation.ALONE else f"beside {answer.situation.beside}"


def _rate(answer: Answer, method: Method) -> str:
    """Return the GB/s, and of swaps alone the time."""
    gbps = three_digits(method.gbps)
    return f"{gbps} ({_time(method.us)})" if answer.situation is Situation.ALONE else gbps


def _time(us: float) -> str:
    return f"{three_digits(us)} us" if us < 1000 else f"{three_digits(us / 1000)} ms"


def _step(method: Method) -> str:
    return f"{method.slowdown[0]:.2f}x" if method.slowdown else NOTHING


def _cost(method: Method) -> str:
    """Return what each GB takes, "1.1 + 0.31"; nothing is lost by swaps alone."""
    thread = _ms(method.thread_ms_per_gb)
    return f"{_ms(method.lost_ms_per_gb[0])} + {thread}" if method.lost_ms_per_gb else thread


def _ms(value: float) -> str:
    return NOTHING if math.isnan(value) else f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}"


def _otherwise(answer: Answer) -> str:
    method = answer.otherwise
    if method is None:
        return "nothing else measured" if answer.use else NOTHING
    lost = f", {_cost(method)}" if method.lost_ms_per_gb else ""
    return f"{method.choice.label}, {three_digits(method.gbps)} GB/s{lost}"


def head_of(advice: Advice) -> str:
    """Return of which blocks the rows are, and what their columns mean; "" where nothing was answered."""
    answered = [answer for answer in advice.answers if answer.use]
    if not answered:
        return "Beside a step: needs a GPU" if advice.on_host else ""
    lost = "Lost: of the step, for each GB that is moved; thread: of the thread that submits"
    return f"{_blocks_text(answered)}. {'Beside a step: needs a GPU' if advice.on_host else lost}"


def others_of(advice: Advice) -> list[list[str]]:
    """Return the rows of `OTHERS`: beside each step what is the fastest, and what the choice is not told apart from."""
    rows = []
    for answer in advice.answers:
        if answer.methods and answer.situation is not Situation.ALONE:
            swap = _time(answer.use.us) if answer.use else NOTHING
            fastest = _fast(answer.gentle), _fast(answer.fastest)
            rows.append([answer.direction.value, answer.situation.beside, swap, *fastest, _alike_text(answer)])
    return rows


def _alike_text(answer: Answer) -> str:
    if answer.use is None:
        return NOTHING
    few = f" (fewer than {MIN_PAIRS} visits decide nothing)" if answer.visits < MIN_PAIRS else ""
    return f"{methods_text(answer.not_told_apart)}{few}" or NOTHING


def lines_of(advice: Advice) -> Iterator[str]:
    """Yield what else there is to say: other layouts, what is undecided alone, and what was compared."""
    alone = [answer for answer in advice.answers if answer.situation is Situation.ALONE]
    yield from _layouts_text(advice)
    yield from _listed("undecided against", alone, lambda answer: methods_text(answer.undecided))
    yield from _listed("compared with", advice.answers, lambda answer: methods_text(answer.compared_with))


def _layouts_text(advice: Advice) -> Iterator[str]:
    """Yield what methods take of a step that were measured in another layout of the blocks, as they need."""
    for direction, situation in product(WAYS, advice.question.situations):
        least: dict[str, Arm] = {}
        arms = arms_of_size(advice.other_layouts.get((direction, situation), ()), advice.question.block_bytes)
        for arm in sorted(arms, key=_total_cost, reverse=True):
            least[arm.cell.backend] = arm
        if texts := [_layout_text(arm) for arm in sorted(least.values(), key=_total_cost)]:
            yield f"{direction} beside {situation.beside} in other layouts: {'; '.join(texts)}"


def _total_cost(arm: Arm) -> float:
    return arm.method.cost(thread_counts=True)


def _layout_text(arm: Arm) -> str:
    """Return a method with its layout, named for the side that has one alone: "merged in runs-16, 38 GB/s, ..."."""
    source, destination = arm.cell.sides
    loads = arm.cell.direction is Direction.H2D
    sides = {"the host": source if loads else destination, "the GPU": destination if loads else source}
    of_sides = " and ".join(f"{pattern} on {side}" for side, pattern in sides.items() if pattern != SHUFFLED)
    layout = str(source) if source == destination else of_sides
    method = arm.method
    figures = f"{three_digits(method.gbps)} GB/s, {_step(method)}, {_cost(method)} ms/GB"
    return f"{method.choice.label} in {layout}, {figures}"


def _blocks_text(answers: Sequence[Answer]) -> str:
    sizes = ends((answer.block_bytes for answer in answers), size_text)
    return f"{ends((answer.blocks for answer in answers), str)} blocks of {sizes}"


def _fast(method: Method | None) -> str:
    """Return a method with its GB/s, how long a step takes, and the time until a swap is complete."""
    if method is None:
        return "none"
    return f"{method.choice.label}, {three_digits(method.gbps)} GB/s, {_step(method)}, {_time(method.us)}"


def _listed(title: str, answers: Iterable[Answer], text: Callable[[Answer], str]) -> Iterator[str]:
    """Yield what there is to say of answers, a line for those with the same words."""
    same: dict[str, list[str]] = {}
    for answer in answers:
        if words := text(answer):
            same.setdefault(words, []).append(f"{answer.direction} {place_of(answer)}")
    yield from (f"{', '.join(where)} {title}: {words}" for words, where in same.items())


def in_lines(advice: Advice) -> Iterator[str]:
    """Yield the rows as a line each, where a table has no room: "d2h beside decode: sm (2 SMs), 23 GB/s, ..."."""
    for row, answer in zip(rows_of(advice), advice.answers, strict=True):
        direction, _, use, gbps, step, cost, otherwise = row
        where = f"{direction} {place_of(answer)}"
        if answer.use is None:
            yield f"{where}: {use}" + (f"; otherwise {otherwise}" if otherwise != NOTHING else "")
            continue
        named = f"{gbps} GB/s" if "(" not in gbps else gbps.replace(" (", " GB/s (")
        parts = [use, named, f"step {step}" if step != NOTHING else "", f"{cost} ms/GB", f"otherwise {otherwise}"]
        yield f"{where}: {'; '.join(filter(None, parts))}"
