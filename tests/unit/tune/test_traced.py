"""The choices for the swaps of a trace, from replays whose times come from formulas."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvbench.analysis.compare import MIN_PAIRS
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.policy import Choice
from kvbench.ground.errors import UsageError
from kvbench.results import Run
from kvbench.tune.advice import answers_of
from kvbench.tune.evidence import PARTS, origin_of, parts_of, shapes_of, swaps_of_trace
from tests import synthetic
from tests.answers import advice_of, summary

SPEC: Mapping[str, Any] = {"trace": {"path": "/somewhere/hour.gz", "h2d": {"total": 400}, "d2h": {"total": 900}}}
KIB = 1024


def replayed(backend: str, gbps: float) -> list[synthetic.Visit]:
    cell = Cell(backend, Direction.H2D, 128, 4 * KIB, sms=4 if backend == "sm" else None, sequence="trace")
    return synthetic.replayed(cell, gbps)


def run_of(folder: Path, *records: synthetic.Record, spec: Mapping[str, Any] = SPEC) -> Run:
    folder.mkdir(exist_ok=True)
    info = synthetic.info(spec=dict(spec))
    return synthetic.loaded(folder / "run", [*synthetic.ceilings(), *records], info)


def test_parts_hold_about_equal_shares_of_the_bytes() -> None:
    blocks = np.random.default_rng(0).integers(1, 5000, 400)
    parts = parts_of(blocks)
    assert len(parts) == PARTS
    assert sorted(np.concatenate(parts).tolist()) == list(range(400))
    assert [blocks[part].sum() / blocks.sum() for part in parts] == pytest.approx([1 / PARTS] * PARTS, abs=0.02)
    assert all(blocks[low].max() <= blocks[high].min() for low, high in pairwise(parts))


@pytest.mark.parametrize("large", [1, 2, 5])
def test_a_part_has_the_swaps_that_a_verdict_needs(large: int) -> None:
    blocks = np.array([10] * 40 + [100_000] * large)
    assert all(len(part) >= MIN_PAIRS for part in parts_of(blocks))
    assert [part.tolist() for part in parts_of(np.array([7]))] == [[0]]
    assert [len(part) for part in parts_of(np.array([64] * 100))] == [100], "all of one size"
    assert parts_of(np.array([], dtype=np.int64)) == []


def test_the_choice_for_a_trace_is_the_fastest_for_its_swaps(tmp_path: Path) -> None:
    run = run_of(tmp_path, *replayed("merged", 52.0), *replayed("sm", 40.0), *replayed("batched", 5.0))
    answers = answers_of(shapes_of([run], lambda _: True))
    assert {answer.measured.shape.kind for answer in answers} == {(Direction.H2D, StreamState.IDLE)}
    assert len(answers) > 1
    for answer in answers:
        assert answer.choice.backend == "merged"
        assert answer.decided
        assert answer.measured.gbps_of(answer.choice) == pytest.approx(52.0, rel=0.01)
    (gain,) = (gain for gain in advice_of([run]).alone.gains if gain.over == "batched")
    assert list(gain.ratios) == pytest.approx([10.4] * len(answers), rel=0.01)
    assert answers[0].measured.shape.blocks < answers[-1].measured.shape.blocks
    assert origin_of([run]).workload_text == "the swaps of a trace: 400 loads and 900 stores"
    assert any(line.startswith("h2d alone: merged; ") for line in summary([run]))


def test_replays_of_different_swaps_are_refused(tmp_path: Path) -> None:
    other = {"trace": {**SPEC["trace"], "path": "/somewhere/day.gz", "sha256": "1" * 64}}
    runs = [
        run_of(tmp_path / name, *replayed(backend, 40.0), spec=spec)
        for name, backend, spec in (("one", "merged", SPEC), ("two", "sm", other))
    ]
    with pytest.raises(UsageError, match=r"different swaps, of day\.gz and hour\.gz; give runs of one trace and seed"):
        advice_of(runs)


def test_only_swaps_that_every_choice_made_count(tmp_path: Path) -> None:
    run = run_of(tmp_path, *replayed("merged", 52.0), *replayed("sm", 40.0)[:4])
    made = [sum(map(len, times)) for times in zip(*(one.arms.values() for one in swaps_of_trace([run])), strict=True)]
    assert made == [4 * 6] * 2


def test_a_swap_that_two_runs_replayed_has_the_mean_of_their_times(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / str(rate), *replayed("merged", rate), *replayed("sm", 30.0)) for rate in (40.0, 60.0)]
    for measured in swaps_of_trace(runs):
        assert measured.gbps_of(Choice("merged")) == pytest.approx(48, rel=0.01)
        assert measured.caller_us[Choice("merged")] == pytest.approx(0.3), "of the middle swap; each has 0.3 us"


def test_a_replay_whose_swaps_all_failed_leaves_nothing_to_choose(tmp_path: Path) -> None:
    replays = [replayed(name, 40.0) for name in ("merged", "sm")]
    failed = [synthetic.failure(visits[0].cell, kind="mismatch") for visits in replays]
    with pytest.raises(UsageError, match="nothing to choose from"):
        advice_of([run_of(tmp_path, *replays[0], *replays[1], *failed)])
    with pytest.raises(UsageError, match="nothing to choose from"):
        advice_of([run_of(tmp_path / "one", *replays[0])])
