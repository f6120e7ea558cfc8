"""Runs drawn at random: every outcome and every figure of the table, against what their records say by definition."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields, replace
from itertools import product
from math import inf, log, nan
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec
import numpy as np
import pytest

import kvbench
from kvbench.analysis.compare import grouped_outliers, log_ratio, median_interval, paired_interval
from kvbench.analysis.margins import MIN_P90, MIN_P99
from kvbench.cells.axes import Direction, Neighbour, Order, StreamState
from kvbench.cells.cell import Cell
from kvbench.results.attempts import Ceilings
from kvbench.results.columns import NO_FIGURE, TIMES
from kvbench.results.outcomes import CHAIN_TIME, LAYER_TIMES, Cost, Outcome, cost_of
from kvbench.results.schema import Beside, Ceiling, Disturbance, EffectivePath, Failure, Record, Samples, Skip, Visit
from tests import synthetic
from tests.synthetic import visit, with_samples, write_run

CELL = Cell("batched", Direction.H2D, 1000, 16 << 10)
BUSY = replace(CELL, stream_state=StreamState.BUSY)
AFTER_A_PAUSE, BESIDE = replace(CELL, pause_us=2000), replace(CELL, neighbour=Neighbour.PREFILL)
BESIDE_DECODE = replace(CELL, neighbour=Neighbour.DECODE)
IN_TURN = [replace(CELL, backend="sm", sms=sms) for sms in (4, 8)]
TRACE, LAYERS = replace(CELL, sequence="trace"), replace(CELL, sequence="layers-4")
ALONE = [
    *(replace(CELL, stream_state=state) for state in StreamState), replace(CELL, direction=Direction.D2H),
    replace(CELL, direction=Direction.D2H, order=Order.ANY), replace(BUSY, queued=64), replace(BUSY, pause_us=2000),
    AFTER_A_PAUSE, BESIDE, BESIDE_DECODE, TRACE, LAYERS, replace(LAYERS, neighbour=Neighbour.IDLE),
]  # fmt: skip


class Draw:
    """Records at random."""

    def __init__(self, seed: int) -> None:
        self.rng, self.held = np.random.default_rng(seed), (0.1, 0.6, 0.9)[seed % 3]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def times(self, count: int, known: float = 1.0) -> list[float]:
        return (self.rng.uniform(1, 900, count) * (self.rng.random(count) < known)).tolist()

    def flags(self, count: int) -> list[int]:
        return (self.rng.random(count) < self.held).astype(int).tolist()

    def samples(self, cell: Cell, count: int) -> Samples:
        times = {name: self.times(count, 0.5 if name == "cpu_us" else 1.0) for name in TIMES if name != "swap_us"}
        if cell in (AFTER_A_PAUSE, BESIDE, BESIDE_DECODE):
            del times["event_us"]
        if cell.layers:
            times |= {name: self.times(count) for name in LAYER_TIMES}
        if cell.stream_state is StreamState.SUSTAINED:
            times[CHAIN_TIME] = self.times(count)
        flags = ["pending_before", "pending_after", *(["depth_held"] if cell.queued else [])]
        return Samples(**times, **{name: self.flags(count) for name in flags})

    def beside(self) -> Beside:
        alone, beside = self.rng.choice([0, 1, MIN_P90 - 1, MIN_P90, MIN_P99 - 1, MIN_P99], 2, p=[0.05, *[0.19] * 5])
        swaps, one_block, turns = self.rng.choice([0, 1, 2, 4], 3, p=[0.05, 0.25, 0.35, 0.35])
        lengths = {
            "neighbour_alone_us": alone, "neighbour_beside_us": beside, "swaps_alone_us": swaps,
            "swaps_beside_us": swaps, "one_block_alone_us": one_block, "one_block_beside_us": one_block,
            "swaps_alone_gbps": turns, "swaps_beside_gbps": turns, "readback_alone_us": alone, "readback_us": beside,
        }  # fmt: skip
        return Beside(**{name: self.times(int(length)) for name, length in lengths.items()})

    def visits(self, cells: Sequence[Cell], number: int, attempt: int, count: int) -> list[Record]:
        apart = self.chance(0.2)  # the second arm is of a later visit, after a kill between the two
        return [
            Visit(
                cell_text=cell.as_strings(), round=number, attempt=attempt, samples=self.samples(cell, count),
                stopped_by=str(self.rng.choice(["time", "max_samples"])), calls=1,  # type: ignore[arg-type]
                path=str(self.rng.choice(["copy engine", "CPU inline", "SM kernel"])),
                verified_bytes=int(self.rng.integers(1000)), disturbed=[one for one in Disturbance if self.chance(0.2)],
                slowdown=float(self.rng.choice([1.2, 1.7])), chosen="sm" if self.chance(0.2) else None,
                warnings=["short"] * self.chance(0.2), group="both" if len(cells) > 1 else None,
                beside=self.beside() if cell.neighbour != Neighbour.NONE and self.chance(0.9) else None,
                span_ns=(at * apart, 9),
            )
            for at, cell in enumerate(cells)
        ]  # fmt: skip

    def of_cells(self, cells: Sequence[Cell]) -> Iterable[Record]:
        rounds = int(self.rng.choice([0, 1, 5, 6, 8, 9]))
        for number in range(rounds):
            count = 0 if self.chance(0.05) else int(self.rng.integers(1, 9))
            for attempt in range(int(self.rng.choice([1, 1, 1, 2, 3]))):
                for _ in range(1 + self.chance(0.05)):  # a kill cut the attempt off, which was made again
                    yield from self.visits(cells, number, attempt, count)
        if len(cells) == 1 and (self.chance(0.1) or not rounds):
            yield from (synthetic.skip(cells[0], why) for why in ("too large", "no driver", "too large"))
        if self.chance(0.1):
            yield from (synthetic.failure(cells[0], why, "mismatch") for why in ("a byte", "a word", "a byte"))

    def records(self) -> list[Record]:
        made: list[Record] = []
        for number, attempt, way in product(range(6), range(3), Direction):
            if not attempt or self.chance(0.2):
                us = self.rng.uniform(1, 1.1, int(self.rng.integers(4))) * self.rng.choice([1000, 1000, 1040, 1200])
                line = {"direction": way.value, "round": number, "attempt": attempt, "event_us": us.tolist()}
                made.append(Ceiling(**line, swap_bytes=1 << 26))
        for cells in (*([cell] for cell in ALONE), IN_TURN):
            made += self.of_cells(cells)
        return made


def known_times(one: Visit, time: str) -> list[float]:
    samples, state = one.samples, one.cell.stream_state
    if time != "swap_us":
        return [*(getattr(samples, time) or ())]
    times = samples.wall_us if one.cell in (AFTER_A_PAUSE, BESIDE, BESIDE_DECODE) else samples.event_us
    assert times is not None
    if state not in (StreamState.BUSY, StreamState.GATED):
        return [*times]
    held = [us for us, after in zip(times, samples.pending_after, strict=True) if after]
    return held if 2 * len(held) >= len(times) else []


def low_by(records: Sequence[Record], way: str, number: int, attempt: int) -> float:
    ceilings = [one for one in records if isinstance(one, Ceiling) and one.direction == way and one.event_us]
    rates = {(one.round, one.attempt): one.swap_bytes / median(one.event_us) / 1e3 for one in ceilings}
    before = [rates[key] for key in sorted(rates) if key[0] == number and key[1] <= attempt]
    best = max(rates.values(), default=nan)
    return 1 - before[-1] / best if before and before[-1] < best / 1.05 else 0.0


def badness(records: Sequence[Record], one: Visit) -> tuple[float, float, float]:
    slow, us = Disturbance.SLOW_CPU in one.disturbed, known_times(one, "swap_us")
    mostly_call = bool(us) and median(one.samples.caller_us) > median(us) / 2
    low = low_by(records, one.cell.direction, one.round, one.attempt)
    excused = slow and mostly_call
    return low, len(one.disturbed) - excused, one.slowdown if slow and not excused and one.slowdown else 0.0


def counting(records: Sequence[Record], cells: Sequence[Cell]) -> dict[Cell, list[Visit]]:
    """The visits of cells in turn that count: of each round the least disturbed attempt, of all arms together."""
    last = {(one.cell, one.round, one.attempt): one for one in records if isinstance(one, Visit) and one.cell in cells}
    kept: dict[Cell, list[Visit]] = {cell: [] for cell in cells}
    for number in sorted({key[1] for key in last}):
        attempts = sorted({key[2] for key in last if key[1] == number})
        arms = [[last[cell, number, attempt] for cell in cells] for attempt in attempts]
        costs = [[sum(column) for column in zip(*(badness(records, one) for one in of), strict=True)] for of in arms]
        for one in arms[costs.index(min(costs))]:
            kept[one.cell].append(one)
    return kept


def by_definition(records: Sequence[Record], cell: Cell, visits: Sequence[Visit]) -> Outcome:
    failures = [one for one in records if isinstance(one, Failure) and one.cell == cell]
    skips = [one.reason for one in records if isinstance(one, Skip) and one.cell == cell]
    times = (*TIMES, *LAYER_TIMES) if cell.layers else TIMES
    times = (*times, CHAIN_TIME) if cell.stream_state is StreamState.SUSTAINED else times
    medians = {time: {one.round: median(us) for one in visits if (us := known_times(one, time))} for time in times}
    status, reason = "ok", ""
    if failures:
        status, reason = "failed", "; ".join(dict.fromkeys(f"{one.kind}: {one.message}" for one in failures))
    elif not any(len(one.samples) for one in visits):
        status, reason = ("skipped", "too large; no driver") if skips else ("failed", "no reason recorded")
    elif not cell.queued and not medians["swap_us"]:
        status, reason = "no figure", NO_FIGURE
    return Outcome(
        cell, status, reason,  # type: ignore[arg-type]
        attempts={one.round: one.attempt for one in visits},
        path="; ".join(path for path, _ in Counter(one.path for one in visits).most_common()) or None,
        verified_bytes=sum(one.verified_bytes for one in visits),
        failures=failures or (),
        beside={one.round: one.beside for one in visits if one.beside},
        warnings=["short"] * any(one.warnings for one in visits),
        rounds=len(visits) if cell.queued else sum(bool(known_times(one, "swap_us")) for one in visits),
        disturbed=[one.round for one in visits if one.disturbed],
        samples=sum(len(one.samples) for one in visits) if status in ("ok", "no figure") else 0,
        visits_made=sum(isinstance(one, Visit) and one.cell == cell for one in records),
        medians=medians if status in ("ok", "no figure") else {},
    )  # fmt: skip


def interval(values: Sequence[float]) -> tuple[float, float]:
    low, high = median_interval(values) if len(values) else (-inf, inf)
    return (low, high) if math.isfinite(low) else (nan, nan)


def middle(values: Iterable[float]) -> float:
    return median([*values] or [nan])


def row_of(outcome: Outcome, visits: Sequence[Visit]) -> dict[str, Any]:
    """What the table says of a cell beside its axes, its neighbour and the ceilings."""
    cell, state = outcome.cell, outcome.cell.stream_state
    swap_us = [*outcome.medians.get("swap_us", {}).values()]
    low, high = interval(swap_us)
    has_rate = cell not in (AFTER_A_PAUSE, BESIDE, BESIDE_DECODE, TRACE) and bool(swap_us)
    counted = visits if outcome.medians else ()
    pooled = {time: [us for one in counted for us in known_times(one, time)] for time in TIMES}
    quartiles = {time: np.quantile(us, (0.25, 0.75)) if us else (nan, nan) for time, us in pooled.items()}
    (q1, q3), centre = quartiles["swap_us"], middle(swap_us)
    times = {"_q1": q3, "_q3": q1, "_low": high, "_high": low, "": centre}
    gbps = {f"gbps{end}": cell.swap_bytes / us / 1e3 if has_rate else nan for end, us in times.items()}
    before, after, depth = (
        mean([flag for one in counted for flag in getattr(one.samples, name) or ()] or [nan])
        for name in ("pending_before", "pending_after", "depth_held")
    )
    pending = state in (StreamState.BUSY, StreamState.GATED)
    groups = [us for one in counted if (us := known_times(one, "swap_us"))]
    row = {
        "status": outcome.status, "reason": outcome.reason or None, "path": outcome.path, "swap_bytes": cell.swap_bytes,
        **gbps, "swap_us_low": low, "swap_us_high": high,
        **{f"{time}_median": middle(outcome.medians.get(time, {}).values()) for time in TIMES},
        **{f"{time}_q{3 if at else 1}": quartiles[time][at] for time in TIMES for at in (0, 1)},
        **{f"{quantity}_gbps": gbps["gbps"] if quantity == state.quantity else nan
           for quantity in ("latency", "execution", "sustained")},
        "samples": outcome.samples, "rounds": outcome.rounds,
        "outliers": sum(grouped_outliers(np.array(us), np.array([len(us)])).sum() for us in groups),
        "state_held": nan if state is StreamState.SUSTAINED else before if pending else 1 - before,
        "execution_only": after if pending else nan, "depth_held": depth,
        "chosen": "sm" if any(one.chosen for one in visits) else None,
        "warnings": "short" if any(one.warnings for one in visits) else None,
        "stopped_by": "; ".join(dict.fromkeys(one.stopped_by for one in visits)) or None,
        "order_note": "any on d2h" if cell.direction == "d2h" and cell.order is Order.ANY else None,
        "repeated": outcome.visits_made - len(visits), "disturbed": len(outcome.disturbed),
        "verified_bytes": outcome.verified_bytes,
    }  # fmt: skip
    if not outcome.medians:
        del row["outliers"]
    return row


def neighbour_by_definition(visits: Sequence[Visit]) -> dict[str, float]:
    beside = [one for one in visits if one.beside]
    known = [(one, one.beside, cost) for one in beside if one.beside and (cost := cost_by_definition(one))]
    iterations = sum(len(turn.neighbour_beside_us) for _, turn, _ in known)
    if len(known) < len(beside) or iterations < 20:
        return {}
    means, medians, gbps = (np.array([cost[at] for *_, cost in known]) for at in range(3))
    thread_ms = np.array([median(one.samples.caller_us) / 1e3 / (one.cell.swap_bytes / 1e9) for one, *_ in known])
    intervals = {
        "lost_ms_per_gb": paired_interval(1e3 * (1 - 1 / means) / gbps),
        "thread_ms_per_gb": paired_interval(thread_ms),
        "neighbour_slowdown": map(math.exp, paired_interval(np.log(means))),
        "swaps_beside_gbps": (middle(gbps), *median_interval(gbps)),
    }
    figures = {"iterations": iterations}
    for name, (centre, *both) in intervals.items():
        low, high = both if all(map(math.isfinite, both)) else (nan, nan)
        figures |= {name: centre, f"{name}_low": low, f"{name}_high": high}
    figures["neighbour_slowdown_median"] = math.exp(paired_interval(np.log(medians))[0])
    return figures


def cost_by_definition(one: Visit) -> tuple[float, float, float] | None:
    """The slowdown of the neighbour by the means and by the medians, and the GB/s beside it."""
    assert one.beside is not None
    alone, beside, gbps = one.beside.neighbour_alone_us, one.beside.neighbour_beside_us, one.beside.swaps_beside_gbps
    if not (alone and beside and gbps and len(one.samples)):
        return None
    if str(one.cell.neighbour) == "decode" and not one.cell.layers and not one.beside.readback_us:
        return None
    return mean(beside) / mean(alone), median(beside) / median(alone), median(gbps)


def same(have: Any, wanted: Any) -> bool:
    missing = have is None or have != have
    if wanted is None or wanted != wanted:
        return missing
    return not missing and have == (pytest.approx(wanted) if isinstance(wanted, float) else wanted)


@pytest.mark.parametrize("seed", range(12))
def test_outcomes_and_the_table_are_what_records_say(tmp_path: Path, seed: int) -> None:
    records = Draw(seed).records()
    run = kvbench.load_run(write_run(tmp_path / "run", records))
    visits = {}
    for cells in (*([cell] for cell in ALONE), IN_TURN):
        visits |= counting(records, cells)
    frame = run.table.set_index("cell_id")
    assert frame.index.tolist() == [cell.id for cell in run.outcomes]
    assert set(run.outcomes) == {one.cell for one in records if isinstance(one, Visit | Failure | Skip)}
    for cell, outcome in run.outcomes.items():
        wanted = by_definition(records, cell, visits[cell])
        for name in {field.name for field in fields(Outcome)} - {"costs", "spread", "state_held", "depth_held"}:
            assert getattr(outcome, name) == getattr(wanted, name), (cell, name)
        with_costs = {one.round: one for one in visits[cell] if one.beside and neighbour_by_definition(visits[cell])}
        assert outcome.costs.keys() == with_costs.keys()
        for number, cost in outcome.costs.items():
            slowdown, by_median, gbps = cost_by_definition(with_costs[number])
            thread_ms = median(with_costs[number].samples.caller_us) * 1e6 / cell.swap_bytes
            figures = slowdown, by_median, gbps, 1e3 * (1 - 1 / slowdown) / gbps, thread_ms
            assert astuple(cost)[:5] == pytest.approx(figures)
            turn = with_costs[number].beside
            assert (cost.process, turn and len(turn.neighbour_beside_us)) == (
                with_costs[number].process,
                cost.iterations,
            )
        figures = row_of(wanted, visits[cell])
        if cell.neighbour != Neighbour.NONE:
            figures |= neighbour_by_definition(visits[cell])
        row = frame.loc[cell.id]
        wrong = {name: (row[name], value) for name, value in figures.items() if not same(row[name], value)}
        assert not wrong, cell
        assert same(outcome.gbps, figures["gbps"])
        assert same(outcome.us(), figures["swap_us_median"])
        assert all(map(same, outcome.interval(), (figures["swap_us_low"], figures["swap_us_high"])))
        assert all(map(same, outcome.interval_gbps, (figures["gbps_low"], figures["gbps_high"])))
        assert all(map(same, outcome.quartiles_gbps, (figures["gbps_q1"], figures["gbps_q3"])))
        assert all(same(getattr(outcome, name), figures[name]) for name in ("state_held", "depth_held"))
        assert outcome.spread.outliers == figures.get("outliers", 0)
        of_visits = [np.quantile(us, (0.25, 0.5, 0.75)) for one in visits[cell] if (us := known_times(one, "swap_us"))]
        within = middle((third - first) / second for first, second, third in of_visits)
        assert not outcome.medians or same(outcome.spread.within_visits, float(within))
        for time, of_time in outcome.medians.items():
            known = {number: us for number, us in of_time.items() if us > 0} if outcome.us(time) > 0 else {}
            assert outcome.times(time) == known
    one, two = (run.outcomes[cell].medians.get("swap_us", {}) if cell in run.outcomes else {} for cell in IN_TURN)
    for number in one.keys() & two.keys():
        both = [at for cell in IN_TURN for at in visits[cell] if at.round == number]
        ratios = [log(to / base) for base, to in zip(*(at.swap_us for at in both), strict=True)]
        apart = len({at.span_ns for at in both}) > 1
        wanted = log(two[number] / one[number]) if apart else median(ratios)
        assert log_ratio(one[number], two[number]) == pytest.approx(wanted)
    for way in Direction:
        attempts = [one.attempts.items() for cell, one in run.outcomes.items() if cell.direction is way]
        pairs = [(pair[0], low_by(records, way, *pair)) for of_cell in attempts for pair in of_cell]
        low = {number: by for number, by in pairs if by}
        assert run.low_rounds.get(way, {}) == pytest.approx(low)
    for before in range(1, 4):
        known = [one for one in records if isinstance(one, Ceiling) and one.event_us and one.attempt < before]
        rates = sorted((1 / median(one.event_us), (one.direction, one.round)) for one in known)
        best = {key: rate for rate, key in rates}  # the highest comes last
        tops = {way: max(rate for key, rate in best.items() if key[0] == way) for way, _ in best}
        lows = sorted((rate / tops[key[0]], key) for key, rate in best.items() if tops[key[0]] > 1.05 * rate)
        assert Ceilings(records).low(before) == [key for _, key in lows]
    assert len(run.samples()) == sum(len(one.samples) for of_cell in visits.values() for one in of_cell)


def test_outcomes_stand_in_the_order_of_the_table(tmp_path: Path) -> None:
    names, shapes = ("backend", "blocks", "sms", "devices"), product(("sm", "batched"), (1000, 16), (None, 2), (2, 1))
    cells = [replace(CELL, **dict(zip(names, shape, strict=True))) for shape in shapes]
    run = kvbench.load_run(write_run(tmp_path / "run", [visit(cell, 50.0) for cell in cells]))
    first = [tuple(getattr(cell, name) for name in names) for cell in run.outcomes][:4]
    assert first == [("batched", 16, sms, devices) for sms in (2, None) for devices in (1, 2)]
    (outcome, *_) = run.outcomes.values()
    assert [replace(outcome, path=path).has_rate for path in (None, EffectivePath.NOTHING)] == [True, False]


@pytest.mark.parametrize(
    "changes",
    [{"neighbour_alone_us": []}, {"swaps_beside_gbps": []}, {"swaps_beside_gbps": [0.0]}, {"neighbour_alone_us": [inf]},
     {"neighbour_beside_us": [0.0]}, {"swaps_beside_gbps": [inf]}, {"neighbour_beside_us": [0.0, 0.0, 1e-320]}],
)  # fmt: skip
def test_a_neighbour_without_times_has_no_cost(changes: dict[str, list[float]]) -> None:
    turn = Beside(neighbour_alone_us=[100.0] * 3, neighbour_beside_us=[120.0] * 3, swaps_beside_gbps=[10.0])
    one = msgspec.structs.replace(visit(BESIDE, 50.0), beside=turn)
    without = msgspec.structs.replace(one, beside=msgspec.structs.replace(turn, **changes))
    assert (cost_of(one) is None, cost_of(without)) == (False, None)


def beside_of(cell: Cell, slowdown: float, start: int | None, number: int = 0, iterations: int = 10) -> Visit:
    """A visit of swaps at 40 GB/s, of which a call takes 655.36 us of its thread, beside iterations of 100 us."""
    turn = Beside(
        neighbour_alone_us=[100.0] * 4, neighbour_beside_us=[100.0 * slowdown] * iterations, readback_us=[7.0],
        swaps_beside_gbps=[40.0],
    )  # fmt: skip
    one = visit(replace(cell, blocks=4000), 409.6, count=3, round_=number)
    return with_samples(one, {"caller_us": [655.36] * 3}, beside=turn, process=start)


def test_a_quarter_longer_at_40_gb_s_loses_5_ms_a_gb_and_the_thread_10() -> None:
    wanted = Cost(1.25, 1.25, 40.0, 5.0, 10.0, process=3, iterations=10)
    assert astuple(cost_of(beside_of(BESIDE, 1.25, 3)) or wanted) == pytest.approx(astuple(wanted))
    faster = cost_of(beside_of(BESIDE, 0.8, None))
    assert faster is not None
    assert (faster.lost_ms_per_gb, faster.process) == (pytest.approx(-6.25), None)


def test_a_decode_step_without_small_copies_answers_nothing() -> None:
    decode = beside_of(BESIDE_DECODE, 1.25, 1)
    before = msgspec.structs.replace(decode, beside=msgspec.structs.replace(decode.beside or Beside(), readback_us=[]))
    assert (cost_of(decode) is None, cost_of(before)) == (False, None)
    by_layers = replace(before.cell, sequence="layers-4")  # which runs the step once for each swap, without such copies
    assert cost_of(msgspec.structs.replace(before, cell_text=by_layers.as_strings())) is not None


@pytest.mark.parametrize(("iterations", "known"), [([10, 10], True), ([10, 9], False), ([40, 0], False)])
def test_a_cost_needs_twenty_iterations_and_some_in_each_visit(
    tmp_path: Path, iterations: Sequence[int], known: bool
) -> None:
    visits = [beside_of(BESIDE, 1.25, 1, number, count) for number, count in enumerate(iterations)]
    run = kvbench.load_run(write_run(tmp_path / "run", visits))
    (outcome,) = run.outcomes.values()
    assert (len(outcome.costs), run.table["lost_ms_per_gb"].notna().all()) == (2 * known, known)


def test_an_interval_of_what_is_lost_reaches_over_all_starts(tmp_path: Path) -> None:
    """Of ten visits of one start and two of another, the rank interval alone leaves out the second."""
    slowdowns = [1.10, 1.11] * 5 + [1.25] * 2
    visits = [beside_of(BESIDE, ratio, 1 + (at >= 10), at) for at, ratio in enumerate(slowdowns)]
    (row,) = kvbench.load_run(write_run(tmp_path / "run", visits)).table.to_dict("records")
    lost = [1e3 * (1 - 1 / ratio) / 40 for ratio in slowdowns]
    assert paired_interval(np.array(lost))[2] < max(lost) == pytest.approx(row["lost_ms_per_gb_high"])
    assert row["lost_ms_per_gb_low"] <= row["lost_ms_per_gb"] < row["lost_ms_per_gb_high"]
