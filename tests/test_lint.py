"""What `make lint` adds to ruff finds what it is for, and lets the rest pass."""

import pytest

from tests import clocks

TEST = "from tests.visits import measure\ndef test():\n    "


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
    assert len([*clocks.complaints(TEST + line)]) == count
    frozen = (TEST + line).replace("tests.visits", "tests.synthetic")
    assert len([*clocks.complaints(frozen)]) == ("perf_counter" in line)
