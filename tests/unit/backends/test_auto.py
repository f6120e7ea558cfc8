"""The backend `auto` from end to end on the cpu device, and what a report says of its choices."""

import json
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from msgspec import structs

from kvbench.analysis.margins import TIED
from kvbench.backends import auto
from kvbench.backends.auto import DEFAULTS, Copier, copier_for
from kvbench.backends.base import Mechanism, PreparedSwap, SwapRequest
from kvbench.backends.sm import KernelShape, Sm, shape_for
from kvbench.cells.axes import Direction, Neighbour, Situation, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.faults import FaultPlan
from kvbench.cells.installed import of_engine
from kvbench.cells.pattern import Pattern
from kvbench.cells.policy import SERVING, Choice, Policy, Table, load_policy
from kvbench.engine.device import DIRECTIONS, BatchOptions, CopyWay, Device, SwapMemory, open_device
from kvbench.ground.text import convert
from kvbench.results import Control, Note, Visit, load_run
from kvbench.tune.candidates import Measured, fastest
from kvbench.tune.evidence import shapes_of
from tests.command import BRIEF, records, refused, succeeds, swept, tiny
from tests.data.freeze import FOLDER as FROZEN
from tests.strategies import H200

AXES = {"blocks": "4,64", "block_size": "1KiB,16KiB"}
POLICY = """
device = {device}
[[tables]]
direction = "h2d"
stream_state = "idle"
block_bytes = [1024, 16384]
blocks = [4, 64]
choices = [["per_block", "batched"], ["batched descriptors_per_call=8", "per_block"]]
"""


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `first` and the policy `mine.toml` made of it."""
    folder = tmp_path_factory.mktemp("fitted")
    succeeds("sweep", *tiny(**AXES), *BRIEF, "--out", "first", cwd=folder)
    succeeds("show", "first", "-p", "mine.toml", cwd=folder)
    return folder


def write_policy(folder: Path, fitted: Path, device: str | None = None) -> Path:
    """Write a policy of known choices for this machine, or for the device of that title."""
    path = folder / "known.toml"
    title = load_policy(fitted / "mine.toml").device if device is None else device
    path.write_text(POLICY.format(device=json.dumps(title)))
    return path


@pytest.fixture(scope="module")
def by_policy(fitted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of auto and batched by a policy of another driver, which has no table for d2h."""
    folder = tmp_path_factory.mktemp("by_policy")
    policy = write_policy(folder, fitted)
    policy.write_text(f'driver = "1.2"\n{policy.read_text()}')
    return swept(folder, *tiny(**AXES, backend="auto,batched", direction="h2d,d2h"), *BRIEF, "--policy", policy)


def summary(run: Path) -> pd.DataFrame:
    return pd.read_csv(run / "summary.csv")


def test_auto_runs_what_the_policy_says_and_the_run_says_so(by_policy: Path) -> None:
    every = summary(by_policy)
    table = every[every["direction"] == "h2d"].set_index(["backend", "block_size", "blocks"])
    assert table["chosen"]["auto"].to_dict() == {
        ("1KiB", 4): "per_block",
        ("1KiB", 64): "batched",
        ("16KiB", 4): "batched descriptors_per_call=8",
        ("16KiB", 64): "per_block",
    }
    assert table["chosen"]["batched"].isna().all()
    assert table["warnings"].isna().all()
    assert (every["path"] == "host thread").all()
    assert (every["verified_bytes"] > 0).all()
    cells = [(visit.cell_text, visit.calls) for visit in records(by_policy) if isinstance(visit, Visit)]
    calls = {
        (cell["block_size"], cell["blocks"]): made
        for cell, made in cells
        if (cell["backend"], cell["direction"]) == ("auto", "h2d")
    }
    assert calls == {("1KiB", "4"): 4, ("1KiB", "64"): 1, ("16KiB", "4"): 1, ("16KiB", "64"): 64}
    assert convert(load_run(by_policy).info.spec["policy"], Policy) == load_policy(by_policy.parent / "known.toml")


def test_auto_names_a_direction_without_a_table(by_policy: Path) -> None:
    table = summary(by_policy)
    warnings = table.loc[(table["direction"] == "d2h") & (table["backend"] == "auto"), "warnings"]
    assert set(warnings) == {"auto used its defaults: the policy has no table for d2h"}


def test_a_policy_of_another_driver_is_used_and_noted(by_policy: Path) -> None:
    notes = [record.text for record in records(by_policy) if isinstance(record, Note)]
    assert not any(isinstance(record, Control) for record in records(by_policy))  # those are of gates
    assert any("the policy was measured with driver 1.2, this is none" in text for text in notes)


def test_a_resumed_run_keeps_its_policy(fitted: Path, tmp_path: Path) -> None:
    policy = write_policy(tmp_path, fitted)
    run = swept(tmp_path, *tiny(**AXES, backend="auto"), *BRIEF, "--policy", policy, "--rounds=2")
    before = summary(run)
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run / "journal.jsonl").write_bytes(b"".join(lines[:-5]))
    policy.unlink()
    succeeds("sweep", "--resume", "run", cwd=tmp_path)
    after = summary(run)
    assert after["chosen"].tolist() == before["chosen"].tolist()
    assert (after["rounds"] == 2).all()


def test_without_a_policy_auto_says_so(tmp_path: Path) -> None:
    (row,) = summary(swept(tmp_path, *tiny(backend="auto"), *BRIEF)).to_dict("records")
    assert row["chosen"] == "batched"  # the built-in default, a kernel, does not run here
    assert "auto had no policy and used its built-in defaults" in row["warnings"]


def test_a_policy_of_another_device_is_refused(fitted: Path, tmp_path: Path) -> None:
    policy = write_policy(tmp_path, fitted, device="NVIDIA Other")
    line = refused("sweep", *tiny(backend="auto"), *BRIEF, "--policy", policy, "--out", "run", cwd=tmp_path)
    assert line.startswith('policy: it was measured on "NVIDIA Other", this is ')
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("sweep", *tiny(), "--policy", "mine.toml", "--dry-run"),
         "--policy mine.toml: no cell uses the backend auto; add -a backend=auto,batched"),
        (("sweep", *tiny(backend="auto"), "--policy", "first", "--dry-run"),
         "--policy first: this run used no policy; build one with kvbench show first -p FILE"),
        (("show", "first", "-p", "nowhere/mine.toml"),
         "--policy nowhere/mine.toml: cannot be written: no such file or directory"),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_used_is_one_line(fitted: Path, arguments: tuple[str, ...], line: str) -> None:
    assert refused(*arguments, cwd=fitted) == line


@pytest.mark.parametrize("run", [FROZEN / "h200", FROZEN / "h100"], ids=["H200", "H100"])
def test_the_defaults_lose_as_little_as_a_rule_may_in_frozen_runs(monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    monkeypatch.setattr(Sm, "kernel", lambda *_: None)
    copier = copier_for(gpu(), [DEFAULTS])
    shapes = shapes_of([load_run(run)], lambda choice: not of_engine(choice.backend))
    losses = [one.us_of(by_default(one, copier)) / one.us_of(fastest(one.arms)) - 1 for one in shapes]
    assert sum(losses) / len(losses) <= TIED.fraction
    assert max(losses) <= 0.15


def by_default(one: Measured, copier: Copier) -> Choice:
    """Return what a copier runs; of SM counts that were not measured, the nearest one."""
    direction, state, blocks, block_bytes = one.shape
    idle = state in (StreamState.IDLE, StreamState.OPENED)
    way = copier.engine.way_of(blocks, blocks * block_bytes, DIRECTIONS[direction], idle=idle)
    executed = copier.ways[way].choice
    measured = [choice for choice in one.methods if choice.backend == executed.backend]
    return min(measured, key=lambda choice: abs(choice.sms - executed.sms))


@pytest.mark.parametrize(
    ("text", "direction", "chosen"),
    [
        ("batched", Direction.H2D, "batched order=any"),
        ("batched", Direction.D2H, "batched order=stream"),
        ("batched order=stream overlap=on", Direction.H2D, "batched order=any overlap=on"),  # the list has its order
        ("per_block", Direction.H2D, "per_block"),
        ("sm sms=2", Direction.H2D, "sm sms=2"),
        ("sm", Direction.H2D, "sm sms=4"),
        ("triton sms=12", Direction.H2D, "sm sms=4"),
        ("nobody", Direction.H2D, "sm sms=4"),
    ],
)
def test_auto_runs_each_choice_as_the_copier_does_and_names_it(
    monkeypatch: pytest.MonkeyPatch, text: str, direction: Direction, chosen: str
) -> None:
    prepared = prepared_by(monkeypatch, text, direction)
    assert prepared.chosen == chosen
    replaced = text.split()[0] not in SERVING
    assert prepared.warnings == (
        (f"auto used sm: it cannot use {text.split()[0]}, which the policy chooses, here",) if replaced else ()
    )


@pytest.mark.parametrize(
    ("neighbour", "direction", "chosen", "lacks"),
    [
        (Neighbour.DECODE, Direction.H2D, "per_block", ""),
        (Neighbour.DECODE, Direction.D2H, "sm", "used its defaults: the policy has no table for d2h beside decode"),
        (Neighbour.PREFILL, Direction.H2D, "merged", "swaps alone: the policy has no table for swaps beside prefill"),
        (Neighbour.IDLE, Direction.H2D, "merged", ""),
    ],
)
def test_auto_takes_what_its_policy_has_beside_a_step_and_says_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, neighbour: Neighbour, direction: Direction, chosen: str, lacks: str
) -> None:
    points: dict[str, Any] = {"block_bytes": (4096,), "blocks": (4,), "choices": (("per_block",),)}
    step, alone = Table(direction=Direction.H2D, beside=Situation.DECODE, **points), policy_of("merged")
    policy = structs.replace(alone, tables=(*alone.tables, step))
    prepared = prepared_by(monkeypatch, policy, direction, neighbour=neighbour)
    assert (prepared.chosen or "").startswith(chosen)
    assert [text.endswith(lacks) for text in prepared.warnings] == [True] * bool(lacks)


@pytest.mark.parametrize("direction", Direction)
def test_auto_stages_blocks_that_lie_together_on_the_host_and_says_where_it_does_not(
    monkeypatch: pytest.MonkeyPatch, direction: Direction
) -> None:
    pages = prepared_by(monkeypatch, "staged", direction, blocks=4096, host_pattern=Pattern("runs", 64))
    assert (pages.chosen, pages.mechanism, pages.warnings) == ("staged sms=4", Mechanism.STAGED, ())
    apart = prepared_by(monkeypatch, "staged sms=8", direction, blocks=4096, host_pattern=Pattern("runs", 63))
    assert (apart.chosen, apart.mechanism) == ("sm sms=4", Mechanism.SM_KERNEL)
    assert apart.warnings == ("auto used sm: it cannot use staged, which the policy chooses, here",)


@pytest.mark.parametrize("state", StreamState)
def test_auto_names_the_choice_for_what_is_pending_and_that_for_small_lists(
    monkeypatch: pytest.MonkeyPatch, state: StreamState
) -> None:
    """A list of less than 8 MiB does not ask its stream."""
    pending = state not in (StreamState.IDLE, StreamState.OPENED)
    for blocks, backend in ((2100, "merged" if pending else "sm"), (2000, "sm")):
        prepared = prepared_by(monkeypatch, "sm", Direction.H2D, blocks=blocks, stream_state=state, held="merged")
        assert (prepared.chosen or "").startswith(backend)
        assert prepared.same_when_busy is (blocks == 2000)


def shape_here(_: object, cell: Cell, block_bytes: int, bits: int) -> KernelShape:
    """The shape of the kernel on an H200."""
    return shape_for(cell, block_bytes, bits, 90, 227 << 10)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the ways of copiers are made of from here on; the kernel of a shape is the shape itself."""
    made: list[dict[str, Any]] = []

    def noted(*, aligned: object = None, any: object = None, **others: Any) -> CopyWay:  # noqa: A002
        made.append({"aligned": aligned, "any": any, **others})
        return CopyWay(**others)

    monkeypatch.setattr(Sm, "kernel", lambda *arguments: arguments[-1])
    monkeypatch.setattr("kvbench.backends.auto.shape_on", shape_here)
    monkeypatch.setattr("kvbench.backends.auto.CopyWay", noted)
    return made


def test_a_copier_has_the_kernels_of_sm_for_lists_of_every_size(ways: list[dict[str, Any]]) -> None:
    copier = copier_for(gpu(), [policy_of("sm sms=4")])
    for direction, kib in product(Direction, (1, 2, 4, 8, 16, 32, 64)):
        cell = Cell("sm", direction, 1024, kib << 10, pool_bytes=1 << 30, sms=4)
        aligned, unaligned = (shape_here(None, cell, cell.block_bytes, bits) for bits in (0, 1))
        way = ways[copier.engine.way_of(cell.blocks, cell.swap_bytes, DIRECTIONS[direction], idle=True)]
        assert (way["aligned"], way["any"]) == (aligned if aligned != unaligned else None, unaligned)


@pytest.mark.parametrize("direction", Direction)
def test_a_copier_holds_its_kernels_at_the_pace_of_the_policy_or_of_its_caller(
    ways: list[dict[str, Any]], direction: Direction
) -> None:
    shares = policy_of("sm sms=4 pace=85%", ceiling_gbps={Direction.H2D: 50.0, Direction.D2H: 40.0})
    for policy, pace, (wanted, choice) in (
        (shares, None, {Direction.H2D: (42.5, "42.5GB/s"), Direction.D2H: (34.0, "34GB/s")}[direction]),
        (policy_of("sm sms=4 pace=46GB/s"), None, (46.0, "46GB/s")),
        (shares, 30, (30.0, "30GB/s")),
        (policy_of("sm sms=4"), 30, (30.0, "30GB/s")),
        (policy_of("triton sms=12"), 30, (30.0, "30GB/s")),
    ):
        ways.clear()
        copier = copier_for(gpu(), [policy], pace_gbps=pace)
        at = copier.engine.way_of(1024, 1024 * 16384, DIRECTIONS[direction], idle=True)
        assert ways[at]["pace_gbps"] == wanted
        assert all(kernel.paced for kernel in (ways[at]["any"], ways[at]["aligned"]) if kernel)
        assert dict(copier.ways[at].choice.axes)["pace"] == choice
    assert {way.pace_gbps for way in copier_for(gpu(), [policy_of("batched")], pace_gbps=30).ways} == {None}


def test_a_copier_hands_the_axes_of_a_choice_to_batched_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, object]] = []
    monkeypatch.setattr(
        "kvbench.backends.driver_copies.BatchOptions", lambda **options: made.append(options) or BatchOptions(**options)
    )
    for text, *expected in (("batched overlap=on", True, False), ("merged", False, True)):
        copier_for(gpu(), [policy_of(text)])
        assert [made[-1][name] for name in ("prefer_overlap", "merge")] == expected


def test_a_copier_forgets_the_pools_of_other_cells_before_it_takes_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = mock.Mock(way_of=lambda *_, **__: 0)
    monkeypatch.setattr(auto, "copier_for", lambda *_: Copier(engine, [auto.Way(Choice("batched"), "")]))
    monkeypatch.setattr(auto, "copier_swap", engine.swap)
    prepared_by(monkeypatch, "batched", Direction.H2D)
    assert [name for name, *_ in engine.mock_calls][:2] == ["forget", "swap"]
    assert engine.swap.call_args.args[4] is True  # to the GPU, in any order


def test_another_policy_has_a_copier_of_its_own() -> None:
    device, one = gpu(), auto.Auto()
    copiers = [one._copier(device, policy_of(text)) for text in ("per_block", "merged", "merged")]
    assert [copier.ways[0].choice.backend for copier in copiers] == ["per_block", "merged", "merged"]
    assert copiers[1] is copiers[2]


def gpu() -> Device:
    driver = open_device("cpu", FaultPlan()).driver
    device: Device = mock.Mock(driver=driver, facts=lambda: H200, is_cuda=True, batch_entry="a call")
    return device


def policy_of(choice: str, held: str = "", **others: Any) -> Policy:
    tables = [
        Table(direction=way, stream_state=of, block_bytes=(4096,), blocks=(4,), choices=((text,),))
        for way in Direction
        for of, text in ((StreamState.IDLE, choice), (StreamState.GATED, held or choice))
    ]
    return Policy(device=H200.title, tables=tuple(tables), **others)


def prepared_by(
    monkeypatch: pytest.MonkeyPatch, choice: str | Policy, direction: Direction,
    *, blocks: int = 4, held: str = "", **axes: Any,
) -> PreparedSwap:  # fmt: skip
    monkeypatch.setattr(Sm, "kernel", lambda *_: None)
    words = np.full(blocks, 4096, np.uint64)
    memory = SwapMemory(words, words, words, words, words)
    cell = Cell("auto", direction, blocks, 4096, **axes)
    policy = choice if isinstance(choice, Policy) else policy_of(choice, held)
    return auto.Auto().create(SwapRequest(gpu(), cell, memory, policy))
