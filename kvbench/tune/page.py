"""The page of an answer: its rows, the lines below them, the shapes of swaps alone, and the swaps of models."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby, product, zip_longest
from statistics import mean, median
from typing import Final, NamedTuple

from kvbench.analysis.compare import MIN_PAIRS, Comparison
from kvbench.analysis.margins import KNEE, TIED
from kvbench.cells.axes import Direction, Situation, StreamState
from kvbench.cells.cell import Cell, SwapKind
from kvbench.cells.facts import BATCHED, COPIER, sms_text
from kvbench.cells.installed import Engine, engines
from kvbench.cells.pattern import SHUFFLED
from kvbench.cells.policy import Choice
from kvbench.cells.units import KIB, size_text, two_digits
from kvbench.ground.text import counted, range_text
from kvbench.models.steps import BATCH
from kvbench.results.outcomes import grouped
from kvbench.tune.advice import Advice, Alone, Reply, ShapeAnswer, StandIns, shipped_choice
from kvbench.tune.candidates import Measured, nearest_shape
from kvbench.tune.planner import BUDGETS_MS, MISSES, PROMPT_TOKENS, GatherWait, Load, TokenLine
from kvbench.tune.rule import Rule, RulePart
from kvbench.tune.situations import GENTLE, Answer, Method

# What else there is beside steps.
OTHERS: Final = (
    "Dir", "Beside", "A swap takes", f"Fastest, step at most {GENTLE:.0%} longer", "Fastest at any price",
    "Not told apart from the choice",
)  # fmt: skip
HEADER: Final = ("Dir", "Beside", "Use", "GB/s", "Step takes", "Lost + thread, ms/GB", "Otherwise")
NOTHING: Final = "-"
_LOADS: Final = ("Dir", "Stream", "Use", "us", "GB/s", "Thread us", "Measured at")
_SHAPES: Final = (
    "Dir", "Stream", "Blocks", "Size", "Choice", "us", "95%", "GB/s", "Thread us", "Not told apart",
)  # fmt: skip
# The number of blocks of a small and of a large swap, of a block size near to that of models.
_SMALL: Final = 64
_LARGE: Final = 1024
_BLOCK_BYTES: Final = 32 * KIB
_OPEN: Final = f"Open: could be faster than the choice by more than {TIED.fraction:.0%} in another run"
_FEW_VISITS: Final = f" (fewer than {MIN_PAIRS} visits decide nothing)"
_ALIKE: Final = f"Not told apart: within {TIED.fraction:.0%} of the choice, as far as the visits tell"


class Grid(NamedTuple):
    """Rows of plain text under a header, and the lines, if any, that say the same in a terminal with less room."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    narrow: Sequence[str] | None = None


def page_of(reply: Reply, *, table: bool = False, open_: bool = False) -> Iterator[str | Grid]:
    """Yield the lines and tables of a reply: its advice, and what a reader must know of the runs.

    The advice has its rows, or with `table` the choice for every shape alone, with `open_` those that another run could
    make differently, and what that costs; and the swaps of models.
    """
    warnings = [f"Warning: {fault}" for fault in reply.warnings]
    yield from filter(None, [reply.host_note])
    advice = reply.advice
    if advice is None:
        yield from (f"No choice: {reply.none}", *reply.findings, *warnings)
        return
    yield from advice.origin.lines
    if table or open_:
        yield from _shapes_page(advice.alone, table=table, open_=open_)
    else:
        yield from _answer_page(advice)
    if advice.models.swaps and advice.alone.shapes:
        yield from _model_page(advice)
    yield from (*warnings, *reply.findings)


def _answer_page(advice: Advice) -> Iterator[str | Grid]:
    """Yield the rows of the answer, and what they leave out."""
    yield Grid(HEADER, rows_of(advice.answers), narrow=[*in_lines(advice)])
    yield from filter(None, [head_of(advice)])
    others = others_of(advice)
    if others:
        yield Grid(OTHERS, others)
    yield from lines_of(advice)
    if Situation.ALONE in advice.question.situations:
        yield from answer_lines(advice.alone, "--open", costs=False)


def rows_of(answers: Iterable[Answer]) -> list[list[str]]:
    """A row for each direction and situation."""
    return [_row(answer) for answer in answers]


def _row(answer: Answer) -> list[str]:
    first = [answer.direction.value, answer.beside]
    if answer.use is None:
        return [*first, answer.none, *[NOTHING] * (len(HEADER) - 4), _otherwise_text(answer)]
    use = answer.use
    figures = (_rate_text(answer, use), slowdown_text(use), _cost_text(use))
    return [*first, use_of(answer), *figures, _otherwise_text(answer)]


def use_of(answer: Answer) -> str:
    """The choice, alone also by the number of blocks: "sm: 4 SMs up to 256 blocks, 2 SMs from 1024 blocks"."""
    if answer.use is None:
        return answer.none
    if answer.situation is Situation.ALONE:
        return _use_text([replace(part, sizes=(None, None)) for part in answer.parts])
    return answer.use.choice.label


def place_of(answer: Answer) -> str:
    """What the swaps of an answer run beside: "alone" or "beside decode"."""
    return "alone" if answer.situation is Situation.ALONE else f"beside {answer.beside}"


def situation_text(answer: Answer) -> str:
    """The direction too: "h2d alone" or "d2h beside decode"."""
    return f"{answer.direction} {place_of(answer)}"


def _rate_text(answer: Answer, method: Method) -> str:
    """The GB/s, and of swaps alone the time."""
    gbps = three_digits(method.gbps)
    return f"{gbps} ({_time_text(method.us)})" if answer.situation is Situation.ALONE else gbps


def _time_text(us: float) -> str:
    return f"{three_digits(us)} us" if us < 1000 else f"{three_digits(us / 1000)} ms"


def slowdown_text(method: Method) -> str:
    return f"{method.slowdown[0]:.2f}x" if method.slowdown else NOTHING


def _cost_text(method: Method) -> str:
    """What each GB takes, "1.1 + 0.31"; nothing is lost by swaps alone."""
    thread = _ms_text(method.thread_ms_per_gb)
    return f"{_ms_text(method.lost_ms_per_gb[0])} + {thread}" if method.lost_ms_per_gb else thread


def _ms_text(value: float) -> str:
    return NOTHING if math.isnan(value) else f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}"


def _otherwise_text(answer: Answer) -> str:
    method = answer.otherwise
    if method is None:
        return "no other candidate" if answer.use else NOTHING
    lost = f", {_cost_text(method)}" if method.lost_ms_per_gb else ""
    return f"{method.choice.label}, {three_digits(method.gbps)} GB/s{lost}"


def head_of(advice: Advice) -> str:
    """Of which blocks the rows are, and what their columns mean; "" where nothing was answered."""
    answered = [answer for answer in advice.answers if answer.use]
    needs_gpu = "Beside a step: needs a GPU" if advice.origin.on_host else ""
    columns = needs_gpu or "Lost: of the step, for each GB that is moved; thread: of the thread that submits"
    return f"{blocks_text(answered)}. {columns}" if answered else needs_gpu


def blocks_text(answers: Sequence[Answer]) -> str:
    """Of which swaps answers are: "4096 to 5000 blocks of 16 KiB"."""
    blocks = range_text((answer.blocks for answer in answers), str)
    return f"{blocks} blocks of {range_text((answer.block_bytes for answer in answers), size_text)}"


def others_of(advice: Advice) -> list[list[str]]:
    """The rows of `OTHERS`: beside each step what is the fastest, and what the choice is not told apart from."""
    rows = []
    for answer in advice.answers:
        if answer.methods and answer.situation is not Situation.ALONE:
            swap = _time_text(answer.use.us) if answer.use else NOTHING
            fastest = _method_text(answer.gentle), _method_text(answer.fastest)
            rows.append([answer.direction.value, answer.beside, swap, *fastest, _alike_text(answer)])
    return rows


def _alike_text(answer: Answer) -> str:
    if answer.use is None:
        return NOTHING
    note = _FEW_VISITS if answer.visits < MIN_PAIRS else ""
    return f"{_methods_text(answer.not_told_apart)}{note}" or NOTHING


def lines_of(advice: Advice) -> Iterator[str]:
    """Yield what else there is to say: other layouts, what is undecided alone, and what was compared."""
    alone = [answer for answer in advice.answers if answer.situation is Situation.ALONE]
    for answer in advice.answers:
        if answer.other_layouts:
            texts = "; ".join(_layout_text(*in_layout) for in_layout in answer.other_layouts)
            yield f"{answer.direction} beside {answer.beside} in other layouts: {texts}"
    yield from _listed("undecided against", alone, lambda answer: _methods_text(answer.undecided))
    yield from _listed("compared with", advice.answers, lambda answer: _methods_text(answer.compared_with))


def _layout_text(cell: Cell, method: Method) -> str:
    """A method with its layout, named for the side that has one alone: "merged in runs-16, 38 GB/s, ..."."""
    source, destination = cell.sides
    loads = cell.direction is Direction.H2D
    sides = {"the host": source if loads else destination, "the GPU": destination if loads else source}
    differing = (f"{pattern} on {side}" for side, pattern in sides.items() if pattern != SHUFFLED)
    layout = str(source) if source == destination else " and ".join(differing)
    figures = f"{three_digits(method.gbps)} GB/s, {slowdown_text(method)}, {_cost_text(method)} ms/GB"
    return f"{method.choice.label} in {layout}, {figures}"


def _method_text(method: Method | None) -> str:
    """A method with its GB/s, how long a step takes, and the time until a swap is complete."""
    if method is None:
        return "none"
    return f"{method.choice.label}, {three_digits(method.gbps)} GB/s, {slowdown_text(method)}, {_time_text(method.us)}"


def _listed(title: str, answers: Iterable[Answer], text: Callable[[Answer], str]) -> Iterator[str]:
    """Yield what there is to say of answers, a line for those with the same words."""
    for words, same in grouped(answers, text).items():
        if words:
            yield f"{', '.join(map(situation_text, same))} {title}: {words}"


def in_lines(advice: Advice) -> Iterator[str]:
    """Yield the rows as a line each, where a table has no room: "d2h beside decode: sm (2 SMs), 23 GB/s, ..."."""
    for row, answer in zip(rows_of(advice.answers), advice.answers, strict=True):
        _, _, use, gbps, step, cost, otherwise = row
        if answer.use is None:
            yield f"{situation_text(answer)}: {use}" + (f"; otherwise {otherwise}" if otherwise != NOTHING else "")
            continue
        named = f"{gbps} GB/s" if "(" not in gbps else gbps.replace(" (", " GB/s (")
        parts = [use, named, f"step {step}" if step != NOTHING else "", f"{cost} ms/GB", f"otherwise {otherwise}"]
        yield f"{situation_text(answer)}: {'; '.join(filter(None, parts))}"


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
        row = [first.direction.value, ", ".join(kind.stream_state for kind in kinds), _use_text(rule.parts[first])]
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
    caption = f"Swaps nearest to {_SMALL} and {_LARGE} blocks, each shape from the same rounds."
    return Grid(header, body, caption + _shipped_text(shipping, header, advice.alone.stand_ins))


def typical_shapes(rule: Rule, kind: SwapKind) -> list[Measured]:
    """The small and the large swap that stand for a kind, of those with figures of the choice; one if no other has its
    size.
    """
    shapes = [*chain.from_iterable(part.with_figures for part in rule.parts[kind])]

    def distance(measured: Measured) -> float:
        # The block size decides the method: twice the size is as far as four times the blocks.
        shape = measured.shape
        return 2 * abs(math.log(shape.block_bytes / _BLOCK_BYTES)) + abs(math.log(shape.blocks / _SMALL))

    small = min(shapes, key=distance)
    large = nearest_shape(shapes, small.shape.block_bytes, _LARGE)
    return [small] if large is small else [small, large]


def _shipped_text(shipping: Sequence[Engine], header: Sequence[str], stand_ins: StandIns) -> str:
    """What the columns of engines and of the copier in a header are of."""
    in_header = [engine for engine in shipping if engine.title in header]
    titles = ", ".join(engine.title for engine in in_header)
    text = f" {titles}: the method it takes there." if titles else ""
    for engine, direction in product(in_header, Direction):
        if method := stand_ins[engine.name, direction]:
            text += f" {engine.title} {direction}: {method}."
    return text + (f" {COPIER}: kvbench's, called from Python as engines are." if COPIER in header else "")


def _kinds_with_one_choice(shapes: Mapping[SwapKind, Sequence[Measured]], rule: Rule) -> list[list[SwapKind]]:
    """The directions and stream states of a rule, those of a direction together whose choices are the same."""
    states = [*StreamState]

    def choices(kind: SwapKind) -> tuple[object, ...]:
        parts = [(part.choice, part.sizes) for part in rule.parts[kind]]
        return kind.direction, *parts, *(measured.shape[2:] for measured in shapes[kind])

    in_order = sorted(shapes, key=lambda kind: (kind.direction == Direction.D2H, states.index(kind.stream_state)))
    return [*grouped(in_order, choices).values()]


def _use_text(parts: Sequence[RulePart]) -> str:
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


def _methods_text(choices: Iterable[Choice]) -> str:
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
    """The lines about swaps alone: what is undecided, what the answer costs, how engines compare, and what would change
    if the blocks lay in contiguous runs; none where nothing was measured.

    `listing` is the option that lists what is undecided. Costs take as long as all else.
    """
    if not alone.shapes:
        return []
    lines = [_undecided_text(alone, listing), *([_loss_text(alone.losses)] if costs else [])]
    if alone.may_take_sms:
        how = "this driver may copy with SMs, unless overlap=on; kvbench probe engine tells whether it does"
        lines.append(f"{', '.join(alone.may_take_sms)}: {how}")
    gains: dict[str, list[str]] = {}
    for gain in alone.gains:
        if engine := engines().get(gain.over):
            other = alone.stand_ins.get((gain.over, gain.kind.direction))
            kind = f"{gain.kind} against {other}" if other else str(gain.kind)
            gains.setdefault(engine.title, []).append(f"{kind} {_times_as_fast_text(gain.ratios)}")
    parts = [f"{title} {', '.join(texts)}" for title, texts in sorted(gains.items())]
    lines += [f"Against engines' code, times as fast in the median: {'; '.join(parts)}"] if parts else []
    if lengths := alone.merged_in_runs:
        by_blocks = grouped(lengths, lambda direction: lengths[direction].blocks)
        texts = ", ".join(f"{blocks} blocks ({', '.join(directions)})" for blocks, directions in by_blocks.items())
        gbps = range_text([rate for length in lengths.values() for rate in length.gbps], two_digits)
        sms = "" if any(length.may_take_sms for length in lengths.values()) else ", no SMs"
        lines.append(f"In contiguous runs of at least {texts}: merged, {gbps} GB/s{sms}")
    return lines


def _undecided_text(alone: Alone, listing: str) -> str:
    """Say where nothing can be told apart from batched copies, and at how many shapes another run could differ."""
    rule, answers = alone.rule, alone.shapes
    stays = [str(kind) for kind, parts in rule.parts.items() if all(part.choice.backend == BATCHED for part in parts)]
    text = f"No method is told apart from {BATCHED}: {', '.join(stays)}. " if stays else ""
    undecided = [answer for answer in answers if not answer.decided]
    lacks_visits = any(len(answer.measured.visits_of(answer.choice)) < MIN_PAIRS for answer in undecided)
    why = _FEW_VISITS if lacks_visits else ""
    more_sms = sum(answer.decided and bool(answer.open) for answer in answers)
    text += f"{len(undecided)} of {counted(len(answers), 'shape')} undecided, each taken alone{why}"
    text += f"; at {more_sms} others another SM count could gain over {TIED.fraction:.0%}" if more_sms else ""
    return text + (f"; to list them, add {listing} to this command" if (undecided or more_sms) and listing else "")


def _loss_text(losses: Mapping[Measured, float]) -> str:
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


def _shapes_page(alone: Alone, *, table: bool, open_: bool) -> Iterator[str | Grid]:
    """Yield the choice for every shape taken alone, those that another run could make differently, or both."""
    if table:
        yield _ALIKE
        yield Grid(_SHAPES, [*map(_shape_row, alone.shapes)])
    if open_ and alone.shapes:
        yield from answer_lines(alone)
        yield _OPEN
        # Each with the best alternative, the largest gain first.
        answers = [answer for answer in alone.shapes if answer.open]
        doubts = [(answer, *min(answer.open.items(), key=lambda item: item[1].ratio)) for answer in answers]
        points = [_doubt_text(*doubt) for doubt in sorted(doubts, key=lambda doubt: doubt[2].ratio)]
        yield from (f"  {point}" for point in points or ["nothing"])


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
    others = _methods_text(answer.others) or "-"
    return [*swap, choice.label, f"{measured.us_of(choice):.1f}", ends_us, *rates, others]


def _model_page(advice: Advice) -> Iterator[str | Grid]:
    """Yield the models, the swaps of each, and the lines about their tokens, with an empty line before each."""
    models, prefill_tokens_per_s = advice.models, advice.question.prefill_tokens_per_s
    for model in models.models:
        yield from ("", f"{model.name}: {model.text}")
    for swap in models.swaps:
        yield from ("", f"{swap.title}, {swap.tokens} tokens: {swap.blocks} blocks of {size_text(swap.block_bytes)}")
        yield Grid(_LOADS, [_load_row(load) for load in models.loads if load.swap is swap])
    for swap, groups, times_us in models.totals:
        times = ", ".join(f"{kind} {us:.0f} us" for kind, us in times_us.items())
        yield from ("", f"{_ranked(swap.geometry.name, swap.tp)}, {swap.tokens} tokens, all {groups} groups: {times}")
    if models.lines:
        yield from ("", *_token_lines(models.lines))
    yield from ("", *_setting_lines(advice))
    if prefill_tokens_per_s:
        yield from ("", *_prefill_lines(models.lines, prefill_tokens_per_s))


def _load_row(load: Load) -> list[str]:
    kind, figures = load.kind, [f"{load.us:.0f}", f"{load.gbps:.1f}", f"{load.caller_us:.0f}"]
    return [kind.direction.value, kind.stream_state.value, load.choice.label, *figures, load.nearest.shape.size_text]


def _token_lines(lines: Sequence[TokenLine]) -> Iterator[str]:
    """Yield the lines over the tokens of models: "h2d idle, warm: us = 12.3 + 2.6 x tokens (16 to 2048, ...)"."""
    several = len({(line.model, line.tp) for line in lines}) > 1
    for line in lines:
        model = f"{line.model}{f' TP {line.tp}' if line.tp > 1 else ''}, " if several else ""
        call = "warm" if line.pause == "0" else f"cold ({line.pause})"
        measured = f"measured at {', '.join(map(str, line.measured))}" if line.measured else "all interpolated"
        error = "" if line.error is None else f", within {math.ceil(line.error * 1000) / 10:g}%"
        yield (
            f"{model}{line.direction} {line.stream_state}, {call}: us = {line.us:.1f} + {line.us_per_token:.3g} x "
            f"tokens ({range_text(line.tokens, str)}, {measured}{error})"
        )
    if all(line.pause == "0" for line in lines):
        yield "Cold calls, after other work of the CPU, were not measured: axis pause=0,2ms"


def _prefill_lines(lines: Sequence[TokenLine], prefill: float) -> Iterator[str]:
    """Yield from how many tokens on loading is faster than prefill, and what a hit of the model's tokens saves."""
    loads = [line for line in lines if line.hit and line.stream_state == StreamState.IDLE.value]
    if not loads:
        yield "Load or prefill: too few sizes of loads were measured; measure them with kvbench tune and this option"
    for line in loads:
        call = "warm call" if line.pause == "0" else f"cold call, after {line.pause} of other work"
        first, hit, (low, high) = line.faster_than_prefill_from_tokens, line.hit, line.tokens
        faster = f"faster than prefill at {prefill:g} tokens/s"
        text = f"loading is never {faster}"
        if first and hit:
            load_ms, prefill_ms = hit.load_us / 1e3, hit.prefill_us / 1e3
            change = f"{'saves' if load_ms <= prefill_ms else 'costs'} {abs(prefill_ms - load_ms):.1f} ms"
            beyond = f", extrapolated: at most {high} tokens were measured" if hit.extrapolated else ""
            note = " (fewer were not measured)" if first < low else ""
            text = f"loading is {faster} from {max(first, low)} tokens on{note}; a hit of {hit.tokens} tokens {change} "
            text += f"({load_ms:.1f} in place of {prefill_ms:.1f}{beyond})"
        yield f"{line.model}, {call}: {text}"


def _setting_lines(advice: Advice) -> Iterator[str]:
    """Yield what settings of engines ask of a model: the bytes that a load moves in some time, and what the stores of
    a prompt and of a step's own tokens take from decode steps beside them.
    """
    yield from (_budget_text(line) for line in advice.models.lines if line.is_warm_load)
    beside_decode = (answer for answer in advice.answers if answer.situation is Situation.DECODE)
    stores = next((answer for answer in beside_decode if answer.direction is Direction.D2H), None)
    if stores is None:
        return
    for swap, prompt_gb in advice.models.prompts:
        step_gb = prompt_gb / PROMPT_TOKENS * BATCH
        prompt = f"a prompt of {PROMPT_TOKENS} tokens ({prompt_gb:.3g} GB)"
        step = f"what a step of {BATCH} requests writes ({1e3 * step_gb:.3g} MB)"
        for written, gigabytes in ((prompt, prompt_gb), (step, step_gb)):
            lost = _lost_text(stores, gigabytes)
            yield f"{_ranked(swap.geometry.name, swap.tp)}: to store {written} takes from decode: {lost}"
    yield "One GPU at a time; N at once share the host: a pace for N is a share of it"


def _ranked(model: str, tp: int) -> str:
    return f"{model}, TP {tp}" if tp > 1 else model


def _budget_text(line: TokenLine) -> str:
    """Say how many bytes of a model a load moves within some milliseconds."""
    tokens = [line.tokens_within(ms) for ms in BUDGETS_MS]
    sizes = " / ".join(f"{number * line.bytes_per_token / 1e6:.3g}" for number in tokens)
    beyond = ", extrapolated" if tokens[-1] > line.tokens[1] else ""
    times = " / ".join(map(str, BUDGETS_MS))
    return f"{_ranked(line.model, line.tp)}: a load of {sizes} MB takes {times} ms{beyond} (sync_load_budget_bytes)"


def _lost_text(stores: Answer, gigabytes: float) -> str:
    """Say what storing so much takes from decode steps, by each method that was measured beside them."""
    lost = [(method.choice.label, method.lost_ms_per_gb[0]) for method in stores.methods if method.lost_ms_per_gb]
    return ", ".join(f"{label} {gigabytes * ms_per_gb:.2g} ms" for label, ms_per_gb in lost) or stores.none


def gather_text(wait: GatherWait) -> str:
    """Say for how long a decode step waits for rows that it does not find on the GPU."""
    waits = " / ".join(f"{ms:.3g}" if ms < 100 else f"{ms:.0f}" for ms in wait.waits_ms)
    misses = " / ".join(f"{100 * share:.3g}%" for share in MISSES)
    return (
        f"{wait.group.name}: a decode step that reads {wait.rows} rows of {size_text(wait.row_bytes)} in each of "
        f"{wait.group.layers} layers waits {waits} ms with {misses} of them missing"
    )
