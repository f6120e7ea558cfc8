"""The captions of tables and charts: what their figures include, what they are of, and how to measure them again."""

from collections.abc import Iterable, Sequence
from typing import Final

import pandas as pd

from kvbench.report.charts.plot import ChartText
from kvbench.report.model import Code, Span, Strong, Text
from kvbench.report.select import STATES, Pinned
from kvbench.report.view import HOST_COPIES, View, sample_text
from kvbench.text import short

_INCLUDES: Final = {
    "idle": "GB/s from wall_us on an idle stream: host clock from the caller's list to completion; includes "
    "preparation, submission and execution",
    "busy": "GB/s from gpu_us on a busy stream: time between the events around the swap; includes descriptor upload "
    "and execution, excludes preparation and submission",
    "gated": "GB/s from gpu_us on a gated stream: time from the opening of the gate, an event that another stream "
    "reaches after the submission, to completion; includes execution, excludes preparation and submission",
    "opened": "GB/s from wall_us on an opened stream, whose wait for an event is over before the swap: host clock from "
    "the caller's list to completion; includes preparation, submission and execution",
    "sustained": "GB/s from the wall_us that one more swap adds to a chain of back-to-back swaps; includes "
    "preparation, submission and execution",
    "swap_us": "Time of a swap: wall_us on an idle or opened stream, with preparation and submission; gpu_us on a busy "
    "or gated one, without them",
    "caller_us": "Host time that a swap takes from its thread: preparation and submission",
}


def includes_of(name: str) -> str:
    """Return what the figures of a stream state, or a time, include."""
    return _INCLUDES[name]


def includes(states: Iterable[str], figures: str) -> list[str]:
    """Return what `figures`, such as "GB/s", include in each of these stream states, idle first."""
    held = set(states)
    return [includes_of(state).replace("GB/s", figures, 1) for state in STATES if state in held]


def caption(view: View, cells: pd.DataFrame, includes: str, pinned: Pinned | None = None) -> Text:
    """Return the caption of a table of `cells`, a span for each sentence that tables of a section may share.

    `pinned` adds what the axes that the table does not show were set to.
    """
    settings = pinned.settings(cells) or "no other axes" if pinned else ""
    return (
        *host_mark(view),
        f"{view.heading} · {sample_text(cells['samples'])}. ",
        f"{includes}. ",
        f"{settings[:1].upper()}{settings[1:]}. " if settings else "",
        f"kvbench {short(view.run.info.kvbench, 80)}, reproduced by ",
        Code(view.command),
        ".",
    )


def host_mark(view: View) -> tuple[Span, ...]:
    return (Strong(HOST_COPIES), " ") if view.on_host else ()


def chart_text(view: View, title: str, cells: pd.DataFrame, drawn: str, footer: Sequence[str]) -> ChartText:
    """Return what stands around a chart of `cells`; `drawn` says what is shown of their samples."""
    subtitle = f"{view.heading} · {sample_text(cells['samples'])} · {drawn}"
    return ChartText(title, subtitle, [line for line in footer if line], HOST_COPIES if view.on_host else "")
