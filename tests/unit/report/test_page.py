"""The report's page without a browser: what it is made of, and what a stranger's strings cannot become."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from importlib import resources

import pytest

from kvbench.analysis.compare import Verdict
from kvbench.report.build import report_of
from kvbench.report.drawing import draw
from kvbench.report.model import ChartText, LinePlot, PlotAxis, PlotLine, PlotPanel, Report
from kvbench.report.numbers import SIGNS, TIMES
from kvbench.report.page import html_page
from kvbench.report.view import views_of
from tests import synthetic
from tests.reports import HOSTILE, hostile_run, page_of, run_of

TAGS = {
    "a", "blockquote", "body", "br", "code", "details", "div", "h1", "h2", "h3", "head", "html", "li", "main", "meta",
    "nav", "p", "script", "strong", "style", "summary", "table", "tbody", "td", "th", "thead", "title", "tr", "ul",
}  # fmt: skip
SVG_TAGS = {"clippath", "defs", "g", "path", "pattern", "rect", "svg", "text", "use"}


class Outline(HTMLParser):
    """The tags of a page, its attributes, and the text outside scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        last = self.tags[-1][0] if self.tags else ""
        if self.cdata_elem:
            self.raw[last].append(data)
        else:
            self.text += data

    @property
    def shape(self) -> list[str]:
        """The tags in their order, without those that stand around or between words."""
        return [tag for tag, _ in self.tags if tag not in {"code", "li", "br"}]

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(cliff_files: dict[str, bytes]) -> str:
    return cliff_files["report.html"].decode()


def test_the_page_has_every_section_with_its_drawing(cliff: Report, page: str) -> None:
    outline = Outline(page)
    assert len(outline.named("table")) >= len([table for part in cliff.parts for table in part.tables])
    assert len(outline.named("svg")) == len(cliff.charts) > 0
    assert all(chapter.section.short_title in outline.text for chapter in cliff.chapters)


def test_the_page_loads_nothing_and_leads_nowhere(page: str) -> None:
    outline = Outline(page)
    assert {tag for tag, _ in outline.tags} <= TAGS | SVG_TAGS
    names = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    for tag, attributes in outline.tags:
        assert not {"srcset", "src", "action", "style", "onclick"} & set(attributes), tag
        assert (attributes.get("href") or "#").startswith("#")
    targets = {str(attributes["href"]).removeprefix("#") for attributes in outline.named("a") if "href" in attributes}
    assert targets <= set(names)
    style = "".join(outline.raw["style"])
    assert "@import" not in style
    assert set(re.findall(r"url\((.)", style)) <= {"#"}


def test_the_content_policy_allows_only_the_pages_script_and_style(page: str) -> None:
    outline = Outline(page)
    policy = next(meta["content"] for meta in outline.named("meta") if meta.get("http-equiv"))
    assert policy
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in (re.findall(r"<script>(.*?)</script>", page, re.DOTALL)[0], outline.raw["style"][0])
    ]
    assert policy.split("; ")[:3] == ["default-src 'none'", f"script-src {hashes[0]}", f"style-src {hashes[1]}"]
    assert "unsafe" not in policy
    assert [attributes for attributes in outline.named("script") if "type" not in attributes] == [{}]


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> Outline:
    folder = tmp_path_factory.mktemp("harmless")
    runs = [hostile_run(folder, "x"), hostile_run(folder, "x", "again", more="x more")]
    return Outline(page_of(report_of(runs)))


def test_strings_from_a_run_stay_text(hostile: tuple[str, Report], harmless: Outline) -> None:
    bad, report = hostile
    outline = Outline(page_of(report))
    assert outline.shape == harmless.shape
    assert {tag for tag, _ in outline.tags} <= TAGS | SVG_TAGS
    assert not any(name.startswith("on") for _, attributes in outline.tags for name in attributes)
    assert all((attributes.get("href") or "#").startswith("#") for _, attributes in outline.tags)
    if bad.isprintable():
        assert bad.strip() in outline.text.replace("\N{WORD JOINER}", "")


def test_labels_of_a_chart_stay_text_in_the_page() -> None:
    labels = (HOSTILE[1], HOSTILE[4], 'x style="}body{display:none" y')
    panels = [PlotPanel(label, [PlotLine(label, "sm", *[[1.0, 2.0]] * 4)]) for label in labels]
    plot = LinePlot(PlotAxis("x", octaves=True), PlotAxis("y"), panels)
    drawing = draw(plot, ChartText(" ".join(labels), ""))
    outline = Outline(html_page("# title\n\n![chart](stem.png)", {"stem": drawing.svg}, []))
    assert {tag for tag, _ in outline.tags} <= TAGS | SVG_TAGS
    assert not any(name.startswith("on") for _, attributes in outline.tags for name in attributes)
    assert "}body{" not in outline.raw["style"][0]


def test_every_cell_is_in_the_look_up() -> None:
    first, second, *rest = synthetic.cliff_cells((256,), synthetic.FEW_KIB)
    records = [*synthetic.visits(rest), synthetic.failure(first, "error 719"), synthetic.skip(second, "needs 9 GB")]
    page = html_page("# title", {}, views_of([run_of(records)]))
    table = page[page.index('id="all-cells"') :].partition("</table>")[0]
    rows = [row.split("<td>")[1:] for row in table.split("<tr>")[2:]]
    assert len(rows) == len(rest) + 2
    for reason in ("failed: error: error 719", "skipped: needs 9 GB"):
        (row,) = (row for row in rows if reason in row[10])
        assert row[6] == ""
    triton = next(row for row in rows if row[1] == "triton")
    assert "sms=12" in triton[11].split()


@pytest.mark.parametrize("sign", ["", *SIGNS.values(), TIMES, f"{SIGNS[Verdict.UNDECIDED]}{TIMES}"])
def test_the_page_sorts_by_the_number_of_a_cell_whatever_sign_stands_before_it(sign: str) -> None:
    script = (resources.files("kvbench.report") / "assets" / "page.js").read_text()
    (pattern,) = re.findall(r"= /(\^.*)/\.exec", script)
    for text, number in ((f"{sign}6.32 (2.61 to 8.60)", "6.32"), (f"{sign}-0.1% (-0.4 to +0.2)", "-0.1")):
        match = re.match(pattern, text)
        assert match
        assert match[1] == number
