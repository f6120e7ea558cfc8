"""Queue depth (T7): how long one more submission takes behind swaps that are queued already."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from kvbench.analysis.curves import RISE, QueueKnee, find_queue_knee
from kvbench.analysis.intervals import Quartiles
from kvbench.report import markdown as md
from kvbench.report.select import QUEUE, Pinned, pin
from kvbench.report.tables import Footnotes, Row, Table, rows_of, settings, shown
from kvbench.report.view import View

MIN_DEPTHS: Final = 4
INCLUDES: Final = (
    "Time of one submission (submit_us, medians) behind so many queued swaps of the same kind on a busy stream: host "
    "time inside its call or calls, preparation not included. A pool deals the queued swaps and this one over its "
    "streams in turn. Where the driver's queue is full the wait for room is in it, and may be the rest of the delay "
    "that holds the queue back"
)
NO_KNEE: Final = f"No depth at which a submission takes more than {RISE:g} times as long as on a shallow queue."
POINT_COLUMNS: Final = (
    "device", "backend", "direction", "stream_state", "blocks", "block_size", "block_bytes", "streams", "queued",
    "submit_us_median", "submit_us_q1", "submit_us_q3", "depth_held", "samples", "rounds", "cell_id",
)  # fmt: skip
_LINE: Final = ["backend", "direction", "blocks", "block_bytes", "streams"]
_BEGUN: Final = "†"
_NOT_HELD: Final = (
    f"{_BEGUN} in most samples some of the queued swaps had started before the submission, as they must where the "
    "driver's queue does not hold them all (depth_held)"
)
_KNEE: Final = (
    f"Knee: the first depth at which a submission takes more than {RISE:g} times as long as at the three smallest, "
    "beyond the noise, and how many times as long"
)


@dataclass(frozen=True, slots=True)
class QueueLine:
    """The cells of one backend, swap and number of streams, ascending in depth, failed and skipped ones too."""

    backend: str
    direction: str
    blocks: int
    block_bytes: int
    streams: int
    cells: pd.DataFrame

    @property
    def points(self) -> pd.DataFrame:
        """The measured cells."""
        return self.cells[self.cells["status"] == "ok"]

    @property
    def times(self) -> Mapping[int, Quartiles]:
        """Quartiles of submit_us in us, by depth."""
        columns = ["queued", "submit_us_q1", "submit_us_median", "submit_us_q3"]
        return {
            int(depth): Quartiles(float(low), float(median), float(high))
            for depth, low, median, high in self.points[columns].itertuples(index=False)
            if np.isfinite([low, median, high]).all()
        }

    @property
    def knee(self) -> QueueKnee | None:
        return find_queue_knee(self.times)

    @property
    def label(self) -> str:
        """What is swapped on how many streams, not escaped."""
        streams = "1 stream" if self.streams == 1 else f"{self.streams} streams"
        return f"{self.backend}, N = {md.count(self.blocks)}, {streams}"


@dataclass(frozen=True, slots=True)
class Queues:
    """All lines of a run; `pinned` says what the axes that are not shown were set to."""

    lines: Sequence[QueueLine]
    pinned: Pinned

    @property
    def measured(self) -> pd.DataFrame:
        return pd.concat([line.points for line in self.lines])

    def grid(self) -> list[list[list[QueueLine]]]:
        """Return a row per block size, in it the lines of each direction that there is."""
        ways = [way for way in ("h2d", "d2h") if any(line.direction == way for line in self.lines)]
        return [
            [[line for line in self.lines if (line.block_bytes, line.direction) == (size, way)] for way in ways]
            for size in sorted({line.block_bytes for line in self.lines})
        ]


def queue_lines(view: View) -> Queues | str:
    """Return what was measured over the queue's depth on a busy stream; or why there is nothing to show."""
    pinned = pin(view.frame, shown=QUEUE)
    busy = pinned.cells[pinned.cells["stream_state"] == "busy"].sort_values("queued")
    deep = busy["queued"].nunique() >= MIN_DEPTHS
    groups = (cells for _, cells in busy.groupby(_LINE)) if deep else ()
    lines = [_line(cells) for cells in groups if cells.loc[cells["status"] == "ok", "queued"].nunique() >= MIN_DEPTHS]
    if not lines:
        return f"it needs a backend measured on a busy stream behind {MIN_DEPTHS} numbers of queued swaps or more"
    return Queues(sorted(lines, key=lambda line: (line.backend != "per_block", line.backend)), pinned)


def queue_tables(view: View, queues: Queues) -> list[Table]:
    """Return T7: submission time against queued swaps, a table per direction and block size, the knees below."""
    return [_table(view, lines, queues.pinned) for row in queues.grid() for lines in row if lines]


def queue_findings(queues: Queues) -> list[str]:
    """Return a sentence in Markdown for every line with a knee."""
    return [
        f"{md.escape(line.label)}, {line.direction} of {md.bytes_size(line.block_bytes)}: behind "
        f"{md.count(knee.depth)} queued swaps a submission takes {md.TIMES}{md.figure(knee.height)} as long "
        f"({md.figure(knee.shallow_us)} to {md.figure(knee.submit_us)} us)."
        for line in queues.lines
        if (knee := line.knee)
    ]


def _line(cells: pd.DataFrame) -> QueueLine:
    first = rows_of(cells.head(1))[0]
    backend, direction, *numbers = (first[axis] for axis in _LINE)
    blocks, size, streams = map(int, numbers)
    return QueueLine(str(backend), str(direction), blocks, size, streams, cells)


def _table(view: View, lines: Sequence[QueueLine], pinned: Pinned) -> Table:
    notes = Footnotes()
    columns = [{int(row["queued"]): row for row in rows_of(line.cells)} for line in lines]
    body = [
        [md.count(depth), *(shown(column.get(depth), notes, _time) for column in columns)]
        for depth in sorted({depth for column in columns for depth in column})
    ]
    begun = any(_BEGUN in text for row in body for text in row)
    body.append(["knee", *(_knee_words(line.knee) for line in lines)])
    cells = pd.concat([line.points for line in lines])
    return Table(
        f"{lines[0].direction}, {md.bytes_size(lines[0].block_bytes)} blocks: us a submission against queued swaps",
        ("Queued", *(md.escape(line.label) for line in lines)),
        body,
        [_KNEE, *([_NOT_HELD] if begun else []), *notes.lines],
        view.caption(cells, f"{INCLUDES}. {settings(pinned, cells)}"),
    )


def _time(row: Row) -> str:
    return f"{md.figure(row['submit_us_median'])}{_BEGUN if row['depth_held'] < 0.5 else ''}"


def _knee_words(knee: QueueKnee | None) -> str:
    return "none" if knee is None else f"**{md.count(knee.depth)}** ({md.TIMES}{md.figure(knee.height)})"
