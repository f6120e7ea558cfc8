"""The report as one HTML file, made from its Markdown: it needs no network and runs no script but its own."""

import base64
import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.token import Token

from kvbench.ground.text import short
from kvbench.report import markdown
from kvbench.report.document import FOLD
from kvbench.report.numbers import bytes_size, count, figure
from kvbench.report.view import View
from kvbench.results.outcomes import Outcome, is_measured

CELL_HEADER: Final = (
    "Run", "Backend", "Dir", "Stream", "Blocks", "Block size", "GB/s", "Quartiles", "Share of the ceiling", "Time, us",
    "Path", "Other axes",
)  # fmt: skip
_NAMED_AXES: Final = ("backend", "direction", "stream_state", "blocks", "block_size")
_OPENED: Final = '<div class="table" role="region" tabindex="0" aria-label="table"><table>\n'


def html_page(text: str, drawings: Mapping[str, bytes], views: Sequence[View]) -> str:
    """The Markdown of a report as HTML, with a table of every cell; the same report gives the same page.

    `drawings` are the SVGs of the charts by their stems. Markdown is escaped already, and HTML in it is text.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    styles: dict[str, str] = {}
    tokens = parser.parse(text)
    headings = _prepared(tokens, {stem: _inline(svg.decode(), styles) for stem, svg in drawings.items()})
    rules = (f".{name}{{{style}}}" for style, name in styles.items())
    style, script = "\n".join((_asset("page.css"), *rules)), _asset("page.js")
    return _asset("page.html").format(
        policy=_policy(script, style),
        title=escapeHtml(next(iter(headings))),
        style=style,
        nav="\n".join(f'<li><a href="#{name}">{escapeHtml(title)}</a></li>' for title, name in [*headings.items()][1:]),
        body=parser.renderer.render(tokens, parser.options, {}),
        header="".join(f"<th>{head}</th>" for head in CELL_HEADER),
        cells="\n".join(row for view in views for row in _cells(view)),
        script=script,
    )


def _prepared(tokens: Sequence[Token], drawings: Mapping[str, str]) -> dict[str, str]:
    """Make what Markdown gave fit for the page: drawings in it, no links out of it, no styles that its policy forbids.

    The result: the headings of the first two levels up to their colons, each once, with their anchors.
    """
    headings: dict[str, str] = {}
    for number, token in enumerate(tokens):
        if token.type in ("th_open", "td_open") and token.attrs.pop("style", ""):
            # The parser's way to say it is a style, which the page's policy forbids.
            token.attrSet("class", "right")
        elif token.type == "td_open" and len(tokens[number + 1].content) > 20:  # some words
            token.attrSet("class", "long")
        elif token.type in ("table_open", "table_close"):
            token.type, token.content = "html_block", _OPENED if token.nesting > 0 else "</table></div>\n"
        elif token.type == "heading_open" and token.tag in ("h1", "h2"):
            title = "".join(child.content for child in tokens[number + 1].children or ())
            token.attrSet("id", markdown.anchor(title))
            headings.setdefault(title.partition(":")[0], markdown.anchor(title))
        elif token.type == "inline" and token.content in FOLD:
            # HTML is text to the parser, but for these lines, which no text of a run can be: its "<" is escaped
            tokens[number - 1].hidden = tokens[number + 1].hidden = True
            token.type, token.content, token.children = "html_block", f"{token.content}\n", None
        leads_away = False
        for child in token.children or ():
            if child.type == "link_open":
                leads_away = not str(child.attrGet("href")).startswith("#")
            if child.type in ("link_open", "link_close"):
                child.hidden = leads_away
            elif child.type == "image":
                stem = str(child.attrGet("src")).removesuffix(".png")
                named = f'<svg role="img" aria-label="{escapeHtml(child.content)}"'
                child.type, child.content = "html_inline", drawings[stem].replace("<svg", named, 1)
    return headings


def _inline(svg: str, styles: dict[str, str]) -> str:
    """A drawing as a part of the page, whose policy forbids styles at elements: they become classes.

    `styles` are the classes of all drawings by style, to which those of this one are added.
    """

    def classed(match: re.Match[str]) -> str:
        return f'{match[1]} class="{styles.setdefault(match[2], f"s{len(styles)}")}"'

    bare = re.sub("<metadata>.*?</metadata>|<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # what is text has no "<" of its own, so that none of it is taken for an element
    return re.sub('(<[^<>]*) style="([^"]*)"', classed, re.sub(r'(<g) id="[\w.]*_\d+"', r"\1", bare))


def _cells(view: View) -> Iterator[str]:
    """Yield a row of the look-up for every cell of a run; in HTML, rows and their cells need no end tags."""
    for outcome in view.outcomes:
        cell = outcome.cell
        figures = _figures(view, outcome)
        series = outcome.backend_name, cell.direction, cell.stream_state
        size = count(cell.blocks), bytes_size(cell.block_bytes)
        # as `kvbench sweep -a` takes them
        axes = ((name, text) for name, text in cell.as_strings().items() if name not in _NAMED_AXES and text)
        others = " ".join(f"{name}={short(text, 80)}" for name, text in axes)
        texts = (view.label, *series, *size, *figures, others)
        yield f"<tr>{''.join(f'<td>{escapeHtml(str(text))}' for text in texts)}"


def _figures(view: View, outcome: Outcome) -> Sequence[str]:
    """The rates of a cell and its path, or why it has none."""
    if not is_measured(outcome):
        return "", "", "", "", f"{outcome.status}: {short(outcome.reason, 200)}"
    us, gbps, both_quartiles = outcome.us(), outcome.gbps, outcome.quartiles_gbps
    share = gbps / view.run.ceilings_gbps.get(outcome.cell.direction, math.nan)
    share_text = f"{share:.0%}" if math.isfinite(share) else ""
    quartiles = " to ".join(map(figure, both_quartiles))
    return figure(gbps), quartiles, share_text, figure(us), short(str(outcome.path), 200)


def _asset(name: str) -> str:
    return (resources.files("kvbench.report") / "assets" / name).read_text(encoding="utf-8")


def _policy(script: str, style: str) -> str:
    """A content policy: only this script and this style sheet; nothing is fetched."""
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style))
    script_hash, style_hash = (f"'sha256-{digest}'" for digest in digests)
    sources = f"script-src {script_hash}; style-src {style_hash}"
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
