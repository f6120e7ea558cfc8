"""The pattern of models: the grammar of `tensors-…` and what fits it."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cells.axes import Direction
from kvbench.cells.blocks import misfit
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern, Tensors, pool_rows

# Kinds of tensors, neighbours merged where their ids are equal.
kinds = st.lists(st.builds(Tensors, st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=4)


@given(st.from_regex(r"tensors-[0-9x+]{0,12}", fullmatch=True))
def test_each_pattern_has_exactly_one_text(text: str) -> None:
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
        "tensors-4/shuffled", "tensors-4/", "tensors-4/tensors-2", "runs-4/runs-2", "page-first-4x1", "page-first-4+5",
        "page-first-0", "runs-1", "runs-04", "fragments-16", "fragments-0x8", "fragments-4x8x1",
        "fragments-4x8/runs-2",
        "tensors-18x8+18x8", "tensors-1x2+1x02", "Tensors-64", "tensors-64\n",
        "+".join(["tensors-1x1", *["1x2", "1x1"] * 9]),
    ],
)  # fmt: skip
def test_an_invalid_pattern_is_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape("tensors-T (blocks in T tensors, the same ids in each)")):
        Pattern.parse(text)


@pytest.mark.parametrize("blocks", [1, 31, 32, 1600, 10_000])
def test_a_sixteenth_of_a_pool_is_spare_and_shows_stray_writes(blocks: int) -> None:
    assert pool_rows(blocks) - blocks == max(2, blocks // 16)


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
    ("pattern", "fits", "blocks", "reason"),
    [
        ("tensors-64", 128, 100, "tensors-64 needs a multiple of 64 blocks, not 100"),
        ("tensors-64", 64, 63, "tensors-64 needs a multiple of 64 blocks, not 63"),
        ("tensors-18x512+18x8", 9360, 9361, "tensors-18x512+18x8 needs 9360 blocks, not 9361"),
        ("runs-16", 16, 15, "runs-16 needs at least 16 blocks"),
        ("page-first-8x4", 64, 40, "page-first-8x4 needs a multiple of 32 blocks, not 40"),
        ("tensors-4/runs-8", 32, 16, "runs-8 needs at least 8 blocks in each tensor, not 4"),
    ],
)
def test_blocks_that_do_not_fit_a_pattern_are_refused_with_the_reason(
    pattern: str, fits: int, blocks: int, reason: str
) -> None:
    assert Pattern.parse(pattern).unfit(fits) is None
    assert (Pattern.parse(pattern).unfit(blocks) or "").endswith(reason)


def test_runs_must_fit_into_the_smallest_tensors_of_several_kinds() -> None:
    assert Pattern.parse("tensors-2x8+2x64/runs-8").unfit(144) is None
    objection = Pattern.parse("tensors-2x8+2x64/runs-16").unfit(144)
    assert objection == "tensors-2x8+2x64/runs-16: runs-16 needs at least 16 blocks in each tensor, not 8"


@pytest.mark.parametrize("direction", Direction)
def test_each_side_of_a_swap_has_its_own_pattern(direction: Direction) -> None:
    cell = Cell("any", direction, 64, 64, pattern=Pattern("runs", 8))
    host_runs = replace(cell, host_pattern=Pattern("runs", 2))
    expected = (Pattern("runs", 2), Pattern("runs", 8))
    assert host_runs.sides == (expected if direction is Direction.H2D else expected[::-1])
    assert cell.sides == (cell.pattern, cell.pattern)
    both = replace(cell, pattern=Pattern("reversed"))
    assert both.sides == (Pattern("descending"), Pattern("contiguous"))


def test_the_sides_of_a_swap_need_the_same_tensors() -> None:
    cell = Cell("any", Direction.H2D, 64, 64, pattern=Pattern.parse("tensors-8"))
    assert misfit(replace(cell, host_pattern=Pattern.of_pages(8, 2))) is None
    for text in ("shuffled", "tensors-4", "page-first-4"):
        objection = misfit(replace(cell, host_pattern=Pattern.parse(text)))
        assert objection == f"both sides need the same tensors, not {text} and tensors-8"


@pytest.mark.parametrize(
    ("pattern", "together"),
    [("shuffled", 1), ("runs-8", 8), ("contiguous", 512), ("tensors-4", 1), ("page-first-4", 4), ("fragments-16x2", 1)],
)
def test_a_pattern_says_how_many_blocks_lie_together(pattern: str, together: int) -> None:
    assert Pattern.parse(pattern).run_blocks(512) == together
