"""Drawings of matplotlib as parts of a page: small, with the page's colours, texts on hover and switches."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from xml.etree.ElementTree import Element, fromstring

from markupsafe import Markup

from kvbench.report.charts.palette import is_page_colour, on_dark
from kvbench.report.charts.plot import LinePlot, MapPlot
from kvbench.report.model import Chart

if TYPE_CHECKING:
    from kvbench.report.charts.figure import Box, Drawing, DrawnView

_NUMBER: Final = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")
_COLOUR: Final = re.compile(r"#[0-9a-f]{6}")
_SERIES: Final = re.compile(r"s(\d+)-\d+")
_URL: Final = re.compile(r"url\(#(\w+)\)")
_FONT: Final = re.compile(r"font-family: [^;]*;? ?")
_UNTURNED: Final = re.compile(r"rotate\(-?0 ")
_SVG: Final = "{http://www.w3.org/2000/svg}"
_LINK: Final = "{http://www.w3.org/1999/xlink}href"
_DIGITS: Final = 1
_SHAPE_DIGITS: Final = 2
_KEY_SIZE: Final = (36.0, 14.0)  # of a key of the legend
_REACH: Final = 6  # how near to a point the pointer has to be
_SCALES: Final = {"log10": "Logarithmic", "linear": "Linear"}


@dataclass(frozen=True, slots=True)
class PageFigure:
    """A chart on the page: (label, drawing) of its legend, the panels of every view, what names the second view.

    With `switches` the keys of the legend switch lines.
    """

    keys: Sequence[tuple[str, Markup]]
    views: Sequence[Sequence[Markup]]
    other: str
    switches: bool


@dataclass(slots=True)
class Drawings:
    """What the drawings of a page share: classes by their rules, shapes of markers and hatches, colours."""

    _classes: dict[str, str] = field(default_factory=dict)
    _shapes: dict[str, str] = field(default_factory=dict)
    _colours: set[str] = field(default_factory=set)
    _clips: int = 0
    _most_keys: int = 0

    def figure(self, chart: Chart, drawing: "Drawing") -> PageFigure:
        titles = [panel.title for row in chart.plot.grid for panel in row]
        views = [_Parts(self, view, on_tiles=isinstance(chart.plot, MapPlot)) for view in drawing.views.values()]
        self._most_keys = max(self._most_keys, len(drawing.keys))
        keys = [(label, views[0].key(number)) for number, label in enumerate(drawing.keys)]
        _, *others = drawing.views
        switches = isinstance(chart.plot, LinePlot) and len(keys) > 1
        return PageFigure(keys, [view.panels(titles) for view in views], _SCALES[others[0]] if others else "", switches)

    def rules(self) -> Iterator[str]:
        """Return the style sheet of the drawings: a light and a dark value of every colour, classes, switches."""
        colours = sorted(self._colours)
        yield f":root{{{''.join(f'--{colour[1:]}:{colour};' for colour in colours)}}}"
        dark = "".join(f"--{colour[1:]}:{on_dark(colour.upper()).lower()};" for colour in colours)
        yield f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
        yield from (f".{name}{{{rule}}}" for rule, name in self._classes.items())
        for number in range(self._most_keys):
            yield f"figure:has(.key{number}:not(:checked)) .s{number}{{display:none}}"

    def shapes(self) -> Markup:
        """Return the shapes that drawings refer to."""
        return Markup("").join(Markup(form).format(name) for form, name in self._shapes.items())  # noqa: S704, numbers

    def class_of(self, style: str, *, on_tiles: bool) -> str:
        """Return the class of a style; on maps, only what is the page's changes its colour with the page."""

        def variable(match: re.Match[str]) -> str:
            colour = match[0]
            if on_tiles and not is_page_colour(colour.upper()):
                return colour
            self._colours.add(colour)
            return f"var(--{colour[1:]})"

        rule = _COLOUR.sub(variable, _FONT.sub("", style)).replace(": ", ":").replace("; ", ";").strip("; ")
        return self._classes.setdefault(rule, f"c{len(self._classes)}")

    def shape_of(self, form: str) -> str:
        """Return the id of a shape; `form` is its element, with "{}" for the id."""
        return self._shapes.setdefault(form, f"m{len(self._shapes)}")

    def next_clip(self) -> str:
        self._clips += 1
        return f"p{self._clips}"


class _Parts:
    """One view taken apart into panels and keys."""

    def __init__(self, page: Drawings, view: "DrawnView", *, on_tiles: bool) -> None:
        self._page, self._titles, self._boxes, self._on_tiles = page, view.titles, view.boxes, on_tiles
        root = fromstring(view.svg)  # noqa: S314, drawn here
        self._elements = {name: element for element in root.iter() if (name := element.get("id"))}

    def panels(self, titles: Sequence[str]) -> list[Markup]:
        """Return a drawing of every panel, with `titles` for readers who do not see it."""
        drawn = []
        for number, (box, title) in enumerate(zip(self._boxes, titles, strict=True), start=1):
            clips: dict[str, str] = {}
            inside = "".join(self._inside(self._elements[f"axes_{number}"], clips))
            paths = "".join(f'<clipPath id="{new}">{self._clip(old)}</clipPath>' for old, new in clips.items())
            drawn.append(_svg(box, f'role="img" aria-label="{Markup.escape(title)}"', paths + inside))
        return drawn

    def key(self, number: int) -> Markup:
        """Return the drawing of a key of the legend."""
        element = self._elements[f"key-{number}"]
        marker = next((one for one in element.iter() if _name(one) == "use"), None)
        x, y = _middle(next(element.iter(f"{_SVG}path")) if marker is None else marker)
        width, height = _KEY_SIZE
        drawn = "".join(self._drawn(element, {}))
        return _svg((x - width / 2, y - height / 2, width, height), 'class="key" aria-hidden="true"', drawn)

    def _inside(self, element: Element, clips: dict[str, str]) -> Iterator[str]:
        for child in element:
            yield from self._drawn(child, clips)

    def _drawn(self, element: Element, clips: dict[str, str]) -> Iterator[str]:
        match _name(element):
            case "defs":
                return  # shapes are taken where they are used
            case "g":
                yield from self._group(element, clips)
            case "path":
                yield f'<path d="{_rounded(element.get("d", ""))}"{self._look(element, clips)}/>'
            case "use":
                x, y = (_rounded(element.get(name, "0")) for name in "xy")
                shape = self._shape(element.get(_LINK, "").removeprefix("#"))
                yield f'<use href="#{shape}" x="{x}" y="{y}"{self._look(element, clips)}/>'
            case "text":
                x, y = (_rounded(element.get(name, "0")) for name in "xy")
                turn = element.get("transform", "")
                turned = "" if not turn or _UNTURNED.match(turn) else f' transform="{_rounded(turn)}"'
                said = Markup.escape("".join(element.itertext()).strip())
                yield f'<text x="{x}" y="{y}"{turned}{self._look(element, clips)}>{said}</text>'

    def _shape(self, name: str) -> str:
        form = f'<path id="{{}}" d="{_rounded(self._elements[name].get("d", ""), _SHAPE_DIGITS)}"/>'
        return self._page.shape_of(form)

    def _group(self, element: Element, clips: dict[str, str]) -> Iterator[str]:
        inside = "".join(self._inside(element, clips))
        if (clip := element.get("clip-path")) and inside:
            inside = f"<g{self._clipped(clip, clips)}>{inside}</g>"
        name = element.get("id", "")
        if series := _SERIES.fullmatch(name):
            inside = f'<g class="s{series[1]}">{inside}{self._hover(element, self._titles.get(name, ()))}</g>'
        yield inside

    def _hover(self, element: Element, titles: Sequence[str]) -> str:
        """Return what says a point's title on hover: at every marker, or the whole of what has one title."""
        uses = [one for one in element.iter() if _name(one) == "use"]
        if len(uses) == len(titles):
            places = [" ".join(f'c{name}="{_rounded(use.get(name, "0"))}"' for name in "xy") for use in uses]
            spots = [f'<circle class="tip" {place} r="{_REACH}">' for place in places]
            pairs = zip(spots, titles, strict=True)
            return "".join(f"{spot}<title>{Markup.escape(title)}</title></circle>" for spot, title in pairs)
        paths = [one.get("d", "") for one in element.iter() if _name(one) == "path"]
        if len(titles) == 1 and paths:
            return f'<path class="tip" d="{_rounded(paths[0])}"><title>{Markup.escape(titles[0])}</title></path>'
        return ""

    def _look(self, element: Element, clips: dict[str, str]) -> str:
        """Return the attributes of an element that say how it looks."""
        style = element.get("style", "")
        if hatch := _URL.search(style):
            style, filled = style.replace(f"fill: {hatch[0]}; ", ""), f' fill="url(#{self._hatch(hatch[1])})"'
        else:
            filled = ""
        clip = self._clipped(element.get("clip-path", ""), clips)
        return f' class="{self._page.class_of(style, on_tiles=self._on_tiles)}"{filled}{clip}'

    def _hatch(self, name: str) -> str:
        pattern = self._elements[name]
        rect, path = pattern
        fill = "none" if rect.get("fill", "none") == "none" else rect.get("fill")
        form = (
            f'<pattern id="{{}}" patternUnits="userSpaceOnUse" width="72" height="72"><path fill="{fill}" '
            f'd="M0 0H73V73H0z"/><path fill="none" stroke="#999999" d="{_rounded(path.get("d", ""))}"/></pattern>'
        )
        return self._page.shape_of(form)

    def _clipped(self, value: str, clips: dict[str, str]) -> str:
        clip = _URL.search(value)
        if clip is None:
            return ""
        if clip[1] not in clips:
            clips[clip[1]] = self._page.next_clip()
        return f' clip-path="url(#{clips[clip[1]]})"'

    def _clip(self, name: str) -> str:
        (rect,) = self._elements[name]
        sides = " ".join(f'{side}="{_rounded(rect.get(side, "0"))}"' for side in ("x", "y", "width", "height"))
        return f"<rect {sides}/>"


def _svg(box: "Box", attributes: str, inside: str) -> Markup:
    sides = " ".join(_rounded(str(side)) for side in box)
    return Markup(f'<svg viewBox="{sides}" {attributes}>{inside}</svg>')  # noqa: S704, its texts are escaped


def _middle(element: Element) -> tuple[float, float]:
    """Return where a marker stands, or the middle of a path."""
    if path := element.get("d"):
        numbers = [float(number) for number in _NUMBER.findall(path)]
        x, y = ((min(side) + max(side)) / 2 for side in (numbers[::2], numbers[1::2]))
        return x, y
    return float(element.get("x", "0")), float(element.get("y", "0"))


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _rounded(text: str, digits: int = _DIGITS) -> str:
    """Return the text with its numbers rounded, and without spaces that a path does not need."""

    def short(match: re.Match[str]) -> str:
        number = f"{float(match[0]):.{digits}f}".rstrip("0").rstrip(".") if "." in match[0] else match[0]
        return "0" if number in ("-0", "") else number

    return re.sub(r"\s*([MLCQz])\s*", r"\1", _NUMBER.sub(short, text))
