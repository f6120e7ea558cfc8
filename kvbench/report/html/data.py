"""What the page's script reads, as JSON: the lines of the charts, every cell with its figures, the raw samples."""

import math
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
from markupsafe import Markup

from kvbench.analysis.intervals import Floats
from kvbench.cells.backend_facts import AUTO
from kvbench.cells.cell import AXES
from kvbench.report.charts.palette import Ink
from kvbench.report.charts.plot import LinePlot
from kvbench.report.model import Chart
from kvbench.report.view import HOST_COPIES, View, texts_of
from kvbench.results.columns import SAMPLE_COLUMNS
from kvbench.text import short

_DIGITS: Final = 4
_TEXTS: Final = ("status", "reason", "path", "chosen", "order_note", "stopped_by", "warnings", "cell_id")
_COUNTS: Final = ("block_bytes", "samples", "rounds", "outliers", "verified_bytes")
_SHARES: Final = (
    "gbps", "gbps_q1", "gbps_q3", "ceiling_share", "roof_share", "state_held", "execution_only", "depth_held",
)  # fmt: skip
_HARMLESS: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def chart_json(charts: Sequence[Chart], inks: Mapping[str, Ink]) -> Markup:
    """Return the charts that a script draws: {"inks": {backend: ink}, "charts": [{"stem", and a plot's fields}]}."""
    plots = {chart.stem: chart.plot for chart in charts if isinstance(chart.plot, LinePlot)}
    drawn = [{"stem": stem} | _short_numbers(msgspec.to_builtins(plot)) for stem, plot in plots.items()]
    used = {line.backend for plot in plots.values() for line in plot.lines}
    return script_json({"inks": {name: inks[name] for name in sorted(used)}, "charts": drawn})


def figures_json(view: View) -> Markup:
    """Return the cells of a run: columns of text, counts and figures, a value for each cell, null where unknown."""
    frame = view.frame
    figures = [str(name) for name in frame if str(name).endswith(("_us_median", "_us_q1", "_us_q3"))]
    columns = {
        "label": view.label,
        "title": f"{view.title} ({HOST_COPIES})" if view.on_host else view.title,
        "axes": {name: _texts(frame[name]) for name in AXES},
        "words": {name: _texts(frame[name]) for name in _TEXTS} | {"command": _commands(view)},
        "counts": {name: [int(value) for value in frame[name].fillna(0)] for name in _COUNTS},
        "figures": {name: rounded(frame[name].to_numpy(np.float64)) for name in (*figures, *_SHARES)},
    }
    return script_json(columns)


def _commands(view: View) -> list[str | None]:
    """Return the command that measures each cell again; auto takes the policy of the run, as that of a failure does."""
    policy = f" --policy {shlex.quote(str(view.run.path))}" if view.run.info.spec.get("policy") else ""
    by_policy = (view.frame["backend"] == AUTO) & (view.frame["status"] != "failed")
    commands = zip(_texts(view.frame["command"]), by_policy, strict=True)
    return [f"{text}{policy}" if text and adds else text for text, adds in commands]


def samples_json(view: View) -> Markup:
    """Return the raw samples: {"columns": [name], "cells": {cell id: [[round, samples, column, ...] for each visit]}}.

    A column of a visit is a list of numbers; one number stands for a list of equal ones.
    """
    samples = view.run.samples()
    numbers = samples["round"].to_numpy()
    cells: dict[str, list[list[Any]]] = {}
    if len(samples):
        owner, ids = pd.factorize(samples["cell_id"])
        starts = np.flatnonzero((samples["sample"] == 0) | (np.diff(owner, prepend=-1) != 0))
        columns = [_column(samples[name].to_numpy(np.float64, na_value=np.nan), starts) for name in SAMPLE_COLUMNS]
        lengths = np.diff(starts, append=len(samples))
        for start, length, *values in zip(starts, lengths, *columns, strict=True):
            cells.setdefault(ids[owner[start]], []).append([int(numbers[start]), int(length), *values])
    return script_json({"columns": list(SAMPLE_COLUMNS), "cells": cells})


def script_json(data: Any) -> Markup:
    """Return JSON that may stand inside a script element: nothing in it ends the element."""
    return Markup(msgspec.json.encode(data).decode().translate(_HARMLESS))  # noqa: S704, harmless by the line above


def _column(values: Floats, starts: npt.NDArray[np.intp]) -> list[list[float | None] | float | None]:
    numbers = rounded(values)
    visits = [numbers[first:end] for first, end in pairwise([*starts.tolist(), len(numbers)])]
    return [visit[0] if len(set(visit)) == 1 else visit for visit in visits]


def rounded(values: Floats) -> list[float | None]:
    """Return numbers with four significant digits, None for what is no finite number."""
    return [_rounded(value) for value in values.tolist()]


def _rounded(value: float) -> float | None:
    number = float(f"{value:.{_DIGITS}g}")  # which can round to infinity
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() else number


def _short_numbers(value: Any) -> Any:
    """Return JSON's types with the figures of `rounded`."""
    if isinstance(value, float):
        return _rounded(value)
    if isinstance(value, dict):
        return {key: _short_numbers(inner) for key, inner in value.items()}
    return [_short_numbers(inner) for inner in value] if isinstance(value, list) else value


def _texts(column: "pd.Series[Any]") -> list[str | None]:
    return [None if text is None else short(text, 2000) for text in texts_of(column)]
