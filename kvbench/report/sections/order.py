"""The access order of batched copies: STREAM against ANY, in cells that are otherwise equal."""

from collections.abc import Sequence
from statistics import median
from typing import Final

from kvbench.report.model import Text
from kvbench.report.sections.contrast import BLOCKS, DIRECTION, SIZE, Contrast, ContrastSide, Figure, changes
from kvbench.report.tables import INCLUDES, change_text, microseconds, milliseconds
from kvbench.report.view import STATES, Pinned, View, pin
from kvbench.text import a_stream

_ORDERS: Final = ("stream", "any")


def _select(view: View) -> Pinned | None:
    pinned = pin(view.measured, shown=("order",))
    cells = pinned.cells[pinned.cells["order"].isin(_ORDERS)]
    return Pinned(cells, pinned.hidden) if cells["order"].nunique() > 1 else None


def _notes(side: ContrastSide) -> Sequence[Text]:
    halves = [(one.high - one.low) / 2 for _, one in side.comparisons if one.low > 0 and one.high < float("inf")]
    seen = [f"Differences of {median(halves):.1%} would have shown (half an interval, in the median)"] if halves else []
    return [*seen, "ANY on d2h can read the source before earlier work on the stream has written it"]


def _find(side: ContrastSide) -> Sequence[Text]:
    """Say in how many cells of the first table both orders differ."""
    first = min(side.pinned.cells["stream_state"], key=STATES.index)
    state, backend = side.first["stream_state"], side.first["backend"]
    return changes(side, f"ANY against STREAM, {backend} on {a_stream(state)}") if state == first else ()


_submission = microseconds("caller_us_median")
ORDER: Final = Contrast(
    needed="it needs cells measured with order=stream and with order=any that are otherwise equal",
    select=_select,
    apart=("backend", "stream_state"),
    keys=(DIRECTION, BLOCKS, SIZE),
    title=lambda side: f"STREAM against ANY, {side.first['backend']}, {side.first['stream_state']} stream",
    columns=lambda _: [Figure("STREAM med ms", "stream", milliseconds), Figure("ANY med ms", "any", milliseconds)],
    includes=lambda _: f"{INCLUDES['swap_us']}. Delta: ANY / STREAM - 1, in turn. {INCLUDES['caller_us']}",
    arm="order",
    compared=("stream", "any"),
    ratio="Delta (95%)",
    show_ratio=change_text,
    more=lambda _: {
        "Submission STREAM us": lambda line: _submission(line["stream"]),
        "ANY us": lambda line: _submission(line["any"]),
    },
    notes=_notes,
    find=_find,
)
