"""How many swaps a visit makes, and about how long it takes."""

from collections.abc import Sequence
from typing import Final

from kvbench.cells.axes import Direction, Neighbour, StreamState
from kvbench.cells.cell import Cell
from kvbench.cells.device_facts import CPU_INLINE_UP_TO_BYTES
from kvbench.cells.locality import sets_of
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

# For the time estimate only, never a result: visit times on an H200 and an H100 (driver 580.159), and on two CPUs.
_EST_START_S: Final = {"cuda": 14.0, "cpu": 1.0}
_EST_VISIT_S: Final = 0.007
# The first visit of a cell also checks, with a delay, that its swaps are ordered in their stream.
_EST_FIRST_VISIT_S: Final = 0.025
_EST_SWAP_BYTES_PER_S: Final = {"cuda": 45e9, "cpu": 5e9}
# Copies that the driver makes on the CPU.
_EST_INLINE_BYTES_PER_S: Final = 5e9
_EST_BLOCK_S: Final = {"kernel": 0.04e-6, "copies": 0.5e-6}
# Around a sample: the descriptors of the next blocks are written.
_EST_SAMPLE_S: Final = 50e-6
_EST_NAMED_BLOCK_S: Final = 0.04e-6
_EST_VERIFY_BYTES_PER_S: Final = {"cuda": 15e9, "cpu": 1.5e9}
_EST_VERIFY_BLOCK_S: Final = 0.15e-6
# Around a visit beside a neighbour: each turn starts and drains the neighbour.
_EST_NEIGHBOUR_S: Final = 0.4
# What a layer adds to a swap, and a step beside which swaps are measured.
_EST_LAYER_S: Final = 10e-6
_EST_STEP_S: Final = 5e-3
# Disturbed visits, which are repeated.
_EST_REPEATS: Final = 1.1


def submissions(sampling: Sampling, state: StreamState) -> int:
    """Return the number of swaps that a visit submits at most, hardly ever more: checks, warm-ups, twins, samples and
    watched swaps.
    """
    a_sample = CHAIN + SHORT_CHAIN if state is StreamState.SUSTAINED else 1
    watched = 1 + round(2 * WATCHED_SHARE * sampling.max_samples)
    return CHECKED_SWAPS + BUSY_TWINS + (sampling.warmups + sampling.max_samples + watched) * a_sample


def estimate_seconds(cells: Sequence[Cell], sampling: Sampling, device_kind: str) -> float:
    """Return an estimate of the seconds that measuring `cells` takes, including start-up."""
    visits_s = sum(_visit_seconds(cell, sampling, device_kind) for cell in cells)
    first_s = len(cells) * _EST_FIRST_VISIT_S
    return _EST_START_S[device_kind] + first_s + _EST_REPEATS * sampling.rounds * visits_s


def visit_deadline_s(cell: Cell, sampling: Sampling, device_kind: str) -> float:
    """Return the seconds of silence after which a visit of `cell` counts as hung; more work allows more time."""
    return sampling.deadline_s + sampling.cell_seconds + _visit_seconds(cell, sampling, device_kind)


def _visit_seconds(cell: Cell, sampling: Sampling, device_kind: str) -> float:
    if cell.neighbour is not Neighbour.NONE and not cell.layers:
        return _EST_NEIGHBOUR_S + max(LEAST_BESIDE_S, sampling.cell_seconds)
    state = cell.stream_state
    block_s = _EST_BLOCK_S["copies" if cell.sms is None else "kernel"]
    swap_s = cell.swap_bytes / _EST_SWAP_BYTES_PER_S[device_kind] + cell.blocks * block_s
    inline = cell.order is not None and state.ungated is StreamState.IDLE and cell.block_bytes <= CPU_INLINE_UP_TO_BYTES
    if inline and device_kind == "cuda":
        swap_s = max(swap_s, cell.swap_bytes / _EST_INLINE_BYTES_PER_S)
    named_s = _EST_SAMPLE_S + cell.blocks * _EST_NAMED_BLOCK_S
    sample_s = swap_s + named_s + cell.pause_us / 1e6 + cell.layers * _EST_LAYER_S
    if cell.neighbour is not Neighbour.NONE:
        sample_s += swap_s + named_s + 2 * _EST_STEP_S
    if state.pending:
        # after a delay of twice the submission; queued swaps are submitted after it, and then run
        sample_s += sampling.busy_delay_us / 1e6 + 1e-3 + (2 + 2 * cell.queued) * cell.blocks * block_s
        sample_s += cell.queued * swap_s
    elif state is StreamState.SUSTAINED:
        sample_s *= CHAIN + SHORT_CHAIN
    count = max(sampling.min_samples, min(sampling.max_samples, sampling.cell_seconds / sample_s))
    swaps = submissions(sampling, state) - sampling.max_samples + round(count)
    sets = sets_of(cell, swaps) + 1  # also the audit
    # The device checks its own side.
    checked_bytes = sets * cell.swap_bytes * (1 if cell.direction is Direction.D2H or device_kind == "cpu" else 0.1)
    verify_s = checked_bytes / _EST_VERIFY_BYTES_PER_S[device_kind] + sets * cell.blocks * _EST_VERIFY_BLOCK_S
    return _EST_VISIT_S + (count + sampling.warmups) * sample_s + 3 * swap_s + verify_s
