"""What is measured of a host by commands that start processes of their own: its health, and how far starts differ."""

import json
from pathlib import Path

import msgspec
import pytest

from kvbench.results.between_runs import CardSpread, measured_spreads
from reports import spread
from tests.command import output

CONFIG = """
device = "cpu"
axes = {backend = "batched", direction = "h2d", blocks = 4, block_size = "1KiB", stream_state = "idle", pool = "2MiB"}
sampling = {rounds = 1}
"""


def test_the_doctor_measures_the_device_cpu_and_says_that_it_answers_nothing() -> None:
    health = json.loads(output("doctor", "--device", "cpu", "--measure", "--json"))["health"]
    assert health["answer"] == "unknown"
    assert "say nothing about a GPU" in health["sentence"]
    assert health["reached"]["h2d_gbps"] > 0


def test_starts_are_measured_and_their_spread_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    for name, value in (("STARTS", 2), ("CONFIG", str(tmp_path / "config.toml")), ("shipped_folder", lambda: tmp_path)):
        monkeypatch.setattr(spread, name, value)
    assert spread.main(["measure", str(tmp_path / "runs")]) == 0
    kept = msgspec.json.decode((tmp_path / "between_runs.json").read_bytes(), type=dict[str, CardSpread])
    (made,) = (kept[card] for card in kept.keys() - measured_spreads())
    assert (made.starts, made.cells, {*made.spread}) == (2, 1, {"batched, below 8 MiB"})
    assert all(card.spread.keys() >= made.spread.keys() for card in measured_spreads().values())
