"""A policy's look-up and its file."""

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cells.axes import Direction, Situation, StreamState
from kvbench.cells.policy import Choice, Policy, Table, load_policy
from kvbench.ground.text import convert
from kvbench.sweep.spec import SweepSpec
from tests.refusals import refused_with

H2D, D2H, IDLE, BUSY = Direction.H2D, Direction.D2H, StreamState.IDLE, StreamState.BUSY

backends = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,10}", fullmatch=True).filter(lambda name: name != "auto")
AXES = {
    "order": st.sampled_from(["stream", "any", "during_api_call"]),
    "sms": st.integers(1, 200).map(str),
    "descriptors_per_call": st.sampled_from(["all", "64", "8192"]),
    "overlap": st.sampled_from(["on", "off"]),
    "pace": st.sampled_from(["46GB/s", "0.5GB/s"]),
}
choices = st.builds(Choice.with_axes, backends, st.fixed_dictionaries({}, optional=AXES))
axis_values = st.lists(st.integers(1, 10**8), min_size=1, max_size=5, unique=True).map(
    lambda numbers: tuple(sorted(numbers))
)


@st.composite
def tables(draw: st.DrawFn, holes: bool = True) -> Table:
    sizes, counts = draw(axis_values), draw(axis_values)
    texts = draw(st.lists(choices.map(str), min_size=1, max_size=3))
    cell = st.sampled_from([*texts, ""] if holes else texts)
    rows = [[draw(cell) for _ in counts] for _ in sizes]
    rows[0][0] = texts[0]
    kind = {"direction": draw(st.sampled_from(Direction)), "stream_state": draw(st.sampled_from(StreamState))}
    return Table(**kind, block_bytes=sizes, blocks=counts, choices=tuple(map(tuple, rows)))


lines = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=20)
policies = st.builds(
    Policy,
    device=lines,
    driver=lines,
    identity_hash=lines,
    made=lines,
    workload=st.dictionaries(st.sampled_from(["pool", "reuse", "pattern"]), lines),
    runs=st.lists(lines, max_size=2).map(tuple),
    tables=st.lists(tables(), min_size=1, max_size=4, unique_by=lambda t: (t.direction, t.stream_state)).map(tuple),
)


def policy(*tables: Table) -> Policy:
    return Policy(device="a GPU", tables=tables)


def choose(policy: Policy, direction: Direction, state: StreamState, blocks: int, block_bytes: float) -> Choice | None:
    table = policy.table(direction, state)
    return None if table is None else table.choose(blocks, block_bytes)


SMALL = Table(
    direction=H2D, stream_state=IDLE, block_bytes=(4096, 65536), blocks=(16, 10_000),
    choices=(("primed", "sm sms=2"), ("batched order=any", "sm sms=4")),
)  # fmt: skip


@given(choices)
def test_a_choice_written_is_read_back(choice: Choice) -> None:
    assert Choice.parse(str(choice)) == choice


@given(policy=policies)
def test_a_policy_written_is_read_back(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "policy.toml"
    path.write_text(policy.to_toml())
    assert load_policy(path) == policy
    assert convert(msgspec.json.decode(msgspec.json.encode(policy)), Policy) == policy
    spec = SweepSpec(name="x", policy=policy)
    assert SweepSpec.from_plain(spec.to_plain()) == spec


@given(tables())
def test_every_measured_point_gets_its_own_choice(table: Table) -> None:
    fitted = policy(table)
    for size, row in zip(table.block_bytes, table.choices, strict=True):
        for count, text in zip(table.blocks, row, strict=True):
            choice = choose(fitted, table.direction, table.stream_state, count, size)
            assert str(choice) == text or not text


@given(tables(holes=False), st.integers(1, 10**8), st.integers(1, 2**34))
def test_between_points_the_nearest_in_ratio_decides(table: Table, blocks: int, block_bytes: int) -> None:
    def distances(values: tuple[int, ...], value: int) -> list[float]:
        return [abs(math.log(other / value)) for other in values]

    choice = choose(policy(table), table.direction, table.stream_state, blocks, block_bytes)
    by_size, by_count = distances(table.block_bytes, block_bytes), distances(table.blocks, blocks)
    allowed = {
        text
        for row, size_distance in zip(table.choices, by_size, strict=True)
        for text, count_distance in zip(row, by_count, strict=True)
        if size_distance <= min(by_size) + 1e-9 and count_distance <= min(by_count) + 1e-9
    }
    assert str(choice) in allowed


def test_one_stream_state_answers_for_the_other_and_no_direction_for_the_other() -> None:
    small = policy(SMALL)
    assert choose(small, H2D, BUSY, 16, 4096) == choose(small, H2D, IDLE, 16, 4096)
    assert choose(small, D2H, IDLE, 16, 4096) is None


@pytest.mark.parametrize(
    ("asked", "tables", "expected"),
    [
        ("gated", ("busy", "sustained", "idle"), "busy"),
        ("busy", ("sustained", "gated", "opened"), "gated"),
        ("sustained", ("busy", "gated", "idle"), "gated"),
        ("opened", ("gated", "idle"), "idle"),
        ("idle", ("sustained", "opened"), "opened"),
    ],
)
def test_of_several_tables_the_one_of_the_state_most_alike_answers(
    asked: str, tables: tuple[str, ...], expected: str
) -> None:
    every = [msgspec.structs.replace(SMALL, stream_state=StreamState(name)) for name in tables]
    for order in (every, every[::-1]):
        found = policy(*order).table(H2D, StreamState(asked))
        assert getattr(found, "stream_state", None) == expected


def test_a_pace_that_is_a_share_is_one_of_the_ceiling_in_its_policy() -> None:
    table = msgspec.structs.replace(
        SMALL, choices=(("primed", "sm sms=2 pace=85%"), ("sm sms=4 pace=30GB/s", "sm sms=4"))
    )
    paced = Policy(device="a GPU", tables=(table,), ceiling_gbps={H2D: 53.3})
    chosen = [
        str(paced.choose(table, *point)) for point in ((16, 4096), (10**4, 4096), (16, 1 << 16), (10**4, 1 << 16))
    ]
    assert chosen == ["primed", "sm sms=2 pace=45.3GB/s", "sm sms=4 pace=30GB/s", "sm sms=4"]
    with pytest.raises(ValueError, match='choice "sm sms=2 pace=85%": its pace needs ceiling_gbps of h2d'):
        Policy(device="a GPU", tables=(table,), ceiling_gbps={D2H: 53.3})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batched pace=85%", "batched has no pace; sm has"),
        ("primed pace=30GB/s", "primed has no pace; sm has"),
        ("sm sms=4 pace=0%", "axis pace=0%: not none, a rate from 0.1GB/s"),
        ("sm sms=4 pace=85% pace=80%", "each once"),
        ("sm sms=all", "write the number of SMs, not all"),
    ],
)
def test_a_pace_that_is_none_is_no_choice(text: str, message: str) -> None:
    with refused_with(message):
        Choice.parse(text)


GOOD = """
device = "a GPU"
[[tables]]
direction = "h2d"
stream_state = "idle"
block_bytes = [4096, 65536]
blocks = [16]
choices = [["sm sms=2"], ["batched"]]
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('device = "a GPU"', "", "policy: device is missing"),
        ('device = "a GPU"', 'device = "a GPU"\nformat = 3', "policy.format: 3 is not a whole number from 1 to 2"),
        ('stream_state = "idle"', "", "a table must have a stream_state, or what its swaps are beside"),
        ('stream_state = "idle"', 'beside = "alone"', "beside of a table must be decode or prefill"),
        ('stream_state = "idle"', 'stream_state = "idle"\nbeside = "decode"', "a table must have a stream_state, or"),
        (
            'device = "a GPU"\n[[tables]]\ndirection = "h2d"\nstream_state = "idle"',
            'format = 1\ndevice = "a GPU"\n[[tables]]\ndirection = "h2d"\nbeside = "decode"',
            "tables beside a step are of format 2",
        ),
        ('device = "a GPU"', 'device = "a\\u001b[2JGPU"', "is not one line of at most 500"),
        ('"h2d"', '"up"', 'policy.tables[0].direction: "up" is not one of h2d, d2h'),
        ("[4096, 65536]", "[65536, 4096]", "block_bytes of a table must ascend"),
        ("[4096, 65536]", "[4096, 4096]", "block_bytes of a table must ascend"),
        ("[4096, 65536]", "[0, 65536]", "policy.tables[0].block_bytes[0]: 0 is not a whole number from 1"),
        ('[["sm sms=2"], ["batched"]]', '[[""], [""]]', "a table must have at least one choice"),
        ('[["sm sms=2"], ["batched"]]', '[["sm sms=2"]]', "a table must have a row for each of block_bytes"),
        ('[["sm sms=2"], ["batched"]]', '[["sm"], ["sm", "sm"]]', "and each row a choice for each of blocks"),
        ('device = "a GPU"', 'device = "a GPU"\nworkload = {blocks = "4"}', 'workload: "blocks" is not one of'),
        ('"sm sms=2"', '"auto"', "auto is not a backend that a policy can choose"),
        ('"sm sms=2"', '"sm blocks=3"', "write a backend, then axis=value of order, sms, "),
        ("[16]", "[" * 100_000, "cannot be read as TOML"),
    ],
)
def test_a_wrong_file_is_one_line_with_its_name(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "p.toml"
    assert GOOD.count(old) == 1
    path.write_text(GOOD.replace(old, new))
    with refused_with(f"{path}: ", message):
        load_policy(path)


def test_of_what_was_not_measured_the_nearest_size_decides_before_the_number_of_blocks() -> None:
    """The SMs that a kernel needs depend on the size."""
    sparse = msgspec.structs.replace(SMALL, choices=(("sm sms=8", ""), ("", "sm sms=2")))
    assert sparse.choose(16, 65536) == sparse.choose(10_000, 65536) == Choice("sm", (("sms", "2"),))
    assert sparse.choose(10_000, 4096) == Choice("sm", (("sms", "8"),))


def test_a_table_beside_a_step_serves_that_alone() -> None:
    """A situation that was not measured is answered from no other."""
    beside = msgspec.structs.replace(SMALL, stream_state=None, beside=Situation.DECODE)
    both = policy(SMALL, beside)
    assert (both.beside(H2D, Situation.DECODE), both.beside(H2D, Situation.PREFILL)) == (beside, None)
    assert both.table(H2D, StreamState.IDLE) == SMALL
    assert policy(beside).table(H2D, StreamState.IDLE) is None
    assert [table.title for table in both.tables] == ["h2d idle", "h2d beside decode"]


def test_two_tables_of_one_kind_are_refused() -> None:
    plain = msgspec.to_builtins(policy(SMALL))
    with refused_with("two tables have the same direction and stream state"):
        convert(plain | {"tables": plain["tables"] * 2}, Policy, "policy")
