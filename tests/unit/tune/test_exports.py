"""Settings of engines from finished runs of their own code, whose times come from formulas."""

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from unittest import mock

import pytest

from kvbench.backends import base
from kvbench.cells.axes import Direction, Neighbour, Order, Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.facts import BackendFacts, EngineSetting
from kvbench.cells.installed import engines
from kvbench.engine import nvrtc
from kvbench.ground.errors import UsageError
from kvbench.results import Record, Run
from kvbench.run import runner
from kvbench.tune.exports import Export, break_even, export
from kvbench.tune.page import state_table
from kvbench.tune.search import engine_sweep
from tests import synthetic
from tests.answers import advice_of
from tests.command import output, refused

KIB = 1024
SIZES = tuple(kib * KIB for kib in (4, 16, 24, 64))
COUNTS = (16, 64, 1024)
FILE = "vllm/v1/kv_offload/cpu/swap_blocks_triton.py"
SETTINGS = tuple(
    EngineSetting(name, default, f"{FILE}:{line}")
    for name, default, line in (("NUM_SMS", 12, 19), ("THRESHOLD_BYTES", 28 * KIB, 20), ("MIN_N", 16, 21))
)
VLLM = BackendFacts("vllm_triton", "", frozenset({"sms"}), package="vllm==0.33.0 (0123456789abcdef)", settings=SETTINGS)


def cells(
    counts: tuple[int, ...] = COUNTS, state: StreamState = StreamState.IDLE, sms: tuple[int, ...] = (8, 12, 24, 32)
) -> list[Cell]:
    shapes = [(Direction.H2D, n, size, state) for n in counts for size in SIZES]
    made = [
        cell
        for shape in shapes
        for cell in (
            Cell("vllm_batch", *shape, order=Order.ANY),
            *(Cell("vllm_triton", *shape, sms=count) for count in sms),
            Cell("sm", *shape, sms=2),
        )
    ]
    return [replace(cell, reuse=Reuse.FRESH, pool_bytes=1 << 30) for cell in made]


def gbps(cell: Cell) -> float:
    """Batched copies are slow below 64 KiB; Triton fills the link from 24 SMs on, and is slow for few blocks."""
    if cell.backend == "sm":
        return 54.0
    if cell.backend == "vllm_batch":
        return 50.0 if cell.block_bytes == 64 * KIB else 8.0
    return (1.0 if cell.blocks == 16 else 2.0) * min(24, cell.sms or 12)


def few_and_wide(cell: Cell) -> float:
    """The same, and Triton is slower than batched copies for few blocks."""
    return 2.0 if cell.backend == "vllm_triton" and cell.blocks == 16 else gbps(cell)


def beside_decode(*sms: int | None) -> list[Record]:
    """Visits of the engine's kernel with these SM counts, or of its copies (None), beside decode steps."""
    shape = (Direction.H2D, 1024, 16 * KIB)
    made = [
        Cell("vllm_triton", *shape, sms=count) if count else Cell("vllm_batch", *shape, order=Order.ANY)
        for count in sms
    ]
    cells_beside = (replace(cell, neighbour=Neighbour.DECODE) for cell in made)
    return [visit for cell in cells_beside for visit in synthetic.beside(cell, 1.3, 40.0)]


EVERY = (None, 8, 12, 24, 32)


def run_of(
    folder: Path,
    made: list[Cell],
    rate: Callable[[Cell], float] = gbps,
    beside: Sequence[int | None] = EVERY,
    **info: object,
) -> Run:
    records: list[Record] = [*synthetic.ceilings(), *synthetic.rounds(made, rate, noise=0.001), *beside_decode(*beside)]
    return synthetic.loaded(folder / "run", records, synthetic.info(**({"backends": [VLLM]} | info)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("exports"), cells())


def vllm(run: Run) -> Export:
    return export("vllm", [run])


def changed(made: Export) -> dict[str, int]:
    return {change.setting.name: change.value for change in made.changes}


def test_only_changed_settings_are_printed_with_their_line_and_gain(run: Run) -> None:
    made = vllm(run)
    assert changed(made) == {"NUM_SMS": 24}
    text = made.text()
    assert "nothing to change" not in text
    assert "# NUM_SMS 12 to 24: gains 50% on average at 9 shapes, loses nowhere\n" in text
    assert text.splitlines()[0] == "# vLLM: vllm==0.33.0 (0123456789abcdef)"
    assert [line for line in text.splitlines() if line and not line.startswith("#")] == [
        f"--- a/{FILE}", f"+++ b/{FILE}", "@@ -19 +19 @@", "-NUM_SMS = 12", "+NUM_SMS = 24",
    ]  # fmt: skip
    assert re.search(r"against the free choice: takes .* at worst 12[45]% \(h2d, 16 x \d+ KiB, sm", made.notes[-1])
    assert not any("largest count" in note for note in made.notes)


def test_a_default_is_kept_where_others_are_as_fast_and_the_largest_count_may_not_be_the_best(tmp_path: Path) -> None:
    level = vllm(
        run_of(tmp_path / "level", cells(), lambda cell: 24.0 if cell.backend == "vllm_triton" else gbps(cell))
    )
    assert changed(level) == {}
    narrow = run_of(tmp_path / "narrow", cells(sms=(8, 12, 24)))
    assert "NUM_SMS=24 is the largest count that was measured; larger ones may gain" in vllm(narrow).notes
    other = run_of(tmp_path / "other", cells(), backends=[replace(VLLM, package="vllm==0.34.0")])
    with pytest.raises(UsageError, match=r"the runs measured different code: vllm==0\.33\.0 .* and vllm==0\.34\.0"):
        export("vllm", [narrow, other])


def test_an_export_is_a_patch_of_the_engines_file(tmp_path: Path) -> None:
    lines = ["NUM_SMS: int = 12  # a quarter", "THRESHOLD_BYTES = 28 * 1024", "MIN_N = 16"]
    settings = tuple(replace(setting, line=line) for setting, line in zip(SETTINGS, lines, strict=True))
    made = vllm(run_of(tmp_path, cells(), few_and_wide, backends=[replace(VLLM, settings=settings)]))
    assert changed(made) == {"NUM_SMS": 24, "MIN_N": 64}
    gains = [change.gain.partition(",")[0] for change in made.changes]  # each with the other as it becomes
    assert gains == ["gains 50% on average at 6 shapes", "gains 75% on average at 3 shapes"]
    file = tmp_path / FILE
    file.parent.mkdir(parents=True)
    file.write_text("\n" * 18 + "\n".join(lines) + "\n")
    subprocess.run(["git", "apply", "--unidiff-zero", "-"], input=made.text(), text=True, cwd=tmp_path, check=True)
    after = ["NUM_SMS: int = 24  # a quarter", lines[1], "MIN_N = 64"]
    assert file.read_text().splitlines()[18:] == after


def test_what_the_sms_of_a_setting_cost_a_decode_step_stands_beside_it(run: Run) -> None:
    """A step that takes 1.3 times as long beside 40 GB/s loses (1 - 1/1.3) / 40 of a second for each GB."""
    cost = "by vllm_triton (24 SMs) a decode step takes 30% longer and loses 5.77 ms for each GB"
    assert vllm(run).line().endswith(cost)


@pytest.mark.parametrize(
    ("beside", "set_", "left_out", "missing"),
    [
        ((None, 12), {"MIN_N": 64}, "NUM_SMS=24", "vllm_triton -a sms=24"),
        ((12, 24), {"NUM_SMS": 24}, "MIN_N=64", "vllm_triton,vllm_batch"),
        ((), {}, "NUM_SMS=24, MIN_N=64", "vllm_triton,vllm_batch -a sms=24"),
    ],
)
def test_a_setting_whose_cost_was_not_measured_is_in_no_patch(
    tmp_path: Path, beside: Sequence[int | None], set_: dict[str, int], left_out: str, missing: str
) -> None:
    """The thresholds choose between the kernel and copies: both must have been measured beside decode."""
    made = vllm(run_of(tmp_path, cells(), few_and_wide, beside))
    text = " ".join(made.text().replace("\n#", "").split())
    assert changed(made) == set_
    assert f"not in the patch: {left_out} gains" in text
    assert f"was not measured: kvbench sweep beside -a backend={missing} -a neighbour=decode" in text


def test_a_setting_with_which_some_swaps_lose_is_in_no_patch(tmp_path: Path) -> None:
    """It gains on average, and 10% are lost at one block size."""

    def rate(cell: Cell) -> float:
        loses = cell.backend == "vllm_triton" and cell.sms != 12 and cell.block_bytes == 4 * KIB
        return gbps(cell) * (0.4 if loses else 1.0)

    made = vllm(run_of(tmp_path, cells(), rate))
    assert changed(made) == {}
    assert made.text().endswith("# nothing to change\n")
    assert "not in the patch: NUM_SMS=24 gains" in made.text()


@pytest.mark.parametrize(
    ("made", "info"),
    [
        ([cell for cell in cells() if cell.backend != "vllm_triton"], {}),
        ([cell for cell in cells() if cell.backend != "vllm_batch"], {}),
        (cells(COUNTS[:1]), {}),
        (cells(sms=(8, 24)), {}),
        (cells(), {"backends": []}),
    ],
    ids=["no kernel", "no copies", "four shapes", "not the default", "nothing read"],
)
def test_an_engine_without_enough_measured_cells_has_no_export(
    tmp_path: Path, made: list[Cell], info: dict[str, object]
) -> None:
    with pytest.raises(UsageError, match=r"require cells of vLLM's own code .*: kvbench tune engine vllm"):
        vllm(run_of(tmp_path, made, **info))


def test_ten_shapes_are_enough_for_an_engines_settings(tmp_path: Path) -> None:
    shapes = [*dict.fromkeys((cell.blocks, cell.block_bytes) for cell in cells())]
    of_ten = [cell for cell in cells() if (cell.blocks, cell.block_bytes) in shapes[:10]]
    assert changed(vllm(run_of(tmp_path, of_ten)))


def test_an_export_for_loads_behind_a_gate_says_when_the_open_gate_would_decide(tmp_path: Path) -> None:
    def by_gate(cell: Cell) -> float:
        """Behind a closed gate few SMs suffice; behind an open one only many do."""
        fast = cell.backend == "vllm_triton" and cell.sms == (8 if cell.stream_state is StreamState.GATED else 32)
        return 50.0 if fast else 10.0 if cell.sms == 12 else 5.0

    states = StreamState.GATED, StreamState.OPENED
    made = vllm(run_of(tmp_path, [cell for state in states for cell in cells(state=state)], by_gate))
    assert changed(made)["NUM_SMS"] == 8
    assert any("gated stream" in line for line in made.about)
    shares = [re.search(r"more than (\d+)% of the loads find the gate closed", note) for note in made.notes]
    assert [int(match[1]) for match in shares if match] == [50]
    alike = vllm(run_of(tmp_path / "alike", [cell for state in states for cell in cells(state=state)]))
    assert any("the same whether a load finds the gate closed or open" in note for note in alike.notes)


@pytest.mark.parametrize(("gated_loss", "opened_loss", "share"), [(0.3, 0.1, 0.25), (0.1, 0.0, 0.0), (-0.1, 0.2, 1.0)])
def test_the_share_of_closed_gates_from_which_a_choice_is_right(
    gated_loss: float, opened_loss: float, share: float
) -> None:
    assert break_even(gated_loss, opened_loss) == pytest.approx(share)


def test_the_answer_for_one_engine_is_its_export_and_other_answers_leave_its_code_out(tmp_path: Path) -> None:
    run = str(
        run_of(tmp_path, [*cells(), *(replace(cell, backend="batched") for cell in cells(sms=()) if not cell.sms)]).path
    )
    assert "+NUM_SMS = 24\n" in output("tune", "engine", "vllm", run)
    plain = output("show", run)
    assert "sm (2 SMs)" in plain
    assert "vllm_" not in plain


def test_the_answer_has_batched_and_a_copier_from_the_run_of_the_engines_code(tmp_path: Path) -> None:
    rates = {"batched": 10.0, "copier": 20.0}
    every = [replace(cell, backend=name, sms=None) for name in rates for cell in cells(sms=(12,))[1::3]]
    every += [cell for cell in cells() if cell.backend != "vllm_batch"]
    with_copier = run_of(tmp_path / "engines", every, lambda cell: rates.get(cell.backend) or gbps(cell))
    alone = [cell for cell in every if cell.backend in ("batched", "sm")]
    runs = [with_copier, run_of(tmp_path / "other", alone, lambda _: 54.0)]
    table = state_table(advice_of(runs))
    large = dict(zip(table.header, table.rows[0], strict=True))  # of two swaps, the last
    assert [float(large[name]) for name in ("batched", "copier", "vLLM")] == pytest.approx([2517, 1258, 1049], rel=0.02)
    few = [run_of(tmp_path / "few", [cell for cell in every if cell in alone or cell.blocks == 1024], gbps)]
    assert state_table(advice_of(few)).header.count("vLLM") == 1, "no column without a figure"


@pytest.mark.parametrize("name", [engine.name for engine in engines().values() if engine.takes])
def test_an_engines_settings_choose_among_its_own_backends(name: str) -> None:
    engine, defaults = engines()[name], {"vllm": (12, 28 * KIB, 16), "sglang": (4,)}[name]
    assert engine.takes is not None
    assert engine.takes(Direction.H2D, 4 * KIB, 64, defaults).backend in engine.backends
    ladders = [group.get("sms", ()) for group in engine_sweep(name, ()).groups if engine.kernel in group["backend"]]
    assert str(defaults[0]) in {*chain(*ladders)}, "the engine's own count is compared"


def test_an_engine_is_refused_without_a_driver_before_a_worker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "facts_of", mock.Mock(return_value=VLLM))  # as if its package were installed
    monkeypatch.setattr(nvrtc, "driver_version", lambda: 0)
    monkeypatch.setattr(runner, "inspect", mock.Mock(side_effect=AssertionError))
    why = "engine vllm: its code needs a GPU, and this machine shows none; see kvbench doctor"
    assert refused("tune", "engine", "vllm", cwd=tmp_path) == why
