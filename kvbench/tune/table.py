"""The page of an answer: six rows, the lines below them, and what the swaps of models take."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from kvbench.analysis.compare import MIN_PAIRS
from kvbench.cells.axes import Direction, Situation, StreamState
from kvbench.cells.pattern import SHUFFLED
from kvbench.cells.units import size_text
from kvbench.ground.text import range_text
from kvbench.models.steps import BATCH
from kvbench.results.outcomes import grouped
from kvbench.tune.advice import Advice
from kvbench.tune.origin import origin_lines
from kvbench.tune.planner import BUDGETS_MS, MISSES, PROMPT_TOKENS, GatherWait, Load, ModelAnswers, TokenLine
from kvbench.tune.situations import GENTLE, Answer, InLayout, Method
from kvbench.tune.text import Grid, answer_lines, methods_text, shapes_page, three_digits, use_text

# What else there is beside steps.
OTHERS: Final = (
    "Dir", "Beside", "A swap takes", f"Fastest, step at most {GENTLE:.0%} longer", "Fastest at any price",
    "Not told apart from the choice",
)  # fmt: skip
HEADER: Final = ("Dir", "Beside", "Use", "GB/s", "Step takes", "Lost + thread, ms/GB", "Otherwise")
NOTHING: Final = "-"
_LOADS: Final = ("Dir", "Stream", "Use", "us", "GB/s", "Thread us", "Measured at")


def page_of(advice: Advice, *, table: bool = False, open_: bool = False) -> Iterator[str | Grid]:
    """Yield the lines and tables of an answer: its rows, or with `table` the choice for every shape alone, with `open_`
    those that another run could make differently, and what that costs; and the swaps of models.
    """
    yield from origin_lines(advice.origin)
    if table or open_:
        yield from shapes_page(advice.alone, table=table, open_=open_)
    else:
        yield from _answer_page(advice)
    if advice.models.swaps and advice.alone.shapes:
        yield from _model_page(advice.models, advice.question.prefill_tokens_per_s)


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
    first = [answer.direction.value, answer.situation.beside]
    if answer.use is None:
        return [*first, answer.none, *[NOTHING] * (len(HEADER) - 4), _otherwise_text(answer)]
    use = answer.use
    figures = (_rate_text(answer, use), _slowdown_text(use), _cost_text(use))
    return [*first, use_of(answer), *figures, _otherwise_text(answer)]


def use_of(answer: Answer) -> str:
    """The choice, alone also by the number of blocks: "sm: 4 SMs up to 256 blocks, 2 SMs from 1024 blocks"."""
    if answer.use is None:
        return answer.none
    if answer.situation is Situation.ALONE:
        return use_text([replace(part, sizes=(None, None)) for part in answer.parts])
    return answer.use.choice.label


def place_of(answer: Answer) -> str:
    """What the swaps of an answer run beside: "alone" or "beside decode"."""
    return "alone" if answer.situation is Situation.ALONE else f"beside {answer.situation.beside}"


def situation_text(answer: Answer) -> str:
    """The direction too: "h2d alone" or "d2h beside decode"."""
    return f"{answer.direction} {place_of(answer)}"


def _rate_text(answer: Answer, method: Method) -> str:
    """The GB/s, and of swaps alone the time."""
    gbps = three_digits(method.gbps)
    return f"{gbps} ({_time_text(method.us)})" if answer.situation is Situation.ALONE else gbps


def _time_text(us: float) -> str:
    return f"{three_digits(us)} us" if us < 1000 else f"{three_digits(us / 1000)} ms"


def _slowdown_text(method: Method) -> str:
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
    if not answered:
        return "Beside a step: needs a GPU" if advice.origin.on_host else ""
    blocks = range_text((answer.blocks for answer in answered), str)
    sizes = range_text((answer.block_bytes for answer in answered), size_text)
    lost = "Lost: of the step, for each GB that is moved; thread: of the thread that submits"
    return f"{blocks} blocks of {sizes}. {'Beside a step: needs a GPU' if advice.origin.on_host else lost}"


def others_of(advice: Advice) -> list[list[str]]:
    """The rows of `OTHERS`: beside each step what is the fastest, and what the choice is not told apart from."""
    rows = []
    for answer in advice.answers:
        if answer.methods and answer.situation is not Situation.ALONE:
            swap = _time_text(answer.use.us) if answer.use else NOTHING
            fastest = _method_text(answer.gentle), _method_text(answer.fastest)
            rows.append([answer.direction.value, answer.situation.beside, swap, *fastest, _alike_text(answer)])
    return rows


def _alike_text(answer: Answer) -> str:
    if answer.use is None:
        return NOTHING
    note = f" (fewer than {MIN_PAIRS} visits decide nothing)" if answer.visits < MIN_PAIRS else ""
    return f"{methods_text(answer.not_told_apart)}{note}" or NOTHING


def lines_of(advice: Advice) -> Iterator[str]:
    """Yield what else there is to say: other layouts, what is undecided alone, and what was compared."""
    alone = [answer for answer in advice.answers if answer.situation is Situation.ALONE]
    for answer in advice.answers:
        if answer.other_layouts:
            texts = "; ".join(map(_layout_text, answer.other_layouts))
            yield f"{answer.direction} beside {answer.situation.beside} in other layouts: {texts}"
    yield from _listed("undecided against", alone, lambda answer: methods_text(answer.undecided))
    yield from _listed("compared with", advice.answers, lambda answer: methods_text(answer.compared_with))


def _layout_text(placed: InLayout) -> str:
    """A method with its layout, named for the side that has one alone: "merged in runs-16, 38 GB/s, ..."."""
    cell, method = placed
    source, destination = cell.sides
    loads = cell.direction is Direction.H2D
    sides = {"the host": source if loads else destination, "the GPU": destination if loads else source}
    differing = (f"{pattern} on {side}" for side, pattern in sides.items() if pattern != SHUFFLED)
    layout = str(source) if source == destination else " and ".join(differing)
    figures = f"{three_digits(method.gbps)} GB/s, {_slowdown_text(method)}, {_cost_text(method)} ms/GB"
    return f"{method.choice.label} in {layout}, {figures}"


def _method_text(method: Method | None) -> str:
    """A method with its GB/s, how long a step takes, and the time until a swap is complete."""
    if method is None:
        return "none"
    return f"{method.choice.label}, {three_digits(method.gbps)} GB/s, {_slowdown_text(method)}, {_time_text(method.us)}"


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


def _model_page(models: ModelAnswers, prefill_tokens_per_s: float) -> Iterator[str | Grid]:
    """Yield the models, the swaps of each, and the lines about their tokens, with an empty line before each."""
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
    yield from ("", *_setting_lines(models))
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


def _setting_lines(models: ModelAnswers) -> Iterator[str]:
    """Yield what settings of engines ask of a model: the bytes that a load moves in some time, and what the stores of
    a prompt and of a step's own tokens take from decode steps beside them.
    """
    yield from (_budget_text(line) for line in models.lines if line.is_warm_load)
    if models.stores is None:
        return
    for swap, prompt_gb in models.prompts:
        step_gb = prompt_gb / PROMPT_TOKENS * BATCH
        prompt = f"a prompt of {PROMPT_TOKENS} tokens ({prompt_gb:.3g} GB)"
        step = f"what a step of {BATCH} requests writes ({1e3 * step_gb:.3g} MB)"
        for written, gigabytes in ((prompt, prompt_gb), (step, step_gb)):
            lost = _lost_text(models.stores, gigabytes)
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
