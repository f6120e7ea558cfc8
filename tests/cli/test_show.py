"""`kvbench show` and `kvbench report --snippet`: what a run says, in the terminal."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvbench.cells.axes import Direction, ListPlace, StreamState
from kvbench.cells.cell import Cell
from kvbench.cli.main import app
from kvbench.ground.errors import RunDirectoryError
from kvbench.results import Ceiling
from tests import synthetic
from tests.command import BRIEF, output, refused, swept, tiny
from tests.docs.schemas import misfits
from tests.markdown import tokens


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cells = [
        cell
        for cell in synthetic.cliff_cells((256,))
        if cell.direction is Direction.H2D and cell.stream_state is StreamState.IDLE
    ]
    records = [*synthetic.ceilings(), *synthetic.rounds(cells, noise=0.001)]
    return synthetic.write_run(tmp_path_factory.mktemp("show") / "run", records)


def test_the_answer_as_json_has_the_keys_of_its_schema(run: Path, tmp_path: Path) -> None:
    few = [*synthetic.ceilings(), *synthetic.visits(synthetic.cliff_cells((256,))[:1])]
    without_choice = synthetic.write_run(tmp_path / "few", few)
    on_cpu = swept(tmp_path, *tiny(), *BRIEF)
    for one in (run, on_cpu):
        answer = json.loads(output("show", one, "--json"))
        assert misfits(answer, "ShownAnswer") == []
    assert misfits(json.loads(output("show", without_choice, "--json")), "ShownFindings") == []
    answer["answers"][0] |= {"us": "1", "more": 2}
    del answer["rule"]
    assert [text.partition(": ")[0] for text in misfits(answer, "ShownAnswer")] == [
        "ShownAnswer", "ShownAnswer.answers[0]", "ShownAnswer.answers[0].us",
    ]  # fmt: skip


def test_a_warning_and_the_cost_stand_beside_the_answer(tmp_path: Path) -> None:
    def ragged(cell: Cell) -> float:
        return 5.0 + int(cell.id, 16) % 40

    rounds = synthetic.rounds(synthetic.cliff_cells((256,)), ragged, noise=0.001)
    slow = Ceiling(direction="h2d", round=1, swap_bytes=1 << 30, event_us=[1e5])
    run = synthetic.write_run(tmp_path / "run", [*synthetic.ceilings(), *rounds, slow])
    lines, more = (output("show", run, *options).splitlines() for options in ([], ["--open"]))
    for way in Direction:
        assert [line.split()[1] for line in lines if line.startswith(f"{way}  ")] == ["nothing", "decode", "prefill"]
    for shown in (lines, more):
        assert sum("whose ceiling lay up to" in line for line in shown) == 1
    assert sum(line.startswith("Cost against each shape's best") for line in more) == 1


def test_a_run_without_an_answer_says_what_it_found(tmp_path: Path) -> None:
    cells = [replace(cell, stream_state=StreamState.SUSTAINED) for cell in synthetic.cliff_cells((256,))]
    shown = output("show", synthetic.write_run(tmp_path / "run", synthetic.rounds(cells)))
    assert "not measured: kvbench sweep engine" in shown
    assert "on a sustained stream" in shown


def test_an_answer_is_shown_without_pandas(run: Path) -> None:
    each = "[run(['show', sys.argv[1], *options]) for options in ([], ['--json'], ['--table', '--open'])]"
    program = f"import sys; from kvbench.cli.main import run; sys.exit(any({each}) or 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, run], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_gather_says_how_long_the_decode_step_of_a_model_waits(tmp_path: Path) -> None:
    """At the best grid, by ids on the GPU: 1 us a row."""
    cells = [
        Cell("sm", Direction.H2D, rows, size, sms=sms, list_place=ListPlace.GPU)
        for size, rows, sms in product((64, 656), (16, 3277, 16_384), (2, 4))
    ]
    gathers = [*synthetic.rounds(cells, lambda cell: 0.164 * (cell.sms or 0), noise=0)]
    host_lists = [replace(cell, list_place=ListPlace.HOST) for cell in cells]
    others = [*synthetic.rounds([*synthetic.cliff_cells((256,)), *host_lists], noise=0.001)]
    alone, both = (
        synthetic.write_run(tmp_path / name, records)
        for name, records in (("alone", gathers), ("both", [*gathers, *others]))
    )
    of_model = "--model", "deepseek-v3", "--tokens", "16384"
    text, more = (output("show", run, *of_model) for run in (alone, both))
    wait = "16384 rows of 656 B in each of 61 layers waits 0.999 / 200 / 999 ms with 0.1% / 20% / 100% of"
    assert wait in " ".join(text.split())
    assert more.startswith(text)
    assert "deepseek-v3" in more.removeprefix(text)  # what the run says of other swaps
    assert json.loads(output("show", both, *of_model, "--json"))["models"]
    refused("show", alone, "--model=llama-3-8b", cwd=tmp_path)  # there is nothing to say of it


@pytest.mark.parametrize("name", [["threshold"], ["against the other"]])
def test_a_snippet_is_one_table_with_its_caption(run: Path, name: list[str]) -> None:
    printed = output("report", run, "--snippet", *name)
    title, _, *table = printed.replace("\N{NO-BREAK SPACE}", " ").splitlines()
    assert title == "**Idle, N = 256: GB/s of batched against the other backends**"
    assert table[0].startswith("| Dir | Block size | batched | per_block | triton (12 SMs) |")
    assert sum(line.startswith("|") for line in table) == 2 + 13 + 1
    assert "Synthetic H200, driver 580.159, 2026-11-20, kvbench 0.1.0: `kvbench sweep" in printed
    assert not (run / "report").exists()
    assert [token.type for token in tokens(printed)].count("table_open") == 1


def test_a_snippet_names_every_omitted_run(run: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(run), str(tmp_path / "none"), "--snippet", "threshold"])
    assert done.output.startswith("**")
    assert isinstance(done.exception, RunDirectoryError)
    for option in (["--json"], ["-o", str(tmp_path)]):
        refused("report", run, "--snippet=threshold", *option, cwd=tmp_path)


def test_machines_stand_side_by_side_in_80_columns(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = synthetic.rounds(synthetic.cliff_cells((256,))[:8], lambda _: 20.0)
    card = "Another card of many words, more than fit"
    other = synthetic.write_run(tmp_path / "run", [*synthetic.ceilings(), *records], synthetic.info(card))
    monkeypatch.setattr("kvbench.cli.options.room", lambda: 80)
    for runs in ((run, other), (other, run)):
        header, *rows = output("show", *runs).splitlines()
        assert max(map(len, rows)) <= 80
        assert "Synthetic H200" in header
        assert "Another card" in header
        (ceiling,) = (line for line in rows if line.startswith("Ceiling h2d / d2h, GB/s"))
        assert ceiling.count("55.") == 4


def test_machines_as_json_have_the_table_and_the_answer_of_each(run: Path, tmp_path: Path) -> None:
    few = [*synthetic.ceilings(), *synthetic.visits(synthetic.cliff_cells((256,))[:1])]
    other = synthetic.write_run(tmp_path / "few", few, synthetic.info("Another card"))
    page = json.loads(output("show", run, other, "--json"))
    assert misfits(page, "ShownMachines") == []
    assert [*page["machines"]] == ["Synthetic H200", "Another card"]
    assert all([*texts] == [*page["machines"]] for texts in page["side_by_side"].values())
    assert page["machines"]["Synthetic H200"] == json.loads(output("show", run, "--json"))
    assert misfits(page["machines"]["Another card"], "ShownFindings") == []
