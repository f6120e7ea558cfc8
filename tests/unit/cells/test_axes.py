import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.cells.axes import Direction, Memory, Neighbour, Order, Situation
from kvbench.cells.cell import AXES, Cell
from kvbench.cells.pattern import Pattern
from kvbench.ground.errors import UsageError
from tests.refusals import refused_with
from tests.strategies import AXIS_VALUES, cells

EXAMPLE = Cell(backend="batched", direction=Direction.H2D, blocks=10_000, block_bytes=16_384, order=Order.ANY)


@pytest.mark.parametrize("name", AXES)
@settings(max_examples=20)
@given(data=st.data())
def test_every_value_is_read_back_as_written_and_a_list_in_its_order_without_repeats(
    name: str, data: st.DataObject
) -> None:
    axis, values = AXES[name], data.draw(st.lists(AXIS_VALUES[name], min_size=1, max_size=9))
    assert [axis.parse_one(axis.show(value) or "") for value in values] == values
    assert axis.parse(", ".join(map(axis.write, values))) == tuple(dict.fromkeys(values))


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("blocks", "16:64:x2,100,16", (16, 32, 64, 100)),
        ("sms", "1:10:+4", (1, 5, 9)),
        ("sms", "1,all", (1, 0)),
        ("pause", "0:400us:+200us", (0, 200, 400)),
        ("block_size", "20KiB:24KiB:+2KiB", (20_480, 22_528, 24_576)),
        ("overlap", "off,on", (False, True)),
        ("pattern", "shuffled,runs-16", (Pattern("shuffled"), Pattern("runs", 16))),
        ("memory", "registered,huge-2mib,huge-1GiB", (Memory.REGISTERED, Memory.HUGE_2MIB, Memory.HUGE_1GIB)),
        ("memory", "shared,slots-2048KiBx8", (Memory.SHARED, "slots-2MiBx8")),
        ("order", "ANY,Stream", (Order.ANY, Order.STREAM)),
        (
            "neighbour",
            "IDLE,prefill-2048,Prefill-65536",
            (Neighbour.IDLE, Neighbour.PREFILL, Neighbour("prefill", 65536)),
        ),
        ("pace", "none,85%,87.50%,46GB/s,046.50GB/s", ("none", "85%", "87.5%", "46GB/s", "46.5GB/s")),
    ],
)
def test_values_are_parsed_by_the_grammar_of_their_axis(name: str, text: str, values: tuple[object, ...]) -> None:
    assert AXES[name].parse(text) == values


def test_a_neighbour_is_written_short_and_swaps_beside_it_are_of_a_situation() -> None:
    step, layer = Situation.DECODE, Situation.PREFILL
    wanted = {"none": Situation.ALONE, "idle": None, "decode": step, "prefill": layer, "prefill-64": layer}
    assert {str(neighbour): neighbour.situation for neighbour in map(Neighbour.parse, wanted)} == wanted


@given(low=st.integers(1, 10**6), span=st.integers(0, 10**6), factor=st.integers(2, 10))
def test_a_geometric_range_stays_inside_its_ends(low: int, span: int, factor: int) -> None:
    values = [int(str(value)) for value in AXES["blocks"].parse(f"{low}:{low + span}:x{factor}")]
    assert values[0] == low
    assert all(later == earlier * factor for earlier, later in itertools.pairwise(values))
    assert values[-1] <= low + span < values[-1] * factor


@pytest.mark.parametrize(
    ("name", "texts", "message"),
    [
        ("memory", "slots-4KiBx1", "slots-SIZExR takes a multiple of 4KiB and 2 to 128 ranks"),
        ("blocks", "0", "not a whole number from 1 to 100000000"),
        ("blocks", "1,,2", "an empty value; for example blocks=16,64,256"),
        ("blocks", "1:8:2", "not a range lo:hi:xK or lo:hi:+K; for example blocks=16,64,256"),
        ("blocks", "1:8:xy", "the step xy is not a whole number; for example blocks=16,64,256"),
        ("blocks", "1:90000:+1 1:5000:+1,5001:10001:+1", "more than 10000 values"),
        ("blocks", "8:1:x2 8:1:+1 1:8:x1 1:8:+0", "a range must ascend: xK (K >= 2, from 1 or more) or +K (K >= 1)"),
        ("pace", "0 -5% 0% 0.5% 101% 85 46gb/s 0GB/s 0.05GB/s 1001GB/s 4e1GB/s", "a share of the link from 1% to 100%"),
        ("sms", "5000", "not a whole number from 1 to 4096 or all"),
        ("sms", "1:all:x2", "the ends of a range must be numbers; for example sms=1:32:x2"),
        ("block_size", "4:64KiB:x2", "4 has no unit; write 4KiB:64KiB:x2"),
        ("block_size", "4Kb", '"4Kb" is not a size'),
        ("block_size", "0B 17179869185B", "not a size from 1B to 16GiB"),
        ("sizes", "odd alternate-1 last-10000", "not equal, alternate-D or last-D with D from 2 to 9999"),
        ("pattern", "runs-1", "runs-R with R >= 2"),
        ("host_pattern", "reversed", "reversed is of both sides; write descending on one of them"),
        ("overlap", "true", "not on or off"),
        ("backend", "no/such", "not a backend's name"),
        ("pool", "0 4095 17000GiB", "not dense or a size from 4KiB to 16TiB"),
        ("pool", "tight", "is not a size"),
        ("pool", "dense:1GiB:x2", "the ends of a range must be numbers"),
        ("reuse", "hot", "not one of fresh, same"),
        ("pause", "5 1001ms 1s -1ms", "write 0, or a number with us or ms, up to 1000ms"),
        (
            "neighbour",
            "prefill-63 prefill-65537 prefill- prefill-064 decode-512",
            "prefill-TOKENS with 64 to 65536 tokens",
        ),
        (
            "neighbour",
            "gemm",
            "gemm is gone: its figures were those of one matrix's size; prefill is a layer of a model",
        ),
        ("sequence", "layers-1 layers-0 layers-1025 layers-x at-once-1 two", "at-once-L with L from 2 to 1024"),
    ],
)
def test_invalid_values_are_refused_with_the_right_form(name: str, texts: str, message: str) -> None:
    for text in texts.split():
        with refused_with(f"axis {name}={text}: ", message):
            AXES[name].parse(text)


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[31m", "x" * 10_000])
def test_an_error_about_any_value_is_one_short_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        AXES["backend"].parse(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250


@given(cells, cells)
def test_a_cell_survives_its_strings_and_json_and_shares_its_id_with_no_other(cell: Cell, other: Cell) -> None:
    restored = Cell.from_strings(json.loads(json.dumps(cell.as_strings())))
    assert (restored, restored.id) == (cell, cell.id)
    assert (cell.id == other.id) == (cell == other)


def test_the_id_of_a_cell_is_the_same_in_every_version() -> None:
    assert EXAMPLE.id == "84eec12a7cfb"


@pytest.mark.parametrize("name", [axis.name for axis in AXES.values() if axis.later])
def test_a_cell_that_does_not_use_a_later_axis_keeps_its_id(name: str) -> None:
    strings = EXAMPLE.as_strings()
    assert name not in strings
    assert Cell.from_strings(strings | {name: AXES[name].show(AXES[name].unused)}) == EXAMPLE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks": None}, "axis blocks of a cell has no value"),
        ({"blocks": "-1"}, "axis blocks=-1: not a whole number"),
        ({"bloks": "1"}, r"unknown: \['bloks'\]"),
        ({"queued": None}, "axis queued of a cell has no value"),
    ],
)
def test_an_untrusted_cell_is_checked(change: dict[str, str | None], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Cell.from_strings({**EXAMPLE.as_strings(), **change})
