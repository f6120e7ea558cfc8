"""Reports: what they hold, what they say they cannot hold, and strings that try to be more than text."""

import json
import re
from itertools import product
from pathlib import Path

import msgspec
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.cells.facts import BackendFacts
from kvbench.cli.main import app
from kvbench.cli.report import print_asked
from kvbench.ground.errors import ExitCode, RunDirectoryError, UsageError
from kvbench.ground.files import write_report
from kvbench.report import markdown
from kvbench.report.build import SECTIONS, report_files, report_of
from kvbench.report.document import FOLD, asked_for, render_details, render_report, snippet, table_text
from kvbench.report.drawing import draw
from kvbench.report.model import Report, plain
from kvbench.report.numbers import TIMES
from kvbench.report.whole_runs import warnings_of
from kvbench.results import Record, Run, Visit
from kvbench.results.schema import Disturbance
from tests import synthetic
from tests.command import refused
from tests.markdown import anchors, tokens
from tests.reports import chapter_in, lines_of, made_part, made_report, made_run, part_in, rows_of, run_of, sections_of


def test_the_cliff_is_in_the_table_the_chart_and_the_finding(cliff_run: Run, cliff_files: dict[str, bytes]) -> None:
    assert {"report.md", "details.md", "report.html", "cliff-cliff.png", "cliff-cliff.svg"} <= set(cliff_files)
    part = part_in("cliff", [cliff_run])
    assert rows_of(part.tables[0])["jump"] == [f"24 KiB → 28 KiB: {TIMES}5.4", f"24 KiB → 28 KiB: {TIMES}5.4", "none"]
    assert lines_of(part.findings)[0] == (
        "batched h2d on an idle stream: 28 KiB blocks move 5.4 times as fast as 24 KiB blocks (CPU inline below, copy "
        "engine above), at N = 256 to 10 000."
    )
    (chart,) = part.charts
    (panel,) = chart.plot.panels
    assert [line.backend for line in panel.lines] == ["batched", "batched", "triton", "batched"]
    assert panel.lines[-1].label.endswith("busy stream")  # which has no cliff
    assert list(panel.marked) == [28 * 1024]
    assert panel.divided is not None
    edge, *paths = panel.divided
    assert 24 * 1024 < edge < 28 * 1024
    assert paths == ["CPU copies", "copy engine"]


def test_snippets_are_listed_and_one_that_is_not_there_is_refused(cliff: Report) -> None:
    assert "threshold: Idle" in snippet(cliff, "list")
    assert snippet(cliff, "quick") == snippet(cliff, "answer")
    assert "triton: kvbench's Triton kernel, not an engine's. " in snippet(cliff, "answer")
    assert snippet(cliff) == "\n".join(f"{table_text(table)}\n" for table in asked_for(cliff, "None"))
    with pytest.raises(UsageError, match=r"not measured: kvbench sweep queue .it needs .* of .*cliff, threshold"):
        snippet(cliff, "queue")
    with pytest.raises(UsageError, match=r"these runs have tables of .*; --snippet list names all$"):
        snippet(cliff, "no such table")
    with pytest.raises(UsageError, match=r"no table in .*kvbench sweep .* quick, order, models, .*beside"):
        snippet(made_report([]), "list")
    records = [*synthetic.ceilings(), *synthetic.rounds(synthetic.cliff_cells((256,), (24, 28)))]
    for name, same in (("engine", ""), ("threshold", "threshold:Idle")):  # of a run's config, with a section or without
        of_config = made_report(records, synthetic.info(spec={"name": name}))
        assert snippet(of_config, name) == snippet(of_config, same)


def test_the_same_runs_give_the_same_bytes() -> None:
    cells = [Cell("batched", Direction.H2D, 256, kib * 1024) for kib in synthetic.FEW_KIB]
    run = run_of(synthetic.rounds(cells))
    files = report_files([run])
    assert files == report_files([run])
    assert b"<dc:date>" not in files["cliff-run.svg"]


def test_stream_states_are_not_mixed() -> None:
    """A kernel measured on an idle stream alone says nothing about a busy one, where another clock counts."""
    every = synthetic.cliff_cells(kib=synthetic.FEW_KIB)
    idle = [cell for cell in every if cell.backend == "batched" or cell.stream_state == "idle"]
    titles = [table.title for table in made_part("threshold", synthetic.rounds(idle)).tables]
    assert titles
    assert all(title.startswith("Idle, N = ") for title in titles)


def test_the_report_says_why_a_section_is_missing(cliff: Report, tmp_path: Path) -> None:
    missing = lines_of([*cliff.missing.values()])
    for title, config in (("Access order", "order"), ("SM ladder", "sm-ladder")):
        assert any(line.startswith(f"{title}: kvbench sweep {config} (it needs ") for line in missing)
    for name, records in {"empty": [], "failed": [synthetic.failure(synthetic.order_cells()[0])]}.items():
        run = made_run(tmp_path, records, name=name)
        assert list(report_files([run])) == ["report.md", "details.md", "report.html"]
        assert list(report_of([run]).missing) == [section for section in SECTIONS if section.config]
        assert "no measured cell" in warnings_of(run)


@pytest.mark.parametrize(
    ("after", "line"),
    [
        ({"pcie_replays": 7, "ecc_errors": {"corrected": 1, "uncorrected": 2}, "xids": []}, None),
        ({"pcie_replays": 3, "ecc_errors": None, "xids": None}, None),  # counted anew, and unknown
        (
            {"pcie_replays": 12, "ecc_errors": {"corrected": 1, "uncorrected": 3}, "xids": [79, 79, 94]},
            "the GPU reported errors while it was measured: 5 PCIe replays, 1 uncorrected ECC errors, Xid 79, 94",
        ),
        ({"pcie_replays": "8", "ecc_errors": [1], "xids": 79}, None),  # of an untrusted run
    ],
)
def test_errors_of_the_gpu_make_one_line_of_warning(tmp_path: Path, after: dict[str, object], line: str | None) -> None:
    before = {"at": "start", "pcie_replays": 7, "ecc_errors": {"corrected": 1, "uncorrected": 2}, "xids": []}
    run = made_run(tmp_path, synthetic.ceilings(), synthetic.info(observed=[before, {"at": "end", **after}]))
    assert [text for text in warnings_of(run) if "errors" in text] == ([line] if line else [])


def test_a_report_whose_figures_rest_on_rounds_with_a_low_ceiling_says_so_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = synthetic.ceilings()
    slow, quiet = (
        [msgspec.structs.replace(one, round=1, event_us=[one.event_us[0] * by]) for one in usual] for by in (1.25, 1.04)
    )
    rounds = synthetic.rounds(Cell("batched", direction, 256, 4096) for direction in Direction)
    runs = [
        made_run(tmp_path, [*usual, *rest, *rounds], name=name)
        for name, rest in (("one", slow), ("two", slow[:1]), ("three", quiet))
    ]
    report = report_of(runs, ["a folder"])
    first = render_report(report).split("\n\n")[1]
    assert first.startswith(
        "**Warning**: figures rest on rounds whose ceiling lay up to 20% below the best (one, two): "
    )
    assert lines_of(report.first_warnings) == ["Warning: 1 run could not be read: details.md says why"]
    assert len(report.warnings) == 3
    first_run = report_of(runs[:1])
    captions = [plain(table.caption) for part in first_run.parts for table in part.tables]
    low = "The ceiling of 1 of 6 h2d rounds lay up to 20% below the best"
    assert any(low in caption for caption in captions)
    pages = f"{render_report(first_run)}{render_details(first_run)}"
    # At the head, and of each direction among the warnings: no caption says it again.
    assert pages.count("20% below the best") == 3
    print_asked([runs[0].path], as_markdown=False)
    shown = capsys.readouterr().out
    assert "rounds lay up to 20% below the best" in shown
    assert "figures rest on" not in shown, "in other words what the captions say"
    steady = report_of(runs[2:])
    assert not steady.unsteady
    assert not any("below the best" in plain(table.caption) for part in steady.parts for table in part.tables)


def test_every_table_and_chart_of_host_copies_says_so(tmp_path: Path) -> None:
    cells = [cell for cell in synthetic.cliff_cells((256,), synthetic.FEW_KIB) if cell.backend != "triton"]
    info = synthetic.info("EPYC", "cpu", identity={"cpu_model": "EPYC"})
    records = [*synthetic.ceilings(), *synthetic.rounds(cells)]
    run = made_run(tmp_path, records, info)
    report = report_of([run])
    note = "Host copies on a CPU device: no GPU was involved."
    tables = [table for part in report.parts for table in part.tables]
    assert len(tables) > 8
    assert all(plain(table.caption).startswith(f"{note} Host events") for table in tables)
    assert all("EPYC, no GPU driver" in plain(table.caption) for table in tables)
    assert plain(report.host_note) == note
    assert report.charts
    assert all(chart.text.warning == note for chart in report.charts)
    assert all("Host events" in chart.text.footer and "CUDA" not in chart.text.footer for chart in report.charts)
    comparison = part_in("comparison", [run, run_of(records, info, "again")])
    assert all("CUDA" not in plain(table.caption) for table in comparison.tables)
    text = render_report(report)
    assert f"> **{note}**" in text
    assert f"({note})](cliff-run.png)" in text
    assert f">{note}</text>".encode() in draw(report.charts[0].plot, report.charts[0].text).svg
    assert set(pd.read_csv(run.write_summary())["device"]) == {"cpu (host copies, no GPU)"}


def test_a_section_shows_the_run_with_most_visits_then_that_of_its_config_and_names_the_others() -> None:
    def labels_of(*runs: Run) -> list[str]:
        chapter, _ = chapter_in("order", runs)
        assert chapter
        return [view.label for view in (chapter.view, *chapter.others)]

    cells = [cell for cell in synthetic.order_cells() if cell.block_bytes == 4096]
    once = [run_of(synthetic.visits(cells), name=name) for name in ("a", "b", "c")]
    most = run_of(synthetic.rounds(cells), synthetic.info(spec={"name": "order"}), "most")
    larger = run_of(synthetic.rounds(synthetic.order_cells()), name="larger")
    assert labels_of(*once[:2], most, once[2]) == ["most", "a", "b", "c"]
    assert labels_of(most, larger)[0] == "most"


def test_the_sm_ladder_is_that_of_many_blocks() -> None:
    def ladder(*blocks: int, sizes: range) -> list[Record]:
        shapes = product(blocks, sizes, (2, 4, 8))
        return [*synthetic.rounds(Cell("sm", Direction.D2H, n, kib << 10, sms=k) for n, kib, k in shapes)]

    few = run_of(ladder(16, 128, 1024, 4096, sizes=range(4, 9)), name="few")
    part = part_in("sm-ladder", [few, run_of(ladder(5_000, 50_000, sizes=range(4, 5)), name="many")])
    assert lines_of(part.findings) == ["sm, idle stream: 2 SMs are enough, the fewest measured."]
    (table,) = part.tables
    assert plain(table.title).endswith("N = 5 000 to 50 000")


def test_strings_from_runs_stay_text(hostile: tuple[str, Report]) -> None:
    """In the report of a run, and where it is compared with another of its machine."""
    _, report = hostile
    assert sections_of(report)[-1] == "comparison"
    text = render_report(report) + render_details(report)

    assert all(char.isprintable() or char in "\n\N{NO-BREAK SPACE}\N{WORD JOINER}" for char in text)
    pictures, within = (f"{one.stem}.png" for one in report.charts), (f"#{anchor}" for anchor in anchors(text))
    known = {None, "report.md", "details.md", *pictures, *within}
    headings = 0
    for token in tokens(text):
        assert token.type not in {"html_inline", "code_block", "hr", "s_open"}, token
        assert token.type != "html_block" or token.content.strip() in FOLD, token
        assert (token.attrGet("src") or token.attrGet("href")) in known
        headings += token.type == "heading_open"
    assert headings == len([line for line in text.splitlines() if line.startswith("#")])
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1


def on_a_line(text: str) -> str:
    return "".join(char if char.isprintable() or char == "\N{NO-BREAK SPACE}" else "\ufffd" for char in text)


@given(st.text())
def test_escaped_text_shows_as_it_was(text: str) -> None:
    around = {"inline", "paragraph_open", "paragraph_close"}
    shown = [token for token in tokens(f"x{markdown.escape(text)}x") if token.type not in around]
    assert {token.type for token in shown} <= {"text", "text_special"}
    rendered = "".join(token.content for token in shown).replace("\N{WORD JOINER}", "")
    assert rendered == f"x{on_a_line(text)}x"


@given(st.text())
def test_code_shows_as_it_was(text: str) -> None:
    row = f"| a |\n| --- |\n| {markdown.code(text)} |"
    codes = [token.content for token in tokens(row) if token.type == "code_inline"]
    assert [content.strip(" ") for content in codes] == [on_a_line(text).strip(" ")]


def test_a_link_in_the_output_folder_is_replaced_not_followed(tmp_path: Path) -> None:
    (victim := tmp_path / "victim").write_text("precious")
    (out := tmp_path / "out").mkdir()
    (out / "report.md").symlink_to(victim)
    write_report(report_files([made_run(tmp_path, [])]), out)
    assert victim.read_text() == "precious"
    assert (out / "report.md").read_text().startswith("# KV-block swaps")


def test_an_output_that_cannot_be_written_is_a_usage_error_before_anything_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[object] = []
    monkeypatch.setattr("kvbench.report.build.report_files", lambda *_: drawn.append(1) or {})
    run = made_run(tmp_path, [])
    for out in (run.path / "run.json", run.path / "run.json" / "under", Path("/proc/kvbench"), Path("/proc")):
        assert "cannot write the report to" in refused("report", run.path, "-o", out, cwd=tmp_path)
    assert not drawn


def test_the_command_prints_json(tmp_path: Path) -> None:
    run = made_run(tmp_path, [], synthetic.info(status="interrupted"))
    with (run.path / "journal.jsonl").open("a") as journal:
        journal.write('{"type":"no')
    done = CliRunner().invoke(app, ["report", str(run.path), "-o", str(tmp_path / "out"), "--json"])
    printed = json.loads(done.stdout)
    assert printed["files"] == [str(tmp_path / "out" / name) for name in ("report.md", "details.md", "report.html")]
    assert [warning.removeprefix(f"{run.path}: ") for warning in printed["warnings"]] == [
        "the last line of journal.jsonl is incomplete, because of a kill or a full disk, and was dropped",
        "interrupted",
        "no measured cell",
    ]


def test_a_report_of_readable_runs_is_written_and_fails_for_the_others(tmp_path: Path) -> None:
    run = made_run(tmp_path, synthetic.ceilings())
    broken = made_run(tmp_path, synthetic.ceilings(), name="broken")
    (broken.path / "run.json").write_text("{")
    done = CliRunner().invoke(app, ["report", str(run.path), str(broken.path), "-o", str(tmp_path / "out")])
    assert isinstance(done.exception, RunDirectoryError)
    assert done.exception.exit_code is ExitCode.USAGE
    assert str(done.exception).startswith(f"not in the report: {broken.path}/run.json cannot be read: ")
    assert f"report: {tmp_path / 'out' / 'report.md'}" in done.stdout
    assert (tmp_path / "out" / "report.md").exists()


def test_bad_input_is_a_usage_error(tmp_path: Path) -> None:
    run = made_run(tmp_path, [])
    (tmp_path / "empty").mkdir()
    assert "is not a run directory" in refused("report", tmp_path / "empty", cwd=tmp_path)
    assert "-o DIR" in refused("report", run.path, run.path, cwd=tmp_path)
    (run.path / "report").symlink_to(tmp_path)
    assert "report is a symbolic link" in refused("report", run.path, cwd=tmp_path)


def test_a_plug_in_is_marked_wherever_it_is_named() -> None:
    methods = product(synthetic.FEW_KIB, (("batched", None), ("mine", 4)))
    cells = [Cell(name, Direction.H2D, 10_000, kib * 1024, sms=sms) for kib, (name, sms) in methods]
    mine = BackendFacts("mine", "", frozenset({"sms"}), package="mine-copies==1.0", plug_in=True)
    records = [*synthetic.ceilings(), *synthetic.rounds(cells, lambda cell: 40.0 if cell.backend == "mine" else 5.0)]
    report = made_report(records, synthetic.info(backends=[mine]))
    tables = [table for part in report.parts for table in part.tables]
    texts = lines_of([text for table in tables for row in (table.header, *table.rows) for text in row])
    texts += [line.label for chart in report.charts for line in chart.plot.lines]
    texts += lines_of([*report.headline, *report.findings])
    named = [text for text in texts if "mine" in text]
    assert "mine (plug-in, 4 SMs)" in named
    assert [text for text in named if "mine (plug-in" not in text] == []
    (explained,) = lines_of(report.first_warnings)
    assert "mine-copies==1.0" in explained


def test_the_first_page_names_the_host_and_says_which_runs_are_of_another() -> None:
    def host(cpus: int) -> dict[str, object]:
        identity = {"gpu_name": "Synthetic H200", "cpu_model": "Xeon", "logical_cpus": cpus, "hypervisor": True}
        return {"identity": {**identity, "numa_nodes": 2, "gpu_numa_node": 1, "cuda_driver_api": "13.0"}}

    visits = synthetic.rounds([Cell("batched", Direction.H2D, 64, 4096)])
    runs = [
        run_of(visits, synthetic.info(**host(cpus)), name) for name, cpus in (("one", 16), ("two", 16), ("other", 32))
    ]
    head = " ".join(lines_of(report_of(runs).headline))
    assert "Host: Xeon, 16 CPUs, virtual machine, 2 NUMA nodes, GPU near 1, CUDA 13.0 (not other)" in head
    assert "Host" not in " ".join(lines_of(report_of([run_of(visits, name="old")]).headline))


def test_the_first_page_says_how_far_starts_differ_and_how_many_visits_were_disturbed() -> None:
    cells = [Cell("batched", Direction.H2D, blocks, 4096) for blocks in range(1, 11)]

    def visits(slower: float, disturbed: int) -> list[Visit]:
        made = synthetic.timed(cells, lambda cell, _: 100.0 * (slower if cell.blocks >= 9 else 1.0))
        slow = [msgspec.structs.replace(one, disturbed=[Disturbance.SLOW_CPU]) for one in made[:disturbed]]
        return [*slow, *made[disturbed:]]

    runs = [
        run_of(visits(*of_run), synthetic.info(created=f"2026-11-2{name}"), name)
        for name, of_run in (("1", (1.0, 6)), ("2", (1.5, 30)))
    ]
    devices = [run_of(visits(slower, 0), name=name) for name, slower in (("cpu-0", 1.0), ("cpu-1", 9.0))]
    assert "Starts differ" not in " ".join(lines_of(report_of(devices).headline))
    head = lines_of(report_of(runs).headline)
    assert "Starts differ: a tenth of 10 cells in several runs by 1.5x or more, at worst 1.5x" in head
    assert "30% of visits disturbed (2: 50%)" in head
    halves = [one for one in visits(1.0, 0) if one.round < 3 and one.cell.blocks >= 9]
    longer = [one for one in visits(1.5, 0) if one.round >= 3 and one.cell.blocks >= 9]
    slow = [msgspec.structs.replace(one, disturbed=[Disturbance.SLOW_CPU]) for one in longer]
    half = report_of([run_of([*halves, *slow], name="half")])
    assert "50% of visits disturbed: calls ? +50%, swaps ? +50%" in lines_of(half.headline), "two cells"
    quiet = lines_of(report_of([run_of(visits(1.0, 0), name="quiet")]).headline)
    assert not [line for line in quiet if "Starts" in line or "disturbed" in line]


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_first_page_says_how_many_wide_intervals_are_of_visits_that_differ(noise: float) -> None:
    """As where a process has one of two speeds: more samples a visit would not make the interval narrower."""
    cells = [Cell("batched", Direction.H2D, blocks, 4096) for blocks in (1, 2, 3)]
    visits = synthetic.timed(cells, lambda cell, number: 100.0 * (1 + (number % 2) * (cell.blocks > 1)), noise, 30)
    lines = [line for line in lines_of(report_of([run_of(visits)]).headline) if "wide" in line]
    assert lines == ([] if noise else ["2 of 2 wide intervals: visits differ, samples agree"])
