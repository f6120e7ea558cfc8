"""The report's page in a real browser: charts that zoom and switch lines, cells looked up, strings that stay text."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import Browser, Locator, Page, expect

from kvbench.cells.axes import Direction, Neighbour
from kvbench.cells.cell import Cell
from kvbench.report.build import write_report
from kvbench.results import Note, Record, Run
from tests import synthetic
from tests.reports import made_run
from tests.unit.report.test_html import page_of as html_of
from tests.unit.report.test_report import HOSTILE

Open = Callable[..., Page]
WANTED = Cell.from_strings(
    synthetic.cliff_cells((256,))[1].as_strings() | {"blocks": "10000", "block_size": "16KiB", "stream_state": "idle"}
)


def page_of(folder: Path, records: list[Record], **info: object) -> Path:
    """Write the page of a run without pictures of its charts, which take long to draw."""
    file = folder / "report.html"
    file.write_text(html_of(made_run(folder, records, synthetic.info(**info))))  # type: ignore[arg-type]
    return file


@pytest.fixture(scope="module")
def cliff(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    first, second, *rest = synthetic.cliff_cells((256, 10_000))
    measured = synthetic.visits(rest)
    again = synthetic.visits([WANTED], round_=1)
    records = [*synthetic.ceilings(), *measured, *again, synthetic.failure(first, "error 719")]
    folder = tmp_path_factory.mktemp("cliff")
    run = made_run(folder, [*records, synthetic.skip(second, "needs 9 GB")])
    write_report([run], folder / "report")
    return run, folder / "report" / "report.html"


@pytest.fixture
def page(opened: Open, cliff: tuple[Run, Path]) -> Page:
    return opened(cliff[1])


def figure_of(page: Page, name: str = "chart-cliff-run") -> Locator:
    figure = page.locator(f"#{name}")
    figure.scroll_into_view_if_needed()
    expect(figure.locator("canvas").first).to_be_visible()
    return figure


def painted(page: Page, figure: Locator) -> list[str]:
    """Return what the panels of a chart look like."""
    page.mouse.move(0, 0)
    page.wait_for_timeout(100)
    return figure.locator("canvas").evaluate_all("canvases => canvases.map(canvas => canvas.toDataURL())")


def drag(page: Page, over: Locator, start: tuple[float, float], end: tuple[float, float]) -> None:
    box = over.bounding_box()
    assert box
    for act, (x, y) in ((page.mouse.down, start), (page.mouse.up, end)):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=5)
        act()


def tip_at(page: Page, over: Locator, x: float) -> str:
    """Move the pointer down along one place of a chart until it is near a point, and return what is said of it."""
    box = over.bounding_box()
    assert box
    for step in range(50):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + step / 50 * box["height"])
        if (tip := page.locator("#tip")).is_visible():
            return tip.inner_text()
    return ""


def test_a_drag_zooms_and_a_double_click_resets(page: Page) -> None:
    figure = figure_of(page)
    over = figure.locator(".u-over").first
    whole = painted(page, figure)
    assert "1\N{NO-BREAK SPACE}KiB" in tip_at(page, over, 0.04)
    drag(page, over, (0.5, 0.5), (0.9, 0.5))
    zoomed = painted(page, figure)
    assert zoomed[0] != whole[0]
    assert zoomed[1] == whole[1]
    assert "1\N{NO-BREAK SPACE}KiB" not in tip_at(page, over, 0.04)
    over.dblclick()
    assert painted(page, figure) == whole


# What stands above the lines of a panel: how high that is in pixels, and what is painted there.
LABELS = """canvas => {
  const { offsetTop, offsetLeft, offsetWidth } = canvas.parentNode.querySelector(".u-over");
  const [height, left, width] = [offsetTop - 4, offsetLeft, offsetWidth].map((size) => size * devicePixelRatio);
  const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, -left, 0);
  const pixels = copy.getImageData(0, 0, width, height).data;
  return [height, pixels.reduce((sum, value, index) => (sum * 31 + value * (index % 997)) % 2147483647, 0)];
}"""


def test_labels_stand_above_the_lines_after_a_zoom_too(opened: Open, tmp_path: Path) -> None:
    cells = [cell for cell in synthetic.cliff_cells((256,)) if cell.backend == "batched"]
    page = opened(page_of(tmp_path, [*synthetic.ceilings(), *synthetic.rounds(cells)]))
    figure = figure_of(page)
    canvas = figure.locator("canvas").first
    height, labels = canvas.evaluate(LABELS)
    other_height, blank = figure.locator("canvas").last.evaluate(LABELS)
    assert height >= other_height + 15
    assert labels != 0 == blank
    drag(page, figure.locator(".u-over").first, (0.5, 0.5), (0.9, 0.9))
    page.mouse.move(0, 0)
    page.wait_for_timeout(100)
    assert canvas.evaluate(LABELS) == [height, labels]


def test_no_two_keys_of_a_legend_look_alike(page: Page) -> None:
    keys = figure_of(page).locator(".legend svg").evaluate_all("keys => keys.map(key => key.outerHTML)")
    assert len(keys) == 3 * 2 + 1
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("width", [1440, 390])
def test_the_list_of_contents_fits(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    cut = "nodes => nodes.filter(node => node.scrollWidth > node.clientWidth).length"
    assert page.locator("nav, nav li").evaluate_all(cut) == 0
    assert page.evaluate("document.querySelector('nav').offsetHeight") <= (50 if width == 1440 else 150)


def test_tables_that_scroll_say_so(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 900})
    page.wait_for_timeout(200)
    wide = "nodes => nodes.map(node => [node.scrollWidth > node.clientWidth + 1, node.hasAttribute('data-scrolls')])"
    tables = page.locator(".table").evaluate_all(wide)
    assert {scrolls for scrolls, _ in tables} == {True, False}
    assert all(scrolls == said for scrolls, said in tables)
    hint = page.locator(".table[data-scrolls]").first.evaluate("node => getComputedStyle(node, '::before').content")
    assert "Scroll sideways" in hint


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


def test_the_look_up_shows_rate_share_and_path_first(page: Page) -> None:
    heads = page.locator(".cells thead th").all_inner_texts()
    assert heads[:4] == ["cell", "GB/s", "share", "path"]
    page.get_by_role("searchbox").fill("batched h2d blocks=10000 16 KiB idle")
    expect(page.locator("#found")).to_contain_text("1 of ")
    name, gbps, share, path = page.locator(".cells tbody td").all_inner_texts()[:4]
    assert name.replace("\N{NO-BREAK SPACE}", " ") == "batched h2d 10 000 \N{MULTIPLICATION SIGN} 16 KiB, idle"
    assert share == f"{float(gbps) / synthetic.CEILING_GBPS:.0%}"
    assert path == "copy engine"


def test_the_keyboard_zooms_every_panel(page: Page) -> None:
    figure = figure_of(page)
    whole = painted(page, figure)
    for name in ("Zoom in", "Right"):
        before = painted(page, figure)
        figure.get_by_role("button", name=name).focus()
        page.keyboard.press("Enter")
        assert all(old != new for old, new in zip(before, painted(page, figure), strict=True))
    figure.get_by_role("button", name="Reset").focus()
    page.keyboard.press("Enter")
    assert painted(page, figure) == whole


def test_the_keyboard_switches_between_linear_and_logarithmic_rates(page: Page) -> None:
    figure = figure_of(page)
    linear = painted(page, figure)
    switch = figure.get_by_role("button", name="Logarithmic GB/s")
    for pressed, changed in (("true", True), ("false", False)):
        switch.focus()
        page.keyboard.press("Enter")
        expect(switch).to_have_attribute("aria-pressed", pressed)
        assert all((old != new) == changed for old, new in zip(linear, painted(page, figure), strict=True))


def test_charts_of_other_figures_have_no_switch_of_rates(opened: Open, tmp_path: Path) -> None:
    cell = Cell("sm", Direction.D2H, 4096, 16384, sms=1, neighbour=Neighbour.GEMM)
    page = opened(page_of(tmp_path, [*synthetic.ceilings(), *synthetic.beside(cell, 1.2, 20.0)]))
    figure = figure_of(page, "chart-neighbour-gemm-run")
    expect(figure.get_by_role("button", name="Reset")).to_be_visible()
    expect(figure.get_by_role("button", name="Logarithmic GB/s")).to_have_count(0)


def test_a_line_is_switched_off_and_on(page: Page) -> None:
    figure = figure_of(page)
    whole = painted(page, figure)
    line = figure.get_by_role("button", name="triton (12 SMs), idle stream")
    line.click()
    expect(line).to_have_attribute("aria-pressed", "false")
    assert painted(page, figure)[0] != whole[0]
    over = figure.locator(".u-over").first
    assert not any("triton (12 SMs), idle" in tip_at(page, over, step / 10) for step in range(11))
    line.click()
    assert painted(page, figure) == whole


GOLD = """canvas => {
  const { width, height } = canvas;
  const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const pixels = copy.getImageData(0, 0, width, height).data;
  let count = 0;
  for (let at = 0; at < pixels.length; at += 4)
    count += Math.abs(pixels[at] - 0xb6) + Math.abs(pixels[at + 1] - 0x8c) + Math.abs(pixels[at + 2] - 0x0c) < 30;
  return count;
}"""


def test_auto_is_seen_where_it_lies_on_another_line(opened: Open, tmp_path: Path) -> None:
    batched = [cell for cell in synthetic.cliff_cells((256,)) if cell.backend == "batched"]
    auto = [Cell("auto", cell.direction, 256, cell.block_bytes, cell.stream_state) for cell in batched]
    visits = synthetic.visits([*batched, *auto])
    page = opened(page_of(tmp_path, [*synthetic.ceilings(), *visits]))
    figure = figure_of(page)
    seen = figure.locator("canvas").first.evaluate(GOLD)
    for state in ("idle", "busy"):
        figure.get_by_role("button", name=f"batched, {state} stream").click()
    painted(page, figure)
    assert seen > 0.4 * figure.locator("canvas").first.evaluate(GOLD) > 100


def test_a_point_says_its_figures_and_opens_its_cell(page: Page) -> None:
    said = tip_at(page, figure_of(page).locator(".u-over").first, 0.04)
    line, point = r"(\w+)(?: \(12 SMs\))?, (\w+) stream", r"block size (.*): ([\d.]+) GB/s"
    match = re.search(rf"{line}\n{point}\nquartiles [\d.]+ to [\d.]+", said)
    assert match
    page.mouse.down()
    page.mouse.up()
    backend, state, size, gbps = match.groups()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading").first).to_have_text(
        f"{backend} h2d, 10\N{NO-BREAK SPACE}000 blocks of {size}, {state} stream"
        + (", 12 SMs" if backend == "triton" else "")
    )
    expect(dialog).to_contain_text(f"{gbps} (quartiles")


def test_a_band_of_intervals_is_not_called_quartiles(opened: Open, tmp_path: Path) -> None:
    cell = Cell("sm", Direction.D2H, 4096, 16384, sms=1, neighbour=Neighbour.GEMM)
    visits = [
        msgspec.structs.replace(synthetic.beside(cell, 1.2 + 0.01 * number, 20.0, 1)[0], round=number)
        for number in range(6)
    ]
    page = opened(page_of(tmp_path, [*synthetic.ceilings(), *visits]))
    over = figure_of(page, "chart-neighbour-gemm-run").locator(".u-over").first
    said = tip_at(page, over, 0.5)
    assert re.fullmatch(r"sm\nGB/s of the swaps 20.0: 1\.2\d slowdown\n95% interval 1\.20 to 1\.25", said)
    page.mouse.down()
    page.mouse.up()
    expect(page.get_by_role("dialog").get_by_role("heading").first).to_contain_text("idle stream, 1 SM")
    expect(page.get_by_role("dialog").get_by_role("heading").first).not_to_contain_text("SMs")


def test_a_cell_is_looked_up_with_its_samples_and_command(opened: Open, cliff: tuple[Run, Path]) -> None:
    run, file = cliff
    page = opened(file, permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("searchbox").fill("batched h2d blocks=10000 16KiB idle")
    expect(page.locator("#found")).to_contain_text("1 of ")
    page.locator(".cells tbody tr").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("circle")).to_have_count(60)
    expect(dialog.locator(".strip")).to_contain_text("round 1")

    dialog.get_by_role("button", name="Copy").click()
    expect(dialog.locator("#copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == WANTED.command()

    dialog.locator("summary").click()
    expect(dialog.locator(".numbers tbody tr")).to_have_count(60)
    shown = dialog.locator(".numbers tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => Number(cell.textContent)))"
    )
    samples = run.samples()
    cell_samples = samples[samples["cell_id"] == WANTED.id]
    for at, name in ((0, "round"), (1, "sample"), (2, "caller_us"), (4, "wall_us")):
        assert [row[at] for row in shown] == pytest.approx(list(cell_samples[name]), rel=6e-4)

    dialog.get_by_role("combobox").select_option("caller_us")
    expect(dialog.locator(".strip")).to_contain_text("caller_us, microseconds")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_cells_without_figures_say_why(page: Page) -> None:
    for status, reason in (("failed", "error: error 719"), ("skipped", "needs 9 GB")):
        page.locator("select[data-axis=status]").select_option(label=status)
        expect(page.locator("#found")).to_contain_text("1 of ")
        page.locator(".open").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_contain_text(reason)
        expect(page.get_by_role("dialog")).to_contain_text("This cell has none")
        page.get_by_role("button", name="Close").click()


def test_cells_are_filtered_and_sorted(opened: Open, cliff: tuple[Run, Path]) -> None:
    run, file = cliff
    page = opened(file)
    page.locator("select[data-axis=direction]").select_option(label="d2h")
    page.locator("select[data-axis=blocks]").select_option(label="256")
    frame = run.frame()
    selected = frame[(frame["direction"] == "d2h") & (frame["blocks"] == 256)]
    expect(page.locator("#found")).to_have_text(f"{len(selected)} of {len(frame)} cells")
    head = page.locator(".cells thead").get_by_role("button", name="GB/s")
    head.click()
    head.click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("GB/s")
    best = selected.loc[selected["gbps"].idxmax(), "cell_id"]
    expect(page.locator("tr[data-cell]").first).to_have_attribute("data-cell", best)


def test_untrusted_content_does_not_run_or_load(opened: Open, tmp_path: Path) -> None:
    bad = " ".join((*HOSTILE, "</script><script>window.pwned=1</script>", "<img src=x onerror=window.pwned=1>"))
    cells = synthetic.cliff_cells((256,), synthetic.FEW_KIB)
    visits = [msgspec.structs.replace(visit, chosen=bad, warnings=[bad]) for visit in synthetic.visits(cells[2:])]
    failure = msgspec.structs.replace(synthetic.failure(cells[1], bad), command=bad)
    records: list[Record] = [*visits, synthetic.skip(cells[0], bad), failure, Note(text=bad)]
    identity = {"driver_version": bad, bad: bad}
    file = page_of(tmp_path, records, title=bad, created=bad, command=["kvbench", bad], kvbench=bad, identity=identity)
    page = opened(file)
    for status in ("ok", "failed", "skipped"):
        page.locator("select[data-axis=status]").select_option(label=status)
        page.locator(".open").first.click()
        expect(page.get_by_role("dialog")).to_contain_text("<script>alert(1)</script>")
        page.get_by_role("button", name="Close").click()
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
    on_dark = painted(dark, figure_of(dark))
    light = opened(cliff[1], color_scheme="light")
    assert light.evaluate(ground) == "rgb(255, 255, 255)"
    assert painted(light, figure_of(light)) != on_dark
    dark.emulate_media(media="print")
    assert dark.evaluate(ground) == "rgb(255, 255, 255)"
    expect(dark.locator("nav")).to_be_hidden()


def test_without_scripts_text_tables_and_maps_remain(opened: Open, cliff: tuple[Run, Path]) -> None:
    page = opened(cliff[1], java_script_enabled=False)
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator("table.map").first).to_be_visible()
    images = page.locator("figure img")
    assert images.count() == page.locator("figure[data-stem]:not(:has(.maps))").count() > 0
    assert images.evaluate_all("images => images.every(image => image.complete && image.naturalWidth > 300)")
    expect(images.first).to_be_visible()
    expect(page.get_by_text("The look-up needs JavaScript").first).to_be_visible()
