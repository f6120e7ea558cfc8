"""The pattern of models: the grammar of `tensors-…`, what fits it, and where its blocks lie."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.cells.facts import pool_rows
from kvbench.cells.pattern import Pattern, Tensors
from kvbench.engine.device import Stream, open_device
from kvbench.engine.faults import FaultPlan
from kvbench.measure.workload import Pools, lay_out
from tests.strategies import patterns

SHORT = Pattern("tensors", terms=(Tensors(64, 0),))
HYBRID = Pattern("tensors", terms=(Tensors(18, 512), Tensors(18, 8)))
# Few enough blocks to lay out: kinds of tensors, neighbours merged where their ids are equal.
kinds = st.lists(st.builds(Tensors, st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=4)
seeds = st.integers(0, 2**63)


@pytest.mark.parametrize(("text", "pattern"), [("tensors-64", SHORT), ("tensors-18x512+18x8", HYBRID)])
def test_the_grammar_of_tensors(text: str, pattern: Pattern) -> None:
    assert Pattern.parse(text) == pattern
    assert str(pattern) == text


@given(patterns)
def test_every_pattern_written_is_read_back(pattern: Pattern) -> None:
    assert Pattern.parse(str(pattern)) == pattern


@given(st.from_regex(r"tensors-[0-9x+]{0,12}", fullmatch=True))
def test_no_two_texts_are_the_same_pattern(text: str) -> None:
    """A pattern is part of a cell's identity: what is read is written as it was read."""
    try:
        pattern = Pattern.parse(text)
    except ValueError:
        return
    assert str(pattern) == text


@pytest.mark.parametrize(
    "text",
    [
        "tensors", "tensors-", "tensors-0", "tensors-064", "tensors-1000000", "tensors-6 4", "tensors-²", "tensors--4",
        "tensors-18x512", "tensors-18x512+18", "tensors-18x0+18x8", "tensors-0x8+18x9", "tensors-18x512+", "tensors-+1",
        "tensors-18x8+18x8", "tensors-1x2+1x02", "Tensors-64", "tensors-64\n",
        "+".join(["tensors-1x1", *["1x2", "1x1"] * 9]),
    ],
)  # fmt: skip
def test_what_is_no_pattern_says_what_is(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape("tensors-T (blocks in T tensors, the same ids in each)")):
        Pattern.parse(text)


@given(kinds)
def test_a_pattern_of_tensors_has_all_their_blocks(kinds: list[Tensors]) -> None:
    pattern = Pattern.of_tensors(*kinds)
    blocks = sum(kind.blocks for kind in kinds)
    assert Pattern.parse(str(pattern)) == pattern
    assert pattern.unfit(blocks) is None
    each = [kind.ids for kind in kinds for _ in range(kind.count)]
    assert [kind.ids for kind in pattern.tensors(blocks) for _ in range(kind.count)] == each
    assert pattern.pool_rows(blocks) == sum(pool_rows(ids) for ids in each)


@pytest.mark.parametrize(
    ("pattern", "blocks", "reason"),
    [
        (SHORT, 100, "tensors-64 needs a number of blocks that 64 divides; 100 is none"),
        (SHORT, 63, "tensors-64 needs a number of blocks that 64 divides; 63 is none"),
        (HYBRID, 9361, "tensors-18x512+18x8 has 9360 blocks, not 9361"),
        (Pattern("runs", 16), 15, "runs-16 needs at least 16 blocks"),
        (SHORT, 128, None),
        (HYBRID, 9360, None),
        (Pattern("shuffled"), 1, None),
    ],
)
def test_blocks_that_do_not_fit_are_told_why(pattern: Pattern, blocks: int, reason: str | None) -> None:
    assert pattern.unfit(blocks) == reason


@given(kinds=kinds, seed=seeds)
def test_the_same_ids_are_swapped_in_every_tensor_of_a_kind(kinds: list[Tensors], seed: int) -> None:
    pattern = Pattern.of_tensors(*kinds)
    blocks = sum(kind.blocks for kind in kinds)
    layout = lay_out(pattern, blocks, np.random.default_rng(seed))
    assert layout.pool_rows == pattern.pool_rows(blocks)
    assert len(layout.source_rows) == len(layout.destination_rows) == blocks
    row = descriptor = 0
    for kind in pattern.tensors(blocks):
        ids = set()
        for _ in range(kind.count):
            # tensor by tensor, each a region of its own, whose rows follow each other on both sides
            own = slice(descriptor, descriptor + kind.ids)
            sides = [(rows[own].astype(int) - row).tolist() for rows in (layout.source_rows, layout.destination_rows)]
            for side in sides:
                assert len(set(side)) == kind.ids
                assert 0 <= min(side) <= max(side) < pool_rows(kind.ids)
            ids.add(tuple(map(tuple, sides)))
            row += pool_rows(kind.ids)
            descriptor += kind.ids
        assert len(ids) == 1
    assert row == layout.pool_rows


def test_ids_are_scattered_and_differ_between_the_sides() -> None:
    layout = lay_out(Pattern.parse("tensors-4"), 400, np.random.default_rng(1))
    source, destination = layout.tensors[0].source_ids, layout.tensors[0].destination_ids
    assert not np.array_equal(source, destination)
    for ids in (source, destination):
        assert np.count_nonzero(np.diff(ids.astype(np.int64)) == 1) < 10


@settings(max_examples=30, deadline=None)
@given(kinds=kinds, direction=st.sampled_from(Direction), seed=seeds)
def test_bases_and_ids_say_the_same_as_the_descriptors(kinds: list[Tensors], direction: Direction, seed: int) -> None:
    device = open_device("cpu", FaultPlan())
    pattern = Pattern.of_tensors(*kinds)
    cell = Cell("any", direction, sum(kind.blocks for kind in kinds), 48, pattern=pattern)
    layout = lay_out(pattern, cell.blocks, np.random.default_rng(seed))
    memory = Pools(device, Stream(device.driver), cell.pool_bytes).addresses(cell, layout)
    copies = [
        (int(source) + int(from_) * grid.row_bytes, int(destination) + int(to) * grid.row_bytes, grid.row_bytes)
        for grid in memory.grids
        for source, destination in zip(grid.source_bases, grid.destination_bases, strict=True)
        for from_, to in zip(grid.source_ids, grid.destination_ids, strict=True)
    ]
    expected = zip(memory.kernel_sources, memory.kernel_destinations, memory.sizes, strict=True)
    assert copies == [tuple(map(int, descriptor)) for descriptor in expected]
    assert len(memory.grids) == len(list(itertools.groupby(kinds, key=lambda kind: kind.ids)))


def test_other_patterns_have_no_tensors() -> None:
    device = open_device("cpu", FaultPlan())
    cell = Cell("any", Direction.H2D, 16, 48)
    layout = lay_out(cell.pattern, 16, np.random.default_rng(1))
    assert not cell.pattern.tensors(16)
    assert not Pools(device, Stream(device.driver), cell.pool_bytes).addresses(cell, layout).grids
