"""Rules: what may be written, what it means for a run, and what is refused."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import AXES, Cell
from kvbench.errors import ExitCode, UsageError
from kvbench.gate.outcomes import QUANTITIES
from kvbench.gate.rule_check import RuleResult, RulesReport, RuleVerdict, check_rules
from kvbench.gate.rules import Bound, Cells, Conditions, CrossoverBetween, NoCliff, Rule, parse_rule
from kvbench.gate.rules_file import load_rules, shipped_rules
from kvbench.results import Ceiling, Record, Run, load_run
from tests.strategies import AXIS_VALUES
from tests.synthetic import CEILING_GBPS, ceilings, cliff_cells, failure, info, skip, visits

KIB = 1024
REPORTS = Path(__file__).parents[3] / "reports"

conditions = st.dictionaries(
    st.sampled_from([name for name in AXES if name != "backend"]), st.none(), max_size=6
).flatmap(lambda names: st.fixed_dictionaries({name: AXIS_VALUES[name] for name in names}))
backends = st.sampled_from(["sm", "batched", "primed", "my_kernel.v2"])


def conditions_of(values: dict[str, object]) -> Conditions:
    return Conditions(tuple((name, values[name]) for name in AXES if name in values and values[name] != 0))  # type: ignore[misc]


cells = st.builds(Cells, backends, conditions.map(conditions_of))
factors = st.integers(1, 10**9).map(lambda number: number / 1000)
rules = (
    st.builds(Bound, st.just("gbps"), cells, st.sampled_from([">=", "<="]), factors, cells | st.just("ceiling"))
    | st.builds(Bound, st.sampled_from(sorted(QUANTITIES)), cells, st.sampled_from([">=", "<="]), factors, st.none())
    | st.builds(NoCliff, factors.filter(lambda height: height >= 1.5), cells)
    | st.builds(
        CrossoverBetween,
        st.just("batched"),
        st.just("sm"),
        conditions.map(lambda values: conditions_of({k: v for k, v in values.items() if k != "block_size"})),
        st.integers(1, 1000),
        st.integers(1001, 2**30),
    )
)


@given(rules)
def test_a_rule_reads_back_as_it_is_written(rule: Rule) -> None:
    assert parse_rule(str(rule)) == rule


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("sm h2d 4KiB x 10000 @ 4 SMs >= 0.85 * ceiling", "sm h2d 4KiB x 10000 @ 4 SMs >= 0.85 * ceiling"),
        ("batched primed >= 3 * batched idle at 16KiB", "primed 16KiB >= 3 * batched idle 16KiB"),
        ("no cliff higher than 1.5x in sm", "no cliff higher than 1.5x in sm"),
        (
            "crossover batched/sm h2d at N=10000 between 48KiB and 256KiB",
            "crossover batched/sm h2d N=10000 between 48KiB and 256KiB",
        ),
        ("submit_us of sm <= 20", "submit_us of sm <= 20"),
        ("sm @ 1 SM pattern=runs-16 >= triton", "sm @ 1 SMs pattern=runs-16 >= 1 * triton"),
    ],
)
def test_the_documented_rules_are_read(text: str, canonical: str) -> None:
    assert str(parse_rule(text)) == canonical


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "write CELLS >= FACTOR"),
        ("sm", "write CELLS >= FACTOR"),
        ("sm > 3", "write CELLS >= FACTOR"),
        ("sm >= 0.85", "a number alone needs a quantity"),
        ("sm >= 0.85 ceiling", "follows the number 0.85"),
        ("sm >= 0 * ceiling", "'0' is no number above 0"),
        ("sm >= 1e3 * ceiling", "'1e3'"),
        ("speed of sm >= 3", "'speed' is no quantity; there are gbps"),
        ("submit_us of sm <= 0.1 * ceiling", "the ceiling is GB/s"),
        ("sm h2d d2h >= ceiling", "direction is set twice"),
        ("sm h2d >= ceiling at d2h", "direction is set twice"),
        ("sm h2d >= ceiling at", "nothing follows at"),
        ("sm big >= ceiling", "'big' is no condition"),
        ("sm 4KiB x >= ceiling", "axis blocks="),
        ("sm @ all SMs >= ceiling", "write SMs as @ 4 SMs"),
        ("sm sms=all >= ceiling", "write the number"),
        ("h2d >= ceiling", "where a backend's name belongs"),
        (">= ceiling", "cells are missing"),
        ("no cliff higher than 1.2x in sm", "no cliff"),
        ("no cliff higher than 2x of sm", "write no cliff higher than FACTOR in CELLS"),
        ("crossover batched between 1KiB and 4KiB", "is not two backends"),
        ("crossover sm/sm between 1KiB and 4KiB", "is not two backends"),
        ("crossover batched/sm between 4KiB and 1KiB", "the smaller size comes first"),
        ("crossover batched/sm 4KiB between 1KiB and 8KiB", "leave the block size out"),
        ("crossover batched/sm between 1 and", "write crossover A/B"),
        ("sm\x1b[31m >= ceiling", "write CELLS"),
    ],
)
def test_a_bad_rule_is_refused_with_what_would_be_right(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rule(text)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


@given(st.text(max_size=60))
def test_any_text_is_a_rule_or_refused_in_one_line(text: str) -> None:
    refused = ""
    try:
        parse_rule(text)
    except UsageError as error:
        refused = str(error)
    assert refused.isprintable()


def run_of(records: Iterable[Record], **changes: object) -> Run:
    return Run(Path("some-run"), info(**changes), list(records), [])


def check(text: str, records: Iterable[Record] | None = None) -> RuleResult:
    records = [*visits(cliff_cells(), noise=0.01), *ceilings()] if records is None else records
    return check_rules(run_of(records), [parse_rule(text)]).results[0]


def test_a_share_of_the_ceiling() -> None:
    assert check("triton h2d idle 64KiB x 10000 >= 0.8 * ceiling").verdict is RuleVerdict.HOLDS
    broken = check("triton h2d idle 64KiB x 10000 @ 12 SMs >= 0.95 * ceiling")
    assert broken.verdict is RuleVerdict.BROKEN
    assert f"of the ceiling ({CEILING_GBPS})" in broken.reason
    assert "-a block_size=64KiB" in broken.command


def test_one_backend_against_another_cell_by_cell() -> None:
    assert check("triton >= 3 * batched at h2d idle 16KiB").verdict is RuleVerdict.HOLDS
    broken = check("triton >= 3 * batched at h2d 16KiB")  # on a busy stream it does not
    assert broken.verdict is RuleVerdict.BROKEN
    assert "(broken in 2 of 4)" in broken.reason
    assert "busy" in broken.reason
    assert check("batched h2d 64KiB busy >= 5 * batched 4KiB idle").verdict is RuleVerdict.HOLDS


def test_a_time_against_a_number() -> None:
    cell = Cell("sm", Direction.H2D, 64, 4 * KIB, sms=2)
    records = visits([cell], rate=lambda cell: cell.swap_bytes / 50.0 / 1e3, noise=0.0)  # 50 us, 15 of them submission
    assert check("submit_us of sm <= 20", records).verdict is RuleVerdict.HOLDS
    assert check("swap_us of sm <= 20", records).verdict is RuleVerdict.BROKEN


def test_no_cliff() -> None:
    assert check("no cliff higher than 2x in triton N=10000").verdict is RuleVerdict.HOLDS
    broken = check("no cliff higher than 2x in batched h2d")
    assert broken.verdict is RuleVerdict.BROKEN
    assert "between 24KiB and 28KiB" in broken.reason
    assert check("no cliff higher than 20x in batched h2d").verdict is RuleVerdict.HOLDS


def test_a_crossover_lies_where_it_should() -> None:
    where = "crossover batched/triton h2d idle N=10000 between"
    assert check(f"{where} 24KiB and 128KiB").verdict is RuleVerdict.HOLDS
    broken = check(f"{where} 1KiB and 16KiB")
    assert broken.verdict is RuleVerdict.BROKEN
    assert re.search(r"between \d+KiB and \d+KiB", broken.reason)
    slow = [cell for cell in cliff_cells() if cell.backend != "batched"]
    everywhere = [*visits(slow), *visits(set(cliff_cells()) - set(slow), rate=lambda _: 1.0)]
    assert "none, triton is faster" in check(f"{where} 1KiB and 16KiB", everywhere).reason


@pytest.mark.parametrize(
    "text",
    ["triton >= 0.1 * ceiling", "no cliff higher than 9x in triton", "crossover batched/triton between 1KiB and 1MiB"],
)
@pytest.mark.parametrize("how", ["missing", "failed", "skipped"])
def test_a_rule_without_its_cells_fails(text: str, how: str) -> None:
    others = [cell for cell in cliff_cells() if cell.backend != "triton"]
    lost = [cell for cell in cliff_cells() if cell.backend == "triton"]
    broken: list[Record] = [failure(cell) if how == "failed" else skip(cell) for cell in lost if how != "missing"]
    result = check(text, [*visits(others), *ceilings(), *broken])
    assert result.verdict is RuleVerdict.FAILED
    expected = {"missing": "was asked for", "failed": "CUDA_ERROR_INVALID_VALUE", "skipped": "does not fit in memory"}
    assert expected[how] in result.reason


def test_a_partner_that_is_missing_fails_the_rule() -> None:
    lonely = Cell("triton", Direction.H2D, 7, 16 * KIB, sms=12)
    result = check("triton h2d idle N=7 >= batched", [*visits([*cliff_cells(), lonely])])
    assert (result.verdict, "no partner among batched" in result.reason) == (RuleVerdict.FAILED, True)


def test_cells_that_nobody_verified_fail_the_rule() -> None:
    import msgspec

    cell = Cell("sm", Direction.H2D, 64, 4 * KIB, StreamState.IDLE, sms=2)
    unverified = [msgspec.structs.replace(visit, verified_bytes=0) for visit in visits([cell])]
    assert "nothing was verified" in check("submit_us of sm <= 1000000", unverified).reason


def test_a_run_without_ceilings_has_no_share_of_them() -> None:
    records = [record for record in [*visits(cliff_cells())] if not isinstance(record, Ceiling)]
    assert check("triton >= 0.1 * ceiling", records).verdict is RuleVerdict.FAILED


def test_the_worst_rule_decides_and_comes_first() -> None:
    texts = ["submit_us of triton <= 1000000", "triton >= 2 * ceiling", "nobody >= ceiling"]
    run = run_of([*visits(cliff_cells()), *ceilings()], status="interrupted")

    def report(*places: int) -> RulesReport:
        return check_rules(run, [parse_rule(texts[place]) for place in places])

    assert [result.verdict for result in report(0, 1, 2).results] == list(RuleVerdict)
    assert report(0, 1, 2).exit_code is ExitCode.FAILED_CELLS
    assert report(0, 1).exit_code is ExitCode.REGRESSION
    assert report(0).exit_code is ExitCode.DONE
    assert any("interrupted, not complete" in text for text in report(0).warnings)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rules = []", "rules: [] is not a list of strings"),
        ("rules = 'sm >= ceiling'", "is not a list of strings"),
        ("rules = [3]", "is not a list of strings"),
        ("rule = ['sm >= ceiling']", 'unknown key "rule"; did you mean rules?'),
        ("rules = ['sm']", "rule 'sm': write CELLS"),
        ("rules = [", "cannot be read as TOML"),
    ],
)
def test_a_file_of_rules_is_read_strictly(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_rules(file)
    assert words in str(caught.value)
    assert f"--rules {file}" in str(caught.value)


def test_a_missing_file_of_rules_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_rules(tmp_path / "none.toml")


def test_the_shipped_rules_hold_on_the_committed_cliff_runs() -> None:
    runs = sorted(REPORTS.glob("*/runs/cliff"))
    assert runs
    for path in runs:
        report = check_rules(load_run(path), load_rules(shipped_rules()))
        assert report.verdict is RuleVerdict.HOLDS, report.results[0]
