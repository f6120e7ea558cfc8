"""Text for a terminal: lines fit it, and break neither inside a number nor before its unit."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cli.options import print_lines, print_rows
from kvbench.ground.text import longest_word, wrapped


@pytest.mark.parametrize(
    "text",
    [
        "h2d idle: sm with 4 SMs up to 4 KiB at N = 64 to 1 024, and 2 from 16 KiB at N = 10 000",
        "Gain: 6.4 times the 49.5 GB/s of batched at 1 024 blocks, which take 12 us, as 10 000 000 B do",
        "2063 loads of 2 048 tokens on 2026-11-23 take 3.2 times as long, 35 to 54 GB/s, p99 89% slower",
    ],
)
def test_no_line_breaks_inside_a_number_or_before_its_unit(text: str) -> None:
    for width in range(longest_word(text) + 2, 81):
        lines = wrapped(text, width).splitlines()
        assert max(map(len, lines)) <= width
        for before, after in pairwise(lines):
            assert not re.search(r"\d$|-$", before), (before, after)


@given(st.text(alphabet="ab 1", max_size=200), st.integers(20, 80))
def test_wrapping_keeps_every_word(text: str, width: int) -> None:
    assert wrapped(text, width).split() == text.split() or max(map(len, text.split())) > width - 2


def test_columns_wrap_where_that_wraps_fewest_texts_and_lines_at_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kvbench.cli.options.room", lambda: 50)
    print_rows([["every text is as long as this", text] for text in ("a", "b", "one text is as long as")])
    assert capsys.readouterr().out.count("every text is as long as this") == 3
    monkeypatch.setattr("kvbench.cli.options.room", lambda: 160)
    print_lines(["a line of prose " * 8])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
