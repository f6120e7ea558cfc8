"""The report as one HTML file that needs no network and runs no script but its own."""

import base64
import hashlib
from collections.abc import Mapping
from typing import Final

from kvbench.report.html.cells import pack_run
from kvbench.report.html.figures import figure_of
from kvbench.report.html.maps import map_style
from kvbench.report.html.packing import plain_json
from kvbench.report.html.prose import to_html
from kvbench.report.html.templates import asset, template
from kvbench.report.model import Report

_STYLES: Final = ("uplot/uPlot.min.css", "page.css")
_SCRIPTS: Final = (
    "uplot/uPlot.iife.min.js", "dom.js", "packed.js", "panel.js", "charts.js", "strip.js", "cell.js", "look-up.js",
    "main.js",
)  # fmt: skip


def html_page(report: Report, text: str, pictures: Mapping[str, bytes]) -> bytes:
    """Return the report as HTML: `text`, its Markdown, with the charts where their images stood, and every cell.

    `pictures` are the drawn charts by file name. The same report gives the same bytes.
    """
    figures = {chart.stem: figure_of(chart, pictures, report.inks) for chart in report.charts}
    prose = to_html(text, {f"{stem}.png": figure.html for stem, figure in figures.items()})
    style = "\n".join([*map(asset, _STYLES), map_style()])
    script = "\n".join(map(asset, _SCRIPTS))
    page = template("page.html").render(
        title=prose.title,
        policy=_policy(script, style),
        style=style,
        script=script,
        headings=prose.headings,
        body=prose.html,
        charts=plain_json([figure.data for figure in figures.values() if figure.data]),
        runs=[pack_run(view) for view in report.views],
    )
    return page.encode()


def _policy(script: str, style: str) -> str:
    """Return a content policy under which only this script and this style sheet count, and nothing is fetched."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
