"""Rows gathered by ids on the GPU: microseconds against rows for each grid, what a row costs, and the grid needed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from kvbench.analysis.curves import knee
from kvbench.analysis.margins import KNEE
from kvbench.cells.axes import ListPlace
from kvbench.report.cells import ladders, rows_with
from kvbench.report.model import Text
from kvbench.report.numbers import bytes_size, count, figure, noun, with_interval
from kvbench.report.sections.contrast import BLOCKS, Contrast, ContrastSide, Figure, Key, Line, backend, size
from kvbench.report.tables import microseconds
from kvbench.report.view import Pinned, View
from kvbench.results.outcomes import Outcome, is_measured

# Above, throughput falls: address translations no longer stay cached. A decode step fetches fewer rows.
_FITTED_ROWS: Final = 20_000
_MIN_ROWS: Final = 3  # a line fits any two


def _gathers(view: View) -> Pinned | None:
    cells = rows_with(view.cells, stream_state="idle", list=ListPlace.GPU.value)
    if ladders(cells, "blocks", _MIN_ROWS, "backend", "direction", "block_bytes", "sms").empty:
        return None
    return view.pin(cells, free=("sms", "list"))


def _grid(outcome: Outcome) -> str:
    return "as shipped" if outcome.cell.sms is None else str(outcome.cell.sms)


def fit(rows: Sequence[float], us: Sequence[float]) -> tuple[float, float]:
    """The microseconds of an empty gather, and the rows a microsecond, by least squares of relative errors."""
    # Each row is divided by its time, so that small gathers count as much as large ones.
    counts, times = np.asarray(rows, float), np.asarray(us, float)
    terms = np.stack([1 / times, counts / times], axis=1)
    (start_us, row_us), *_ = np.linalg.lstsq(terms, np.ones(len(times)), rcond=None)
    return float(start_us), 1 / float(row_us)


def _fit_of(side: ContrastSide, arm: str) -> tuple[float, float] | None:
    outcomes = [line[arm] for line in side.lines if arm in line and is_measured(line[arm])]
    fitted = [outcome for outcome in outcomes if outcome.cell.blocks <= _FITTED_ROWS]
    if len(fitted) < _MIN_ROWS:
        return None
    return fit([outcome.cell.blocks for outcome in fitted], [outcome.us() for outcome in fitted])


def _fit_line(side: ContrastSide) -> Sequence[tuple[Sequence[str], Mapping[str, Text]]]:
    fits = ((arm, _fit_of(side, arm)) for arm in side.arms)
    return [(["fit"], {arm: f"{figure(fitted[0])} + n / {figure(fitted[1])} M" for arm, fitted in fits if fitted})]


def _grids(side: ContrastSide) -> list[Figure]:
    arms = sorted(side.arms, key=lambda arm: (len(arm), arm))
    return [Figure(noun(int(arm), "CTA") if arm.isdigit() else arm, arm, microseconds("swap_us")) for arm in arms]


def _best_rate(line: Line) -> str:
    best = min(filter(is_measured, line.values()), key=Outcome.us, default=None)
    if best is None:
        return ""
    low_us, high_us = best.interval()
    return with_interval(*(best.cell.blocks / us for us in (best.us(), high_us, low_us)))


def _sufficient_grid(line: Line) -> int | None:
    """The smallest grid within `KNEE` of the best of a line, None where only the largest is."""
    grids = {int(arm): outcome for arm, outcome in line.items() if is_measured(outcome) and arm.isdigit()}
    outcomes = grids.values()
    return knee([*grids], [outcome.gbps for outcome in outcomes], [outcome.interval_gbps[0] for outcome in outcomes])


def _sufficient_findings(side: ContrastSide) -> Iterable[Text]:
    sufficient = [*filter(None, map(_sufficient_grid, side.lines))]
    fits = [*filter(None, (_fit_of(side, arm) for arm in side.arms))]
    if fits and len(sufficient) == len(side.lines):
        largest = max(sufficient)
        start_us, rate = max(fits, key=lambda fitted: fitted[1])
        yield (
            f"{side.backend} gathers rows of {bytes_size(side.cell.block_bytes)} in {figure(start_us)} us + n / "
            f"{figure(rate)} M; {noun(largest, 'CTA')} {'is' if largest == 1 else 'are'} within "
            f"{KNEE.fraction:.0%} of the best."
        )


GATHERS: Final = Contrast(
    needed=f"it needs {_MIN_ROWS} numbers of rows gathered by ids on the GPU (list=gpu)",
    select=_gathers,
    tables_by=(backend, size),
    keys=(Key("Rows", BLOCKS.value, BLOCKS.text),),
    title=lambda side: (
        f"{side.backend}, rows of {bytes_size(side.cell.block_bytes)}: us from the launch of a CUDA graph "
        "to completion, by thread blocks (CTAs)"
    ),
    arm=_grid,
    columns=_grids,
    includes="Medians in us by CUDA events around the launch, ids on the GPU before it",
    more=lambda _: {"M rows/s": _best_rate, "CTAs that suffice": lambda line: str(_sufficient_grid(line) or "")},
    last=_fit_line,
    notes=lambda _: [
        f"Rows: n. M rows/s: at the best grid. Suffice: the fewest CTAs within {KNEE.fraction:.0%} "
        f"of the best, interval included. Fit: us, with n up to {count(_FITTED_ROWS)}. What the decode step of a model "
        "waits: kvbench show RUN --model MODEL --tokens ROWS"
    ],
    find=_sufficient_findings,
)
