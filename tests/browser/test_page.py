"""The report's page in a real browser: lines and scales switched, cells looked up, strings that stay text."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Browser, Locator, Page, expect

from kvbench.cells.axes import Direction, Neighbour
from kvbench.cells.cell import Cell
from kvbench.cells.units import parse_size
from kvbench.report.build import report_files, report_of, write_files
from kvbench.results import Note, Record, Run
from tests import synthetic
from tests.reports import made_run
from tests.reports import page_of as html_of
from tests.unit.report.test_report import HOSTILE

Open = Callable[..., Page]
WANTED = Cell.from_strings(
    synthetic.cliff_cells((256,))[1].as_strings() | {"blocks": "10000", "block_size": "16KiB", "stream_state": "idle"}
)


def page_of(folder: Path, records: list[Record], *, drawn: bool = False, **info: object) -> Path:
    """Write the page of a run, by default without its charts, which take long to draw."""
    file = folder / "report.html"
    run = made_run(folder, records, synthetic.info(**info))  # type: ignore[arg-type]
    file.write_text(report_files([run])["report.html"].decode() if drawn else html_of(report_of([run])))
    return file


@pytest.fixture(scope="module")
def cliff(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    first, second, *rest = synthetic.cliff_cells((256, 10_000))
    measured = synthetic.visits(rest)
    again = synthetic.visits([WANTED], round_=1)
    records = [*synthetic.ceilings(), *measured, *again, synthetic.failure(first, "error 719")]
    folder = tmp_path_factory.mktemp("cliff")
    run = made_run(folder, [*records, synthetic.skip(second, "needs 9 GB")])
    write_files(report_files([run]), folder / "report")
    return run, folder / "report" / "report.html"


@pytest.fixture
def page(opened: Open, cliff: tuple[Run, Path]) -> Page:
    return opened(cliff[1])


def figure_of(page: Page, name: str = "chart-cliff-run") -> Locator:
    figure = page.locator(f"#{name}")
    figure.scroll_into_view_if_needed()
    return figure


def seen(figure: Locator, series: int) -> int:
    """Return how many parts of a line are shown."""
    return figure.locator(f".s{series} > path:visible").count()


def test_a_key_of_the_legend_switches_its_line(page: Page) -> None:
    figure = figure_of(page)
    key = figure.get_by_label("triton (12 SMs), idle stream")
    series = int(re.sub(r"\D", "", key.get_attribute("class") or ""))
    others, shown = seen(figure, 0), seen(figure, series)
    key.focus()
    page.keyboard.press("Space")
    assert seen(figure, series) == 0 < shown
    assert seen(figure, 0) == others > 0
    key.click()
    assert seen(figure, series) == shown


def test_a_switch_changes_between_two_scales(page: Page) -> None:
    figure = figure_of(page)
    panels = figure.locator(".panels")
    assert [view.is_visible() for view in panels.all()] == [True, False]
    figure.get_by_label("Linear axis").click()
    assert [view.is_visible() for view in panels.all()] == [False, True]


def test_charts_of_other_figures_have_no_switch_of_scales(opened: Open, tmp_path: Path) -> None:
    cells = [Cell("sm", Direction.D2H, 4096, 16384, sms=sms, neighbour=Neighbour.GEMM) for sms in (1, 2)]
    visits = [visit for cell in cells for visit in synthetic.beside(cell, 1.2, 20.0 + (cell.sms or 0))]
    page = opened(page_of(tmp_path, [*synthetic.ceilings(), *visits], drawn=True))
    figure = figure_of(page, "chart-neighbour-gemm-run")
    expect(figure.locator("svg[role=img]")).to_have_count(1)
    expect(figure.locator(".scale")).to_have_count(0)
    page.set_viewport_size({"width": 390, "height": 900})
    gaps = figure.locator("svg[role=img]").evaluate_all(GAPS_OF_TITLE)
    assert min(gaps) >= 3, "the ticks of the y axis meet its title"
    for sms in ("1 SM", "2 SMs"):
        expect(figure.locator("svg text", has_text=re.compile(f"^{sms}$"))).to_have_count(1)


def test_a_point_says_its_figures_where_the_pointer_is(page: Page) -> None:
    tip = figure_of(page).locator(".tip:visible").last
    box = tip.bounding_box()
    assert box
    hit = "([x, y]) => document.elementFromPoint(x, y)?.querySelector('title')?.textContent ?? ''"
    said = page.evaluate(hit, [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2])
    line, point = r"\w+(?: \(12 SMs\))?, \w+ stream", r"block size .*: [\d.]+ GB/s"
    assert re.fullmatch(rf"{line}\n{point}\nquartiles [\d.]+ to [\d.]+", said)


def test_no_two_keys_of_a_legend_look_alike(page: Page) -> None:
    keys = figure_of(page).locator(".legend svg").evaluate_all(KEYS)
    assert len(keys) == 3 * 2
    assert len(set(keys)) == len(keys)


# What keys are made of, wherever they stand.
KEYS = """keys => keys.map(key => key.innerHTML.replace(/ [xy]="[^"]*"| d="[^"]*"/g, ""))"""
# The labels of the x axis that are less than 3 pixels from another.
TOUCHING = """svgs => svgs.flatMap((svg) => {
  const { bottom, height } = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
  const ticks = boxes.filter(([, box]) => box.top > bottom - 0.14 * height);
  const touch = (a, b) => a.left < b.right + 3 && b.left < a.right + 3 && a.top < b.bottom - 2 && b.top < a.bottom - 2;
  return ticks.filter(([, a], n) => ticks.some(([, b], m) => m > n && touch(a, b))).map(([text]) => text);
})"""
# How far the ticks of the y axis beside its title are from it.
GAPS_OF_TITLE = """svgs => svgs.flatMap((svg) => {
  const boxes = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
  const [, title] = boxes.find(([text]) => text === "slowdown");
  return boxes.filter(([text]) => /^\\d[.]\\d+$/.test(text)).map(([, box]) => box.left - title.right);
})"""
WIDTHS = "svgs => svgs.map((svg) => svg.getBoundingClientRect().width)"


@pytest.mark.parametrize("width", [1280, 390])
def test_tick_labels_do_not_touch_and_drawings_use_the_width(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    panels = figure_of(page).locator(".panels:visible svg")
    assert panels.evaluate_all(TOUCHING) == []
    assert min(panels.evaluate_all(WIDTHS)) > (560 if width == 1280 else 340)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_printed_drawings_use_the_width(page: Page) -> None:
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 700, "height": 900})
    panels = figure_of(page).locator(".panels:visible svg")
    assert panels.evaluate_all(TOUCHING) == []
    assert min(panels.evaluate_all(WIDTHS)) > 330


@pytest.mark.parametrize("width", [1440, 390])
def test_the_list_of_contents_fits(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    cut = "nodes => nodes.filter(node => node.scrollWidth > node.clientWidth).length"
    assert page.locator("nav, nav li").evaluate_all(cut) == 0
    assert page.evaluate("document.querySelector('nav').offsetHeight") <= (50 if width == 1440 else 150)


def test_tables_of_seven_numbers_of_blocks_fit_a_wide_window(opened: Open, tmp_path: Path) -> None:
    counts = (16, 64, 256, 1024, 4096, 10_000, 16_384)
    cells = [cell for cell in synthetic.cliff_cells(counts, synthetic.FEW_KIB) if cell.backend == "batched"]
    page = opened(page_of(tmp_path, [*synthetic.ceilings(), *synthetic.rounds(cells)]))
    page.set_viewport_size({"width": 1440, "height": 900})
    page.wait_for_timeout(200)
    expect(
        page.locator(".table td", has_text="24\N{NO-BREAK SPACE}KiB → 28\N{NO-BREAK SPACE}KiB").first
    ).to_be_visible()
    wide = "nodes => nodes.filter(node => node.scrollWidth > node.clientWidth + 1).map(node => node.ariaLabel)"
    assert page.locator("h2#cliff ~ .table").evaluate_all(wide) == []


def test_a_cell_is_looked_up(opened: Open, cliff: tuple[Run, Path]) -> None:
    run, file = cliff
    page = opened(file)
    page.get_by_role("searchbox").fill("batched h2d 10000 16 KiB idle")
    expect(page.get_by_role("status")).to_have_text(f"1 of {len(run.frame())} cells")
    cells = page.locator("#all-cells tbody tr:visible td").all_inner_texts()
    frame = run.frame().set_index("cell_id")
    assert cells[1:4] == ["batched", "h2d", "idle"]
    assert float(cells[6]) == pytest.approx(frame.loc[WANTED.id, "gbps"], rel=6e-3)
    assert cells[8] == f"{frame.loc[WANTED.id, 'ceiling_share']:.0%}"
    assert cells[10] == "copy engine"
    for reason in ("719", "needs"):
        page.get_by_role("searchbox").fill(reason)
        expect(page.get_by_role("status")).to_contain_text("1 of ")


def test_tables_are_sorted_by_a_column(opened: Open, cliff: tuple[Run, Path]) -> None:
    run, file = cliff
    page = opened(file)
    page.get_by_role("searchbox").fill("d2h 256")
    frame = run.frame()
    selected = frame[(frame["direction"] == "d2h") & (frame["blocks"] == 256)]
    expect(page.get_by_role("status")).to_contain_text(f"{len(selected)} of ")
    heads = page.locator("#all-cells thead")
    for _ in range(2):
        heads.get_by_role("button", name="GB/s").click()
    expect(page.locator("#all-cells th[aria-sort=descending]")).to_have_text("GB/s")
    rates = [float(text) for text in page.locator("#all-cells tr:visible td:nth-child(7)").all_inner_texts() if text]
    assert rates == sorted(rates, reverse=True)
    heads.get_by_role("button", name="Block size").click()
    sizes = page.locator("#all-cells tr:visible td:nth-child(6)").all_inner_texts()
    assert [parse_size(text.replace("\N{NO-BREAK SPACE}", "")) for text in sizes] == sorted(selected["block_bytes"])


def test_untrusted_content_does_not_run_or_load(opened: Open, tmp_path: Path) -> None:
    bad = " ".join((*HOSTILE, "</script><script>window.pwned=1</script>", "<img src=x onerror=window.pwned=1>"))
    cells = synthetic.cliff_cells((256,), synthetic.FEW_KIB)
    visits = [msgspec.structs.replace(visit, chosen=bad, warnings=[bad]) for visit in synthetic.visits(cells[2:])]
    failure = msgspec.structs.replace(synthetic.failure(cells[1], bad), command=bad)
    records: list[Record] = [*visits, synthetic.skip(cells[0], bad), failure, Note(text=bad)]
    identity = {"driver_version": bad, bad: bad}
    file = page_of(tmp_path, records, title=bad, created=bad, command=["kvbench", bad], kvbench=bad, identity=identity)
    page = opened(file)
    page.get_by_role("searchbox").fill("failed")
    expect(page.locator("#all-cells")).to_contain_text("<script>alert(1)</script>")
    expect(page.locator("main")).to_contain_text("<img src=x onerror=alert(1)>")
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.querySelectorAll('img, iframe, object, embed, base, form').length") == 0
    targets = page.evaluate("[...document.querySelectorAll('[href], [src]')].map(n => n.getAttribute('href') ?? 'src')")
    assert all(target.startswith("#") for target in targets)


def test_the_content_policy_blocks_foreign_content(browser: Browser, cliff: tuple[Run, Path], tmp_path: Path) -> None:
    """Were what keeps a run's strings text to fail, this would still hold."""
    broken = tmp_path / "report.html"
    more = "<script>window.pwned=1</script><style>h1{display:none}</style><img src='http://evil.example/x.png'>"
    broken.write_text(cliff[1].read_text().replace("</main>", f"{more}</main>", 1))
    page = browser.new_page()
    refused: list[str] = []
    page.on("console", lambda said: refused.append(said.text))
    page.goto(broken.as_uri())
    page.wait_for_selector("html[data-ready]")
    assert page.evaluate("window.pwned") is None
    expect(page.locator("h1")).to_be_visible()
    assert len([text for text in refused if "Content Security Policy" in text]) == 3
    page.close()


def test_dark_and_printed_pages_have_their_colours(opened: Open, cliff: tuple[Run, Path]) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = opened(cliff[1], color_scheme="dark")
    assert dark.evaluate(ground) == "rgb(22, 25, 29)"
    ink, line = "node => getComputedStyle(node).stroke", "#chart-cliff-run .s0 > path:not(.tip)"
    on_dark = dark.locator(line).last.evaluate(ink)
    light = opened(cliff[1], color_scheme="light")
    assert light.evaluate(ground) == "rgb(255, 255, 255)"
    assert light.locator(line).last.evaluate(ink) != on_dark
    dark.emulate_media(media="print")
    assert dark.evaluate(ground) == "rgb(255, 255, 255)"
    expect(dark.locator("nav")).to_be_hidden()


def test_without_scripts_everything_is_shown(opened: Open, cliff: tuple[Run, Path]) -> None:
    run, file = cliff
    page = opened(file, java_script_enabled=False)
    expect(page.locator("h1")).to_be_visible()
    figure = figure_of(page)
    expect(figure.locator(".panels:visible svg[role=img]")).to_have_count(2)
    figure.get_by_label("batched, idle stream").click()
    assert seen(figure, 0) == 0
    page.get_by_text("All cells", exact=True).click()
    expect(page.locator("#all-cells tbody tr:visible")).to_have_count(len(run.frame()))
