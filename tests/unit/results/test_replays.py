"""What the swaps of a replay cost, by swap, copy and byte."""

import numpy as np
import pandas as pd
import pytest

from kvbench.results.replays import SwapCost


def swaps(*each_us: float, noise: float = 0.0) -> pd.DataFrame:
    """Swaps that cost so much a swap, a copy and a byte."""
    rng = np.random.default_rng(3)
    blocks = rng.integers(10, 5000, 60)
    pieces = np.maximum(1, blocks * rng.uniform(0.1, 1.0, 60))
    swap_bytes = blocks * 4096
    wall_us = each_us[0] + each_us[1] * pieces + each_us[2] * swap_bytes
    return pd.DataFrame(
        {"wall_us": wall_us * rng.uniform(1 - noise, 1 + noise, 60), "pieces": pieces, "swap_bytes": swap_bytes}
    )


@pytest.mark.parametrize("each_us", [(20.0, 0.5, 2e-5), (0.0, 0.5, 2e-5), (20.0, 0.0, 2e-5), (5.0, 1.0, 0.0)])
def test_the_fit_recovers_the_cost_of_a_swap_a_copy_and_a_byte(each_us: tuple[float, float, float]) -> None:
    cost = SwapCost(swaps(*each_us), "wall_us")
    wanted_us = each_us[0] * 3 + each_us[1] * 700 + each_us[2] * 5_000_000
    assert cost.total_s(3, 700, 5_000_000) == pytest.approx(wanted_us / 1e6, rel=1e-6)
    assert cost.error == pytest.approx(0, abs=1e-6)


def test_the_error_is_that_of_the_measured_swaps() -> None:
    assert SwapCost(swaps(20.0, 0.5, 2e-5, noise=0.2), "wall_us").error == pytest.approx(0.1, rel=0.4)


def test_no_cost_is_negative() -> None:
    fewer_are_slower = swaps(0.0, -0.02, 3e-5)
    assert (SwapCost(fewer_are_slower, "wall_us").each_us >= 0).all()


def test_no_swap_is_faster_than_the_ceiling() -> None:
    cost = SwapCost(swaps(20.0, 0.5, 1e-5), "wall_us", least_us_per_byte=2e-5)
    assert cost.total_s(1, 1, 10**9) == pytest.approx(0.02)
    assert cost.total_s(1, 10**6, 10**6) == pytest.approx((20 + 0.5e6 + 10) / 1e6)
