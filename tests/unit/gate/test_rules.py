"""Rules: what may be written, what it means for a run, and what is refused."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from kvbench.cells.axes import Direction, Neighbour, StreamState
from kvbench.cells.cell import Cell
from kvbench.gate.judgement import GateVerdict, Row
from kvbench.gate.rules import RuleSet, RulesReport, check_rules, load_rules, read_rule, shipped_rules
from kvbench.ground.errors import ExitCode
from kvbench.results import Record, Run
from kvbench.sweep.plan import expand
from kvbench.sweep.spec import find_config, load_config
from tests.refusals import refused_with
from tests.strategies import H200
from tests.synthetic import CEILING_GBPS, beside, ceilings, cliff_cells, failure, info, rounds, skip, visit, visits
from tests.unit.sweep.test_configs import EVERYWHERE

KIB = 1024
SM = "backend=sm"
AT_10000 = "direction=h2d,stream_state=idle,blocks=10000"
Table = dict[str, Any]


@pytest.mark.parametrize(
    ("table", "shown"),
    [
        (
            {"cells": "block_size=4096,sms=4", "at_least": "0.850 ceiling"},
            "block_size=4KiB,sms=4: gbps at least 0.85 ceiling",
        ),
        (
            {"cells": "backend=primed|sm, blocks>=100", "at_least": " 3   backend=batched,direction=h2d "},
            "backend=primed|sm,blocks>=100: gbps at least 3 backend=batched,direction=h2d",
        ),
        ({"cells": SM, "no_cliff_above": 2}, "backend=sm: no cliff above 2"),
        ({"cells": SM, "quantity": "caller_us", "at_most": 20}, "backend=sm: caller_us at most 20"),
        ({"cells": SM, "at_least": "0.5"}, "backend=sm: gbps at least 0.5"),
        ({"cells": "sms!=1", "at_most": "1 backend=triton"}, "sms!=1: gbps at most 1 backend=triton"),
    ],
)
def test_the_text_of_a_rule_shows_how_it_was_parsed(table: Table, shown: str) -> None:
    assert str(read_rule(table)) == shown


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "a rule needs exactly one of at_least, at_most, no_cliff_above; it has none"),
        ({"cells": SM, "at_least": 1, "at_most": 2}, "it has at_least and at_most"),
        ({"cells": SM, "at_lest": 1}, 'unknown key "at_lest"; did you mean at_least?'),
        ({"cells": SM, "no_cliff_above": 2, "quantity": "gbps"}, 'unknown key "quantity"; use one of cells'),
        ({"at_least": 1}, "cells is missing"),
        ({"cells": " ", "at_least": 1}, 'cells: " " is not a filter such as'),
        ({"cells": "sm", "at_least": 1}, 'cells: filter "sm": write axis OP value'),
        ({"cells": SM, "at_least": "0 ceiling"}, 'at_least: "0 ceiling" is not a number, "0.8 ceiling"'),
        ({"cells": SM, "at_least": "ceiling"}, 'at_least: "ceiling" is not a number'),
        ({"cells": SM, "at_least": "0.8 * ceiling"}, "* ceiling: did you mean ceiling?"),
        ({"cells": SM, "at_least": "0.8 roof"}, "roof: write ceiling, or a filter"),
        ({"cells": SM, "at_least": True}, "at_least: true is not a number"),
        ({"cells": SM, "at_most": float("inf")}, "at_most: Infinity is not a number"),
        ({"cells": SM, "at_most": 3, "quantity": "speed"}, 'quantity: "speed" is not one of gbps, ceiling_share'),
        ({"cells": SM, "at_most": "0.1 ceiling", "quantity": "caller_us"}, "caller_us cannot be compared with the"),
        ({"cells": SM, "no_cliff_above": 1.2}, "no_cliff_above: 1.2 is not a number from 1.5"),
        ({"cells": "backend=sm\x1b[31m", "at_least": 1}, "not a backend's name"),
    ],
)
def test_an_invalid_rule_is_refused_with_the_right_form(table: Table, message: str) -> None:
    with refused_with(message):
        read_rule(table)


def run_of(records: Iterable[Record], **changes: object) -> Run:
    return Run(Path("some-run"), info(**changes), list(records), [])


@cache
def cliff_run() -> Run:
    """Return a run of six rounds, whose frame is made once too."""
    return run_of([*rounds(cliff_cells(), noise=0.01), *ceilings()])


def check(table: Table, records: Iterable[Record] | None = None) -> Row:
    run = cliff_run() if records is None else run_of(records)
    return check_rules(run, RuleSet([read_rule(table)])).rows[0]


def bound(cells: str, at_least: str) -> Table:
    return {"cells": cells, "at_least": at_least}


def test_a_rule_can_be_about_a_share_of_the_ceiling() -> None:
    cells = f"backend=triton,{AT_10000},block_size=64KiB"
    assert check(bound(cells, "0.8 ceiling")).verdict is GateVerdict.PASS
    broken = check(bound(f"{cells},sms=12", "0.95 ceiling"))
    assert broken.verdict is GateVerdict.FAIL
    assert f"of the ceiling ({CEILING_GBPS})" in broken.reason
    assert "-a block_size=64KiB" in broken.command
    share = {"cells": cells, "quantity": "ceiling_share"}
    assert check(share | {"at_least": 0.5}).verdict is GateVerdict.PASS
    broken = check(share | {"at_least": 0.95})
    assert broken.verdict is GateVerdict.FAIL
    assert "ceiling_share 0.8" in broken.reason


def test_two_backends_are_compared_cell_by_cell() -> None:
    triton = "backend=triton,direction=h2d,block_size=16KiB"
    assert check(bound(f"{triton},stream_state=idle", "3 backend=batched")).verdict is GateVerdict.PASS
    broken = check(bound(triton, "3 backend=batched"))  # on a busy stream it does not
    assert broken.verdict is GateVerdict.FAIL
    assert "(broken in 2 of 4)" in broken.reason
    assert "busy" in broken.reason
    batched = "backend=batched,direction=h2d,block_size=64KiB,stream_state=busy"
    assert check(bound(batched, "5 block_size=4KiB,stream_state=idle")).verdict is GateVerdict.PASS


def near_its_limit(better: float, seed: int, visits_: int = 6) -> GateVerdict:
    """Return the verdict on a cell that is `better` than its limit, with noise of 5% between its visits."""
    cell = Cell("sm", Direction.H2D, 64, 4 * KIB, sms=2)
    times = 100 * np.exp(np.random.default_rng(seed).normal(0, 0.05, visits_))
    records = [visit(cell, us, count=3, noise=0, round_=number) for number, us in enumerate(times)]
    return check({"cells": SM, "quantity": "swap_us", "at_most": 100 * (1 + better)}, records).verdict


def test_a_rule_is_decided_only_if_its_visits_agree() -> None:
    near = [near_its_limit(0.02, seed) for seed in range(50)]
    assert near.count(GateVerdict.FAIL) <= 1
    assert GateVerdict.UNDECIDED in near
    assert near_its_limit(0.3, 1) is GateVerdict.PASS
    assert near_its_limit(-0.3, 1) is GateVerdict.FAIL
    assert near_its_limit(-0.3, 1, visits_=5) is GateVerdict.UNDECIDED


BESIDE = Cell("sm", Direction.D2H, 4096, 16 * KIB, sms=2, neighbour=Neighbour.DECODE)


@cache
def beside_run() -> Run:
    """Return a run in which 2 SMs lose nothing, 4 SMs 5 ms a GB, each at 40 GB/s, and one has a negative loss."""
    slowdowns = {BESIDE: 1.0, replace(BESIDE, sms=4): 1.25, replace(BESIDE, sms=8): 0.95}
    return run_of([visit for cell, slowdown in slowdowns.items() for visit in beside(cell, slowdown, 40.0)])


@pytest.mark.parametrize(
    ("cells", "quantity", "limit", "verdict"),
    [
        ("sms=4", "lost_ms_per_gb", {"at_most": 5.1}, GateVerdict.PASS),
        ("sms=4", "lost_ms_per_gb", {"at_most": 4.9}, GateVerdict.FAIL),
        ("sms=2", "lost_ms_per_gb", {"at_most": "0.1 sms=4"}, GateVerdict.PASS),
        ("sms=4", "lost_ms_per_gb", {"at_most": "8 sms=2"}, GateVerdict.FAIL),  # of nothing
        ("sms=8", "lost_ms_per_gb", {"at_most": "1 sms=2"}, GateVerdict.PASS),
        ("sms=2", "lost_ms_per_gb", {"at_most": "1 sms=8"}, GateVerdict.FAIL),
        ("sms=4", "neighbour_slowdown", {"at_most": 1.26}, GateVerdict.PASS),
        ("sms=4", "neighbour_slowdown", {"at_most": "1.2 sms=2"}, GateVerdict.FAIL),
        ("sms=2|4", "swaps_beside_gbps", {"at_least": 39}, GateVerdict.PASS),
        ("sms=2|4", "thread_ms_per_gb", {"at_most": 0.001}, GateVerdict.FAIL),
        ("sms=2", "lost_ms_per_gb", {"at_most": "1 backend=batched"}, GateVerdict.FAILED),
    ],
)
def test_a_rule_can_be_about_what_swaps_cost_a_step(
    cells: str, quantity: str, limit: Table, verdict: GateVerdict
) -> None:
    rule = read_rule({"cells": f"neighbour=decode,{cells}", "quantity": quantity, **limit})
    (row,) = check_rules(beside_run(), RuleSet([rule])).rows
    assert row.verdict is verdict, row.reason


def test_a_cliff_near_its_limit_is_undecided_and_so_are_too_few_visits() -> None:
    rule = {"cells": "backend=batched,direction=h2d,blocks=10000,stream_state=idle", "no_cliff_above": 2.0}
    few = check(rule, [*visits(cliff_cells(), noise=0.01)])
    assert (few.verdict, "1 visits; a verdict requires 6" in few.reason) == (GateVerdict.UNDECIDED, True)
    whole = rounds(cliff_cells(), noise=0.01)
    lacking = check(rule, [record for record in whole if record.round == 0 or record.cell.block_bytes != 32 * 1024])
    assert (lacking.verdict, "1 visits" in lacking.reason) == (GateVerdict.UNDECIDED, True)
    height = float(check(rule).reason.split(": ")[1].split("x ")[0])
    near = check(rule | {"no_cliff_above": height})
    assert near.verdict is GateVerdict.UNDECIDED


def test_a_rule_can_exclude_a_cliff_up_or_down() -> None:
    assert check({"cells": "backend=triton,blocks=10000", "no_cliff_above": 2}).verdict is GateVerdict.PASS
    broken = check({"cells": "backend=batched,direction=h2d", "no_cliff_above": 2.0})
    assert broken.verdict is GateVerdict.FAIL
    assert "between 24KiB and 28KiB" in broken.reason
    assert check({"cells": "backend=batched,direction=h2d", "no_cliff_above": 20}).verdict is GateVerdict.PASS
    cells = [cell for cell in cliff_cells((256,), (24, 28)) if cell.backend == "triton"]
    down = rounds(cells, lambda cell: 40.0 if cell.block_bytes <= 24 * KIB else 4.0, noise=0.001)
    assert check({"cells": "backend=triton", "no_cliff_above": 2.0}, down).verdict is GateVerdict.FAIL
    assert check({"cells": "backend=triton", "no_cliff_above": 20.0}, down).verdict is GateVerdict.PASS


@pytest.mark.parametrize(
    "table", [bound("backend=triton", "0.1 ceiling"), {"cells": "backend=triton", "no_cliff_above": 9}]
)
@pytest.mark.parametrize("how", ["missing", "failed", "skipped"])
def test_a_rule_fails_if_its_cells_are_missing_failed_or_skipped(table: Table, how: str) -> None:
    others = [cell for cell in cliff_cells() if cell.backend != "triton"]
    lost = [cell for cell in cliff_cells() if cell.backend == "triton"]
    broken: list[Record] = [failure(cell) if how == "failed" else skip(cell) for cell in lost if how != "missing"]
    result = check(table, [*visits(others), *ceilings(), *broken])
    assert result.verdict is GateVerdict.FAILED
    expected = {"missing": "was requested", "failed": "CUDA_ERROR_INVALID_VALUE", "skipped": "does not fit in memory"}
    assert expected[how] in result.reason


def test_skipped_cells_among_others_are_left_out() -> None:
    cells = [cell for cell in cliff_cells() if cell.backend == "triton"]
    lost = replace(cells[0], sms=99)
    made = [*rounds(cells, noise=0.01), *ceilings(), skip(lost)]
    assert check(bound("backend=triton", "0.001 ceiling"), made).verdict is GateVerdict.PASS


def test_a_rule_about_two_cells_is_judged_in_the_rounds_that_both_have() -> None:
    cells = [Cell("sm", Direction.H2D, 64, 4 * KIB, sms=sms) for sms in (2, 4)]
    made = [visit(cell, 100.0, count=3, round_=number) for cell, first in zip(cells, (0, 2), strict=True)
            for number in range(first, first + 8)]  # fmt: skip
    rule = {"cells": "sms=2", "quantity": "swap_us", "at_most": "1.5 sms=4"}
    assert check(rule, made).verdict is GateVerdict.PASS
    few = [one for one in made if one.cell == cells[0] or one.round < 7]
    assert "5 visits; a verdict requires 6" in check(rule, few).reason


@pytest.mark.parametrize("limit_us", [50, 150, 400])
def test_of_the_cells_of_a_rule_the_one_that_breaks_it_most_or_is_nearest_to_it_is_shown(limit_us: float) -> None:
    times_us = {Cell("sm", Direction.H2D, 64, 4 * KIB, sms=count): us for count, us in ((2, 100), (4, 300), (8, 200))}
    made = [visit(cell, us, round_=number) for cell, us in times_us.items() for number in range(6)]
    (cell,) = check({"cells": SM, "quantity": "swap_us", "at_most": limit_us}, made).cells
    assert cell.sms == 4


def test_a_missing_partner_fails_the_rule() -> None:
    lonely = Cell("triton", Direction.H2D, 7, 16 * KIB, sms=12)
    result = check(
        bound("backend=triton,direction=h2d,stream_state=idle,blocks=7", "1 backend=batched"),
        [*visits([*cliff_cells(), lonely])],
    )
    assert (result.verdict, "no partner among backend=batched" in result.reason) == (GateVerdict.FAILED, True)


def test_unverified_cells_fail_the_rule() -> None:
    cell = Cell("sm", Direction.H2D, 64, 4 * KIB, StreamState.IDLE, sms=2)
    unverified = [msgspec.structs.replace(made, verified_bytes=0) for made in visits([cell])]
    assert (
        "no bytes were verified"
        in check({"cells": SM, "quantity": "caller_us", "at_most": 1_000_000}, unverified).reason
    )


def test_the_worst_rule_decides_and_comes_first() -> None:
    tables = [
        {"cells": "backend=triton", "quantity": "caller_us", "at_most": 1_000_000},
        bound("backend=triton", "2 ceiling"),
        bound("backend=nobody", "1 ceiling"),
    ]
    run = run_of([*rounds(cliff_cells(), noise=0.01), *ceilings()], status="interrupted")

    def report(*indexes: int) -> RulesReport:
        return check_rules(run, RuleSet([read_rule(tables[index]) for index in indexes]))

    assert [row.verdict for row in report(0, 1, 2).rows] == [GateVerdict.FAILED, GateVerdict.FAIL, GateVerdict.PASS]
    assert report(0, 1, 2).verdict.exit_code is ExitCode.FAILED_CELLS
    assert report(0, 1).verdict.exit_code is ExitCode.REGRESSION
    assert report(0).verdict.exit_code is ExitCode.DONE
    assert any("interrupted, not complete" in text for text in report(0).warnings)


GOOD = '[[rule]]\ncells = "backend=sm"\nat_least = 1\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rule = []", "rule: [] is not a non-empty list of tables"),
        ("", "rule is missing"),
        (GOOD.replace("rule", "rules"), 'unknown key "rules"; did you mean rule?'),
        (f"config = 3\n{GOOD}", "config: 3 is not the name of a config"),
        (f"{GOOD}[[rule]]\ncells = 'sm'\nat_least = 1", 'rule 2: cells: filter "sm": write axis OP value'),
        ("rule = [", "cannot be read as TOML"),
        (GOOD * 1001, "rule: 1001 rules; the maximum is 1000"),
    ],
)
def test_a_file_of_rules_is_read_strictly(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(text)
    with refused_with(message, f"--rules {file}"):
        load_rules(file)


@pytest.mark.parametrize("path", sorted(shipped_rules().parent.glob("*.toml")), ids=lambda path: path.stem)
def test_every_shipped_rule_is_about_cells_of_its_config(path: Path) -> None:
    shipped = load_rules(path)
    assert shipped.config is not None
    planned = expand(load_config(find_config(shipped.config)), H200, EVERYWHERE).cells
    slowed = [one for cell in planned if cell.neighbour != Neighbour.NONE for one in beside(cell, 1.1, 20.0)]
    alone = visits([cell for cell in planned if cell.neighbour == Neighbour.NONE], lambda _: 10.0, count=1)
    made = run_of([*slowed, *alone])
    for row in check_rules(made, RuleSet(shipped.rules)).rows:
        assert "was requested" not in row.reason
        assert "no partner" not in row.reason
