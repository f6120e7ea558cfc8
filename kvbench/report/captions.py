"""What stands below a table and around a chart: device, driver, date, samples, what a number includes, the command."""

from collections.abc import Sequence
from typing import Final

import pandas as pd

from kvbench.report.model import ChartWords, Code, Span, Strong, Text
from kvbench.report.select import Pinned
from kvbench.report.view import HOST_COPIES, View, sample_words

INCLUDES: Final = {
    "idle": "GB/s from wall_us on an idle stream: the host clock from just before the submission to completion, "
    "descriptor upload, submission and execution included, preparation not",
    "busy": "GB/s from gpu_us on a busy stream: between the events around the submission, descriptor upload included; "
    "submission only as far as it is not hidden behind the work that was pending, preparation not",
    "gpu_us": "GPU time between the events around the submission: descriptor upload included, on an idle stream also "
    "the gap between the start event's retirement and the call",
    "submit_us": "Host time inside the submission call or calls, preparation not included",
}


def caption(view: View, cells: pd.DataFrame, includes: str) -> Text:
    """Return the caption of a table of `cells`."""
    head = " · ".join((view.title, view.driver, view.date, sample_words(cells)))
    rest = f"{head}. {includes}. kvbench {view.version}, reproduced by "
    return (*host_mark(view), rest, Code(view.command), ".")


def origin(view: View, cells: pd.DataFrame) -> tuple[Span, ...]:
    """Return where the figures of a run come from, in a table of several runs."""
    words = " · ".join((view.title, view.driver, view.date, sample_words(cells)))
    return (f"{view.label}: ", *host_mark(view), f"{words}, reproduced by ", Code(view.command))


def host_mark(view: View) -> tuple[Span, ...]:
    return (Strong(HOST_COPIES), " ") if view.on_host else ()


def chart_words(view: View, title: str, samples: str, footer: Sequence[str]) -> ChartWords:
    """Return what stands around a chart; `samples` says how many and what is drawn of them."""
    return ChartWords(
        title=title,
        subtitle=f"{view.title} · {view.driver} · {view.date} · {samples}",
        footer=[line for line in footer if line],
        warning=HOST_COPIES if view.on_host else "",
    )


def settings(pinned: Pinned, cells: pd.DataFrame) -> str:
    """Return what the axes that a table does not show were set to, as a sentence without its full stop."""
    words = pinned.words(cells)
    return words[:1].upper() + words[1:] if words else "No other axes"


def a_stream(state: str) -> str:
    """Return the state of a stream in words."""
    return "an idle stream" if state == "idle" else "a busy stream"
