"""The report's Markdown as HTML: the same words, with anchors, table titles, and figures where the images stood.

Two fences stand between a run's strings and the page: markdown.py escaped them into text, and here HTML is not taken
from Markdown at all; of links only anchors of the page remain.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain, count, pairwise
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

from kvbench.report import markdown as md

_MARKDOWN: Final = MarkdownIt("commonmark", {"html": False}).enable("table")


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading: its level, its text, and the id that leads there."""

    level: str
    text: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Prose:
    """HTML of a report's text, its title, and the headings of its sections."""

    html: str
    title: str
    headings: Sequence[Heading]


def to_html(text: str, figures: Mapping[str, str]) -> Prose:
    """Return `text`, Markdown, as HTML; `figures` are HTML by the name of the image that each takes the place of."""
    tokens = _with_figures(_MARKDOWN.parse(text), figures)
    headings = _name_headings(tokens)
    tokens = _dress_tables(tokens)
    for token in tokens:
        if token.children:
            token.children = _without_links(token.children)
    title = next((heading.text for heading in headings if heading.level == "h1"), "")
    sections = [heading for heading in headings if heading.level == "h2"]
    return Prose(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}), title, sections)


def _with_figures(tokens: Sequence[Token], figures: Mapping[str, str]) -> list[Token]:
    """Put each figure where its image was alone in a paragraph; paragraphs that only link to its files go."""
    stems = {name.rpartition(".")[0] for name in figures}
    kept: list[Token] = []
    places = iter(range(len(tokens)))
    for place in places:
        inline = tokens[place + 1].children if tokens[place].type == "paragraph_open" else None
        targets = [_target(token) for token in inline or () if _target(token)]
        if len(targets) == 1 and targets[0] in figures:
            kept.append(Token("html_block", "", 0, content=figures[targets[0]]))
        elif not targets or any(target.rpartition(".")[0] not in stems for target in targets):
            kept.append(tokens[place])
            continue
        next(places), next(places)
    return kept


def _target(token: Token) -> str:
    return str(token.attrGet("src") or token.attrGet("href") or "")


def _name_headings(tokens: Sequence[Token]) -> list[Heading]:
    """Give every heading the id that Markdown's renderers give it, so that links of the report lead there."""
    used: set[str] = set()
    found = []
    for opening, inline in pairwise(tokens):
        if opening.type != "heading_open":
            continue
        text = _words(inline)
        slug = md.anchor(text)
        anchor = next(name for name in chain([slug], (f"{slug}-{n}" for n in count(1))) if name not in used)
        used.add(anchor)
        opening.attrSet("id", anchor)
        found.append(Heading(opening.tag, text, anchor))
    return found


def _dress_tables(tokens: Sequence[Token]) -> list[Token]:
    """Let tables scroll, and name what belongs to them, so that the style sheet finds it: title, notes, caption."""
    dressed: list[Token] = []
    near, title = "", ""
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            near, title = "", ""
        elif token.type == "table_open":
            near = "below" if title else ""
            region = f'<div class="table" role="region" tabindex="0" aria-label="{escape(title or "table")}">'
            dressed.append(Token("html_block", "", 0, content=region))
        elif token.type == "paragraph_open" and token.level == 0:
            inline = tokens[place + 1]
            if _is_title(inline):
                near, title = "above", _words(inline)
                token.attrSet("class", "title")
            elif near == "below":
                token.attrSet("class", "caption")
        elif token.type == "bullet_list_open" and near == "below":
            token.attrSet("class", "notes")
        elif token.type in {"th_open", "td_open"} and (style := token.attrs.pop("style", None)):
            # the page's policy takes no style attributes
            token.attrSet("class", str(style).removeprefix("text-align:"))
        dressed.append(token)
        if token.type == "table_close":
            dressed.append(Token("html_block", "", 0, content="</div>\n"))
    return dressed


def _is_title(inline: Token) -> bool:
    kinds = [child.type for child in inline.children or () if child.content or child.nesting]
    return kinds[:1] == ["strong_open"] and kinds[-1:] == ["strong_close"] and kinds.count("strong_open") == 1


def _without_links(children: Sequence[Token]) -> list[Token]:
    """Keep of the links those within the page; what another one said stays as text, an image as its description."""
    kept: list[Token] = []
    inside: list[bool] = []
    for token in children:
        if token.type == "link_open":
            inside.append(str(token.attrGet("href")).startswith("#"))
        if token.type == "image":
            kept.append(Token("text", "", 0, content=token.content))
        elif not token.type.startswith("link_") or inside[-1]:
            kept.append(token)
        if token.type == "link_close":
            inside.pop()
    return kept


def _words(inline: Token) -> str:
    return "".join(child.content for child in inline.children or ())
