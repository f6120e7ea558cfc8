"""What `make lint` adds to ruff finds what it is for, and lets the rest pass."""

from pathlib import Path

import pytest

from tests import clocks, size

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


def test_size_sees_growth_long_functions_and_arrows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size, "ROOT", tmp_path)
    texts = {
        "hall/door.py": "from house.hall.key import turn\nfrom house import cellar\n",
        "hall/key.py": "def turn() -> None:\n    import house.attic.beam\n    import json\n",
        "attic/beam.py": 'def short():\n    """Doc."""\n\n\ndef long():\n' + "    pass\n" * 61,
        "cellar.py": "import os.path\n",
    }
    for name, text in texts.items():
        (tmp_path / "house" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "house" / name).write_text(text)
    assert size.too_long([tmp_path / "house/attic/beam.py"]) == [(61, "house/attic/beam.py:long")]
    assert size.arrows(tmp_path / "house") == {("hall", "cellar"), ("hall", "attic")}
