"""What the tables and charts of a report have in common: rows, marks, footnotes, notes and captions."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import pandas as pd

from kvbench.analysis.compare import MIN_PAIRS, Comparison, Verdict, Visits, by_chance, leaders
from kvbench.analysis.margins import IN_TURN
from kvbench.cells.axes import Role
from kvbench.cells.cell import AXES, axes_of
from kvbench.cells.facts import MERGED, PRIMED, SM, TRITON, method_label
from kvbench.report.faults import HOST_COPIES, low_ceilings
from kvbench.report.model import ChartText, Code, DataTable, Once, PlotLine, Span, Strong, Text, plain, spans
from kvbench.report.numbers import ABSENT, TIMES, count, figure, noun
from kvbench.report.view import Pinned, Row, View, rows_of
from kvbench.results.outcomes import BETWEEN
from kvbench.text import counted, ends, short

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
    view: View, cells: pd.DataFrame, clock: Clock, said: Iterable[str] = (), meanings: Iterable[str] = ()
) -> tuple[Span, ...]:
    """Return the caption of a table: its clock, samples, what is `said` of it, what its marks mean, and its origin."""
    *others, last = (clock,) if isinstance(clock, str) else clock
    timed = [*((one, ". ") for one in others), (last, "; ")]
    sampling = view.run.info.spec.get("sampling")
    warmups = sampling.get("warmups") if isinstance(sampling, dict) else None
    low = [text[0].upper() + text[1:] for text in low_ceilings(view.run)]
    return (
        *host_mark(view),
        *(type(one)((one.replace("CUDA", "Host") if view.on_host else one) + end) for one, end in timed),
        f"{ends(cells['samples'], str)} samples",
        Once(" a cell"),
        *((f", {counted(warmups, 'warm-up')}", Once(" a visit")) if isinstance(warmups, int) and warmups else ()),
        ". ".join(["", *filter(None, (*said, *low)), ""]),
        Once("".join(f"{one}. " for one in meanings) + f"{view.heading}, kvbench {short(view.run.info.kvbench, 80)}: "),
        Code(view.command),
        view.commit,
    )


def _meanings(table: Sequence[Sequence[Text]]) -> Iterator[str]:
    """Yield what the marks and the names of methods in a table mean: among the definitions of a report, said once."""
    if any("≈" in plain(text) for row in table for text in row):
        yield "≈: no clear difference"
    if words := words_in(table):
        yield words


def words_in(rows: Iterable[Sequence[Text]]) -> str:
    """Return what the names of methods in some rows mean."""
    said = "\n".join(plain(text) for row in rows for text in row)
    return "; ".join(f"{name}: {meaning}" for name, meaning in _WORDS.items() if re.search(rf"\b{name}\b", said))


def host_mark(view: View) -> tuple[Span, ...]:
    return (Strong(HOST_COPIES), " ") if view.on_host else ()


def chart_text(view: View, title: str, footer: str = "") -> ChartText:
    return ChartText(title, view.heading, footer, HOST_COPIES if view.on_host else "")


# Names in tables that need explaining.
_WORDS: Final = {
    SM: "kvbench's copy kernel",
    TRITON: "a Triton copy kernel",
    PRIMED: "batched after a short kernel, so that the driver does not copy on the CPU",
    MERGED: "batched, adjacent copies made one",
}
_SUPERSCRIPTS: Final = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

Shown = TypeVar("Shown", str, Text)


class Reason(str):
    """Why a cell of a table has no figure, which `measured_table` makes a footnote."""

    __slots__ = ()


def measured_table(
    view: View,
    cells: pd.DataFrame,
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
    """Return a table of cells with its caption, its `notes`, that of too few visits, and one of each `Reason`."""
    rows, reasons = footnoted(body)
    is_bold = any(isinstance(span, Strong) for row in rows for text in row for span in spans(text))
    more = (f"Bold: {bold}" if is_bold else "", pinned.settings(cells) if pinned else "")
    said = caption(view, cells, clock, more, _meanings([header, *rows]))
    return DataTable(title, header, rows, [*notes, *few_visits_note(cells), *reasons], said, left, compared)


def footnoted(body: Sequence[Sequence[Text]]) -> tuple[list[list[Text]], list[str]]:
    """Return the rows of a table with a mark for each `Reason`, and the reasons, each once, by their marks."""
    reasons = dict.fromkeys(text for row in body for text in row if isinstance(text, Reason))
    marks = {reason: str(number).translate(_SUPERSCRIPTS) for number, reason in enumerate(reasons, start=1)}
    rows = [[f"{ABSENT}{marks[text]}" if isinstance(text, Reason) else text for text in row] for row in body]
    return rows, [f"{mark} {reason}" for reason, mark in marks.items()]


def format_cell(row: Row | None, show: Callable[[Row], Shown]) -> Shown | str:
    """Return a cell of a table: its figure, a reason where it has none, blank where the run never asked."""
    if row is None:
        return ""
    if row["status"] != "ok":
        return Reason(f"{row['status']}: {short(row['reason'])}")
    return show(row)


def rate(row: Row) -> str:
    return figure(row["gbps"])


def microseconds(column: str) -> Callable[[Row], str]:
    return lambda row: figure(row[column])


def milliseconds(row: Row) -> str:
    return figure(float(row["swap_us_median"]) / 1e3)


def fastest_marked(
    rows: Iterable[Row], backends: Collection[str], show: Callable[[Row], str], visits: Mapping[str, Visits]
) -> list[Text]:
    """Return a cell of a table for each of `backends`, the fastest in bold, or "≈" before all that may be as fast.

    Where a cell has too few `visits` to tell, nothing is marked; `few_visits_note` says so.
    """
    row_of = {str(row["backend"]): row for row in rows if row["backend"] in backends}
    arms = {name: visits[row["cell_id"]] for name, row in row_of.items() if row["cell_id"] in visits}
    decidable = len(arms) > 1 and min(map(len, arms.values())) >= MIN_PAIRS
    first = leaders(arms, IN_TURN) if decidable else {}
    texts = {name: format_cell(row_of.get(name), show) for name in backends}
    marked = {name: Strong(texts[name]) if len(first) == 1 else f"≈ {texts[name]}" for name in first}
    return [marked.get(name, text) for name, text in texts.items()]


def both_directions(findings: Sequence[Text]) -> list[Text]:
    """Return findings of which one of h2d and one of d2h are one where they say the same."""
    same = {one: str(one).replace("h2d", "d2h") for one in findings if isinstance(one, str) and "h2d" in one}
    twins = {one: other for one, other in same.items() if other in findings}
    kept = [one for one in findings if one not in twins.values()]
    return [str(one).replace("h2d", "h2d and d2h") if one in twins else one for one in kept]


def ratio_text(compared: Comparison) -> str:
    """Return a ratio of times; of an undecided one its interval, as its centre can be far from the ratio of medians."""
    if compared.verdict is Verdict.UNDECIDED and compared.high < math.inf:
        return f"{unclear_mark(compared)}{TIMES}{figure(compared.low)} to {figure(compared.high)}"
    return f"{unclear_mark(compared)}{TIMES}{figure(compared.ratio)}"


def change_text(compared: Comparison) -> str:
    """Return a change in percent with its interval, marked where that holds 0."""
    low, value, high = ((ratio - 1) * 100 for ratio in (compared.low, compared.ratio, compared.high))
    if math.isinf(high):
        return f"fewer than {MIN_PAIRS} rounds"
    return f"{'≈ ' if low <= 0 <= high else ''}{value:+.1f}% ({low:+.1f} to {high:+.1f})"


def unclear_mark(compared: Comparison) -> str:
    """Return the mark of a comparison that has an interval and still no verdict of a difference."""
    return "≈ " if compared.high < math.inf and not compared.told_apart else ""


def few_visits_note(cells: pd.DataFrame) -> list[Text]:
    fewest = int(cells["rounds"].min())
    note = f"Some cells have {noun(fewest, 'visit')} only: a comparison needs {MIN_PAIRS} of each cell"
    return [note] if fewest < MIN_PAIRS else []


def chance_note(comparisons: int) -> list[Text]:
    """Say how many differences chance alone shows among comparisons of equal things."""
    wrong = noun(by_chance(comparisons), "false positive")
    return [f"Expect up to {wrong} in {count(comparisons)} comparisons"] if comparisons > 1 else []


def label_of(backend: str, cells: pd.DataFrame) -> str:
    """Return the label of the method that `cells` of a backend share, with the SMs that they take."""
    return method_label(backend, [int(number) for number in cells["sms"].dropna()])


def main_path(path: object) -> str:
    """Return the path of most visits of a cell, from its column `path`."""
    return short(str(path).partition(BETWEEN)[0])


def sms_of(row: Row) -> int | None:
    return row["sms"] if isinstance(row["sms"], int) else None


def axis_text(name: str, value: object) -> str:
    """Return the value of a cell on an axis as text, "" where the cell does not use the axis."""
    axis = AXES[name]
    text = axis.show(value) if isinstance(value, int) else value
    used = isinstance(text, str) and text != axis.show(axis.unused)
    return f"{name} {text}" if used else ""


def with_methods(cells: pd.DataFrame) -> pd.DataFrame:
    """Return cells beside a neighbour with the columns `method` of swapping, and `label`, which adds the SM count.

    A method is a backend with the axes that vary among its cells beside that neighbour.
    """
    names = [name for name in axes_of(Role.SHAPE, Role.SIDE, Role.BESIDE) if name not in ("sms", "neighbour")]
    values = cells.groupby(["neighbour", "direction", "backend"])[names].nunique(dropna=False)
    varied = (values.groupby("neighbour").max() > 1).to_dict("index")
    rows = rows_of(cells)
    apart = {neighbour: [name for name in names if axes[name]] for neighbour, axes in varied.items()}
    settings = [[axis_text(name, row[name]) for name in apart[row["neighbour"]]] for row in rows]
    methods = [comma_separated(row["backend"], *texts) for row, texts in zip(rows, settings, strict=True)]
    labels = [
        comma_separated(method_label(row["backend"], sms_of(row)), *texts)
        for row, texts in zip(rows, settings, strict=True)
    ]
    return cells.assign(method=methods, label=labels)


def comma_separated(*texts: str) -> str:
    return ", ".join(filter(None, texts))


def line_of(
    label: str, x: Sequence[float], rows: Sequence[Row], columns: Sequence[str], variant: int = 0, **more: Any
) -> PlotLine:
    """Return the line of cells of one backend; `columns` hold what is drawn and the ends of its band, if it has one."""
    middle, *_ = columns
    y, low, high = ([float(row[name] if math.isfinite(row[name]) else row[middle]) for row in rows] for name in columns)
    return PlotLine(label, str(rows[0]["backend"]), x, y, low, high, variant, **more)
