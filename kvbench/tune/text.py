"""The words of an answer: in a terminal, in a report, and as JSON."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from statistics import mean, median
from typing import Any, Final

from kvbench.analysis.compare import MIN_PAIRS, Comparison
from kvbench.analysis.margins import KNEE, TIED
from kvbench.cells.axes import Direction, Reuse, StreamState
from kvbench.cells.cell import EQUAL, SwapKind
from kvbench.cells.facts import BATCHED, COPIER, MERGED, sms_text
from kvbench.cells.installed import Engine, engines
from kvbench.cells.pattern import AS_PATTERN, SHUFFLED
from kvbench.cells.policy import Choice
from kvbench.cells.units import parse_size, size_text, two_digits
from kvbench.models.geometry import ModelSwap
from kvbench.models.presets import ModelChoice, presets
from kvbench.results import Run
from kvbench.sweep.spec import SIDES
from kvbench.text import counted, ends, printable, short
from kvbench.tune.answer import (
    LARGE,
    SMALL,
    ShapeAnswer,
    answers_of,
    gains_of,
    known_shapes,
    merged_from,
    shipped_choice,
)
from kvbench.tune.candidates import Measured, ceilings_of, driver_of, may_take_sms, sms_of, without_sms, workload_axes
from kvbench.tune.planner import Load, TokenLine, loads_of
from kvbench.tune.rule import Rule, RulePart, costs_of
from kvbench.tune.situations import Advice

HEADER: Final = (
    "Dir", "Stream", "Blocks", "Size", "Choice", "us", "95%", "GB/s", "Thread us", "Not told apart",
)  # fmt: skip
HEADER_MODEL: Final = ("Dir", "Stream", "Use", "us", "GB/s", "Thread us", "Measured at")
NOT_MEASURED: Final = "not measured"
OPEN: Final = f"Open: could be faster than the choice by more than {TIED.fraction:.0%} in another run"
ALIKE: Final = f"Not told apart: within {TIED.fraction:.0%} of the choice, as far as the visits tell"


@dataclass(frozen=True, slots=True)
class StateTable:
    """What to use by stream state, in a row for each direction and the states with the same choice."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str


def state_table(rule: Rule, runs: Sequence[Run]) -> StateTable:
    """The choices, with their times at a small and a large swap, those of batched copies and of engines as they
    ship, and the share of the ceiling.
    """
    known = {kind: known_shapes(rule, kind) for kind in rule.parts}
    known_sizes = [Counter(one.shape.size_text for one in at if one) for at in zip_longest(*known.values())]
    sizes = [size.most_common(1)[0][0] for size in known_sizes]
    shipping = [*engines().values()]
    ceilings = ceilings_of(runs)
    rows = []
    for kinds in _alike(rule):
        first, parts = kinds[0], rule.parts[kinds[0]]
        row = [first.direction.value, ", ".join(kind.stream_state for kind in kinds), use_text(parts)]
        for size, at in zip_longest(sizes, zip(*(known[kind] for kind in kinds), strict=True)):
            row += _times(at, size, rule, shipping, runs) if at else ["-"] * (3 + len(shipping))
        ceiling = ceilings.get(first.direction, math.nan)
        shares = [one.gbps_of(rule.choices[one]) / ceiling for *_, one in (known[kind] for kind in kinds)]
        rows.append([*row, ends(shares, "{:.0%}".format) if ceiling > 0 else "-"])
    figures = [name for size in sizes for name in (f"{size}, us", BATCHED, COPIER, *(one.title for one in shipping))]
    every = zip(["Dir", "Stream", "Use", *figures, "of ceiling"], *rows, strict=True)
    header, *shown = map(list, zip(*(column for column in every if {*column[1:]} != {"-"}), strict=True))
    shown_engines = [engine for engine in shipping if engine.title in header]
    titles = ", ".join(engine.title for engine in shown_engines)
    shipped = f" {titles}: the method it takes there." if titles else ""
    of_others = [(engine.title, *other) for engine in shown_engines for other in engine.measured.items()]
    shipped += "".join(f" {title} {direction}: {what}." for title, direction, what in of_others)
    shipped += f" {COPIER}: kvbench's, called from Python as engines are." if COPIER in header else ""
    caption = f"Swaps nearest to {SMALL} and {LARGE} blocks, each shape from the same rounds.{shipped}"
    return StateTable(header, shown, caption)


def _alike(rule: Rule) -> list[list[SwapKind]]:
    """Return the directions and stream states of a rule, those of a direction together whose choices are the same."""
    alike: dict[Any, list[SwapKind]] = {}
    for kind in sorted(rule.parts, key=lambda kind: (kind.direction == Direction.D2H, [*StreamState].index(kind[1]))):
        parts = [(part.choice, part.sizes) for part in rule.parts[kind]]
        at = [one.shape[2:] for one in known_shapes(rule, kind)]
        alike.setdefault((kind.direction, *parts, *at), []).append(kind)
    return [*alike.values()]


def use_text(parts: Sequence[RulePart]) -> str:
    """Return what to use by size and number: "sm: 8 SMs up to 1 KiB, 4 SMs up to 16 KiB, 2 SMs from 24 KiB"."""
    if len(parts) == 1:
        return f"{parts[0].label}{_counts_text(parts[0])}{_against(parts[0])}"
    texts = []
    for method, of_method in groupby(parts, key=lambda part: without_sms(part.choice)):
        same = [*of_method]
        if len(same) == 1:
            texts.append(f"{same[0].label}{_where(same[0])}{_against(same[0])}")
        else:
            sizes = (f"{sms_text([sms_of(part.choice)])}{_where(part)}" for part in same)
            texts.append(f"{method.label}: {', '.join(sizes)}{_against(same[0])}")
    return "; ".join(texts)


def _where(part: RulePart) -> str:
    """Return for which sizes and numbers of blocks a part is: " up to 16 KiB", " from 1024 blocks"."""
    low, high = (end and size_text(end) for end in part.sizes)
    sizes = "" if part.blocks[0] else f" up to {high}" if high else f" from {low}" if low else ""
    fewest, most = part.blocks
    if most:
        return f"{sizes} and {most} blocks" if sizes else f" up to {most} blocks"
    return sizes + (f" from {fewest} blocks" if fewest else "")


def _counts_text(part: RulePart) -> str:
    """Return which of several SM counts suffice: ", 4 of 4 to 16 within 5% on average"."""
    if not sms_of(part.choice) or len(part.counts) < 2:
        return ""
    return f", {sms_of(part.choice)} of {ends(part.counts, str)} within {KNEE.fraction:.0%} on average"


def _against(part: RulePart) -> str:
    others = ", ".join(dict.fromkeys(other.label for other in part.pick.open))
    return f", undecided against {others}" if others else ""


def methods_text(choices: Iterable[Choice]) -> str:
    """Return the methods of some choices, each with all its SM counts: "batched; sm (2 to 8 SMs)"."""
    counts: dict[Choice, list[int]] = {}
    for choice in choices:
        counts.setdefault(without_sms(choice), []).extend(filter(None, [sms_of(choice)]))
    return "; ".join(method.label_with(of_method) for method, of_method in counts.items())


def _times(
    at: Sequence[Measured], usual: str, rule: Rule, shipping: Sequence[Engine], runs: Sequence[Run]
) -> list[str]:
    """Return the times at a shape, in one or more states, of the choice, of batched copies, and of engines with a
    copier beside them, from the runs that measured the choice and what the engines take.
    """
    columns: list[list[float]] = [[] for _ in range(3 + len(shipping))]
    for one in at:
        near = one.beside(choice := rule.choices[one])
        shipped = [shipped_choice(engine, near, runs) for engine in shipping]
        near = near.beside(next(filter(None, shipped), choice))
        methods = [choice, near.best_of(BATCHED), next(iter(near.called), None) if any(shipped) else None, *shipped]
        known = [method for method in methods if method]
        for column, method in zip(columns, methods, strict=True):
            column += [one.us_of(method, *known)] if method else []
    texts = [ends(column, three_digits) if column else "-" for column in columns]
    shape = at[0].shape.size_text
    return [texts[0] if shape == usual else f"{texts[0]} ({shape})", *texts[1:]]


def answer_lines(rule: Rule, runs: Sequence[Run], listing: str = "", *, costs: bool = True) -> list[str]:
    """The lines about swaps alone: what is undecided, what the answer costs, and how engines compare.

    `listing` is the option that lists what is undecided. Costs take as long as all else.
    """
    lines = [_undecided(rule, listing), *([_cost(costs_of(rule))] if costs else [])]
    lines += sms_notes((part.choice for parts in rule.parts.values() for part in parts), runs)
    gains: dict[str, list[str]] = {}
    for gain in gains_of(rule, runs):
        if engine := engines().get(gain.over):
            other = engine.measured.get(gain.kind.direction)
            kind = f"{gain.kind} against {other}" if other else str(gain.kind)
            gains.setdefault(engine.title, []).append(f"{kind} {_times_as_fast(gain.ratios)}")
    parts = [f"{title} {', '.join(of_engine)}" for title, of_engine in sorted(gains.items())]
    lines += [f"Against engines' code, times as fast in the median: {'; '.join(parts)}"] if parts else []
    return [*lines, *_in_runs(rule, runs)]


def origin(runs: Sequence[Run]) -> list[str]:
    """The machine, its link, the rates of large copies, and the kind of swaps that were measured."""
    ceilings = [f"{gbps:.1f} GB/s {direction}" for direction, gbps in ceilings_of(runs).items()]
    ceiling = f"Ceiling {', '.join(ceilings)}; " if ceilings else ""
    link = link_text(runs[0])
    return [machine_text(*runs) + (f", {link}" if link else ""), ceiling + workload_text(runs)]


def machine_text(*runs: Run) -> str:
    """The machine of these runs, and the dates of the first and the last."""
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
    """The blocks that most of the swaps behind answers move, and their caller; "hot" means the same adjacent blocks
    every time.

    Blocks are shuffled unless a layout is named.
    """
    if all(run.trace for run in runs):
        trace = runs[0].trace
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


def planner_lines(lines: Sequence[TokenLine]) -> Iterator[str]:
    """Yield the lines over the tokens of models: "h2d idle, warm: us = 12.3 + 2.6 x tokens (16 to 2048, ...)"."""
    several = len({(line.model, line.tp) for line in lines}) > 1
    for line in lines:
        model = f"{line.model}{f' TP {line.tp}' if line.tp > 1 else ''}, " if several else ""
        call = "warm" if line.pause == "0" else f"cold ({line.pause})"
        seen = f"measured at {', '.join(map(str, line.measured))}" if line.measured else "all interpolated"
        error = "" if line.error is None else f", within {math.ceil(line.error * 1000) / 10:g}%"
        yield (
            f"{model}{line.direction} {line.stream_state}, {call}: us = {line.us:.1f} + {line.us_per_token:.3g} x "
            f"tokens ({ends(line.tokens, str)}, {seen}{error})"
        )
    if all(line.pause == "0" for line in lines):
        yield "Cold calls, after other work of the CPU, were not measured: axis pause=0,2ms"


def prefill_lines(lines: Sequence[TokenLine], prefill: float) -> Iterator[str]:
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
            few = " (fewer were not measured)" if first < low else ""
            text = f"loading is {faster} from {max(first, low)} tokens on{few}; a hit of {hit.tokens} tokens {change} "
            text += f"({load_ms:.1f} in place of {prefill_ms:.1f}{beyond})"
        yield f"{line.model}, {call}: {text}"


def _undecided(rule: Rule, listing: str) -> str:
    """Say where nothing can be told apart from batched copies, and at how many shapes another run could differ."""
    stays = [str(kind) for kind, parts in rule.parts.items() if all(part.choice.backend == BATCHED for part in parts)]
    text = f"No method is told apart from {BATCHED}: {', '.join(stays)}. " if stays else ""
    answers = answers_of(rule.shapes)
    undecided = [one for one in answers if not one.decided]
    few = any(len(one.measured.visits_of(one.choice)) < MIN_PAIRS for one in undecided)
    why = f" (fewer than {MIN_PAIRS} visits decide nothing)" if few else ""
    more_sms = sum(one.decided and bool(one.open) for one in answers)
    text += f"{len(undecided)} of {counted(len(answers), 'shape')} undecided, each taken alone{why}"
    text += f"; at {more_sms} others another SM count could gain over {TIED.fraction:.0%}" if more_sms else ""
    return text + (f"; to list them, add {listing} to this command" if (undecided or more_sms) and listing else "")


def _cost(costs: Mapping[Measured, float]) -> str:
    what = "Cost against each shape's best, judged by other rounds"
    if not costs:
        return f"{what}: {NOT_MEASURED}"
    by_direction: dict[Direction, list[float]] = {}
    for one, cost in costs.items():
        by_direction.setdefault(one.shape.direction, []).append(cost)
    means = ", ".join(f"{way} {_percent(mean(of_way))}" for way, of_way in by_direction.items())
    worst = max(costs, key=lambda one: costs[one])
    at = f"{worst.shape.kind}, {worst.shape.size_text}"
    return f"{what}: {means} on average of {counted(len(costs), 'choice')}; {_percent(costs[worst])} at worst ({at})"


def _percent(cost: float) -> str:
    return f"{two_digits(max(cost, 0.0) * 100)}%"


def sms_notes(choices: Iterable[Choice], runs: Sequence[Run]) -> list[str]:
    """Return a line about choices whose copies the driver of the runs may make with SMs, none without one."""
    driver = driver_of(runs)
    names = sorted({choice.backend for choice in choices if may_take_sms(choice, driver)})
    how = "this driver may copy with SMs, unless overlap=on; kvbench probe engine tells whether it does"
    return [f"{', '.join(names)}: {how}"] if names else []


def _times_as_fast(ratios: Sequence[float]) -> str:
    return f"{_ratio(median(ratios))} ({ends(ratios, _ratio)}, {counted(len(ratios), 'shape')})"


def _ratio(ratio: float) -> str:
    return f"{two_digits(ratio)}x"


def three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _in_runs(rule: Rule, runs: Sequence[Run]) -> Iterator[str]:
    """Yield what would change if the blocks lay in contiguous runs, for an answer about shuffled blocks."""
    if lengths := merged_from(rule, runs):
        directions: dict[int, list[str]] = {}
        for direction, length in lengths.items():
            directions.setdefault(length.blocks, []).append(direction)
        where = ", ".join(f"{blocks} blocks ({', '.join(of_length)})" for blocks, of_length in directions.items())
        gbps = ends([rate for length in lengths.values() for rate in length.gbps], two_digits)
        sms = "" if may_take_sms(Choice(MERGED), driver_of(runs)) else ", no SMs"
        yield f"In contiguous runs of at least {where}: merged, {gbps} GB/s{sms}"


def open_points(answers: Sequence[ShapeAnswer]) -> list[str]:
    """Return the shapes whose choice is open, each with the best alternative, the largest gain first."""
    doubts = [(answer, *min(answer.open.items(), key=lambda one: one[1].ratio)) for answer in answers if answer.open]
    return [_doubt(*doubt) for doubt in sorted(doubts, key=lambda doubt: doubt[2].ratio)]


def _doubt(answer: ShapeAnswer, other: Choice, compared: Comparison) -> str:
    cost, low, high = (f"{(ratio - 1) * 100:+.1f}%" for ratio in (compared.ratio, compared.low, compared.high))
    interval = f" ({low} to {high})" if math.isfinite(compared.high) else ", too few visits for an interval"
    shape = answer.measured.shape
    return f"{shape.kind}, {shape.size_text}: {answer.choice.label}, or {other.label} for {cost}{interval} of the time"


def row(answer: ShapeAnswer) -> list[str]:
    one, choice = answer.measured, answer.choice
    interval = one.interval_of(choice)
    return [
        one.shape.direction.value,
        one.shape.stream_state.value,
        str(one.shape.blocks),
        size_text(one.shape.block_bytes),
        choice.label,
        f"{one.us_of(choice):.1f}",
        "-" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}",
        f"{one.gbps_of(choice):.1f}",
        f"{one.caller_us[choice]:.1f}",
        methods_text(answer.others) or "-",
    ]


def row_model(load: Load) -> list[str]:
    return [
        load.kind.direction.value,
        load.kind.stream_state.value,
        load.choice.label,
        f"{load.us:.0f}",
        f"{load.gbps:.1f}",
        f"{load.caller_us:.0f}",
        load.nearest.shape.size_text,
    ]


def to_plain(advice: Advice, swaps: Sequence[ModelSwap] = (), *, costs: bool = False) -> dict[str, Any]:
    """Return an answer, and what it says of the swaps of models, as JSON-compatible data; with `costs` what the rule
    loses, which takes as long as all else.
    """
    runs, rule = advice.runs, advice.rule or Rule({})
    info, lost = runs[0].info, costs_of(rule) if costs else {}
    return {
        "kvbench": info.kvbench,
        "device": info.device.get("title"),
        "driver": info.identity.get("driver_version"),
        "created": info.created,
        "link": link_text(runs[0]),
        "ceiling_gbps": {way.value: round(gbps, 3) for way, gbps in ceilings_of(runs).items()},
        "runs": [{"created": run.info.created, "command": run.info.command} for run in runs],
        "workload": {"words": workload_text(runs), **workload_axes(runs)},
        "situations": [answer.to_plain() for answer in advice.answers],
        "rule": rule.to_plain(),
        "loss": {"mean": round(mean(lost.values()), 4), "worst": round(max(lost.values()), 4)} if lost else None,
        "gains": [gain.to_plain() for gain in gains_of(rule, runs)],
        "merged_in_runs": {way.value: length.to_plain() for way, length in merged_from(rule, runs).items()},
        "answers": [answer.to_plain(rule, lost) for answer in answers_of(rule.shapes)],
        "models": [load.to_plain() for swap in swaps for load in loads_of(rule, swap)],
    }


def trace_text(run: Run) -> str:
    """The origin of the trace of a run, or, in a run that does not know it, the size of its blocks."""
    trace = run.trace
    if origin := str(trace.get("origin") or ""):
        return short(origin)
    if not trace.get("descriptors"):
        return "a trace"
    pieces = int(trace["descriptors"])
    row_bytes = int(trace["block_bytes"]) // pieces
    for name in presets():
        swaps = ModelChoice((name,), tokens=16, block_tokens=16).swaps()
        if [(swap.blocks, swap.block_bytes) for swap in swaps] == [(pieces, row_bytes)]:
            return f"a trace with blocks like {name}"
    return f"a trace with blocks of {pieces} x {size_text(row_bytes)}"
