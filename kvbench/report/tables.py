"""What the tables and charts of a report have in common: rows, marks, footnotes, notes and captions."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from kvbench.analysis.compare import MIN_PAIRS, Comparison, Verdict, Visits, leaders
from kvbench.analysis.margins import CHAIN, IN_TURN
from kvbench.cells.cell import AXES, Cell
from kvbench.cells.facts import MERGED, PRIMED, SM, STAGED, TRITON, method_label
from kvbench.ground.text import counted, range_text, short
from kvbench.report import model
from kvbench.report.model import Code, DataTable, Once, PlotLine, Span, Strong, Text, plain, spans
from kvbench.report.numbers import ABSENT, SIGNS, TIMES, bytes_size, count, figure, noun, with_interval
from kvbench.report.view import Pinned, View
from kvbench.report.whole_runs import HOST_COPIES, low_ceilings
from kvbench.results.outcomes import BETWEEN, CHAIN_TIME, Outcome, is_measured

Clock = str | tuple[str, ...]
# What the figures of a stream state, or a time, include.
INCLUDES: Final = {
    "idle": Once("CUDA events, idle stream, with the call"),
    "busy": Once("CUDA events, busy stream, without the call"),
    "gated": "CUDA events, gated stream: from the event that it waits for",
    "opened": "CUDA events, opened stream, with the call",
    "sustained": Once("CUDA events: what one more swap adds to a chain"),
    "unwaited": "CUDA events recorded right before and after the call, nobody waits for the first",
    "unwaited-event": "CUDA events recorded right before and after the call, behind an event of another stream",
    "swap_us": Once("CUDA events; behind pending work without the call"),
    "caller_us": Once("Submission: time of the calling thread"),
}


def caption(
    view: View, outcomes: Sequence[Outcome], clock: Clock, notes: Iterable[str] = (), meanings: Iterable[str] = ()
) -> tuple[Span, ...]:
    """The caption of a table: its clock, samples, `notes`, what its marks mean, and its origin."""
    *others, last = (clock,) if isinstance(clock, str) else clock
    timed = [*((text, ". ") for text in others), (last, "; ")]
    sampling = view.run.info.spec.get("sampling")
    warmups = sampling.get("warmups") if isinstance(sampling, dict) else None
    # A report says it at its head; a table that is pasted elsewhere has to say it itself.
    low = [f"{text[0].upper()}{text[1:]}. " for text in low_ceilings(view.run)]
    return (
        *host_mark(view),
        *(type(part)(clock_of(view, part) + end) for part, end in timed),
        _counts_text(outcomes),
        Once(" a cell"),
        *((f", {counted(warmups, 'warm-up')}", Once(" a visit")) if isinstance(warmups, int) and warmups else ()),
        ". ".join(["", *filter(None, notes), ""]),
        Once("".join(low)),
        Once("".join(f"{meaning}. " for meaning in meanings)),
        Once(f"{view.heading}, kvbench {short(view.run.info.kvbench, 80)}: "),
        Code(view.command),
        view.commit,
    )


def _counts_text(outcomes: Sequence[Outcome]) -> str:
    """What the figures of some cells rest on: samples, or, of swaps beside a step, whole iterations of that step."""
    beside = [outcome for outcome in outcomes if outcome.costs and not outcome.cell.layers]
    if beside and len(beside) == len(outcomes):
        return f"{range_text([outcome.iterations for outcome in beside], str)} iterations"
    return f"{range_text([outcome.samples for outcome in outcomes], str)} samples"


def clock_of(view: View, text: str) -> str:
    """Say by which events times were taken: on a CPU device by the host's."""
    return text.replace("CUDA", "Host") if view.on_host else text


def _meanings(table: Sequence[Sequence[Text]]) -> Iterator[str]:
    """Yield what the marks and the names of methods in a table mean: among the definitions of a report, said once."""
    signs = {plain(text)[:2] for text in chain.from_iterable(table)}
    yield from (f"{sign.strip()}: {SIGN_MEANINGS[verdict]}" for verdict, sign in SIGNS.items() if sign in signs)
    if words := words_in(table):
        yield words


def words_in(rows: Iterable[Sequence[Text]]) -> str:
    """What the names of methods in some rows mean."""
    words = "\n".join(map(plain, chain.from_iterable(rows)))
    return "; ".join(f"{name}: {meaning}" for name, meaning in _WORDS.items() if re.search(rf"\b{name}\b", words))


def host_mark(view: View) -> tuple[Span, ...]:
    return (Strong(HOST_COPIES), " ") if view.on_host else ()


def chart_of(view: View, name: str, title: str, footer: str, plot: model.LinePlot) -> model.Chart:
    """A chart of a run, in files whose names begin with `name`."""
    text = model.ChartText(title, view.heading, clock_of(view, footer), HOST_COPIES if view.on_host else "")
    return model.Chart(f"{name}-{view.label}", text, plot)


# What the signs before figures mean.
SIGN_MEANINGS: Final = {Verdict.SAME: f"the same within {IN_TURN.fraction:.0%}", Verdict.UNDECIDED: "undecided"}
# Names in tables that need explaining.
_WORDS: Final = {
    SM: "kvbench's copy kernel",
    TRITON: "kvbench's Triton kernel, not an engine's",
    PRIMED: "batched after a short kernel, so that the driver does not copy on the CPU",
    MERGED: "batched, adjacent copies made one",
    STAGED: "gathered on the GPU, then large copies",
}
UNEVEN: Final = "‡"
_UNEVEN_NOTE: Final = f"{UNEVEN} the mean of a chain is more than {CHAIN.fraction:.0%} off what one more swap adds"
_SUPERSCRIPTS: Final = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

Figured = TypeVar("Figured", str, Text)


class Reason(str):
    """Why a cell of a table has no figure, which `measured_table` makes a footnote."""

    __slots__ = ()


def measured_table(
    view: View,
    outcomes: Sequence[Outcome],
    clock: Clock,
    title: str,
    header: Sequence[str],
    body: Sequence[Sequence[Text]],
    notes: Sequence[Text] = (),
    *,
    pinned: Pinned | None = None,
    compared: int = 0,
    left: int = 1,
    bold: str = "fastest of its row",
) -> DataTable:
    """A table of cells with its caption, its `notes`, that of too few visits, and one of each `Reason`."""
    rows, reasons = footnoted(body)
    texts = [*chain.from_iterable(rows)]
    uneven = any(UNEVEN in plain(text) for text in texts)
    is_bold = any(isinstance(span, Strong) for span in chain.from_iterable(map(spans, texts)))
    more = (f"Bold: {bold}" if is_bold else "", pinned.settings(outcomes) if pinned else "")
    origin = caption(view, outcomes, clock, more, _meanings([header, *rows]))
    return DataTable(
        title,
        header,
        rows,
        [*notes, *[_UNEVEN_NOTE] * uneven, *few_visits_note(outcomes), *reasons],
        origin,
        left,
        compared,
    )


def footnoted(body: Sequence[Sequence[Text]]) -> tuple[list[list[Text]], list[str]]:
    """The rows of a table with a mark for each `Reason`, and the reasons, each once, by their marks."""
    reasons = dict.fromkeys(text for text in chain.from_iterable(body) if isinstance(text, Reason))
    marks = {reason: str(number).translate(_SUPERSCRIPTS) for number, reason in enumerate(reasons, start=1)}
    rows = [[f"{ABSENT}{marks[text]}" if isinstance(text, Reason) else text for text in row] for row in body]
    return rows, [f"{mark} {reason}" for reason, mark in marks.items()]


def format_cell(outcome: Outcome | None, show: Callable[[Outcome], Figured]) -> Figured | str:
    """A cell of a table: its figure, a reason where it has none, blank where the run never asked."""
    if outcome is None:
        return ""
    return show(outcome) if is_measured(outcome) else Reason(f"{outcome.status}: {short(outcome.reason)}")


def rate(outcome: Outcome) -> str:
    return with_interval(outcome.gbps, *outcome.interval_gbps) + (UNEVEN if _is_uneven(outcome) else "")


def _is_uneven(outcome: Outcome) -> bool:
    """Whether the swaps of a chain take another time in the mean than what one more adds."""
    ratio = outcome.us(CHAIN_TIME) / outcome.us()
    return ratio > 1 + CHAIN.fraction or ratio < 1 / (1 + CHAIN.fraction)


def microseconds(time: str) -> Callable[[Outcome], str]:
    return lambda outcome: with_interval(outcome.us(time), *outcome.interval(time))


def milliseconds(outcome: Outcome) -> str:
    return with_interval(*(us / 1e3 for us in (outcome.us(), *outcome.interval())))


def fastest_marked(
    arms: Mapping[str, Outcome], backends: Collection[str], show: Callable[[Outcome], str] = rate
) -> list[Text]:
    """A cell of a table for each of `backends`, the fastest in bold, or with a sign those that may be as fast.

    Where a cell has too few visits to tell, nothing is marked; `few_visits_note` says so.
    """
    timed: dict[str, Visits] = {name: arms[name].times() for name in backends if name in arms}
    visits = {name: times for name, times in timed.items() if times}
    # With fewer visits nothing is told apart, and a sign at every cell of every row would say no more than the note.
    decidable = len(visits) > 1 and min(map(len, visits.values())) >= MIN_PAIRS
    fastest = leaders(visits, IN_TURN) if decidable else {}
    texts = {name: format_cell(arms.get(name), show) for name in backends}
    if len(fastest) > 1:
        # The one with the least time is the same as another, or it is undecided whether it is the fastest.
        first, *rivals = fastest
        fastest[first] = Verdict.SAME if Verdict.SAME in map(fastest.get, rivals) else Verdict.UNDECIDED
    marked: dict[str, Text] = {}
    for name, verdict in fastest.items():
        marked[name] = SIGNS[verdict] + texts[name] if len(fastest) > 1 else Strong(texts[name])
    return [marked.get(name, text) for name, text in texts.items()]


def both_directions(findings: Sequence[Text]) -> list[Text]:
    """The findings, where what is said of h2d and of d2h is the same once for both."""
    loads = [text for text in findings if isinstance(text, str) and "h2d" in text]
    twins = {text: text.replace("h2d", "d2h") for text in loads if text.replace("h2d", "d2h") in findings}
    kept = [text for text in findings if text not in twins.values()]
    return [text.replace("h2d", "h2d and d2h") if isinstance(text, str) and text in twins else text for text in kept]


def ratio_text(compared: Comparison) -> str:
    """A ratio of times, with its interval where that is wide; of an undecided one the interval alone, as the centre can
    be far from the ratio of the medians.
    """
    if compared.verdict is Verdict.UNDECIDED and compared.high < math.inf:
        return f"{sign_of(compared)}{TIMES}{figure(compared.low)} to {figure(compared.high)}"
    return f"{sign_of(compared)}{TIMES}{with_interval(compared.ratio, compared.low, compared.high)}"


def change_text(compared: Comparison) -> str:
    """A change in percent with its interval."""
    low, value, high = ((ratio - 1) * 100 for ratio in (compared.low, compared.ratio, compared.high))
    interval = f"{low:+.1f} to {high:+.1f}" if math.isfinite(high) else f"fewer than {MIN_PAIRS} rounds"
    return f"{sign_of(compared)}{value:+.1f}% ({interval})"


def sign_of(compared: Comparison) -> str:
    return SIGNS.get(compared.verdict, "")


def few_visits_note(outcomes: Iterable[Outcome]) -> list[Text]:
    fewest = min(outcome.rounds for outcome in outcomes)
    note = f"Some cells have {noun(fewest, 'visit')} only: a comparison needs {MIN_PAIRS} of each cell"
    return [note] if fewest < MIN_PAIRS else []


def label_of(outcomes: Sequence[Outcome]) -> str:
    """The label of the method that some outcomes share, with the SMs that they take."""
    sms = [outcome.cell.sms for outcome in outcomes if outcome.cell.sms is not None]
    return method_label(outcomes[0].cell.backend, sms, plug_in=outcomes[0].plug_in)


def method_of(outcome: Outcome) -> str:
    return label_of([outcome])


def swap_text(cell: Cell) -> str:
    return f"{count(cell.blocks)} {TIMES} {bytes_size(cell.block_bytes)}"


def main_path(outcome: Outcome) -> str:
    """The path of most visits."""
    return short(str(outcome.path).partition(BETWEEN)[0])


def axis_text(cell: Cell, name: str) -> str:
    """The value of a cell on an axis as text, "" where it does not use the axis."""
    axis = AXES[name]
    text = cell.text(name)
    return f"{name} {text}" if text is not None and text != axis.show(axis.unused) else ""


def comma_separated(*texts: str) -> str:
    return ", ".join(filter(None, texts))


# A figure, and the ends of its band.
Band = tuple[float, float, float]


def rate_band(outcome: Outcome) -> Band:
    """The GB/s of a cell, and its quartiles."""
    return outcome.gbps, *outcome.quartiles_gbps


def interval_band(outcome: Outcome) -> Band:
    """The GB/s of a cell, and the ends of their 95% interval."""
    return outcome.gbps, *outcome.interval_gbps


def line_of(
    label: str, backend: str, x: Sequence[float], bands: Sequence[Band], variant: int = 0, **more: Any
) -> PlotLine:
    """The line of a method; a point without an end of its band has none there."""
    y = [middle for middle, _, _ in bands]
    low, high = ([band[end] if math.isfinite(band[end]) else band[0] for band in bands] for end in (1, 2))
    return PlotLine(label, backend, x, y, low, high, variant, **more)
