import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cells.units import (
    format_duration,
    format_size,
    gigabytes_per_second,
    parse_size,
    rough_size,
    size_text,
    two_digits,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("576", 576),
        ("576B", 576),
        ("4KiB", 4096),
        ("4 KiB", 4096),
        ("24.5KiB", 25_088),
        ("1.5MiB", 1_572_864),
        ("64KB", 64_000),
        ("2GiB", 2**31),
        ("1GB", 10**9),
        ("0.001KB", 1),
    ],
)
def test_a_size_is_read(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "KiB", "4kib", "4Kb", "-1", "1e3", "4KiBs", "0x10", "1,5KiB", ".5KiB", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write a number of bytes, or a number with B, KiB"):
        parse_size(text)


def test_a_fraction_of_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match=r'"0\.3KiB" is not a whole number of bytes'):
        parse_size("0.3KiB")


@given(st.integers(min_value=0, max_value=2**60))
def test_every_size_written_is_read_back(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(4096, "4KiB"), (4097, "4097B"), (25_088, "25088B"), (2**30, "1GiB"), (0, "0B")]
)
def test_the_shortest_exact_form_is_written(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (13_099_650_253, "12.2 GiB")]
)
def test_a_rough_size_has_one_decimal(size_bytes: int, text: str) -> None:
    assert rough_size(size_bytes) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(576, "576 B"), (4096, "4 KiB"), (25_088, "24.5 KiB"), (2**34, "16 GiB")]
)
def test_a_size_is_read_by_people(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_two_digits_are_shown() -> None:
    assert [two_digits(value) for value in (0.834, 1.04, 4.16, 12.4, 123.0)] == ["0.83", "1", "4.2", "12", "120"]


def test_rates_are_in_powers_of_ten() -> None:
    assert gigabytes_per_second(55.5e9, 1e6) == pytest.approx(55.5)


@pytest.mark.parametrize("time_us", [0.0, -1.0])
def test_no_time_gives_no_rate(time_us: float) -> None:
    assert math.isnan(gigabytes_per_second(1.0, time_us))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "0.4 s"), (48.2, "48 s"), (200.0, "3 min 20 s"), (3900.0, "65 min 00 s"), (7500, "2 h 05 min")],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
