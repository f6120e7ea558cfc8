"""The report as one HTML file that needs no network and runs no script but its own."""

import base64
import hashlib
from collections.abc import Mapping
from importlib import resources
from math import log2
from typing import Final

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from kvbench.report.charts.palette import RATIO_KEYS, RATIO_OCTAVES, UNDECIDED, UNMEASURED, Ink, is_dark, ratio_colour
from kvbench.report.html.data import chart_json, figures_json, samples_json
from kvbench.report.model import Code, Report, Strong, Text, spans
from kvbench.report.numbers import bytes_size, count, figure
from kvbench.report.preamble import TITLE

_STYLES: Final = ("uplot/uPlot.min.css", "page.css")
_SCRIPTS: Final = (
    "uplot/uPlot.iife.min.js", "dom.js", "runs.js", "strokes.js", "panel.js", "charts.js", "strip.js", "cell.js",
    "look-up.js", "main.js",
)  # fmt: skip
_STEPS_AN_OCTAVE: Final = 4
_LAST_STEP: Final = round(_STEPS_AN_OCTAVE * RATIO_OCTAVES)


def html_page(report: Report, inks: Mapping[str, Ink], pictures: Mapping[str, bytes]) -> str:
    """Return the report as HTML, with every cell and its raw samples; the same report gives the same page.

    `pictures` are the charts as PNG, by their stems, for readers without JavaScript.
    """
    style = "\n".join([*map(_asset, _STYLES), _map_style()])
    script = "\n".join(map(_asset, _SCRIPTS))
    page = _environment().get_template("page.html")
    return page.render(
        report=report,
        title=TITLE,
        policy=_policy(script, style),
        style=Markup(style),  # noqa: S704, our own files
        script=Markup(script),  # noqa: S704, our own files
        charts=chart_json(report.charts, inks),
        pictures={stem: base64.b64encode(png).decode() for stem, png in pictures.items()},
        runs=[(figures_json(view), samples_json(view)) for view in report.views],
        ratio_keys=[(_step(ratio), label) for ratio, label in RATIO_KEYS.items()],
        undecided=UNDECIDED,
        unmeasured=UNMEASURED,
    )


def rich(text: Text) -> Markup:
    """Return text as HTML, escaped."""
    tags = {Strong: Markup("<strong>{}</strong>"), Code: Markup("<code>{}</code>")}
    return Markup("").join(
        escape(span) if isinstance(span, str) else tags[type(span)].format(span.text) for span in spans(text)
    )


def _environment() -> Environment:
    loader = FunctionLoader(lambda name: _asset(f"templates/{name}"))
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, loader=loader, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"rich": rich, "figure": figure, "count": count, "bytes_size": bytes_size, "step": _step}
    return environment


def _asset(name: str) -> str:
    return (resources.files("kvbench.report.html") / "assets" / name).read_text(encoding="utf-8")


def _map_style() -> str:
    """Return the style sheet of the maps' colours: a class for every quarter of an octave."""
    rules = []
    for step in range(-_LAST_STEP, _LAST_STEP + 1):
        colour = ratio_colour(2 ** (step / _STEPS_AN_OCTAVE))
        red, green, blue = (round(255 * part) for part in colour)
        letters = "#fff" if is_dark(colour) else "#000"
        rules.append(f".tile.r{step}{{background-color:rgb({red},{green},{blue});color:{letters}}}")
    return "\n".join(rules)


def _step(ratio: float) -> str:
    return f"r{round(_STEPS_AN_OCTAVE * max(-RATIO_OCTAVES, min(RATIO_OCTAVES, log2(ratio))))}"


def _policy(script: str, style: str) -> str:
    """Return a content policy: only this script, this style sheet and images inside the page; nothing is fetched."""
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style))
    script_hash, style_hash = (f"'sha256-{digest}'" for digest in digests)
    sources = f"script-src {script_hash}; style-src {style_hash}; img-src data:"
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
