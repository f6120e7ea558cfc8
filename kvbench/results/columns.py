"""The columns of the summary and of the samples: their order, their types and their meaning."""

from typing import Final

from kvbench.analysis.margins import MIN_ITERATIONS
from kvbench.cells.cell import AXES

NO_FIGURE: Final = (
    "the delay outlasted preparation and submission in fewer than half of the samples, so execution could not be "
    "measured separately"
)

TIMES: Final = {
    "caller_us": "how long the swap occupies its thread: preparation (sorting, tables, uploads) and submission, with "
    "any wait for room in the driver's queue",
    "event_us": "time between two CUDA events (device cpu: host events) around all that the swap submits: from before "
    "the call on an idle or opened stream, from the end of the delay on a busy or gated one; for sustained swaps what "
    "one more swap adds to a chain; empty after a pause and beside a neighbour",
    "wall_us": "host clock from the caller's arrays until the host sees completion; on a busy stream with the rest of "
    "the delay kernel and of queued swaps; sustained: of a whole chain, for each of its swaps",
    "cpu_us": "CPU time of the thread inside caller_us; on an idle stream the smaller of caller_us and the thread's "
    "CPU time until completion, beside a neighbour the mean of the turn",
    "swap_us": "the time of the swap: event_us, from which GB/s are computed; wall_us, without GB/s, where there is no "
    "event_us; empty in a sample on a busy stream whose delay ended too early",
}

SAMPLE_COLUMNS: Final[dict[str, str]] = TIMES | {
    "pending_before": "1 if the start event had not retired at the call: the stream was busy",
    "pending_after": "1 if it had not retired when the call returned: event_us is execution only; 0 on an idle stream",
    "depth_held": "1 if no queued swap had started at the call: all of them were waiting; empty if no swap was queued",
}

# The columns of the summary by what they mean: a name, and the ends of the names of its quartiles and its interval.
MEANINGS: Final[dict[str, str]] = {
    "device": "cuda:N, or cpu (host copies, no GPU)",
    "cell_id": "twelve hex digits that depend only on the cell's axes",
    "block_bytes": "bytes of one descriptor (block_size as a number)",
    "swap_bytes": "bytes per swap",
    "status": "ok, no figure (samples, but no GB/s), failed (no timings) or skipped",
    "reason": "why the cell has no figure, failed or was skipped",
    "samples": "samples of the cell, all rounds together",
    "rounds": "visits with a time of the swap",
    "outliers": "samples more than 5 robust standard deviations (MAD) from the median of their visit, if it has 6",
    **{
        f"{name}_median _q1 _q3{' _low _high' if name == 'swap_us' else ''}": f"median of the visits' medians of {name}"
        for name in TIMES
    },
    "gbps _q1 _q3 _low _high": "GB/s (10^9 bytes per second) at the median of swap_us",
    "latency_gbps": "gbps of one swap on an idle or opened stream, with its call",
    "execution_gbps": "gbps after a delay that outlasted the call; else empty",
    "sustained_gbps": "gbps of consecutive swaps, without the first of a chain",
    "neighbour_slowdown _low _high": "mean time of the neighbour's iterations beside swaps over that without: the "
    "centre of the visits",
    "neighbour_slowdown_median": "the same by the medians of the iterations: does not see a few long ones",
    "iterations": "whole iterations of the neighbour beside swaps, all visits together; no figure from fewer than "
    f"{MIN_ITERATIONS}, or where a visit has none",
    "lost_ms_per_gb _low _high": "milliseconds of the neighbour's time that each GB swapped beside it takes: 1000 (1 - "
    "1 / neighbour_slowdown) / swaps_beside_gbps, the centre of the visits; the interval reaches over all starts of a "
    "worker",
    "thread_ms_per_gb _low _high": "milliseconds of the calling thread that each GB swapped beside the neighbour "
    "takes: caller_us over the bytes of a swap, the centre of the visits",
    "swaps_beside_gbps _low _high": "median GB/s of swaps beside the neighbour, one behind the other, over whole turns",
    "alone_gbps": "opposite=on: GB/s between events of the cell's swaps alone",
    "at_once_gbps": "opposite=on: the same while swaps of the other direction run",
    "opposite_alone_gbps": "opposite=on: GB/s between events of the swaps of the other direction alone",
    "opposite_at_once_gbps": "opposite=on: the same while the cell's swaps run",
    "ceiling_gbps": "median GB/s of large plain copies in the same direction of the same run",
    "ceiling_share": "gbps / ceiling_gbps",
    "limit_blocks_per_s": "the translation limit: the highest rate of scattered small blocks that SM copies reached "
    "in this direction of the same run; empty if no limit is in reach, or if the run did not measure it",
    "roof_gbps _low _high": "the roof of this cell: GB/s of large SM copies (for a kernel) or ceiling_gbps, limited to "
    "limit_blocks_per_s blocks per second if the blocks are scattered over 1 GiB or more; median of the rounds",
    "roof_share": "gbps / roof_gbps",
    "path": "effective path: the mechanism that moved the bytes; if visits differ, the most frequent one comes first",
    "chosen": "the choice of auto for the cell: a backend and its axes",
    "order_note": 'marks an access order that needs care ("any on d2h")',
    "state_held": "share of samples in which the stream was in the requested state",
    "execution_only": "busy stream: share of samples whose event_us is execution only (pending_after)",
    "depth_held": "share of samples in which no queued swap had started at the call; empty if no swap was queued",
    "stopped_by": "what ended the visits: max_samples or time (cell_seconds)",
    "repeated": "disturbed visits that were repeated; the least disturbed attempt counts",
    "disturbed": "disturbed visits that count",
    "verified_bytes": "bytes compared after the copies, all visits together",
    "warnings": "warnings about this cell",
    "command": "the command that measures only this cell",
}
COLUMNS: Final = tuple(
    name.removesuffix("_median") + end if end else name
    for name, *ends in map(str.split, MEANINGS)
    for end in ("", *ends)
)

# Columns of text and of whole numbers beside those of the axes; all others are float64.
_TEXT: Final = (
    "device", "status", "reason", "path", "chosen", "order_note", "stopped_by", "warnings", "cell_id", "command",
)  # fmt: skip
_WHOLE: Final = ("swap_bytes", "samples", "rounds", "outliers", "repeated", "disturbed", "verified_bytes", "iterations")
_AXES: Final = {column: "str" for axis in AXES.values() for column in axis.columns} | {
    axis.field: "Int64" for axis in AXES.values() if axis.number
}
_ENDS: Final = ("cell_id", "command")
_ORDER: Final = dict.fromkeys(("device", *_AXES, *(name for name in COLUMNS if name not in _ENDS), *_ENDS))
# Column of the summary -> type, in order: the device, the axes, the figures, what names the cell.
TYPES: Final[dict[str, str]] = {
    name: _AXES.get(name) or ("str" if name in _TEXT else "Int64" if name in _WHOLE else "float64") for name in _ORDER
}

# Columns that few readers need, beside the quartiles: `Run.frame` has them by name.
_RARE: Final = {
    "event_us_median", "wall_us_median", "cpu_us_median", "latency_gbps", "execution_gbps", "sustained_gbps",
    "outliers", "neighbour_slowdown_median", "iterations", "thread_ms_per_gb_low", "thread_ms_per_gb_high",
    "swaps_beside_gbps_low", "swaps_beside_gbps_high", "alone_gbps", "at_once_gbps", "opposite_alone_gbps",
    "opposite_at_once_gbps", "limit_blocks_per_s", "roof_gbps", "roof_gbps_low", "roof_gbps_high", "roof_share",
    "order_note", "state_held", "execution_only", "depth_held", "stopped_by", "repeated", "disturbed",
    "verified_bytes",
}  # fmt: skip
USUAL: Final = tuple(name for name in TYPES if name not in _RARE and not name.endswith(("_q1", "_q3")))
# The columns that raw samples have of their cell.
OF_CELL: Final = {name: kind for name, kind in TYPES.items() if name in _AXES}
