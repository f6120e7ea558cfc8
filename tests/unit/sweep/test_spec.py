import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cells.axes import Direction
from kvbench.cells.cell import AXES, Cell
from kvbench.cells.filter import Filter, parse_filters, refusal
from kvbench.sweep.spec import Limits, Sampling, SweepSpec, parse_assignments, visit_deadline_s
from tests.refusals import refused_with
from tests.strategies import AXIS_VALUES, cells

SMALL = Cell(backend="per_block", direction=Direction.H2D, blocks=16, block_bytes=4096)
ORDERED = ("<", "<=", ">", ">=")


@st.composite
def conditions(draw: st.DrawFn) -> Filter:
    name = draw(st.sampled_from([*AXES, "swap_bytes"]))
    values = st.integers(0, 2**50) if name == "swap_bytes" else AXIS_VALUES[name]
    if name == "sms":
        values = st.integers(1, 4096)
    ranged = name == "swap_bytes" or AXES[name].ranged
    operator = draw(st.sampled_from(("=", "!=", *ORDERED) if ranged else ("=", "!=")))
    most = 1 if operator in ORDERED else 4
    return Filter(name, operator, tuple(draw(st.lists(values, min_size=1, max_size=most, unique=True))))


groups = st.dictionaries(st.sampled_from(list(AXES)), st.none(), max_size=5).flatmap(
    lambda names: st.fixed_dictionaries(
        {
            name: st.lists(AXIS_VALUES[name].map(AXES[name].write), min_size=1, max_size=4, unique=True).map(tuple)
            for name in names
        }
    )
)
specs = st.builds(
    SweepSpec,
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True),
    question=st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=40),
    device=st.sampled_from(["auto", "cpu", "cuda", "cuda:3"]),
    groups=st.lists(groups, min_size=1, max_size=3).map(tuple),
    filters=st.lists(conditions().map(str), max_size=3).map(tuple),
    sampling=st.builds(Sampling, rounds=st.integers(1, 9), cell_seconds=st.floats(0.001, 9)),
    limits=st.builds(Limits, host_bytes=st.none() | st.integers(1, 2**40)),
    seed=st.integers(0, 2**63 - 1),
    fault=st.none() | st.just("hang@3"),
)


@given(conditions())
def test_every_filter_is_read_back_as_written(condition: Filter) -> None:
    assert parse_filters(str(condition)) == (condition,)


@given(cells, conditions())
def test_a_filter_and_its_opposite_split_the_cells(cell: Cell, condition: Filter) -> None:
    opposite = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}[condition.operator]
    axis = AXES.get(condition.axis)
    applies = axis is None or getattr(cell, axis.field) is not None
    verdicts = {condition.holds(cell), replace(condition, operator=opposite).holds(cell)}
    assert verdicts == ({True, False} if applies or condition.operator in ("=", "!=") else {False})


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("backend=per_block|batched", True), ("block_size<=4KiB", True), ("blocks>16", False),
        ("swap_bytes=64KiB", True), ("order=any", False), ("order!=any", True), ("sms<=12", False),
        (" blocks = 4 | 16 ", True),
    ],
)  # fmt: skip
def test_a_filter_compares_with_the_cell(text: str, *, holds: bool) -> None:
    assert Filter.parse(text).holds(SMALL) is holds


def test_a_filter_that_no_cell_meets_says_what_there_is() -> None:
    cells = [replace(SMALL, blocks=blocks) for blocks in range(6, 11)]
    assert refusal([Filter.parse("blocks=5")], cells).endswith("blocks=5: blocks is 6, 7, 8, 9, ...")


def test_a_visit_has_time_for_the_swaps_that_are_queued_before_each_of_its_own() -> None:
    alone_s, behind_s = (visit_deadline_s(replace(SMALL, queued=queued), Sampling()) for queued in (0, 100_000))
    assert behind_s - alone_s > 100_000 * Sampling().min_samples * SMALL.swap_bytes / 1e9


def test_all_descriptors_in_one_call_are_more_than_any_number() -> None:
    in_one_call = replace(SMALL, descriptors_per_call=0)
    assert Filter.parse("descriptors_per_call>100000").holds(in_one_call)
    assert not Filter.parse("descriptors_per_call<=8192").holds(in_one_call)
    assert Filter.parse("descriptors_per_call<all").holds(replace(SMALL, descriptors_per_call=64))


@given(specs)
def test_a_spec_survives_json(spec: SweepSpec) -> None:
    plain = json.loads(json.dumps(spec.to_plain()))
    restored = SweepSpec.from_plain(plain)
    assert restored == spec
    assert restored.to_plain() == plain


def _set(*path: str | int, value: object) -> Callable[[Any], None]:
    def change(plain: Any) -> None:
        for step in path[:-1]:
            plain = plain[step]
        plain[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plain: plain.pop("name"), "spec: name is missing"),
        (_set("sede", value=1), 'spec: unknown key "sede"; did you mean seed?'),
        (_set("sampling", "rounds", value=True), "spec.sampling.rounds: true is not a whole number from 1 to 1000"),
        (_set("sampling", "cell_seconds", value="1"), 'spec.sampling.cell_seconds: "1" is not a number from 0.001 to'),
        (_set("limits", "host_bytes", value=0), "spec.limits.host_bytes: 0 is not a whole number from 1"),
        (_set("question", value="a\x1b[2J"), "is not one line of at most 500 characters"),
        (_set("device", value="cuda:x"), 'spec.device: "cuda:x" is not auto, cpu, cuda or cuda:N'),
        (_set("groups", value=[]), "spec.groups: [] is not a non-empty list of tables"),
        (_set("groups", 0, "blok", value=["1"]), 'spec groups: unknown key "blok"; did you mean blocks?'),
        (_set("groups", 0, "blocks", value=[]), "spec groups: blocks: [] is empty or repeats a value"),
        (_set("filters", value="blocks<3"), 'spec.filters: "blocks<3" is not a list of strings'),
    ],
)
def test_an_untrusted_spec_is_checked(change: Callable[[Any], object], message: str) -> None:
    plain: Any = SweepSpec(name="x").to_plain()
    change(plain)
    with refused_with(message):
        SweepSpec.from_plain(plain)


@pytest.mark.parametrize(
    ("asked", "groups"),
    [
        ({"direction": "d2h"}, ["batched d2h", "sm d2h 2,4", "triton d2h 12"]),
        ({"direction": "h2d"}, ["batched h2d", "triton h2d 12"]),
        ({"backend": "sm", "sms": "4"}, ["sm d2h 4"]),
        ({"sms": "4"}, ["batched h2d,d2h 4", "sm d2h 4"]),
        ({"backend": "sm", "sms": "5"}, ["sm d2h 5"]),
        ({"sms": "4,5"}, ["batched h2d,d2h 4,5", "sm d2h 4,5", "triton 4,5"]),
        ({"backend": "merged", "direction": "d2h"}, ["merged d2h", "merged d2h 2,4", "merged d2h 12"]),
    ],
)
def test_values_that_a_sweep_has_select_its_cells_and_others_replace_its_own(
    asked: dict[str, str], groups: list[str]
) -> None:
    spec = SweepSpec(name="x", groups=(
        {"backend": ("batched",), "direction": ("h2d", "d2h")}, {"backend": ("triton",), "sms": ("12",)},
        {"backend": ("sm",), "direction": ("d2h",), "sms": ("2", "4")},
    ))  # fmt: skip
    kept = spec.with_asked_axes(asked).groups
    names = ("backend", "direction", "sms")
    assert sorted(" ".join(",".join(group[name]) for name in names if name in group) for group in kept) == sorted(
        groups
    )


sampled = SweepSpec(name="x").with_sampling


@pytest.mark.parametrize(
    ("read", "given", "message"),
    [
        (parse_filters, "blocks", 'filter "blocks": write axis OP value with OP one of = != < <= > >='),
        (parse_filters, "blocks==4", 'filter "blocks==4": write axis OP value'),
        (parse_filters, "blocks<4,", 'filter "": write axis OP value'),
        (parse_filters, "bloks<4", 'unknown axis "bloks"; did you mean blocks?'),
        (parse_filters, "backend<per_block", "axis backend has no order; compare it with = or !="),
        (parse_filters, "blocks<4|8", 'filter "blocks<4|8": alternatives with | require = or !='),
        (parse_filters, "sms=all", 'filter "sms=all": a cell has a number of SMs, not all; write the number'),
        (sampled, {"rounds": 0}, "rounds: 0 is not a whole number from 1 to 1000"),
        (sampled, {"min_samples": 20}, "max_samples: 15 is less than min_samples, 20"),
        (sampled, {"cell_seconds": float("nan")}, "cell_seconds: NaN is not a number from 0.001 to 3600"),
        (sampled, {"round": 3}, 'unknown key "round"; did you mean rounds?'),
        (parse_assignments, ["blocks"], "-a blocks: not an assignment; write axis=values, for example -a blocks=16,"),
        (parse_assignments, ["blocks=4", "blocks=8"], "axis blocks is given twice; write -a blocks=4,8"),
        (parse_assignments, ["block=4"], 'unknown axis "block"; did you mean blocks?'),
    ],
)
def test_what_a_command_line_cannot_mean_is_refused_with_the_right_form(
    read: Callable[[Any], object], given: object, message: str
) -> None:
    with refused_with(message):
        read(given)
