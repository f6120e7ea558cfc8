"""Queue depth: the time of one more submission against the copies that are queued, on one stream and on several."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kvbench.analysis.curves import QueueKnee, find_queue_knee
from kvbench.analysis.margins import QUEUE_KNEE
from kvbench.cells.units import two_digits
from kvbench.report.model import Text
from kvbench.report.numbers import TIMES, bytes_size, count, figure, noun, slower_text
from kvbench.report.sections.contrast import Contrast, ContrastSide, Figure, Key
from kvbench.report.tables import INCLUDES
from kvbench.report.view import QUEUE, Pinned, Row, View, pin, rows_of, where

MIN_DEPTHS: Final = 4
_BEGUN: Final = "†"


def _select(view: View) -> Pinned | None:
    if view.measured["queued"].nunique() < MIN_DEPTHS:
        return None
    pinned = pin(view.frame, shown=QUEUE)
    busy = where(pinned.cells, stream_state="busy").sort_values("queued")
    lines = ["block_bytes", "direction", "backend", "blocks", "streams"]
    depths = busy["queued"].where(busy["status"] == "ok").groupby([busy[name] for name in lines]).transform("nunique")
    cells = busy[depths >= MIN_DEPTHS].sort_values(["blocks", "block_bytes", "backend", "streams", "queued"])
    return Pinned(cells.assign(arm=[*map(_label, rows_of(cells))]), pinned.hidden) if len(cells) else None


def _label(row: Row) -> str:
    swap = f"{count(row['blocks'])} {TIMES} {bytes_size(row['block_bytes'])}"
    return f"{row['backend']}, {swap}, {noun(row['streams'], 'stream')}"


def _show(row: Row) -> str:
    return f"{figure(row['caller_us_median'])}{_BEGUN if row['depth_held'] < 0.5 else ''}"


def _knees(side: ContrastSide) -> dict[str, QueueKnee | None]:
    caller_us = side.view.run.visit_times("caller_us")
    ids = {arm: [line[arm] for line in side.lines if arm in line] for arm in side.arms}
    return {
        arm: find_queue_knee(
            {int(row["queued"]): caller_us[row["cell_id"]] for row in rows if row["cell_id"] in caller_us}
        )
        for arm, rows in ids.items()
    }


def _last(side: ContrastSide) -> Sequence[tuple[Sequence[str], Mapping[str, Text]]]:
    knees = _knees(side).items()
    return [(["knee"], {arm: f"{count(at.depth)} ({TIMES}{figure(at.height)})" if at else "none" for arm, at in knees})]


def _find(side: ContrastSide) -> Iterable[Text]:
    knees = _knees(side)
    for arm, knee in knees.items():
        if knee:
            yield (
                f"{arm}, {side.first['direction']}: a submission behind {count(knee.depth)} queued swaps "
                f"{slower_text(knee.height)} ({two_digits(knee.shallow_us)} to {two_digits(knee.submit_us)} us)."
            )
    if knees and not any(knees.values()):
        yield f"{side.first['direction']}: no number of queued swaps makes a submission clearly slower."


QUEUE_DEPTH: Final = Contrast(
    needed=f"it needs a backend measured on a busy stream behind {MIN_DEPTHS} numbers of queued swaps or more",
    select=_select,
    apart=("direction",),
    keys=(Key("Queued", ("queued",), lambda row: count(row["queued"])),),
    title=lambda side: f"{side.first['direction']}: us a submission, by queued swaps of the same kind",
    columns=lambda side: [Figure(arm, arm, _show) for arm in side.arms],
    includes=lambda _: INCLUDES["caller_us"],
    last=_last,
    notes=lambda side: [
        f"Knee: the first depth with more than {1 + QUEUE_KNEE.fraction:g} times the time of the three smallest",
        *[f"{_BEGUN} in most samples the driver's queue did not hold all"]
        * bool((side.measured["depth_held"] < 0.5).any()),
    ],
    find=_find,
)
