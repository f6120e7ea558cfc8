"""Rows by their numbers, as gathers take them."""

import numpy as np
import pytest

from kvbench.backends.through_torch import ids_of_rows
from kvbench.errors import KvbenchError


def test_rows_are_counted_from_the_start_of_their_pool_and_lie_whole_rows_apart() -> None:
    start = (1 << 47) + 16
    addresses = np.array([start + 7 * 656, start, start + 30_000_000 * 656], dtype=np.uint64)
    assert ids_of_rows(addresses, start, 656).tolist() == [7, 0, 30_000_000]
    with pytest.raises(KvbenchError, match="whole rows apart"):
        ids_of_rows(addresses + np.array([0, 0, 8], np.uint64), start, 656)
