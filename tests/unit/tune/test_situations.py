"""The answer alone, beside decode and beside a prefill, on runs with exact figures."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvbench.cells.axes import Direction, Neighbour, Priority, Reuse, Situation
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.cells.policy import Choice, load_policy
from kvbench.ground.errors import UsageError
from kvbench.report.build import report_of
from kvbench.report.model import plain
from kvbench.results import Run, Visit, load_run
from kvbench.tune.advice import Advice
from kvbench.tune.page import others_of, rows_of
from kvbench.tune.situations import Answer, Question
from tests import synthetic
from tests.answers import advice_of
from tests.command import output, refused
from tests.docs.schemas import misfits
from tests.reports import part_of

KIB = 1024
D2H, H2D = Direction.D2H, Direction.H2D
DECODE, PREFILL = Situation.DECODE, Situation.PREFILL
COPIES = Cell("batched", D2H, 4096, 16 * KIB)


def sm(count: int) -> Cell:
    return Cell("sm", D2H, 4096, 16 * KIB, sms=count)


# Method -> how many times as long a decode step takes, GB/s beside it, ms of the thread a GB.
STORES = {sm(2): (1.025, 22.0, 0.3), sm(4): (2.1, 43.0, 0.3), COPIES: (1.002, 9.0, 38.0)}


def lost(slowdown: float, gbps: float) -> float:
    """Return the ms that each GB takes from the step."""
    return (1 - 1 / slowdown) * 1e3 / gbps


def beside(
    cell: Cell, slowdown: float, gbps: float, thread_ms: float, factors: Sequence[float] = (1.0,) * 6
) -> list[Visit]:
    """Six visits of three starts of a worker; `factors` multiply how much longer a step takes in each."""
    made = []
    for number, factor in enumerate(factors):
        (visit,) = synthetic.beside(cell, 1 + (slowdown - 1) * factor, gbps, rounds=1)
        thread_us = thread_ms * (0.9 + 0.1 * (number % 3)) * cell.swap_bytes / 1e6  # which is thread_ms on average
        thread = {"caller_us": [thread_us] * len(visit.samples)}
        made.append(synthetic.with_samples(visit, thread, round=number, process=number // 2))
    return made


def beside_steps(figures: Mapping[Cell, Sequence[Any]], neighbour: Neighbour = Neighbour.DECODE) -> list[list[Visit]]:
    """Return the visits of each method beside a step, by what follows the cell in `beside`."""
    return [beside(in_engine(cell, neighbour), *of_cell) for cell, of_cell in figures.items()]


def run_of(folder: Path, *visits: Sequence[Visit], alone: Sequence[Cell] = ()) -> Run:
    cells = [
        replace(in_engine(cell), priority=priority) for cell in alone for priority in (Priority.NONE, Priority.LOW)
    ]
    slower = {Priority.NONE: 1, Priority.LOW: 9}  # those of a low priority stand for nothing
    rounds = synthetic.rounds(cells, lambda cell: (50.0 if cell.sms else 10.0) / slower[cell.priority], noise=0.001)
    records = [*synthetic.ceilings(), *rounds, *(visit for of_cell in visits for visit in of_cell)]
    return synthetic.loaded(folder / "run", records)


def in_engine(cell: Cell, neighbour: Neighbour = Neighbour.NONE) -> Cell:
    return replace(cell, neighbour=neighbour, reuse=Reuse.FRESH, pool_bytes=1 << 30)


def stores(folder: Path, neighbour: Neighbour = Neighbour.DECODE, alone: Sequence[Cell] = ()) -> Run:
    # Better than all, and no choice: the stream gives way, another GPU swaps too, layers arrive one by one, or none.
    apart = [replace(sm(3), priority=Priority.LOW), replace(sm(3), devices=2), replace(sm(3), sequence="layers-4")]
    apart.append(replace(COPIES, backend="empty"))
    return run_of(folder, *beside_steps(STORES | dict.fromkeys(apart, (1.0, 50.0, 0.1)), neighbour), alone=alone)


def test_a_run_of_several_gpus_alone_answers_for_all_of_them_at_once(tmp_path: Path) -> None:
    """Of the steps that wait for each other, as an engine's do; beside cells of one GPU these are no choice."""
    paced = replace(sm(4), pace="85%")
    cells = [replace(cell, devices=2, ranks=ranks) for cell in (sm(2), paced) for ranks in (1, 2)]
    figures = {1: (1.02, 40.0, 0.3), 2: (1.7, 40.0, 0.3)}
    visits = beside_steps({cell: figures[cell.ranks] for cell in cells})
    found = answer(advice_of([run_of(tmp_path / "two", *visits)]), DECODE)
    assert (found.devices, found.ranks, found.beside) == (2, 2, "decode, 2 ranks")
    assert found.use
    assert found.use.slowdown
    assert found.use.slowdown[0] == pytest.approx(1.7)
    assert rows_of([found])[0][:2] == ["d2h", "decode, 2 ranks"]
    without_ranks = [visit for cell, visit in zip(cells, visits, strict=True) if cell.ranks == 1]
    assert answer(advice_of([run_of(tmp_path / "apart", *without_ranks)]), DECODE).beside == "decode, 2 devices"
    both = advice_of([run_of(tmp_path / "both", *visits), stores(tmp_path / "one")])
    assert answer(both, DECODE) == answer(advice_of([stores(tmp_path / "alone")]), DECODE)


def answer(advice: Advice, situation: Situation, direction: Direction = D2H) -> Answer:
    (found,) = (one for one in advice.answers if (one.direction, one.situation) == (direction, situation))
    return found


def used(made: Answer) -> str:
    assert made.use is not None
    return str(made.use.choice)


@pytest.mark.parametrize(
    ("question", "choice"),
    [
        (Question(), "sm sms=2"),  # 1.1 + 0.3 ms a GB, against 12 + 0.3 and 0.2 + 38
        (Question(thread_counts=False), "batched"),
        (Question(need_gbps=30), "sm sms=4"),
        (Question(need_gbps=22), "sm sms=2"),
    ],
)
def test_beside_a_step_the_least_per_gb_is_taken_of_what_moves_enough(
    tmp_path: Path, question: Question, choice: str
) -> None:
    made = answer(advice_of([stores(tmp_path)], question), DECODE)
    assert used(made) == choice
    assert {method.choice.backend for method in made.methods} == {"batched", "sm"}


def test_what_moves_less_than_a_tenth_of_large_copies_must_be_asked_for(tmp_path: Path) -> None:
    run = run_of(tmp_path, *beside_steps({sm(2): STORES[sm(2)], COPIES: (1.0001, 5.0, 0.1)}))
    chosen = [used(answer(advice_of([run], Question(need_gbps=need)), DECODE)) for need in (None, 4.0)]
    assert chosen == ["sm sms=2", "batched"]


def test_an_answer_has_the_figures_of_its_visits(tmp_path: Path) -> None:
    made = answer(advice_of([stores(tmp_path)]), DECODE)
    use, other = made.use, made.otherwise
    assert use is not None and other is not None and use.slowdown and use.lost_ms_per_gb  # noqa: PT018
    wanted = (22.0, 1.025, lost(1.025, 22.0), 0.3, COPIES.swap_bytes / 22e3)
    figures = (use.gbps, use.slowdown[0], use.lost_ms_per_gb[0], use.thread_ms_per_gb, use.us)
    assert figures == pytest.approx(wanted, rel=1e-6)
    assert [str(choice) for choice in made.compared_with] == ["batched", "sm sms=4"]
    assert made.undecided == []
    assert made.fastest is not None and str(made.fastest.choice) == "sm sms=4"  # noqa: PT018
    assert made.gentle == use, "the fastest that keeps a step within 10%"
    assert other == made.fastest
    assert (made.block_bytes, made.blocks) == (16 * KIB, 4096)


def test_otherwise_the_fastest_that_keeps_a_step_within_10_percent_is_named_before_the_fastest(tmp_path: Path) -> None:
    made = answer(advice_of([run_of(tmp_path, *beside_steps(STORES | {sm(3): (1.08, 35.0, 0.3)}))]), DECODE)
    assert made.otherwise is not None and made.fastest is not None  # noqa: PT018
    assert (used(made), str(made.otherwise.choice), str(made.fastest.choice)) == ("sm sms=2", "sm sms=3", "sm sms=4")


@pytest.mark.parametrize(("scatter", "choice", "other"), [(0.0, 2, 3), (0.5, 3, 2)])
def test_of_what_the_visits_do_not_tell_apart_the_fastest_is_taken(
    tmp_path: Path, scatter: float, choice: int, other: int
) -> None:
    """Three SMs lose 0.3 ms a GB more than two: no more than the margin, and surely more only if the visits agree."""
    three = 1 / (1 - (lost(1.025, 22.0) + 0.3) * 31.0 / 1e3)
    factors = [1 + scatter * (-1) ** number for number in range(6)]
    figures = {sm(2): STORES[sm(2)], sm(3): (three, 31.0, 0.3, factors), sm(4): STORES[sm(4)]}
    run = run_of(tmp_path, *beside_steps(figures))
    made = answer(advice_of([run]), DECODE)
    assert used(made) == f"sm sms={choice}"
    assert [str(one) for one in made.not_told_apart] == [f"sm sms={other}"]
    (others,) = others_of(advice_of([run]))
    fastest = "sm (4 SMs), 43 GB/s, 2.10x, 1.56 ms"
    assert (others[0], others[1], others[4], others[5]) == ("d2h", "decode", fastest, f"sm ({other} SMs)")


def test_what_needs_another_layout_competes_with_nothing_and_is_named(tmp_path: Path) -> None:
    """Merged copies in runs, and stores into pages of the host, by the least that each takes."""
    in_runs = replace(COPIES, backend="merged", pattern=Pattern("runs", 16))
    pages = [replace(sm(count), backend="staged", host_pattern=Pattern("runs", 256)) for count in (2, 4)]
    others = {in_runs: (1.05, 30.0, 3.0), pages[0]: (1.001, 36.0, 0.1), pages[1]: (1.5, 40.0, 0.1)}
    run = run_of(tmp_path, *beside_steps(STORES | others))
    made = answer(advice_of([run]), DECODE)
    assert used(made) == "sm sms=2"
    text = " ".join(output("show", run.path).split())
    assert "d2h beside decode in other layouts: staged (2 SMs) in runs-256 on the host, 36 GB/s, 1.00x, " in text
    assert "0.03 + 0.10 ms/GB; merged in runs-16, 30 GB/s, 1.05x, 1.59 + 3.00 ms/GB" in text
    assert "staged (4 SMs)" not in text


def test_what_starts_set_apart_is_undecided(tmp_path: Path) -> None:
    """In one of three starts, four SMs slow the step no more than two; over all, they lose 3 ms a GB more."""
    lucky = [1.0, 1.0, 1.0, 1.0, 0.01, 0.01]
    figures = {sm(2): STORES[sm(2)], sm(4): (1.25, 43.0, 0.3, lucky)}
    made = answer(advice_of([run_of(tmp_path, *beside_steps(figures))]), DECODE)
    assert used(made) == "sm sms=2"
    assert [str(choice) for choice in made.undecided] == ["sm sms=4"]


def test_methods_that_no_round_has_both_of_are_undecided(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / str(number), visits) for number, visits in enumerate(beside_steps(STORES))]
    made = answer(advice_of(runs), DECODE)
    assert used(made) == "sm sms=2"
    assert {str(choice) for choice in made.undecided} == {"sm sms=4", "batched"}
    enough = answer(advice_of(runs, Question(need_gbps=20)), DECODE)
    assert [str(choice) for choice in enough.undecided] == ["sm sms=4"], "of those that move enough"


def test_beside_prefills_of_other_lengths_the_one_that_most_methods_ran_beside_answers(tmp_path: Path) -> None:
    short, long = (Neighbour("prefill", tokens) for tokens in (512, 9000))
    visits = beside_steps({COPIES: (1.0, 50.0, 0.1)}, long)
    visits += beside_steps({sm(count): STORES[sm(count)] for count in (2, 4)}, short)
    made = answer(advice_of([run_of(tmp_path, *visits)]), PREFILL)
    assert [method.choice.backend for method in made.methods] == ["sm", "sm"]


def test_where_no_method_moves_enough_or_keeps_the_limit_the_row_says_so(tmp_path: Path) -> None:
    run = stores(tmp_path)
    few = answer(advice_of([run], Question(need_gbps=60)), DECODE)
    assert (few.use, few.none) == (None, "none moves 60 GB/s; most: sm (4 SMs), 43 GB/s")
    (others,) = others_of(advice_of([run], Question(need_gbps=60)))
    assert (others[2], others[-1]) == ("-", "-")
    slow = answer(advice_of([run], Question(need_gbps=20, limits={DECODE: 0.02})), DECODE)
    assert (slow.use, slow.none) == (None, "none within 2%; least: sm (2 SMs), 1.02x")
    row = next(line for line in output("show", run.path, "--beside", "decode", "--need", "20GB/s",
                                       "--max-slowdown", "2%").splitlines() if line.startswith("d2h"))  # fmt: skip
    assert "none within 2%; least: sm (2 SMs), 1.02x" in row
    other = answer(advice_of([run], Question(limits={PREFILL: 0.001})), DECODE)
    assert other.use is not None, "a limit is for one situation"
    kept = answer(advice_of([run], Question(limits={DECODE: 0.05})), DECODE)
    assert used(kept) == "sm sms=2"


def test_runs_of_two_machines_are_refused(tmp_path: Path) -> None:
    run, other = (stores(tmp_path / name).path for name in ("run", "other"))
    (other / "run.json").write_text((other / "run.json").read_text().replace("Synthetic H200", "Another GPU"))
    with pytest.raises(UsageError, match="runs must be of one device and driver; these are of Another GPU"):
        advice_of([load_run(run), load_run(other)])


def test_a_situation_is_answered_by_its_own_run_alone(tmp_path: Path) -> None:
    """A run beside decode says nothing of swaps alone, nor of a prefill; nor does one of an earlier version."""
    run = stores(tmp_path)
    advice = advice_of([run])
    assert answer(advice, Situation.ALONE).none == "not measured: kvbench sweep engine"
    assert answer(advice, PREFILL).none == "not measured: kvbench sweep beside"
    # Runs with another question swap by one method too, at sizes of their own.
    for size, none in ((64 * KIB, "not measured: kvbench sweep engine"), (16 * KIB, "batched alone was measured")):
        run = stores(tmp_path / str(size), alone=[replace(COPIES, block_bytes=size)])
        assert (answer(advice_of([run]), Situation.ALONE).none or "").endswith(none)
    assert [row[:2] for row in rows_of(advice.answers)] == [["d2h", "nothing"], ["d2h", "decode"], ["d2h", "prefill"]]
    of_prefill = advice_of([stores(tmp_path / "prefill", Neighbour.PREFILL)])
    assert answer(of_prefill, PREFILL).use is not None
    assert answer(of_prefill, DECODE).use is None


def test_the_row_alone_is_of_the_block_size_and_has_the_time(tmp_path: Path) -> None:
    sizes = [replace(cell, block_bytes=kib * KIB) for kib in (16, 64) for cell in (sm(2), sm(4), COPIES)]
    run = stores(tmp_path, alone=[*sizes, replace(COPIES, backend="merged", block_bytes=64 * KIB)])
    small, large = (answer(advice_of([run], Question(block_bytes=kib * KIB)), Situation.ALONE) for kib in (16, 64))
    assert (small.block_bytes, large.block_bytes) == (16 * KIB, 64 * KIB)
    others = [[choice.backend for choice in row.compared_with] for row in (small, large)]
    assert others == [["batched"], ["batched", "merged"]]
    assert small.visits == large.visits == 6
    assert small.use is not None and small.otherwise is not None  # noqa: PT018
    assert (str(small.use.choice), str(small.otherwise.choice)) == ("sm sms=2", "batched")
    assert small.use.us == pytest.approx(COPIES.swap_bytes / 50e3, rel=0.01)
    # A GB takes 20 ms at 50 GB/s, and 0.3 of that of the thread.
    assert small.use.thread_ms_per_gb == pytest.approx(6, rel=0.02)
    (row,) = (line for line in output("show", run.path).splitlines() if line.startswith("d2h  nothing"))
    assert "50 (1.34 ms)" in row


def test_the_row_alone_has_the_figures_of_the_largest_swap_at_which_the_choice_was_measured(tmp_path: Path) -> None:
    counts = {64: (1, 2), 256: (1, 2), 1024: (1, 2), 4096: (1, 4)}
    kernels = [replace(sm(sms), blocks=blocks) for blocks, of_blocks in counts.items() for sms in of_blocks]
    copies = [replace(COPIES, blocks=blocks) for blocks in counts]
    cells = [in_engine(cell) for cell in (*kernels, *copies)]
    visits = synthetic.rounds(cells, lambda cell: 25.0 * min(cell.sms, 2) if cell.sms else 5.0, noise=0.001)
    made = answer(advice_of([run_of(tmp_path, visits)]), Situation.ALONE)
    assert (used(made), made.blocks) == ("sm sms=2", 1024)


def test_json_has_the_record_of_every_situation(tmp_path: Path) -> None:
    run = stores(tmp_path, alone=[sm(2), sm(4), COPIES])
    shown = json.loads(output("show", run.path, "--json"))
    assert misfits(shown, "ShownAnswer") == []
    by_situation = {one["situation"]: one for one in shown["situations"]}
    assert [*by_situation] == ["alone", "decode", "prefill"]
    decode = by_situation["decode"]
    assert decode["use"]["choice"] == "sm sms=2"
    assert decode["use"]["lost_ms_per_gb"][0] == pytest.approx(lost(1.025, 22.0), abs=1e-4)
    assert [method["choice"] for method in decode["methods"]] == ["sm sms=2", "sm sms=4", "batched"]
    assert by_situation["prefill"]["none"] == "not measured: kvbench sweep beside"


def test_a_policy_has_a_table_for_each_situation_that_was_measured(tmp_path: Path) -> None:
    run = stores(tmp_path, alone=[sm(2), sm(4), COPIES])
    file = tmp_path / "p.toml"
    output("show", run.path, "-p", file)
    policy = load_policy(file)
    assert [table.title for table in policy.tables] == ["d2h idle", "d2h beside decode"]
    table = policy.beside(D2H, DECODE)
    assert table is not None
    assert table.choose(4096, 16 * KIB) == Choice("sm", (("sms", "2"),))
    assert policy.beside(D2H, PREFILL) is None


def test_a_size_that_was_measured_beside_one_step_is_in_no_table_of_another(tmp_path: Path) -> None:
    """Stores beside a prefill were measured at 64 KiB alone, beside decode at 16 KiB: a policy invents neither."""
    large = {replace(cell, block_bytes=64 * KIB): figures for cell, figures in STORES.items()}
    visits = [*beside_steps(STORES), *beside_steps(large, Neighbour.PREFILL)]
    output("show", run_of(tmp_path, *visits).path, "-p", tmp_path / "p.toml")
    sizes = {table.beside: table.block_bytes for table in load_policy(tmp_path / "p.toml").tables}
    assert sizes == {DECODE: (16 * KIB,), PREFILL: (64 * KIB,)}


def test_beside_a_step_the_largest_swap_speaks_for_a_method(tmp_path: Path) -> None:
    """Of 64 blocks, each GB takes many times as long of a step and of the thread."""
    small = {replace(cell, blocks=64): (1.5, 2.0, 50.0) for cell in STORES}
    made = answer(advice_of([run_of(tmp_path, *beside_steps(STORES | small))]), DECODE)
    assert made.use is not None
    assert (str(made.use.choice), made.use.gbps, made.blocks) == ("sm sms=2", pytest.approx(22), 4096)


def test_every_block_size_beside_a_step_is_in_the_policy_and_in_the_details(tmp_path: Path) -> None:
    """Two SMs lose ten times as much at 4 KiB, where copies are the choice for a thread of its own."""
    small = {replace(cell, block_bytes=4 * KIB): figures for cell, figures in STORES.items()}
    small[replace(sm(2), block_bytes=4 * KIB)] = (1.25, 11.0, 0.3)
    run = run_of(tmp_path, *beside_steps(STORES | small))
    output("show", run.path, "-p", tmp_path / "p.toml", "--own-thread")
    (table,) = load_policy(tmp_path / "p.toml").tables
    assert (table.block_bytes, table.choices) == ((4 * KIB, 16 * KIB), (("batched",), ("batched",)))
    assert answer(advice_of([run], Question(block_bytes=9 * KIB)), DECODE).block_bytes == 16 * KIB  # nearest in ratio
    (by_size,) = (one for one in part_of(report_of([run]), "answer").tables if one.title == "By block size")
    shown = [[plain(text) for text in row] for row in by_size.rows]
    assert [row[:3] for row in shown if row[2] == "decode"] == [["4 KiB", "d2h", "decode"], ["16 KiB", "d2h", "decode"]]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_no_cell_is_cut_in_a_narrow_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr("kvbench.cli.options.room", lambda: columns)
    shown = output("show", stores(tmp_path, alone=[sm(2), sm(4), COPIES]).path)
    text = " ".join(shown.split())
    rows = (
        "sm (2 SMs)",
        "1.02x",
        f"{lost(1.025, 22.0):.2f} + 0.30",
        "sm (4 SMs), 43 GB/s",
        "not measured: kvbench sweep beside",
    )
    assert all(words in text for words in rows)
    assert columns >= 200 or max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-slowdown", "5%"], "--max-slowdown 5%: a limit is for one situation; add --beside decode"),
        (["--beside", "decode", "--max-slowdown", "5"], "--max-slowdown 5: write a percentage (5%) or a fraction"),
        (["--beside", "nothing", "--max-slowdown", "5%"], "--max-slowdown 5%: a limit is for one situation"),
        (["--beside", "gemm"], "--beside gemm: write one of nothing, decode, prefill"),
        (["--need", "20"], "--need 20: write a rate: 20GB/s"),
        (["--block-size", "zzz"], '--block-size zzz: "zzz" is not a size'),
        (["--beside", "decode", "--max-slowdown", "0.1%", "-p", "p.toml"], "--policy: there is nothing to write"),
    ],
)
def test_a_question_that_makes_no_sense_is_one_line(tmp_path: Path, options: list[str], message: str) -> None:
    assert refused("show", stores(tmp_path).path, *options, cwd=tmp_path).startswith(message)


def test_a_model_is_told_what_its_loads_and_stores_take_of_a_step(tmp_path: Path) -> None:
    """Of llama-3-8b, 16 tokens are 2 MiB in 64 blocks of 32 KiB, and 8 192 tokens 1.07 GB."""
    loads = [
        replace(cell, direction=H2D, blocks=blocks, block_bytes=32 * KIB)
        for blocks in (64, 1024, 16_384)
        for cell in (sm(2), COPIES)
    ]
    run = run_of(tmp_path, *beside_steps({replace(sm(2), block_bytes=32 * KIB): STORES[sm(2)]}), alone=loads)
    text = " ".join(output("show", run.path, "--model", "llama-3-8b").split())
    (sizes,) = re.findall(r"llama-3-8b: a load of (.*) MB takes 1 / 2 / 5 ms \(sync_load_budget_bytes\)", text)
    assert [float(size) for size in sizes.split(" / ")] == pytest.approx([50, 100, 250], rel=0.02)
    ms = f"{8192 * 128 * KIB / 1e9 * lost(1.025, 22.0):.2g}"
    assert f"to store a prompt of 8192 tokens (1.07 GB) takes from decode: sm (2 SMs) {ms} ms" in text
    assert f"a step of 16 requests writes (2.1 MB) takes from decode: sm (2 SMs) {16 * float(ms) / 8192:.2g} ms" in text
    without = output("show", run_of(tmp_path / "alone", alone=[sm(2), COPIES]).path, "--model", "llama-3-8b")
    assert "(1.07 GB) takes from decode: not measured: kvbench sweep beside" in " ".join(without.split())


def test_a_folder_stands_for_its_runs(tmp_path: Path) -> None:
    for neighbour in (Neighbour.DECODE, Neighbour.PREFILL):
        stores(tmp_path / str(neighbour), neighbour)
    for number, name in enumerate(("decode", "prefill")):
        (tmp_path / name / "run").rename(tmp_path / f"run-{number}")
        (tmp_path / name).rmdir()
    shown = json.loads(output("show", tmp_path, "--json"))
    assert [bool(one["use"]) for one in shown["situations"]] == [False, True, True]


def test_lost_can_be_negative(tmp_path: Path) -> None:
    run = run_of(tmp_path, *beside_steps({sm(2): (0.99, 22.0, 0.1)}))
    made = answer(advice_of([run]), DECODE)
    assert made.use is not None and made.use.lost_ms_per_gb is not None  # noqa: PT018
    assert made.use.lost_ms_per_gb[0] == pytest.approx(lost(0.99, 22.0))
    assert math.isfinite(made.use.cost(thread_counts=True))
    assert "-0.46 + 0.10" in output("show", run.path)
