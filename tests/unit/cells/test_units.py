import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cells.facts import method_label
from kvbench.cells.units import format_duration, format_size, gigabytes_per_second, parse_binary_size, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("576", 576), ("576B", 576), ("4KiB", 4096), ("4 KiB", 4096), ("24.5KiB", 25_088), ("1.5MiB", 1_572_864),
        ("64KB", 64_000), ("2GiB", 2**31), ("1GB", 10**9), ("0.001KB", 1),
    ],
)  # fmt: skip
def test_a_size_is_read(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


NO_SIZE = "is not a size; write a number of bytes, or a number with B, KiB"


@pytest.mark.parametrize(
    ("text", "why"),
    [("0.3KiB", "is not a whole number of bytes"), *((text, NO_SIZE) for text in (
        "", "KiB", "4kib", "4Kb", "-1", "1e3", "4KiBs", "0x10", "1,5KiB", ".5KiB", "nan"))],
)  # fmt: skip
def test_what_is_no_size_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f'"{text}" {why}'):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "right"), [("16KB", "16KiB or 16000B"), ("1.5 MB", "1.5MiB or 1500000B"), ("2GB", "2GiB or 2000000000B")]
)
def test_a_decimal_size_where_a_binary_one_is_usual_is_refused(text: str, right: str) -> None:
    with pytest.raises(ValueError, match=f"write {right}"):
        parse_binary_size(text)


@given(st.integers(min_value=0, max_value=2**60))
def test_every_size_written_is_read_back(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes == parse_binary_size(format_size(size_bytes))


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(4096, "4KiB"), (4097, "4097B"), (25_088, "25088B"), (2**30, "1GiB"), (0, "0B")]
)
def test_the_shortest_exact_form_is_written(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize("time_us", [0.0, -1.0])
def test_no_time_gives_no_rate(time_us: float) -> None:
    assert math.isnan(gigabytes_per_second(1.0, time_us))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "0.4 s"), (48.2, "48 s"), (200.0, "3 min 20 s"), (3900.0, "65 min 00 s"), (7500, "2 h 05 min")],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_method_has_one_label_with_its_sms() -> None:
    assert method_label("batched") == "batched"
    assert method_label("sm", 1) == "sm (1 SM)"
    assert method_label("triton", [12, 2]) == "triton (2 to 12 SMs)"
