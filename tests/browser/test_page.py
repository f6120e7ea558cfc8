"""The report's page in a real browser: drawings that fit, cells looked up, strings that stay text."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Browser, Locator, Page, expect

from kvbench.cells.cell import Cell
from kvbench.cells.units import parse_size
from kvbench.ground.files import write_report
from kvbench.report.build import report_files, report_of
from kvbench.report.document import FOLD
from kvbench.report.page import html_page
from kvbench.results import Run
from tests import synthetic
from tests.browser.conftest import HANGS_MS
from tests.reports import HOSTILE, hostile_run, made_run, page_of

Open = Callable[..., Page]
WANTED = Cell.from_strings(
    synthetic.cliff_cells((256,))[1].as_strings() | {"blocks": "10000", "block_size": "16KiB", "stream_state": "idle"}
)


@pytest.fixture(scope="module")
def cliff(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    first, second, *rest = synthetic.cliff_cells((256, 10_000))
    measured = synthetic.visits(rest)
    again = synthetic.visits([WANTED], round_=1)
    records = [*synthetic.ceilings(), *measured, *again, synthetic.failure(first, "error 719")]
    folder = tmp_path_factory.mktemp("cliff")
    run = made_run(folder, [*records, synthetic.skip(second, f"needs /{'long_names' * 9}.so")])
    write_report(report_files([run]), folder / "report")
    return run, folder / "report" / "report.html"


@pytest.fixture
def page(opened: Open, cliff: tuple[Run, Path]) -> Page:
    return opened(cliff[1])


def drawing_of(page: Page, title: str = "Cliff: GB/s against block size") -> Locator:
    drawing = page.locator(f'svg[aria-label^="{title}"]')
    drawing.scroll_into_view_if_needed()
    return drawing


# The labels of the x axis that are less than 3 pixels from another.
TOUCHING = """svgs => svgs.flatMap((svg) => {
  const { bottom, height } = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
  const ticks = boxes.filter(([, box]) => box.top > bottom - 0.14 * height);
  const touch = (a, b) => a.left < b.right + 3 && b.left < a.right + 3 && a.top < b.bottom - 2 && b.top < a.bottom - 2;
  return ticks.filter(([, a], n) => ticks.some(([, b], m) => m > n && touch(a, b))).map(([text]) => text);
})"""
WIDTHS = "svgs => svgs.map((svg) => svg.getBoundingClientRect().width)"


@pytest.mark.parametrize("width", [1280, 390])
def test_tick_labels_do_not_touch_and_drawings_use_the_width(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    drawing = drawing_of(page)
    assert drawing.evaluate_all(TOUCHING) == []
    assert min(drawing.evaluate_all(WIDTHS)) > (560 if width == 1280 else 300)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_wide_table_fits_and_a_section_is_named_once(opened: Open, tmp_path: Path) -> None:
    rows = [["us"] * 13, ["-:"] * 13, ["88.9 (128 x 32 KiB)"] * 13]
    use = ("Use", "-", "sm (4 SMs); 4 to 16 not told apart")
    table = "\n".join(f"| {' | '.join([first, *row])} |" for first, row in zip(use, rows, strict=True))
    folded = "\n\n".join((FOLD[0], "more", FOLD[1], table, FOLD[2]))
    file = tmp_path / "report.html"
    file.write_text(html_page(f"# T\n\n## A\n\n{table}\n\n## A: all tables\n\n{folded}", {}, []))
    page = opened(file)
    assert page.locator("nav li").all_inner_texts() == ["Look up a cell", "A"]
    first = page.locator("main > .table")
    assert first.evaluate("(table) => table.scrollWidth <= table.clientWidth")
    assert first.locator("td").first.evaluate("(cell) => cell.scrollWidth") >= 150
    page.emulate_media(media="print")
    assert page.locator("h2:visible").all_inner_texts() == ["A"]


def test_a_cell_is_looked_up(opened: Open, cliff: tuple[Run, Path]) -> None:
    run, file = cliff
    page = opened(file)
    page.get_by_role("searchbox").fill("batched h2d 10000 16 KiB idle")
    expect(page.get_by_role("status")).to_have_text(f"1 of {len(run.table)} cells")
    cells = page.locator("#all-cells tbody tr:visible td").all_inner_texts()
    frame = run.table.set_index("cell_id")
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
    frame = run.table
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
    file = tmp_path / "report.html"
    file.write_text(page_of(report_of([hostile_run(tmp_path, bad)])))
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
    page.set_default_timeout(HANGS_MS)
    refused: list[str] = []
    page.on("console", lambda said: refused.append(said.text))
    page.goto(broken.as_uri())
    page.wait_for_selector("html[data-ready]")
    assert page.evaluate("window.pwned") is None
    expect(page.locator("h1")).to_be_visible()
    assert len([text for text in refused if "Content Security Policy" in text]) == 3
    page.close()


def test_without_scripts_everything_is_shown(opened: Open, cliff: tuple[Run, Path]) -> None:
    run, file = cliff
    page = opened(file, java_script_enabled=False)
    expect(page.locator("h1")).to_be_visible()
    expect(drawing_of(page)).to_be_visible()
    page.get_by_text("All cells", exact=True).click()
    expect(page.locator("#all-cells tbody tr:visible")).to_have_count(len(run.table))
