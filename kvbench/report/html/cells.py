"""Every cell of a run with its figures and raw samples, packed for the page's look-up."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from kvbench.cells.cell import AXES
from kvbench.report import markdown as md
from kvbench.report.html.packing import pack, pack_json
from kvbench.report.view import HOST_COPIES, View
from kvbench.results.schema import SAMPLE_COLUMNS

_WORDS: Final = ("status", "reason", "path", "chosen", "order_note", "stopped_by", "warnings", "cell_id", "command")
_COUNTS: Final = ("block_bytes", "swap_bytes", "samples", "rounds", "outliers", "verified_bytes")
_RATES: Final = (
    "gbps", "gbps_q1", "gbps_q3", "ceiling_gbps", "ceiling_share", "state_held", "execution_only", "depth_held",
)  # fmt: skip
_LONGEST: Final = 2000


@dataclass(frozen=True, slots=True)
class PackedRun:
    """A run for the page: words and counts of its cells, their figures, their raw samples; base64 text each."""

    cells: str
    figures: str
    samples: str


def pack_run(view: View) -> PackedRun:
    """Return the cells of a run; its samples are grouped by cell and stand in the order of the journal."""
    frame = view.frame
    samples = view.all_samples
    row = pd.Index(frame["cell_id"]).get_indexer(pd.Index(samples["cell_id"]))
    order = np.argsort(row, kind="stable")
    figures = [name for name in frame if str(name).endswith(("_us_median", "_us_q1", "_us_q3"))] + list(_RATES)
    words = {
        "label": view.label,
        "title": f"{view.title} ({HOST_COPIES})" if view.on_host else view.title,
        "axes": {name: _texts(frame[name]) for name in AXES},
        "words": {name: _texts(frame[name]) for name in _WORDS},
        "counts": {name: [int(value) for value in frame[name].fillna(0)] for name in _COUNTS},
        "figures": figures,
        "sample_columns": list(SAMPLE_COLUMNS),
        "visits": _visits(row[order], samples["round"].to_numpy()[order]),
    }
    raw = samples[list(SAMPLE_COLUMNS)].to_numpy(dtype=np.float64)[order]
    return PackedRun(pack_json(words), pack(frame[figures].to_numpy(dtype=np.float64).T), pack(raw.T))


def _visits(rows: Any, rounds: Any) -> list[list[int]]:
    """Return [cell's row, round, samples] for each stretch of samples of one cell in one round."""
    if not len(rows):
        return []
    starts = np.flatnonzero(np.r_[True, (np.diff(rows) != 0) | (np.diff(rounds) != 0)])
    lengths = np.diff(np.r_[starts, len(rows)])
    return [[int(rows[at]), int(rounds[at]), int(n)] for at, n in zip(starts, lengths, strict=True)]


def _texts(column: "pd.Series[Any]") -> list[str | None]:
    """Return the column as printable text, None where it has none."""
    texts = column.astype(object).where(column.notna(), None)
    return [None if text is None else _text(str(text)) for text in texts.tolist()]


def _text(text: str) -> str:
    # clean() looks at every character, which the commands of thousands of cells need not wait for
    return text if text.isprintable() and len(text) <= _LONGEST else md.clean(text, _LONGEST)
