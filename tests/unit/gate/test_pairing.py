"""Two sides measured in turn: what a side is, which cells belong together, what spoils a pair."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np
import pytest

from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import Cell
from kvbench.gate.judgement import GateVerdict
from kvbench.gate.pairs import VISIT, Pairs, about_backends, pair, partners, values_of
from kvbench.gate.side_by_side import half_of_memory, parse_side
from kvbench.ground.errors import UsageError
from kvbench.results import SCHEMA, Control, Record, Run, Visit
from kvbench.results.schema import Disturbance, EffectivePath, Samples
from kvbench.run.protocol import VERSION, Reserve
from kvbench.sweep.checks import usable_bytes
from kvbench.sweep.spec import Limits
from tests import synthetic
from tests.refusals import refused_with
from tests.unit.gate.gated import judge_runs, made

CELLS = [Cell("batched", direction, 64, size, overlap=False) for direction in Direction for size in (4096, 16384)]
SAME = {cell: cell for cell in CELLS}


def usual(cells: Sequence[Cell] = tuple(CELLS), rounds: int = 1) -> list[Visit]:
    return [synthetic.visit(cell, 1000.0, round_=number) for cell in cells for number in range(rounds)]


def by_the_cpu(visits: Sequence[Visit]) -> list[Visit]:
    return [msgspec.structs.replace(visit, path=EffectivePath.CPU_INLINE) for visit in visits]


def paired(base: Sequence[Record], cand: Sequence[Record], names: Mapping[Cell, Cell] | None = None) -> Pairs:
    return pair(made(0, base), made(1, cand), names or SAME)


def environment(folder: Path, answer: str) -> Path:
    """Make what stands in for an environment's python and says `answer` of its kvbench."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "said").write_text(answer)
    python = folder / "python"
    python.write_text(f"#!/bin/sh\ncat {folder}/said\n")
    python.chmod(0o755)
    return python


BUILD = {"version": "9", "package": "p", "schema": SCHEMA, "protocol": VERSION}


def test_an_environment_is_given_as_a_folder_or_as_its_python(tmp_path: Path) -> None:
    python = environment(tmp_path / "env" / "bin", json.dumps(BUILD))
    link = tmp_path / "link" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(python)
    for path in (tmp_path / "link", link):
        side = parse_side("--base", f"env:{path}")
        # Not what the link leads to: an environment is known by the path of its python.
        assert side.interpreter.python == str(link)
        assert side.backend is None


@pytest.mark.parametrize(("text", "backend"), [("here", None), ("backend:mine", "mine")])
def test_a_backend_runs_in_this_environment(text: str, backend: str | None) -> None:
    side = parse_side("--cand", text)
    assert (side.interpreter.python, side.backend) == (sys.executable, backend)


@pytest.mark.parametrize("text", ["", "env:", "backend:", "there", "env", "git:main", "env:/nowhere/at/all", ":x"])
def test_an_invalid_side_is_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(UsageError, match=r"--cand .*write env:PATH .*, backend:NAME, or here"):
        parse_side("--cand", text)


def test_another_environment_does_not_see_packages_of_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    side = parse_side("--base", f"env:{environment(tmp_path, json.dumps(BUILD))}")
    assert side.interpreter.environment is not None
    assert "PYTHONPATH" not in side.interpreter.environment
    assert parse_side("--base", "here").interpreter.environment is None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (json.dumps(BUILD | {"schema": 99}), f"has schema 99 and protocol {VERSION}, this one"),
        (json.dumps(BUILD | {"protocol": 1}), "protocol 1, this one"),
        ("kvbench 9", "its kvbench gave an invalid answer"),
        ('{"version": "\x1b[31m"}', "its kvbench gave an invalid answer"),
    ],
)
def test_an_environment_with_an_incompatible_kvbench_is_refused(tmp_path: Path, answer: str, message: str) -> None:
    with refused_with(message):
        parse_side("--base", f"env:{environment(tmp_path, answer)}")


def test_an_axis_that_one_backend_does_not_support_is_ignored_in_pairing() -> None:
    theirs = [replace(cell, backend="mine", overlap=None, sms=4) for cell in CELLS]
    assert partners(CELLS, theirs) == dict(zip(CELLS, theirs, strict=True))
    assert partners(CELLS, theirs[1:]) == dict(zip(CELLS[1:], theirs[1:], strict=True)), "one cell has none"
    more = [*theirs, replace(theirs[0], sms=8)]
    with pytest.raises(UsageError, match=r"sms=4 and .* sms=8 differ only in an axis that .* not support"):
        partners(CELLS, more)


def test_runs_of_two_backends_are_judged_cell_by_cell() -> None:
    theirs = [replace(cell, backend="mine", overlap=None) for cell in CELLS]
    base = [synthetic.visit(cell, 1000.0, noise=0) for cell in CELLS]
    cand = [synthetic.visit(cell, 2000.0, noise=0) for cell in theirs]
    pairs = paired(base, cand, partners(CELLS, theirs))
    assert set(pairs.cells) == set(CELLS)
    assert pairs.visits["fast_us"][0] == pytest.approx(np.full((4, 1), 1000.0))
    assert pairs.visits["fast_us"][1] == pytest.approx(np.full((4, 1), 2000.0))
    assert not pairs.failed
    assert "batched (base) and mine (candidate)" in about_backends(CELLS, theirs)[0]
    assert about_backends(CELLS, CELLS) == []


@pytest.mark.parametrize(("state", "clock"), [(StreamState.IDLE, "wall_us"), (StreamState.SUSTAINED, "event_us")])
def test_a_visit_has_its_lower_tenth_its_upper_quartile_and_its_callers_time(state: StreamState, clock: str) -> None:
    times = [100.0, 110.0, 120.0, 130.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 5000.0]
    made = synthetic.visit(replace(CELLS[0], stream_state=state), 90.0, count=len(times), noise=0)
    visit = synthetic.with_samples(made, {"caller_us": [us / 2 for us in times], clock: times})
    values = dict(zip(VISIT.names or (), values_of(visit), strict=True))
    assert (values["fast_us"], values["upper_us"], values["caller_us"]) == (110.0, 550.0, 55.0)


def test_runs_of_the_same_backends_are_paired_cell_by_cell() -> None:
    several = [*CELLS, replace(CELLS[0], backend="mine")]
    names = {cell: cell for cell in several}
    assert paired(usual(several), usual(), names).failed == {several[-1]: "cand: missing"}
    assert paired(usual(), usual(several), names).failed == {several[-1]: "base: missing"}
    assert not paired(usual(), usual(), names).failed


def test_copies_by_the_cpu_on_one_side_have_no_margin_of_both() -> None:
    by_cpu = by_the_cpu(usual())
    assert not paired(by_cpu, usual()).inline
    assert not paired(usual(), by_cpu).inline
    assert paired(by_cpu, by_cpu).inline == {*CELLS}


def test_the_path_of_a_cell_is_that_of_most_of_its_visits() -> None:
    visits = usual(rounds=6)
    assert paired(visits, [*by_the_cpu(visits[:1]), *visits[1:]]).paths == {}
    assert {*paired(visits, by_the_cpu(visits)).paths.values()} == {"path: copy engine -> CPU inline"}


def test_the_caller_of_a_cell_that_the_cpu_copies_is_not_judged_beside_it() -> None:
    """The copy is the call: one row says it."""
    visits = usual()
    for visit in visits:
        visit.samples.caller_us[:] = [0.9 * us for us in visit.samples.wall_us]
    for records, judged in ((visits, True), (by_the_cpu(visits), False)):
        assert np.isfinite(paired(records, records).visits["caller_us"]).any() == judged


def test_a_swap_behind_pending_work_judges_no_caller() -> None:
    busy = synthetic.visit(replace(CELLS[0], stream_state=StreamState.BUSY), 1000.0)
    values = dict(zip(VISIT.names or (), values_of(busy), strict=True))
    assert np.isnan(values["caller_us"])
    assert np.isfinite(values["fast_us"])


def test_a_cell_that_both_sides_skipped_is_not_measured_and_did_not_fail() -> None:
    records = [synthetic.skip(CELLS[0]), *usual(CELLS[1:])]
    pairs = paired(records, records)
    assert (pairs.unmeasured, pairs.failed) == ({CELLS[0]}, {})
    assert paired(usual(), records).failed == {CELLS[0]: "cand: skipped: does not fit in memory"}


def test_a_large_copy_that_took_no_time_is_none() -> None:
    copies = [Control(direction="h2d", round=number, copy_bytes=1 << 20, event_us=[100.0]) for number in range(6)]
    lost = [msgspec.structs.replace(copies[0], event_us=[0.0]), *copies[1:]]
    visits = usual(CELLS[:1], rounds=6)
    logs = paired([*visits, *copies], [*visits, *lost], {CELLS[0]: CELLS[0]}).controls["h2d"]
    assert np.isnan(logs[0])
    assert logs[1:].tolist() == [0.0] * 5


def test_a_cell_of_which_no_byte_was_verified_failed() -> None:
    unverified = [msgspec.structs.replace(usual()[0], verified_bytes=0), *usual()[1:]]
    assert paired(usual(), unverified).failed == {CELLS[0]: "cand: failed: no bytes were verified"}


def in_turn(
    changes: Callable[[int, Visit], dict[str, object]], share: Callable[[int, Cell], float], count: int = 6
) -> list[Run]:
    """Two sides visited in turn, with `changes` to visits, whose submissions take a `share` of their times."""
    calm: dict[str, object] = {"probe_us": 300.0, "sm_clock_mhz": 1980}
    runs = []
    for side in (0, 1):
        visits = [visit for number in range(count) for visit in synthetic.visits(CELLS, count=5, round_=number)]
        for visit in visits:
            visit.samples.caller_us[:] = [share(side, visit.cell) * us for us in visit.samples.wall_us]
        runs.append(made(side, [msgspec.structs.replace(one, **{**calm, **changes(side, one)}) for one in visits]))
    return runs


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        (lambda _: {"disturbed": [Disturbance.LIMITED_CLOCKS]}, "disturbed visit"),
        (lambda _: {"disturbed": [Disturbance.SLOW_CPU], "slowdown": 3.1}, "disturbed visit"),
        (lambda made: {"probe_us": 360.0, "samples": slower(made.samples)}, "CPU"),
        (lambda _: {"sm_clock_mhz": 1500}, "clock"),
    ],
)
def test_a_pair_that_was_spoiled_on_one_side_does_not_count(
    changes: Callable[[Visit], dict[str, object]], cause: str
) -> None:
    def changed(side: int, made: Visit) -> dict[str, object]:
        return changes(made) if (side, made.round, made.cell) == (1, 3, CELLS[0]) else {}

    base, cand = in_turn(changed, lambda _side, _cell: 0.5)
    pairs = pair(base, cand, SAME)
    assert pairs.disturbed == {cause: 1}
    index = list(pairs.cells).index(CELLS[0])
    assert np.argwhere(np.isnan(pairs.visits["fast_us"][0])).tolist() == [[index, 3]]


def test_what_spoiled_a_pair_does_not_move_the_control_of_the_cpu() -> None:
    """Another guest lengthens the probe of two visits that it disturbs: no CPU became slower."""

    def changed(side: int, made: Visit) -> dict[str, object]:
        hit = (side, made.round) == (1, 3)
        return {"probe_us": 600.0, "disturbed": [Disturbance.LIMITED_CLOCKS]} if hit else {}

    (of_cpu,) = (logs for name, logs in pair(*in_turn(changed, lambda *_: 0.1), SAME).controls.items())
    assert np.isnan(of_cpu[3])
    assert of_cpu[[0, 1, 2, 4, 5]].tolist() == [0.0] * 5


def test_a_slow_cpu_does_not_spoil_copies_by_the_gpu() -> None:
    slow = {"disturbed": [Disturbance.SLOW_CPU], "slowdown": 2.9}
    runs = in_turn(lambda side, made: slow if (side, made.round) == (1, 3) else {}, lambda _side, _cell: 0.1)
    assert pair(*runs, SAME).disturbed == {}


def slower(samples: Samples) -> Samples:
    """Return the samples with submissions that take longer by a fifth."""
    return msgspec.structs.replace(samples, caller_us=[1.2 * us for us in samples.caller_us])


def test_processes_count_only_when_both_sides_have_new_ones() -> None:
    def process(side: int, made: Visit) -> dict[str, object]:
        return {"process": 1 + (made.round >= (2 if side == 0 else 4))}

    base, cand = in_turn(process, lambda _side, _cell: 0.1)
    assert pair(base, cand, SAME).processes == pytest.approx([0, 0, 0, 0, 1, 1])


def test_a_slower_submission_is_detected_even_if_the_swap_takes_as_long() -> None:
    def share(side: int, cell: Cell) -> float:
        return 0.2 if cell == CELLS[1] else 0.60 + 0.06 * side * (cell == CELLS[0])

    base, cand = in_turn(lambda _side, _visit: {}, share, count=24)
    judgement = judge_runs(base, cand)
    assert {row.verdict for row in judgement.rows if row.kind == "cell"} == {GateVerdict.SAME}
    submissions = {row.cells[0]: row.verdict for row in judgement.rows if row.kind == "caller_us"}
    assert submissions.pop(CELLS[0]) is GateVerdict.SLOWER
    assert CELLS[1] not in submissions
    assert {*submissions.values()} == {GateVerdict.SAME}


def test_two_sides_share_the_memory_of_one_sweep() -> None:
    opened = mock.Mock()
    opened.device.host_free_bytes, opened.device.device_free_bytes = 1000, 600
    assert half_of_memory(Limits(), opened) == Limits(usable_bytes(None, 1000) // 2, usable_bytes(None, 600) // 2)
    assert half_of_memory(Limits(200, 10_000), opened) == Limits(100, 300)


def test_a_build_without_a_newer_field_understands_a_gate_that_does_not_ask_for_it() -> None:
    """The fields of protocol 9 when it was new; who makes another one required raises the version."""
    asked = Reserve(pool_bytes=1, host_pools=1, backends=["sm"], busy_delay_us=1, policy=None)
    fields = {"type", "pool_bytes", "host_pools", "backends", "busy_delay_us", "policy"}
    assert (VERSION, msgspec.to_builtins(asked).keys()) == (9, fields)
