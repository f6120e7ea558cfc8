"""How many swaps a visit makes, when it counts as hung, and about how long visits take."""

from collections.abc import Sequence
from typing import Final

from kvbench.cells.axes import Neighbour, StreamState
from kvbench.cells.cell import Cell
from kvbench.sweep.spec import Sampling

# The verified first swap, the audit after the last sample, and the check of the stream's order.
CHECKED_SWAPS: Final = 3
# Swaps on a busy stream: they show what the CPU copies of a swap on an idle one, or how long its delay must be.
BUSY_TWINS: Final = 3
# Watched swaps for each sample: of a cell of six visits with 30 samples, one in ten thousand has none.
WATCHED_SHARE: Final = 0.05
# Minimum duration of a visit beside a neighbour: each turn needs iterations of the neighbour.
LEAST_BESIDE_S: Final = 0.3
# Swaps in the long and in the short chain of a sustained sample.
CHAIN: Final = 8
SHORT_CHAIN: Final = 2

# For a deadline: no machine moves, fills or compares the bytes of large swaps more slowly.
_SLOWEST_BYTES_PER_S: Final = 1e9
# The maximum time to compare the bytes that swaps moved, relative to that of moving them.
_COMPARED: Final = 3
# Before the first visit is made: the start of the worker with its memory, and a visit on an H100 or H200, most of which
# took 0.03 to 0.2 s.
_USUAL_START_S: Final = 10.0
_USUAL_VISIT_S: Final = 0.06


def submissions(sampling: Sampling, state: StreamState) -> int:
    """Return how many sets of fresh blocks a visit gets: one for each swap that it probably submits.

    These are checks, warm-ups, twins, samples and watched swaps. A visit that submits more swaps, because swaps are
    watched at random and a chain that was held up is repeated, begins again with the first set.
    """
    return _swaps(sampling, state, sampling.max_samples)


def visit_deadline_s(cell: Cell, sampling: Sampling) -> float:
    """Return the seconds of silence after which a visit of `cell` counts as hung; more work allows more time."""
    swaps = _swaps(sampling, cell.stream_state, sampling.min_samples) * (1 + cell.queued)
    around_us = cell.pause_us + (sampling.busy_delay_us if cell.stream_state.pending else 0)
    least_s = swaps * (cell.swap_bytes / _SLOWEST_BYTES_PER_S + around_us / 1e6)
    return sampling.deadline_s + (1 + _COMPARED) * sampling.cell_seconds + least_s


def usual_seconds(cells: Sequence[Cell], visits: int, sampling: Sampling) -> float:
    """Return about how many seconds `visits` visits of `cells` take on a GPU, with the start before them."""
    beside = sum(cell.neighbour is not Neighbour.NONE and not cell.layers for cell in cells)
    beside_s = max(LEAST_BESIDE_S, sampling.cell_seconds)
    of_one_s = beside * beside_s + (len(cells) - beside) * min(_USUAL_VISIT_S, sampling.cell_seconds)
    return _USUAL_START_S + visits * of_one_s / max(1, len(cells))


def _swaps(sampling: Sampling, state: StreamState, samples: int) -> int:
    a_sample = CHAIN + SHORT_CHAIN if state is StreamState.SUSTAINED else 1
    watched = 1 + round(2 * WATCHED_SHARE * samples)
    return CHECKED_SWAPS + BUSY_TWINS + (sampling.warmups + samples + watched) * a_sample
