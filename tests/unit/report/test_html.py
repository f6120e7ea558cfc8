"""The report's HTML without a browser: what it is made of, and what a stranger's strings cannot become."""

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.report.blocks import Chart
from kvbench.report.document import document
from kvbench.report.html.figures import figure_of
from kvbench.report.html.packing import pack, plain_json
from kvbench.report.html.page import html_page
from kvbench.report.html.prose import to_html
from kvbench.report.model import Report, report_of
from kvbench.results import Note, Record, Run, load_run
from tests import synthetic
from tests.unit.report.test_report import HOSTILE

TAGS = {
    "a", "blockquote", "body", "br", "caption", "code", "dialog", "div", "em", "figcaption", "figure", "h1", "h2", "h3",
    "head", "html", "li", "main", "meta", "nav", "p", "script", "section", "span", "strong", "style", "table", "tbody",
    "td", "th", "thead", "title", "tr", "ul",
}  # fmt: skip


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


def page_of(run: Run) -> str:
    """Return the page as a report has it, without drawing the pictures: it does not show them."""
    report = undrawn(run)
    return html_page(report, document(report), {}).decode()


def undrawn(run: Run) -> Report:
    return report_of([run], lambda *_: None)


@pytest.fixture(scope="module")
def cliff(tmp_path_factory: pytest.TempPathFactory) -> Run:
    records = [*synthetic.ceilings(), *synthetic.visits(synthetic.cliff_cells((256, 10_000)))]
    return load_run(synthetic.write_run(tmp_path_factory.mktemp("cliff") / "cliff", records))


@pytest.fixture(scope="module")
def page(cliff: Run) -> str:
    return page_of(cliff)


def test_the_same_run_gives_the_same_bytes(cliff: Run, page: str) -> None:
    assert page_of(cliff) == page


def test_it_says_what_the_markdown_says(cliff: Run, page: str) -> None:
    markdown = document(undrawn(cliff))
    outline = Outline(page)
    assert len(outline.named("table")) >= markdown.count("\n\n| ")
    for heading in re.findall(r"^#+ (.*)$", markdown, re.MULTILINE):
        assert heading.replace("\\", "") in outline.text
    assert "jumps up between" in outline.text


def test_it_is_one_file(page: str) -> None:
    outline = Outline(page)
    assert {tag for tag, _ in outline.tags} <= TAGS
    for tag, attributes in outline.tags:
        assert not {"src", "srcset", "action", "style", "onclick"} & set(attributes), tag
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in "".join(outline.raw["style"])
    assert "@import" not in "".join(outline.raw["style"])


def test_the_policy_names_its_script_and_style_alone(page: str) -> None:
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
    return outline_with("x", tmp_path_factory.mktemp("harmless"))


@pytest.mark.parametrize("bad", HOSTILE)
def test_strings_from_a_run_stay_text(tmp_path: Path, bad: str, harmless: Outline) -> None:
    outline = outline_with(bad, tmp_path)
    assert outline.shape == harmless.shape
    assert {tag for tag, _ in outline.tags} <= TAGS
    assert not any(name.startswith("on") for _, attributes in outline.tags for name in attributes)
    assert all((attributes.get("href") or "#").startswith("#") for _, attributes in outline.tags)
    if bad.isprintable():
        assert bad.strip() in outline.text.replace("\N{WORD JOINER}", "")


def outline_with(text: str, folder: Path) -> Outline:
    """Return the page of a run in which every string that a stranger could choose is `text`."""
    cells = [cell for cell in synthetic.cliff_cells((256,)) if cell.direction == "h2d"]
    visits = [msgspec.structs.replace(visit, path=text, warnings=[text]) for visit in synthetic.visits(cells[2:])]
    failure = msgspec.structs.replace(synthetic.failure(cells[1], text), command=text)
    records: list[Record] = [*visits, synthetic.skip(cells[0], text), failure, Note(text=text)]
    identity = {"driver_version": text, text: text}
    info = synthetic.info(text, created=text, command=["kvbench", text], kvbench=text, identity=identity)
    return Outline(page_of(load_run(synthetic.write_run(folder / "run", records, info))))


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_data_in_a_script_element_cannot_end_it(data: object) -> None:
    text = plain_json(data)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == data


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True)))
def test_packed_numbers_keep_four_digits(values: list[float]) -> None:
    planes = np.frombuffer(zlib.decompress(base64.b64decode(pack(values))), dtype=np.uint8)
    low, high, power = planes.reshape(3, -1) if values else np.empty((3, 0), dtype=np.uint8)
    digits = (low.astype(np.uint16) | high.astype(np.uint16) << 8).view(np.int16)
    for value, shown, tens in zip(values, digits, power.view(np.int8), strict=True):
        if abs(value) < 1e120:
            assert float(f"{shown}e{tens}") == pytest.approx(value, rel=5.1e-4, abs=1e-119)
        else:
            assert tens == 127


def test_a_chart_without_data_is_shown_as_it_was_drawn() -> None:
    html = figure_of(Chart("new", 'a "new" chart', {}, dict), {"new.svg": b"<svg/>"}, {}).html
    assert f'src="data:image/svg+xml;base64,{base64.b64encode(b"<svg/>").decode()}"' in html
    assert 'alt="a &#34;new&#34; chart"' in html


def test_headings_have_the_anchors_that_the_summary_links_to() -> None:
    prose = to_html("# One\n\n[x](#two-2)\n\n## Two: 2?\n\n## Two: 2?\n\n[file](x.csv)\n", {})
    assert [heading.anchor for heading in prose.headings] == ["two-2", "two-2-1"]
    assert '<a href="#two-2">x</a>' in prose.html
    assert "<p>file</p>" in prose.html


def test_host_copies_are_named_in_the_page(tmp_path: Path) -> None:
    cells = [cell for cell in synthetic.cliff_cells((256,)) if cell.backend != "triton"]
    run = load_run(synthetic.write_run(tmp_path / "run", synthetic.visits(cells), synthetic.info("EPYC", "cpu")))
    html = page_of(run)
    said = "Host copies on a CPU device: no GPU was involved."
    assert html.count(f'<strong class="warning">{said}</strong>') == html.count("<figure")
    packed = re.findall(r'data-part="cells">(.*?)</script>', html)
    assert json.loads(zlib.decompress(base64.b64decode(packed[0])))["title"] == f"EPYC ({said})"


def test_a_run_without_cells_has_a_page(tmp_path: Path) -> None:
    assert "no measured cell" in Outline(page_of(load_run(synthetic.write_run(tmp_path / "run", [])))).text
