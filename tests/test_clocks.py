"""The lint finds what depends on the time of day, and lets pass what holds on any machine."""

import pytest

from tests.clocks import complaints, main

TEST = "from tests.visits import measure\ndef test():\n    "


def test_no_test_of_this_checkout_compares_times() -> None:
    assert main() == 0


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("began = time.perf_counter()", 1),
        ("time.sleep(0.1)", 0),
        ("assert sample.wall_us < 5000", 1),
        ("assert 5000 > min(samples.wall_us)", 1),
        ("assert median(fast.wall_us) < median(slow.wall_us)", 1),
        ("assert median(one.gpu_us) == pytest.approx(median(other.gpu_us), rel=0.1)", 1),
        ("assert sample.wall_us >= 5000", 0),
        ("assert 0 < sample.cpu_us <= sample.caller_us <= sample.wall_us", 0),
        ("assert sample.cpu_us < 5000", 0),
    ],
)
def test_a_comparison_that_a_busy_machine_fails_is_found(line: str, count: int) -> None:
    assert len([*complaints(TEST + line)]) == count
    frozen = (TEST + line).replace("tests.visits", "tests.synthetic")
    assert len([*complaints(frozen)]) == ("perf_counter" in line)
