"""The report as one HTML file that needs no network and runs no script but its own."""

import base64
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from kvbench.cells.cell import AXES
from kvbench.report.html.svg import Drawings
from kvbench.report.model import Code, Report, Strong, Text, spans
from kvbench.report.numbers import bytes_size, count, figure
from kvbench.report.preamble import TITLE
from kvbench.report.view import Row, View, rows_of
from kvbench.text import short

if TYPE_CHECKING:
    from kvbench.report.charts.figure import Drawing

CELL_HEADER: Final = (
    "Run", "Backend", "Dir", "Stream", "Blocks", "Block size", "GB/s", "Quartiles", "Share of the ceiling", "Time, us",
    "Path", "Other axes",
)  # fmt: skip
_NAMED_AXES: Final = ("backend", "direction", "stream_state", "blocks", "block_size")


def html_page(report: Report, drawings: "Mapping[str, Drawing]") -> str:
    """Return the report as HTML, with a table of every cell; the same report gives the same page.

    `drawings` are the charts by their stems.
    """
    page = Drawings()
    figures = {chart.stem: page.figure(chart, drawings[chart.stem]) for chart in report.charts}
    style, script = "\n".join((_asset("page.css"), *page.rules())), _asset("page.js")
    return (
        _environment()
        .get_template("page.html")
        .render(
            report=report,
            title=TITLE,
            policy=_policy(script, style),
            style=Markup(style),  # noqa: S704, our own files
            script=Markup(script),  # noqa: S704, our own files
            figures=figures,
            shapes=page.shapes(),
            cell_header=CELL_HEADER,
            cells=[row for view in report.views for row in _cells(view)],
        )
    )


def rich(text: Text) -> Markup:
    """Return text as HTML, escaped."""
    tags = {Strong: Markup("<strong>{}</strong>"), Code: Markup("<code>{}</code>")}
    return Markup("").join(
        escape(span) if isinstance(span, str) else tags[type(span)].format(span.text) for span in spans(text)
    )


def _cells(view: View) -> Iterator[Markup]:
    """Return a row of the look-up for every cell of a run; rows and their cells need no end tags."""
    axes = [name for name in AXES if name not in _NAMED_AXES]
    for row in rows_of(view.every):
        shape = (row["backend"], row["direction"], row["stream_state"], count(row["blocks"]))
        # as `kvbench sweep -a` takes them
        others = " ".join(f"{name}={short(str(row[name]), 80)}" for name in axes if _is_used(name, row[name]))
        texts = (view.label, *shape, bytes_size(row["block_bytes"]), *_figures(row), others)
        yield Markup("<tr>") + Markup("").join(Markup("<td>{}").format(text) for text in texts)


def _figures(row: Row) -> Sequence[str]:
    """Return the rates of a cell and its path, or why it has none."""
    if row["status"] != "ok":
        return "", "", "", "", f"{row['status']}: {short(str(row['reason']), 200)}"
    share = f"{row['ceiling_share']:.0%}" if math.isfinite(row["ceiling_share"]) else ""
    quartiles = f"{figure(row['gbps_q1'])} to {figure(row['gbps_q3'])}"
    return figure(row["gbps"]), quartiles, share, figure(row["swap_us_median"]), short(str(row["path"]), 200)


def _is_used(name: str, value: Any) -> bool:
    return not pd.isna(value) and value != AXES[name].unused and str(value) != AXES[name].show(AXES[name].unused)


def _environment() -> Environment:
    loader = FunctionLoader(lambda name: _asset(f"templates/{name}"))
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, loader=loader, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"rich": rich, "count": count}
    return environment


def _asset(name: str) -> str:
    return (resources.files("kvbench.report.html") / "assets" / name).read_text(encoding="utf-8")


def _policy(script: str, style: str) -> str:
    """Return a content policy: only this script and this style sheet; nothing is fetched."""
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style))
    script_hash, style_hash = (f"'sha256-{digest}'" for digest in digests)
    sources = f"script-src {script_hash}; style-src {style_hash}"
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
