"""The report's HTML without a browser: what it is made of, and what a stranger's strings cannot become."""

import base64
import hashlib
import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from kvbench.cells.cell import Cell
from kvbench.report.build import report_of
from kvbench.report.charts.palette import inks
from kvbench.report.charts.plot import LinePlot
from kvbench.report.html.data import figures_json, rounded, samples_json, script_json
from kvbench.report.html.page import html_page, rich
from kvbench.report.model import Code, Report, Strong
from kvbench.report.view import views_of
from kvbench.results import Note, Record, Run, load_run
from tests import synthetic
from tests.unit.report.test_report import HOSTILE

TAGS = {
    "a", "blockquote", "body", "br", "caption", "code", "dialog", "div", "em", "figcaption", "figure", "h1", "h2", "h3",
    "head", "html", "img", "li", "main", "meta", "nav", "noscript", "p", "script", "section", "span", "strong",
    "style", "table", "tbody", "td", "th", "thead", "title", "tr", "ul",
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
    report = report_of([run])
    return html_page(report, inks(report.views[0].frame["backend"]), pictures_of(report))


def pictures_of(report: Report) -> dict[str, bytes]:
    """Return what stands for the pictures of a report's charts, which take long to draw."""
    return {chart.stem: f"picture of {chart.stem}".encode() for chart in report.charts}


@pytest.fixture(scope="module")
def cliff(tmp_path_factory: pytest.TempPathFactory) -> Run:
    records = [*synthetic.ceilings(), *synthetic.rounds(synthetic.cliff_cells(kib=synthetic.FEW_KIB))]
    return load_run(synthetic.write_run(tmp_path_factory.mktemp("cliff") / "cliff", records))


@pytest.fixture(scope="module")
def page(cliff: Run) -> str:
    return page_of(cliff)


def test_the_page_has_every_section_of_the_report(cliff: Run, page: str) -> None:
    report = report_of([cliff])
    outline = Outline(page)
    assert len(outline.named("table")) >= len([table for part in report.parts for table in part.tables])
    for chapter in report.chapters:
        assert chapter.section.title in outline.text
        assert {"id": chapter.section.name} in outline.named("h2")
    assert "x the speed of" in outline.text


def test_the_page_loads_nothing_from_elsewhere(page: str) -> None:
    outline = Outline(page)
    assert {tag for tag, _ in outline.tags} <= TAGS
    for tag, attributes in outline.tags:
        assert not {"srcset", "action", "style", "onclick"} & set(attributes), tag
        assert (attributes.get("src") or "data:image/png;base64,").startswith("data:image/png;base64,")
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in "".join(outline.raw["style"])
    assert "@import" not in "".join(outline.raw["style"])


def test_every_line_chart_has_a_picture_for_readers_without_scripts(cliff: Run, page: str) -> None:
    charts = [chart for chart in report_of([cliff]).charts if isinstance(chart.plot, LinePlot)]
    shown = Outline(page).named("img")
    assert [image["alt"] for image in shown] == [chart.head.alternative for chart in charts]
    for chart, image in zip(charts, shown, strict=True):
        assert base64.b64decode(str(image["src"]).partition(",")[2]) == f"picture of {chart.stem}".encode()
    assert page.count("<noscript><img ") == len(charts) > 0


def test_the_content_policy_allows_only_the_pages_script_and_style(page: str) -> None:
    outline = Outline(page)
    policy = next(meta["content"] for meta in outline.named("meta") if meta.get("http-equiv"))
    assert policy
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in (re.findall(r"<script>(.*?)</script>", page, re.DOTALL)[0], outline.raw["style"][0])
    ]
    assert policy.split("; ")[:3] == ["default-src 'none'", f"script-src {hashes[0]}", f"style-src {hashes[1]}"]
    assert policy.split("; ")[3] == "img-src data:"
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
    cells = [cell for cell in synthetic.cliff_cells((256,), synthetic.FEW_KIB) if cell.direction == "h2d"]
    visits = [msgspec.structs.replace(visit, chosen=text, warnings=[text]) for visit in synthetic.visits(cells[2:])]
    failure = msgspec.structs.replace(synthetic.failure(cells[1], text), command=text)
    records: list[Record] = [*visits, synthetic.skip(cells[0], text), failure, Note(text=text)]
    identity = {"driver_version": text, text: text}
    info = synthetic.info(text, created=text, command=["kvbench", text], kvbench=text, identity=identity)
    return Outline(page_of(load_run(synthetic.write_run(folder / "run", records, info))))


@given(st.text())
def test_text_becomes_escaped_html(text: str) -> None:
    outline = Outline(str(rich((text, Strong(text), Code(text)))))
    assert outline.shape == ["strong"]
    assert {tag for tag, _ in outline.tags} == {"strong", "code"}
    assert outline.text.replace("\r\n", "\n") == (3 * text).replace("\r\n", "\n")


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_data_in_a_script_element_cannot_end_it(data: object) -> None:
    text = script_json(data)
    assert isinstance(text, Markup)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == data


@pytest.mark.parametrize("policy", [{}, {"device": "H200", "tables": []}])
def test_the_command_of_auto_takes_the_policy_of_the_run(tmp_path: Path, policy: dict[str, object]) -> None:
    batched, *_ = [cell for cell in synthetic.cliff_cells((256,)) if cell.backend == "batched"]
    auto = Cell("auto", batched.direction, 256, batched.block_bytes)
    info = synthetic.info(spec={"policy": policy})
    path = synthetic.write_run(tmp_path / "a run", synthetic.visits([batched, auto]), info)
    data = json.loads(figures_json(views_of([load_run(path)])[0]))
    commands = dict(zip(data["axes"]["backend"], data["words"]["command"], strict=True))
    assert commands["batched"] == batched.command()
    assert shlex.split(commands["auto"]) == [*shlex.split(auto.command()), *(["--policy", str(path)] if policy else [])]


def test_raw_samples_keep_four_digits(cliff: Run) -> None:
    data = json.loads(samples_json(views_of([cliff])[0]))
    samples = cliff.samples()
    assert set(data["cells"]) == set(samples["cell_id"])
    for (cell_id, round_), visit in list(samples.groupby(["cell_id", "round"]))[:20]:
        (_, count, *columns) = data["cells"][cell_id][round_]
        assert count == len(visit)
        for name, values in zip(data["columns"], columns, strict=True):
            expected = visit[name].to_numpy(np.float64, na_value=np.nan)
            shown = np.array(values, dtype=np.float64)  # one number stands for a list of equal ones
            assert np.broadcast_to(shown, expected.shape) == pytest.approx(expected, rel=5.1e-4, nan_ok=True)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True)))
def test_numbers_of_the_page_have_four_digits(values: list[float]) -> None:
    for value, shown in zip(values, rounded(np.array(values, dtype=np.float64)), strict=True):
        if shown is not None:
            assert shown == pytest.approx(value, rel=5.1e-4, abs=1e-300)
        else:
            assert not 1e-300 < abs(value) < 1e300


def test_links_of_the_summary_lead_to_their_sections(cliff: Run, page: str) -> None:
    outline = Outline(page)
    targets = {attributes["href"] for attributes in outline.named("a")}
    names = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert {f"#{section.name}" for section in report_of([cliff]).summary.values()} <= targets
    assert {str(target).removeprefix("#") for target in targets} <= set(names)
    assert len(names) == len(set(names))


def test_host_copies_are_named_in_the_page(tmp_path: Path) -> None:
    cells = [cell for cell in synthetic.cliff_cells((256,), synthetic.FEW_KIB) if cell.backend != "triton"]
    run = load_run(synthetic.write_run(tmp_path / "run", synthetic.visits(cells), synthetic.info("EPYC", "cpu")))
    html = page_of(run)
    said = "Host copies on a CPU device: no GPU was involved."
    assert html.count(f'<strong class="warning">{said}</strong>') == html.count("<figure")
    (data,) = re.findall(r'class="run">(.*?)</script>', html)
    assert json.loads(data)["title"] == f"EPYC ({said})"


def test_a_run_without_cells_has_a_page(tmp_path: Path) -> None:
    assert "no measured cell" in Outline(page_of(load_run(synthetic.write_run(tmp_path / "run", [])))).text
