"""A run on disk: its schema, its journal, its directory (rundir) and its DataFrame (frame)."""

from kvbench.results.columns import COLUMNS
from kvbench.results.rundir import Run, RunWriter, load_run
from kvbench.results.schema import (
    SCHEMA,
    Beside,
    Ceiling,
    CellRecord,
    Control,
    Failure,
    Note,
    Record,
    RunInfo,
    Samples,
    Scalar,
    Skip,
    Visit,
)

__all__ = [
    "COLUMNS", "SCHEMA", "Beside", "Ceiling", "CellRecord", "Control", "Failure", "Note", "Record", "Run",
    "RunInfo", "RunWriter", "Samples", "Scalar", "Skip", "Visit", "load_run",
]  # fmt: skip
