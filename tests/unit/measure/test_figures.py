"""What a visit takes and records of its samples, field by field, by definition; no clock is read."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from kvbench.backends.base import Mechanism
from kvbench.cells.axes import Direction, Memory, Neighbour, Reuse, StreamState
from kvbench.cells.cell import Cell
from kvbench.engine.device import DIRECTIONS, STREAM_STATES, Swap
from kvbench.measure import roof, samples, visit
from kvbench.measure.bench import Bench
from kvbench.measure.disturbance import Clocks, Surroundings
from kvbench.measure.samples import BesideNeighbour, BesideStep, LayeredSwap, Sampler, Taken
from kvbench.measure.workload import VerificationError
from kvbench.results.schema import Beside, Disturbance, Samples, Visit
from kvbench.run.protocol import InTurn, MeasureCells
from kvbench.sweep.spec import BUSY_TWINS, CHAIN, LEAD, Sampling

CELL = Cell("cheat", Direction.H2D, 16, 4096)
BUSY, LAYERS = replace(CELL, stream_state=StreamState.BUSY), replace(CELL, sequence="layers-4")
HOST_CLOCK = [
    replace(CELL, pause_us=50), replace(CELL, pause_us=50, stream_state=StreamState.OPENED),
    replace(LAYERS, pause_us=50), replace(CELL, neighbour=Neighbour.IDLE),
]  # fmt: skip
CELLS = [
    *(replace(CELL, stream_state=state) for state in StreamState), replace(BUSY, queued=64, streams=3),
    replace(BUSY, pause_us=50), replace(BUSY, pause_us=50, sequence="layers-4"), *HOST_CLOCK,
    LAYERS, replace(LAYERS, neighbour=Neighbour.IDLE),
]  # fmt: skip
TIMES = ("caller_us", "wall_us", "cpu_us", "event_us", "chain_us", "first_layer_us", "slowest_gap_us")
FLAGS = ("pending_before", "pending_after", "depth_held")
every_cell = pytest.mark.parametrize("cell", CELLS, ids=lambda one: f"{one.stream_state} {one.id}")


def drawn(seed: int) -> Any:
    """Return a sample at random."""
    rng = np.random.default_rng(seed)
    values = [*rng.uniform(1, 900, len(TIMES)).tolist(), *(rng.random(len(FLAGS)) < 0.6).tolist()]
    return SimpleNamespace(**dict(zip((*TIMES, *FLAGS), values, strict=True)))


def kept_of(cell: Cell) -> list[str]:
    """Return the columns that are of this cell's samples."""
    kept = ["caller_us", "wall_us", "cpu_us", "pending_before", "pending_after"]
    kept += ["event_us"] * (cell not in HOST_CLOCK) + ["chain_us"] * (cell.stream_state is StreamState.SUSTAINED)
    return kept + ["depth_held"] * (cell.queued > 0) + ["first_layer_us", "slowest_gap_us"] * (cell.layers > 0)


def warnings_of(cell: Cell, taken: Sequence[Any]) -> list[str]:
    state = cell.stream_state
    if state is StreamState.SUSTAINED:
        slope, mean = (median(getattr(one, name) for one in taken) for name in ("event_us", "chain_us"))
        text = f"one more swap takes {slope:.1f} us, less than half of {mean:.1f} us, the mean of its chain"
        return [text] * (2 * slope < mean)
    strayed = sum(one.pending_before != (state in (StreamState.BUSY, StreamState.GATED)) for one in taken)
    why = "the queued swaps had already run" if cell.queued else "busy_delay_us too short?"
    return [f"the stream was not {state} in {strayed} of {len(taken)} samples ({why})"] * (strayed > 0)


@every_cell
@pytest.mark.parametrize("seed", range(4))
def test_a_record_has_what_was_taken(monkeypatch: pytest.MonkeyPatch, cell: Cell, seed: int) -> None:
    monkeypatch.setattr(visit, "disturbances", seen := mock.Mock(return_value=[Disturbance.STEP]))
    every, alone, both = [drawn(9 * seed + number) for number in range(9)], [1.0] * (seed % 2), [2.0] * (seed // 2)
    beside = Beside(neighbour_alone_us=alone, neighbour_beside_us=both, dry=3 * seed) if seed else None
    short = ["a turn without a whole iteration of the neighbour (cell_seconds too short?)"] * (seed in (1, 2))
    short += [f"the neighbour's stream ran out of work {3 * seed} times"] * (seed > 0)
    taken = Taken(every, "time", beside, {"swap_blocks": [*range(9)]}, 17, ["odd"], first_alike=seed)
    around = Surroundings(5, (3.0, 2.0), [1.1, 1.4], Clocks(1980, ("cap",)), 0.25)
    prepared = mock.Mock(mechanism=Mechanism.SM_KERNEL, chosen="sm", pace_gbps=46.0, warnings=["slow"])
    cells = [CELL.as_strings(), cell.as_strings()]
    request = MeasureCells(cells=cells, group="g", round=4, attempt=2, seed=1, sampling=Sampling())
    sampler: Any = mock.Mock(cell=cell, prepared=prepared)
    made = visit._record(request, 1, sampler, visit.Sampled(taken, 7, 33.0, around), 99)
    columns = {name: [getattr(one, name) for one in every] for name in kept_of(cell)}
    assert made == Visit(
        cell_text=cells[1], group="g", round=4, attempt=2, stopped_by="time", path="SM kernel", calls=7,
        samples=Samples(**columns, swap_blocks=[*range(9)]), verified_bytes=99, busy_cpu_us=33.0, cpu=5,
        probe_us=3.0, slowdown=1.4, sm_clock_mhz=1980, clock_limits=["cap"], disturbed=[Disturbance.STEP], chosen="sm",
        pace_gbps=46.0, warnings=[*warnings_of(cell, every), *short, "slow", "odd"], beside=beside,
    )  # fmt: skip
    clock, pending = "wall_us" if cell in HOST_CLOCK else "event_us", cell.stream_state.pending
    held = [getattr(one, clock) for one in every[seed:] if one.pending_after or not pending]
    seen.assert_called_once_with(around, held)


@every_cell
def test_a_sample_is_taken_in_the_state_of_its_cell(monkeypatch: pytest.MonkeyPatch, cell: Cell) -> None:
    """On the lists that come next, which are staged before; a chain with the next object first each time."""
    monkeypatch.setattr(samples, "Queue", lambda *given: given)
    state, callers_us, events = cell.stream_state, [3.0, 900.0, 40.0, 2.0], list[str]()
    swaps = [mock.Mock(spec=LayeredSwap if cell.layers else ["submit"]) for _ in range(CHAIN)]
    prepared = [mock.Mock(swap=swap, stage=lambda: events.append("stage")) for swap in swaps]
    workload = mock.Mock(watching=False, advance=lambda *slots: events.append(f"advance {slots}"))
    sampler = Sampler(bench := mock.Mock(), cell, workload, prepared)
    sampler.take_busy = lambda: mock.Mock(caller_us=callers_us.pop(0))  # type: ignore[method-assign]
    take = sampler.taker()
    if state is StreamState.SUSTAINED:
        for at in (*range(CHAIN), 0):
            assert take() is bench.region.sustained_python.return_value
            assert bench.region.sustained_python.call_args.args == (
                [one.submit for one in (*swaps[at:], *swaps[:at])], LEAD)  # fmt: skip
        assert events == [f"advance ({CHAIN},)"] * (CHAIN + 1)
        return
    taken, sample = take(), bench.region.measure_python.return_value
    assert events == ["advance ()", "stage"]
    if cell.layers:
        swaps[0].timed.assert_called_once_with(sample, "wall_us" if cell in HOST_CLOCK else "event_us")
    assert taken is (swaps[0].timed.return_value if cell.layers else sample)
    ((submit, as_state, queue, work),) = [call.args for call in bench.region.measure_python.call_args_list]
    assert (submit, as_state, work is not None) == (swaps[0].submit, STREAM_STATES[state], cell.pause_us > 0)
    delay_us = min(2 * max(1, cell.queued) * 900 + 1000, 100_000)
    assert queue == ((cell.queued, cell.streams, delay_us * 1000) if state.pending else ())
    assert len(callers_us) == 4 - BUSY_TWINS * state.pending


@pytest.mark.parametrize("state", [state for state in StreamState if state is not StreamState.SUSTAINED])
@pytest.mark.parametrize(("moved", "pending"), [(False, True), (True, False), (True, True)])
def test_what_a_watched_swap_moved_counts_while_the_work_before_it_runs(
    state: StreamState, *, moved: bool, pending: bool
) -> None:
    sample = mock.Mock(pending_after=pending)
    bench, workload = mock.Mock(), mock.Mock(watching=True, moved=lambda: moved)
    bench.region.measure_python = lambda submit, *_: (submit(9), sample)[1]
    sampler = Sampler(bench, replace(CELL, stream_state=state), workload, [mock.Mock(swap=mock.Mock(spec=["submit"]))])
    early = moved and pending and state.pending
    with pytest.raises(VerificationError, match="not ordered") if early else nullcontext():
        assert sampler.take(state) is sample


def test_a_visit_looks_at_the_machine_before_and_behind_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visit, "_busy_cpu_us", lambda _: 33.0)
    bench, arms, around = mock.MagicMock(), mock.MagicMock(samplers=[mock.Mock(threads={5, 6})]), mock.Mock()
    bench.cpu.held.return_value.__enter__.return_value, bench.cpu.probe_us.return_value = (3, 100.0), 180.0
    bench.cpu.slowdown, bench.threads.watch.return_value = lambda us: us / 90, lambda: 0.25
    arms.take_all.return_value, arms.turn.return_value = [around], [0]
    request = MeasureCells(cells=[], round=0, seed=1, sampling=Sampling(), in_turn=InTurn(verify=True, cpu=3))
    (made,) = visit._sample(bench, arms, request, None)
    surroundings = Surroundings(3, (100.0, 180.0), [100 / 90, 2.0], bench.clocks.read.return_value, 0.25)
    assert made == visit.Sampled(around, arms.samplers[0].prepared.swap.calls, 33.0, surroundings)
    bench.cpu.held.assert_called_once_with(3)
    bench.threads.watch.assert_called_once_with({5, 6})


@pytest.mark.parametrize("state", StreamState)
@pytest.mark.parametrize(("kind", "delay_us"), [("cuda", 5000), ("cpu", 20_000)])
@pytest.mark.parametrize(("looks", "early"), [("-.-.+", False), ("-!++", False), ("-.-!-", True)])
def test_an_order_is_checked_behind_work_of_the_stream_or_of_one_that_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, state: StreamState, kind: str, delay_us: int, looks: str, early: bool
) -> None:
    """Looks: - the work is not over, + it is, . nothing has arrived, ! bytes have, which counts if it is not over."""
    calls, call = mock.Mock(), mock.call
    monkeypatch.setattr(visit, "Event", lambda _: calls.work)
    monkeypatch.setattr(visit, "Stream", lambda _: mock.Mock(handle="other"))
    calls.work.completed.side_effect = [look == "+" for look in looks if look in "+-"]
    calls.workload.arrived_early.side_effect = [look == "!" for look in looks if look in ".!"]
    calls.bench.device.kind, calls.bench.stream.handle = kind, "own"
    before = "other" if state is StreamState.GATED else "own"
    cell: Any = replace(CELL, stream_state=state)
    sampler: Any = mock.Mock(cell=cell, bench=calls.bench, workload=calls.workload, prepared=calls.prepared)
    with pytest.raises(VerificationError, match="not ordered") if early else nullcontext():
        visit._check_order(sampler, 300.25)
    assert calls.mock_calls == [
        call.workload.advance(), call.prepared.stage(),
        call.bench.device.driver.delay(1000 * delay_us + 600_500, before),
        call.work.record(before), call.work.hold("own"), call.prepared.swap.submit("own"),
        *(call.work.completed() if look in "+-" else call.workload.arrived_early() for look in looks),
        call.bench.stream.synchronize(), call.workload.verify(),
    ]  # fmt: skip


def test_the_rounds_of_a_check_differ_from_cell_to_cell() -> None:
    """And from seed to seed, and from check to check."""

    def round_of(seed: int, blocks: int, check: str) -> int:
        asked = [MeasureCells(cells=[], round=number, seed=seed, sampling=Sampling()) for number in range(6)]
        (one,) = (one.round for one in asked if visit._is_chosen(one, replace(CELL, blocks=blocks), check, 6))
        return one

    assert {round_of(1, number, "row") for number in range(1, 60)} == {*range(6)}
    assert {round_of(number, 1, "row") for number in range(60)} == {*range(6)}
    assert {round_of(1, 1, f"{number}") for number in range(60)} == {*range(6)}


def test_a_cell_is_sampled_beside_its_neighbour_if_it_copies() -> None:
    idle, decode = ({"neighbour": neighbour} for neighbour in (Neighbour.IDLE, Neighbour.DECODE))
    for cell, kind in (
        (CELL, Sampler), (LAYERS, Sampler), (replace(CELL, **idle), BesideNeighbour),
        (replace(CELL, **decode), BesideNeighbour), (replace(LAYERS, **decode), BesideStep),
    ):  # fmt: skip
        for mechanism in Mechanism:
            made = samples._sampler(mock.Mock(), mock.Mock(), cell, mock.Mock(), [mock.Mock(mechanism=mechanism)])
            copies = mechanism is not Mechanism.NOTHING
            assert (type(made), made.copies, made.endless) == (kind if copies else Sampler, copies, False)


def test_devices_meet_behind_their_warm_ups() -> None:
    sampler: Any = Sampler(mock.Mock(), CELL, mock.Mock(), [mock.Mock()])
    sampler.taker, events = lambda: lambda: events.append("swap"), list[str]()
    sampler._collect = lambda *_: events.append("samples")
    sampler.take_all(Sampling(warmups=2), lambda: events.append("meet"))
    assert events == ["swap", "swap", "meet", "samples"]


@pytest.mark.parametrize(("blocks", "cpu_us"), [(visit.LONG_CALL_BLOCKS - 1, 30.0), (visit.LONG_CALL_BLOCKS, 10.0)])
def test_the_twins_of_a_batched_copy_are_told_by_the_median_of_some(blocks: int, cpu_us: float) -> None:
    cell, prepared = replace(CELL, blocks=blocks), mock.Mock(mechanism=Mechanism.BATCHED_COPY, same_when_busy=True)
    of_kernel = mock.Mock(mechanism=Mechanism.SM_KERNEL, same_when_busy=True)
    otherwise = mock.Mock(mechanism=Mechanism.BATCHED_COPY, same_when_busy=False)
    for one, by, wanted in (
        (cell, prepared, cpu_us), (replace(cell, stream_state=StreamState.OPENED), prepared, cpu_us),
        (BUSY, prepared, None), (cell, of_kernel, None), (cell, otherwise, None),
    ):  # fmt: skip
        take_busy = mock.Mock(side_effect=[mock.Mock(cpu_us=us) for us in (10.0, 90.0, 30.0)])
        assert visit._busy_cpu_us(mock.Mock(cell=one, prepared=by, take_busy=take_busy)) == wanted


@pytest.mark.parametrize("in_turn", [None, InTurn(verify=True), InTurn(verify=False)])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_visit_makes_its_checks_of_each_arm_that_copies(
    monkeypatch: pytest.MonkeyPatch, in_turn: InTurn | None, number: int
) -> None:
    """Two arms, of which the second copies nothing; the order is checked again in round 2."""
    arms, bench, call = mock.MagicMock(), mock.Mock(), mock.call
    copies, empty = arms.samplers = [mock.MagicMock(copies=True), mock.MagicMock(copies=False)]
    arms.turn = lambda: iter(range(2))
    sample = mock.Mock(caller_us=300.0, event_us=5.0)
    taken = [mock.Mock(taken=Taken([mock.Mock(event_us=9.0), sample], "time", verified_bytes=at, first_alike=1))
             for at in (100, 200)]  # fmt: skip
    checks = {"_check_before": 1, "_sample": taken, "_check_sampled": 2, "_check_in_a_row": 4, "_check_order": None}
    made = {name: mock.Mock(return_value=value) for name, value in checks.items()}
    made |= {"_check_speed": mock.Mock(), "_clocks": mock.Mock(return_value=["event_us"]), "_record": mock.Mock()}
    for name, function in made.items():
        monkeypatch.setattr(visit, name, function)
    monkeypatch.setattr(visit, "_is_chosen", lambda asked, _, what, rounds: (what, asked.round) == ("order", rounds))
    request = MeasureCells(cells=[], round=number, seed=1, sampling=Sampling(rounds=3), in_turn=in_turn)
    assert visit.visit(bench, arms, request) == [made["_record"].return_value] * 2
    verifies = in_turn is None or in_turn.verify
    checked = [call(copies, request, verifies=verifies), call(empty, request, verifies=False)]
    assert made["_check_before"].mock_calls == checked
    assert made["_check_sampled"].mock_calls == [call(copies)] * verifies
    assert made["_check_in_a_row"].mock_calls == [call(copies, request)] * verifies
    assert made["_check_order"].mock_calls == [call(copies, 300.0)] * (verifies and number == 2)
    assert made["_check_speed"].mock_calls == [call(bench, copies.cell, [5.0])]
    verified = [1 + 2 * verifies + 100 + 4 * verifies, 1 + 200]
    assert made["_record"].mock_calls == [
        call(request, at, arms.samplers[at], taken[at], verified[at]) for at in range(2)
    ]
    assert [one.workload.leave.called for one in (copies, empty)] == [not verifies, True]
    assert bench.mock_calls == [call.pools.rest()] * verifies + [call.device.arm(None)]
    assert [one.workload.guarded for one in arms.samplers] == [verifies, False]


@pytest.mark.parametrize(("blocks", "swaps"), [(16, 20), (1 << 17, 16), (1 << 18, 8), (1 << 20, 4)])
@pytest.mark.parametrize("why_not", ["", "enough sets", "nothing twice", "a later round"])
def test_a_row_of_swaps_is_watched_and_compared(
    monkeypatch: pytest.MonkeyPatch, why_not: str, blocks: int, swaps: int
) -> None:
    pool_bytes, number, sampling = blocks << 16, 5 if why_not == "a later round" else 0, Sampling(rounds=1)
    cell = replace(CELL, blocks=blocks, pool_bytes=pool_bytes * (blocks == 16))
    monkeypatch.setattr(visit, "lay_out", asked := mock.Mock(return_value=[None] * 3))
    workload = mock.MagicMock(sets=19 + (why_not == "enough sets"), overwrote=why_not != "nothing twice")
    request = MeasureCells(cells=[], round=number, seed=1, sampling=sampling)
    sampler = mock.Mock(cell=cell, workload=workload)
    sampler.bench.pools.pool_bytes, workload.verify.return_value, made = pool_bytes, 7, swaps * (not why_not)
    assert visit._check_in_a_row(sampler, request) == 7 * -(-made // 3)
    assert workload.watch.mock_calls == [mock.call(sampler.take_idle)] * made
    fresh = replace(cell, reuse=Reuse.FRESH, pool_bytes=pool_bytes)
    assert [call.args[:2] for call in asked.mock_calls] == [(fresh, swaps)] * (not why_not)
    assert visit._is_chosen(request, cell, "order", sampling.rounds - 1)


@pytest.mark.parametrize(("pool_bytes", "most"), [(5000, 1 << 40), (1 << 40, 5000)])
def test_large_copies_are_timed_behind_warm_ups_and_put_back(
    monkeypatch: pytest.MonkeyPatch, pool_bytes: int, most: int
) -> None:
    monkeypatch.setattr(roof, "per_block", per_block := mock.Mock())
    bench: Any = Bench(*(mock.Mock() for _ in range(6)))
    bench.device.kind, bench.pools.pool_bytes, bench.pools.large_copy.return_value = "cuda", pool_bytes, ("a", "b", "c")
    bench.region.measure.side_effect = [SimpleNamespace(event_us=us) for us in (9.0, 2.0, 5.0, 4.0, 6.0)]
    assert roof.measure_ceiling(bench, Direction.D2H, 3, most) == (5000, [5.0, 4.0, 6.0])
    bench.note_best(Direction.D2H, 5000, 3.0)
    assert bench.best_gbps == {Direction.D2H: pytest.approx(2.5)}
    per_block.assert_called_once_with(bench.device.driver, "a", "b", "c", DIRECTIONS[Direction.D2H])
    bench.pools.large_copy.assert_called_once_with(Direction.D2H, 5000)
    bench.pools.put_back.assert_called_once_with(Direction.D2H, Memory.ALLOCATED, np.zeros(1), "c")


# Microseconds of each block, by kernel and size, 0 for dense ones: lanes are faster with large or dense blocks.
BLOCK_US = {"lanes": {0: 0.1, 512: 0.4, 65536: 1.0}, "bulk": {0: 0.2, 512: 0.3, 65536: 1.5}}


@pytest.mark.parametrize(("compute", "kernel"), [((9, 0), "bulk"), ((8, 9), "lanes")])
def test_a_roof_is_the_slope_of_the_faster_kernel(
    monkeypatch: pytest.MonkeyPatch, compute: tuple[int, int], kernel: str
) -> None:
    """And dense blocks are copied by the kernel of the scattered ones."""
    cells: list[Cell] = []

    def prepared(shape: Any, cell: Cell) -> mock.Mock:
        cells.append(cell)
        us = cell.blocks * BLOCK_US[shape.method][cell.block_bytes if cell.pool_bytes else 0]
        swap = mock.Mock(spec=Swap)
        swap.times = [1e9, *(50.0 + number + us * (number + 1) for number in range(3))]  # a warm-up first
        return mock.Mock(swap=swap)

    monkeypatch.setattr(roof, "_backend", lambda shape: mock.Mock(create=lambda asked: prepared(shape, asked.cell)))
    monkeypatch.setattr(roof, "Workload", workloads := mock.MagicMock())
    monkeypatch.setattr(roof, "_sets", mock.MagicMock())
    few, many, rounds = 6144 - 1024, 196_608 - 32_768, np.arange(1, 4)
    bench: Any = Bench(*(mock.Mock() for _ in range(6)))
    busy = (STREAM_STATES[StreamState.BUSY], roof._DELAY)
    bench.pools.pool_bytes = 16 << 30
    bench.region.measure = lambda swap, *how: mock.Mock(event_us=swap.times.pop(0) if how == busy else 0.0)
    bench.device.driver.info = mock.Mock(sm_count=132, compute_major=compute[0], compute_minor=compute[1])
    made = roof.measure_roof(bench, Direction.D2H, 3, 4)
    assert workloads.return_value.verify.call_count == len(cells)
    assert (made.direction, made.round, made.pool_bytes, made.copy_bytes) == ("d2h", 4, 16 << 30, few * 65536)
    assert (made.blocks, made.block_bytes) == (many, 512)
    assert made.copy_us == pytest.approx(few * rounds)
    assert made.scattered_us == pytest.approx(many * BLOCK_US[kernel][512] * rounds)
    assert made.dense_us == pytest.approx(many * BLOCK_US[kernel][0] * rounds)
    assert bench.best_gbps == {Direction.D2H: pytest.approx(65536 / 2e3)}
    assert {(cell.sms, cell.block_bytes, cell.stream_state) for cell in cells} == {
        (16, 65536, StreamState.BUSY), (132, 512, StreamState.BUSY)}  # fmt: skip
    monkeypatch.setattr(roof, "_times", lambda _, cell, *__: [5.0, 1.0] if cell.blocks == 2 else [3.0, 9.0])
    assert roof._slope(bench, CELL, mock.Mock(), (2, 8), 2) == [0.0, 8.0]  # a time is never negative
