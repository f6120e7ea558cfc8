"""The grammar of the axis `neighbour`, and the situation that swaps beside one stand for."""

import pytest

from kvbench.cells.axes import Neighbour, Situation
from kvbench.cells.cell import AXES
from kvbench.errors import UsageError

NEIGHBOUR = AXES["neighbour"]


@pytest.mark.parametrize(
    ("text", "value", "written", "situation"),
    [
        ("none", Neighbour.NONE, "none", Situation.ALONE), ("IDLE", Neighbour.IDLE, "idle", None),
        ("decode", Neighbour.DECODE, "decode", Situation.DECODE),
        ("prefill", Neighbour.PREFILL, "prefill", Situation.PREFILL),
        ("prefill-2048", Neighbour.PREFILL, "prefill", Situation.PREFILL),
        ("prefill-64", Neighbour("prefill", 64), "prefill-64", Situation.PREFILL),
        ("Prefill-65536", Neighbour("prefill", 65_536), "prefill-65536", Situation.PREFILL),
    ],
)  # fmt: skip
def test_a_neighbour_is_read_and_written(
    text: str, value: Neighbour, written: str, situation: Situation | None
) -> None:
    assert NEIGHBOUR.parse_one(text) == value
    assert (NEIGHBOUR.show(value), value.situation) == (written, situation)


@pytest.mark.parametrize("text", ["prefill-63", "prefill-65537", "prefill-", "prefill-064", "decode-512", "all_reduce"])
def test_another_neighbour_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(UsageError, match="prefill-TOKENS with 64 to 65536 tokens"):
        NEIGHBOUR.parse_one(text)


def test_gemm_is_refused_with_what_replaces_it() -> None:
    with pytest.raises(UsageError, match=r"neighbour=gemm: gemm is gone.*prefill"):
        NEIGHBOUR.parse_one("gemm")


def test_situations_say_what_swaps_are_beside() -> None:
    assert [situation.beside for situation in Situation] == ["nothing", "decode", "prefill"]
