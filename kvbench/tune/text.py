"""The words of an answer: in a terminal, in a report, and as JSON."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import mean, median
from typing import Any, Final

from kvbench.analysis.compare import MIN_PAIRS, Comparison, Verdict, compare_visits
from kvbench.analysis.margins import IN_TURN, TIED
from kvbench.cells.axes import Direction, Reuse, StreamState
from kvbench.cells.backend_facts import BATCHED, MERGED
from kvbench.cells.cell import EQUAL
from kvbench.cells.pattern import AS_PATTERN, SHUFFLED
from kvbench.cells.policy import Choice
from kvbench.cells.units import parse_size, size_text, two_digits
from kvbench.models.geometry import ModelSwap
from kvbench.results import Run
from kvbench.results.replays import trace_of, trace_text
from kvbench.sweep.installed import engines, of_engine
from kvbench.sweep.replay_spec import SIDES
from kvbench.text import WIDEST, ends, fitting, printable, short, terminal_rows
from kvbench.tune.answer import Answer, BesideAnswer, Shape, WayBeside, answers_of, apart
from kvbench.tune.figures import (
    AtShape,
    Load,
    TokenLine,
    at_known_shapes,
    closest_call,
    gains_of,
    loads_of,
    losses_as_shuffled,
    merged_from,
)
from kvbench.tune.fit import Kind, Point, driver_of, kind_plain, kind_text, may_take_sms, sms_of, workload_axes
from kvbench.tune.rule import MOST_LINES, WORST, Line, Range, SmallestRule, rule_of

# The most rows of a terminal that the answer takes.
ROWS: Final = 14
HEADER: Final = (
    "Dir", "Stream", "Blocks", "Size", "Choice", "us", "95%", "GB/s", "Thread us", "Times as fast as batched",
    "Tied with",
)  # fmt: skip
HEADER_MODEL: Final = ("Dir", "Stream", "Use", "us", "GB/s", "Thread us", "Measured at")
HEADER_BESIDE: Final = (
    "", "Dir", "Blocks", "Size", "Swaps", "GB/s", "95%", "Slower", "95%", "p99", "Lost us/GB",
)  # fmt: skip

# Streams that are as free, or as busy, when a swap begins on them.
_AS_FREE: Final = {StreamState.OPENED: StreamState.IDLE, StreamState.GATED: StreamState.BUSY}
TIED_WITH: Final = f"Tied with: another run could choose these; they differ by at most {TIED.fraction:.0%}"
OPEN: Final = f"Open: another run could choose otherwise, by more than {TIED.fraction:.0%}"


def rule_for_all(runs: Sequence[Run]) -> SmallestRule:
    """Return the rule of runs of one machine, without the code of engines, which serves only these.

    Raises UsageError where there is nothing to choose from.
    """
    return rule_of(answers_of(runs, lambda choice: not of_engine(choice.backend)))


def summary(runs: Sequence[Run], rows: int = ROWS) -> list[str]:
    """Return the answer of `rule_for_all`."""
    return headline(rule_for_all(runs), runs, rows)


def headline(rule: SmallestRule, runs: Sequence[Run], rows: int = ROWS) -> list[str]:
    """Return the answer of a rule of `runs`, in lines that take at most `rows` rows of a terminal where they can."""
    known = at_known_shapes(rule)
    usual = [Counter(pair[which].answer.point for pair in known.values()).most_common(1)[0][0] for which in (0, 1)]
    beside = f" ({BATCHED} in parentheses)" if any(at.batched for pair in known.values() for at in pair) else ""
    units = [f"{shape_text(point)} in {unit}" for point, unit in zip(usual, ("us", "GB/s"), strict=True)]
    figures = ", ".join(units) if usual[0] != usual[1] else f"{units[0]} and GB/s"
    lines = [*origin(runs), f"Figures: {figures}{beside}"]
    uses = [_use(kinds, rule, known, usual) for kinds in _alike(rule, known)]
    further, (status, in_short) = [*_further(rule, runs)], _status(rule)
    brief = [next((one for one in of_use if len(one) <= WIDEST), of_use[-1]) for of_use in uses]
    for shown in ([of_use[0] for of_use in uses], brief):
        whole = [*lines, *shown, *status]
        if terminal_rows(whole) + bool(further) <= rows:
            return whole + fitting(further, rows - terminal_rows(whole))
    room = terminal_rows([*lines, *brief]) < rows
    in_short += f"; {len(further)} more: kvbench report" if further else ""
    return [*lines, *(brief if room else [short(use, WIDEST) for use in brief]), short(in_short, WIDEST)]


def origin(runs: Sequence[Run]) -> list[str]:
    """Return what an answer is of: the machine, its link, what large copies reach, and which swaps were measured."""
    rates = {direction: [one for run in runs for one in run.ceilings().get(direction, [])] for direction in Direction}
    ceilings = [f"{median(gbps):.1f} GB/s {direction}" for direction, gbps in rates.items() if gbps]
    ceiling = f"Ceiling {', '.join(ceilings)}; " if ceilings else ""
    link = link_text(runs[0])
    return [machine_text(*runs) + (f", {link}" if link else ""), ceiling + workload_text(runs)]


def machine_text(*runs: Run) -> str:
    """Return what runs of one machine were measured on, and when the first and the last of them began."""
    info = runs[0].info
    on_host = info.device.get("kind") == "cpu"
    host = "; all figures are copies between two host buffers, without a GPU" if on_host else ""
    driver = info.identity.get("driver_version")
    named = [info.device.get("title"), driver and f"driver {driver}", dates_text(runs)]
    return ", ".join(short(printable(part), 80) for part in named if part) + host


def dates_text(runs: Sequence[Run]) -> str:
    """Return when the first and the last run began: "2026-11-26 to 11-27"."""
    first, last = (end(run.info.created[:10] for run in runs) for end in (min, max))
    return first if first == last else f"{first} to {last.removeprefix(first[:5])}"


def link_text(run: Run) -> str:
    """Return the link between host and GPU as it was seen: "PCIe 5 x16"; "" where it is not known."""
    if run.info.identity.get("link") == "c2c":
        return "NVLink-C2C"
    seen = [(look.get("pcie_generation"), look.get("pcie_width")) for look in run.info.observed]
    known = [
        (generation, width) for generation, width in seen if isinstance(generation, int) and isinstance(width, int)
    ]
    return "PCIe {} x{}".format(*max(known)) if known else ""


def workload_text(runs: Sequence[Run]) -> str:
    """Return which blocks most of the swaps behind answers move, and who calls; "hot" means the same adjacent blocks
    every time.

    Blocks are shuffled unless a layout is named.
    """
    if all(map(trace_of, runs)):
        trace = trace_of(runs[0]) or {}
        sides = {title.split()[0].lower(): trace.get(way) for way, title in SIDES.items()}
        swaps = " and ".join(f"{of.get('total')} {name}" for name, of in sides.items() if isinstance(of, dict))
        return printable(f"the swaps of {trace_text(runs[0])}: {swaps}")
    axes = workload_axes(runs)
    pool, reuse = axes["pool"], axes["reuse"]
    from_pool = "from a dense pool" if pool == "dense" else f"from {size_text(parse_size(pool))}"
    layout = "" if axes["pattern"] == str(SHUFFLED) else f" in the layout {axes['pattern']}"
    layout += "".join(
        f", {axes[name]} {where}"
        for name, where in (("host_pattern", "on the host"), ("device_pattern", "on the GPU"), ("sizes", "in size"))
        if axes[name] not in (AS_PATTERN.kind, EQUAL)
    )
    blocks = f"the same blocks{layout} in every swap, {from_pool}"
    if reuse == Reuse.FRESH.value:
        blocks = f"fresh blocks{layout} {from_pool}"
    elif pool == "dense":
        blocks = f"hot, {blocks}"
    pause = axes["pause"]
    return f"{blocks}, {'tight C++ loop' if pause == '0' else f'after {pause} of other work each'}"


def shape_text(point: Point) -> str:
    return f"{point[1]} x {size_text(point[0])}"


def planner_lines(lines: Sequence[TokenLine]) -> Iterator[str]:
    """Yield the lines over the tokens of models: "h2d idle, warm: us = 12.3 + 2.6 x tokens (16 to 2048, within 1%)"."""
    several = len({(line.model, line.tp) for line in lines}) > 1
    for line in lines:
        model = f"{line.model}{f' TP {line.tp}' if line.tp > 1 else ''}, " if several else ""
        call = "warm" if line.pause == "0" else f"cold ({line.pause})"
        error = "" if line.error is None else f", within {two_digits(line.error * 100)}%"
        yield (
            f"{model}{line.direction} {line.stream_state}, {call}: us = {line.us:.1f} + {line.us_per_token:.3g} x "
            f"tokens ({ends(line.tokens, str)}{error})"
        )
    if all(line.pause == "0" for line in lines):
        yield "Cold calls, after other work of the CPU, were not measured: axis pause=0,2ms"


def prefill_lines(lines: Sequence[TokenLine], prefill: float) -> Iterator[str]:
    """Yield from how many tokens on loading is faster than prefill, and what a hit of the model's tokens saves."""
    loads = [line for line in lines if line.hit and line.stream_state == StreamState.IDLE.value]
    if not loads:
        yield "Load or prefill: too few sizes of loads were measured; run kvbench tune with this option and without RUN"
    for line in loads:
        call = "warm call" if line.pause == "0" else f"cold call, after {line.pause} of other work"
        first, hit, (low, high) = line.faster_than_prefill_from_tokens, line.hit, line.tokens
        faster = f"faster than prefill at {prefill:g} tokens/s"
        text = f"loading is never {faster}"
        if first and hit:
            load_ms, prefill_ms = hit.load_us / 1e3, hit.prefill_us / 1e3
            change = f"{'saves' if load_ms <= prefill_ms else 'costs'} {abs(prefill_ms - load_ms):.1f} ms"
            beyond = f", extrapolated: at most {high} tokens were measured" if hit.extrapolated else ""
            few = " (fewer were not measured)" if first < low else ""
            text = f"loading is {faster} from {max(first, low)} tokens on{few}; a hit of {hit.tokens} tokens {change} "
            text += f"({load_ms:.1f} in place of {prefill_ms:.1f}{beyond})"
        yield f"{line.model}, {call}: {text}"


def _alike(rule: SmallestRule, known: Mapping[Kind, Sequence[AtShape]]) -> Iterable[list[Kind]]:
    """Return the directions and stream states by state, those of a direction together whose choices are the same."""
    alike: dict[Any, list[Kind]] = {}
    for kind in sorted(rule.lines, key=lambda kind: [*StreamState].index(kind[1])):
        choices = [(str(line.choice), line.sizes, line.counts) for line in rule.lines[kind]]
        key = kind[0], _AS_FREE.get(kind[1], kind[1]), *choices, *(at.answer.point for at in known[kind])
        alike.setdefault(key, []).append(kind)
    return alike.values()


def _use(
    kinds: Sequence[Kind], rule: SmallestRule, known: Mapping[Kind, Sequence[AtShape]], usual: Sequence[Point]
) -> list[str]:
    """Return what to use in some stream states of a direction, and its figures at two shapes, in ever fewer words."""
    lines = rule.lines[kinds[0]]
    head = f"{kinds[0][0]} {', '.join(kind[1] for kind in kinds)}{_only(lines)}"
    small, large = zip(*(known[kind] for kind in kinds), strict=True)

    def figures(show: Callable[[float], str], *, in_full: bool) -> str:
        us, gbps = _figure(small, Answer.time_of, show, "us"), _figure(large, Answer.gbps_of, show, "GB/s")
        places = (_place(at[0].answer.point, point, in_full) for at, point in zip((small, large), usual, strict=True))
        return ", ".join(map("".join, zip((us, gbps), places, strict=True)))

    ways = ((_three_digits, True), (_three_digits, False), (two_digits, False))
    numbers = [figures(show, in_full=in_full) for show, in_full in ways]
    return [f"{head}: {choices}; {of}" for choices in _choices(lines) for of in numbers]


def _figure(
    every: Sequence[AtShape], quantity: Callable[[Answer, Choice], float], show: Callable[[float], str], unit: str
) -> str:
    """Return "12 to 12.8 us (23)" over the states, the middle figure of batched copies in parentheses."""
    batched = [quantity(at.answer, at.batched) for at in every if at.batched]
    beside = f" ({show(median(batched))})" if batched else ""
    return f"{ends([quantity(at.answer, at.choice) for at in every], show)} {unit}{beside}"


def _place(point: Point, usual: Point, in_full: bool) -> str:
    """Return the shape of a figure if it is not the usual one, or the number of blocks alone if the size is usual."""
    where = shape_text(point) if in_full or point[0] != usual[0] else str(point[1])
    return "" if point == usual else f" at {where}"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _only(lines: Sequence[Line]) -> str:
    """Return the block size and the number of blocks where a rule has one: " (16 KiB)"."""
    answers = [answer for line in lines for answer in line.answers]
    sizes, counts = {answer.block_bytes for answer in answers}, {answer.blocks for answer in answers}
    parts = [*map(size_text, sizes)] * (len(sizes) == 1) + [f"{count} blocks" for count in counts] * (len(counts) == 1)
    return f" ({', '.join(parts)})" if parts else ""


def _choices(lines: Sequence[Line]) -> list[str]:
    """Return the choices of a rule, and without their ranges: "sm (4 SMs) up to 4 KiB, 2 from 16 KiB", "sm (4/2 SMs) by
    size".
    """
    labels, sms = ([*map(name, (line.choice for line in lines))] for name in (lambda one: one.label, sms_of))
    kernels = {(line.choice.backend, *dict(line.choice.axes)) for line in lines}
    one_kernel = len(kernels) == 1 and kernels.pop()[1:] == ("sms",)
    names = [labels[0], *map(str, sms[1:])] if one_kernel else labels
    parts = [f"{name} {_ranges(line)}".strip() for name, line in zip(names, lines[:MOST_LINES], strict=False)]
    parts += [f"{len(lines) - MOST_LINES} more (tune --table)"] * (len(lines) > MOST_LINES)
    choices = "/".join(dict.fromkeys(map(str, sms) if one_kernel else labels))
    spans = {"size": {line.sizes for line in lines}, "blocks": {line.counts for line in lines}}
    by = " and ".join(axis for axis, of in spans.items() if of != {(None, None)})
    in_short = f"{lines[0].choice.backend} ({choices} SMs)" if one_kernel else choices
    return [", ".join(parts), f"{in_short} by {by}" if by else ", ".join(parts)]


def _ranges(line: Line) -> str:
    counts = _range(line.counts, str)
    return " and ".join(filter(None, (_range(line.sizes, size_text), counts and f"{counts} blocks")))


def _range(span: Range, show: Callable[[int], str]) -> str:
    low, high = (None if end is None else show(end) for end in span)
    if low is None or high is None:
        return f"up to {high}" if high else f"from {low}" if low else ""
    return f"at {low}" if low == high else f"from {low} to {high}"


def _status(rule: SmallestRule) -> tuple[list[str], str]:
    """Return how many shapes are undecided and what the rule costs, and both in one row."""
    losses, undecided = rule.losses.values(), sum(not answer.decided for answer in rule.answers)
    average, worst = (f"{two_digits(max(loss, 0.0) * 100)}%" for loss in (mean(losses), max(losses)))
    cost = f"Cost against the best of each shape: {average} on average, {worst} at worst"
    if rule.beyond:
        kinds = ", ".join(map(kind_text, rule.beyond))
        cost += f"; beyond {TIED.fraction:.0%} or {WORST:.0%} with {MOST_LINES} choices: {kinds}"
    in_short = f"Undecided: {undecided} of {len(rule.answers)} shapes; cost {average} (worst {worst})"
    return [_undecided(rule.answers), cost], in_short


def _further(rule: SmallestRule, runs: Sequence[Run]) -> Iterator[str]:
    """Yield what else an answer says, what matters most first."""
    yield from sms_notes((line.choice for lines in rule.lines.values() for line in lines), runs)
    if parts := [f"{loss:.1%} ({direction})" for direction, loss in losses_as_shuffled(rule, runs).items()]:
        yield f"By the choices for shuffled blocks, these swaps take {', '.join(parts)} longer"
    if call := closest_call(rule):
        where = " ".join(filter(None, (kind_text(call.kind), _ranges(call.line))))
        yield f"Closest alternative: {call.other.label}, {_slower(call.slower)} for {where}"
    for engine in engines().values():
        gains = [gain for gain in gains_of(rule) if gain.over == engine.name]
        if parts := [f"{kind_text(one.kind)} {_median(one.ratios)}" for one in gains]:
            yield f"Compared with {engine.title}'s code: {', '.join(parts)}"
    yield from _in_runs(rule, runs)


def sms_notes(choices: Iterable[Choice], runs: Sequence[Run]) -> list[str]:
    """Return a line about choices whose copies the driver of the runs may make with SMs, none without one."""
    driver = driver_of(runs)
    names = sorted({choice.backend for choice in choices if may_take_sms(choice, driver)})
    how = "this driver may copy with SMs, unless overlap=on; kvbench probe engine tells whether it does"
    return [f"{', '.join(names)}: {how}"] if names else []


def _slower(fraction: float) -> str:
    """Return how an alternative compares with the choice, which it beats by no more than a tie."""
    if fraction >= 1:
        return f"{two_digits(1 + fraction)} times as long"
    return f"{two_digits(100 * fraction)}% slower" if fraction >= 0.005 else "as fast"


def _median(ratios: Sequence[float]) -> str:
    """Return "4.9x as fast", with the range where it has a width."""
    middle, least_to_most = _times(median(ratios)), ends(ratios, _times)
    text = "as fast" if middle == "1x" else f"{middle} as fast"
    return text if least_to_most == middle else f"{text} (median; {least_to_most})"


def _times(ratio: float) -> str:
    return f"{two_digits(ratio)}x"


def _in_runs(rule: SmallestRule, runs: Sequence[Run]) -> Iterator[str]:
    """Yield what would change if the blocks lay in contiguous runs, for an answer about shuffled blocks."""
    if lengths := merged_from(rule, runs):
        directions: dict[int, list[str]] = {}
        for direction, length in lengths.items():
            directions.setdefault(length.blocks, []).append(direction)
        where = ", ".join(f"{blocks} blocks ({', '.join(of_length)})" for blocks, of_length in directions.items())
        gbps = ends([rate for length in lengths.values() for rate in length.gbps], two_digits)
        sms = "" if may_take_sms(Choice(MERGED), driver_of(runs)) else ", no SMs"
        yield f"In contiguous runs of at least {where}: merged, {gbps} GB/s{sms}"


def _undecided(answers: Sequence[Answer]) -> str:
    undecided = [answer for answer in answers if not answer.decided]
    if not undecided:
        return f"Decided for all {len(answers)} shapes"
    text = f"Undecided for {len(undecided)} of {len(answers)} shapes"
    if any(len(answer.visits_of(answer.choice)) < MIN_PAIRS for answer in undecided):
        return f"{text}: fewer than {MIN_PAIRS} visits decide nothing"
    ahead = all(comparison.low > 1 for answer in undecided for comparison in answer.open.values())
    here = ", though the choice is the fastest in this run" if ahead else ""
    return f"{text}{here}; list them with kvbench tune RUN --open"


def open_points(answers: Sequence[Answer]) -> list[str]:
    """Return the shapes whose choice is open, with the cost of each alternative, the largest difference first."""
    every = [(answer, other, comparison) for answer in answers for other, comparison in answer.open.items()]
    return [_doubt(*one) for one in sorted(every, key=lambda one: -apart(one[2]))]


def _doubt(answer: Answer, other: Choice, comparison: Comparison) -> str:
    shape = f"{kind_text((answer.direction, answer.state))}, {shape_text(answer.point)}"
    cost, low, high = (f"{(ratio - 1) * 100:+.1f}%" for ratio in (comparison.ratio, comparison.low, comparison.high))
    interval = f" ({low} to {high})" if math.isfinite(comparison.high) else ", too few visits for an interval"
    return f"{shape}: {answer.choice.label}, or {other.label} for {cost}{interval} of the time"


def row(answer: Answer) -> list[str]:
    """Return the row of a shape under `HEADER`."""
    interval = answer.interval_of(answer.choice)
    gain = None if answer.choice.backend == BATCHED else answer.gain_over(BATCHED)
    return [
        answer.direction.value,
        answer.state.value,
        str(answer.blocks),
        size_text(answer.block_bytes),
        answer.choice.label,
        f"{answer.time_of(answer.choice):.1f}",
        "-" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}",
        f"{answer.gbps_of(answer.choice):.1f}",
        f"{answer.caller_us[answer.choice]:.1f}",
        "-" if gain is None else _times(gain),
        "; ".join(choice.label for choice in answer.tied) or "-",
    ]


def row_model(load: Load) -> list[str]:
    """Return the row of a model's swap under `HEADER_MODEL`."""
    return [
        load.nearest.direction.value,
        load.nearest.state.value,
        load.choice.label,
        f"{load.us:.0f}",
        f"{load.gbps:.1f}",
        f"{load.caller_us:.0f}",
        shape_text(load.nearest.point),
    ]


def percent(slowdown: float) -> str:
    """Return how much slower a ratio is: 1.042 as "4.2%", what is no slower as "0%", nan as "-"."""
    none = "-" if math.isnan(slowdown) else "0%"
    return f"{two_digits((slowdown - 1) * 100)}%" if slowdown >= 1.0005 else none


def beside_text(shape: Shape) -> str:
    return f"{shape.direction} swaps of {shape.blocks} blocks of {size_text(shape.block_bytes)}"


def sentence_beside(answer: BesideAnswer) -> str:
    """Return the choice for a shape beside a neighbour: "sm (2 SMs), 29 GB/s, 1.2% slower, p99 3% slower, ..."."""
    said, limit = f"{answer.neighbour} beside {beside_text(answer.shape)}", 1 + answer.max_slowdown
    way = answer.chosen or min(answer.ways, key=lambda way: (way.slowdown, -way.gbps))
    way_text = f"{_way(way)}{' (open)' if way.verdict(limit) is Verdict.UNDECIDED else ''}"
    if answer.chosen is None:
        return f"{said}: no way that was measured costs at most {percent(limit)}; the least is {way_text}"
    gain = ""
    batched = [way for way in answer.ways if way.choice.backend == BATCHED]
    if batched and way.choice.backend != BATCHED:
        comparison = compare_visits(way.us_per_gb, max(batched, key=lambda one: one.gbps).us_per_gb, IN_TURN)
        faster = f"{two_digits(comparison.ratio)}x as fast as {BATCHED}"
        gain = f", {faster if comparison.told_apart else f'no clear difference from {BATCHED}'}"
    tail = f", p99 {percent(way.slowdown_p99)} slower" if math.isfinite(way.slowdown_p99) else ""
    return f"{said}: {way_text}{tail}{gain}"


def open_beside(answer: BesideAnswer) -> list[str]:
    """Return what another run could choose otherwise beside a neighbour."""
    limit, said = 1 + answer.max_slowdown, f"{answer.neighbour} beside {beside_text(answer.shape)}"
    lines, slowest = [], 0.0
    if answer.chosen is not None:
        slowest = answer.chosen.gbps * (1 + TIED.fraction)
        if answer.chosen.verdict(limit) is Verdict.UNDECIDED:
            sure = [way for way in answer.ways if way.verdict(limit) is Verdict.SAME]
            then = f"; {_way(sure[0], interval=True)} does not" if sure else ""
            lines.append(f"{said}: {_way(answer.chosen, interval=True)} may cost more than {percent(limit)}{then}")
    return lines + [
        f"{said}: {_way(way, interval=True)} may cost no more than {percent(limit)}"
        for way in answer.ways
        if way.slowdown > limit and way.gbps > slowest and way.verdict(limit) is Verdict.UNDECIDED
    ]


def _way(way: WayBeside, *, interval: bool = False) -> str:
    """Return "sm (2 SMs), 29 GB/s, 1.2% slower", if asked for with its interval."""
    ends_text = " to ".join(map(percent, way.slowdown_interval or ())) or "too few visits for an interval"
    text = f"{way.choice.label}, {two_digits(way.gbps)} GB/s, {percent(way.slowdown)} slower"
    return f"{text} ({ends_text})" if interval else text


def beside_plain(answer: BesideAnswer) -> dict[str, Any]:
    unsure = open_beside(answer)
    return {
        "neighbour": answer.neighbour,
        "max_slowdown": answer.max_slowdown,
        **answer.shape._asdict(),
        "choice": None if answer.chosen is None else str(answer.chosen.choice),
        "decided": not unsure,
        "ways": [way.to_plain() for way in answer.ways],
        "open": unsure,
    }


def row_beside(answer: BesideAnswer, way: WayBeside) -> list[str]:
    """Return the row of a choice beside a neighbour under `HEADER_BESIDE`."""
    shape, rates, slowdowns = answer.shape, way.gbps_interval, way.slowdown_interval
    return [
        "->" if way is answer.chosen else "",
        shape.direction.value,
        str(shape.blocks),
        size_text(shape.block_bytes),
        way.choice.label,
        f"{way.gbps:.1f}",
        "-" if rates is None else f"{rates[0]:.1f} to {rates[1]:.1f}",
        percent(way.slowdown),
        "-" if slowdowns is None else " to ".join(map(percent, slowdowns)),
        percent(way.slowdown_p99),
        f"{way.exposure_us_per_gb:.0f}",
    ]


def machine_plain(run: Run) -> dict[str, Any]:
    info = run.info
    driver = info.identity.get("driver_version")
    return {"kvbench": info.kvbench, "device": info.device.get("title"), "driver": driver, "created": info.created}


def to_plain(rule: SmallestRule, runs: Sequence[Run], swaps: Sequence[ModelSwap] = ()) -> dict[str, Any]:
    """Return the answer of a rule of `runs`, and for the swaps of models, as JSON-compatible data."""
    losses, call = rule.losses, closest_call(rule)
    rates = {way.value: [one for run in runs for one in run.ceilings().get(way, [])] for way in Direction}
    return {
        **machine_plain(runs[0]),
        "link": link_text(runs[0]),
        "ceiling_gbps": {way: round(median(gbps), 3) for way, gbps in rates.items() if gbps},
        "runs": [{"created": run.info.created, "command": run.info.command} for run in runs],
        "workload": {"words": workload_text(runs), **workload_axes(runs)},
        "rule": rule.to_plain(),
        "shapes": [at.to_plain() for pair in at_known_shapes(rule).values() for at in pair],
        "loss": {
            "mean": round(mean(losses.values()), 4),
            "worst": round(max(losses.values()), 4),
            "beyond": [kind_plain(kind) for kind in rule.beyond],
        },
        "gains": [gain.to_plain() for gain in gains_of(rule)],
        "closest_call": call and call.to_plain(),
        "merged_in_runs": {way.value: length.to_plain() for way, length in merged_from(rule, runs).items()},
        "loss_as_shuffled": {way.value: round(loss, 4) for way, loss in losses_as_shuffled(rule, runs).items()},
        "answers": [
            {**answer.to_plain(), "rule": {"choice": str(choice), "loss": round(losses[answer], 4)}}
            for answer, choice in rule.choices.items()
        ],
        "models": [load.to_plain() for swap in swaps for load in loads_of(rule, swap)],
    }
