"""A run on disk: what is written (schema), how it is appended (journal), the folder (rundir), the DataFrame (frame)."""

from kvbench.results.rundir import Run, RunWriter, device_label, load_run
from kvbench.results.schema import (
    COLUMNS,
    SCHEMA,
    Ceiling,
    CellRecord,
    Control,
    Failure,
    FailureKind,
    Note,
    Record,
    RunInfo,
    RunStatus,
    Samples,
    Scalar,
    Skip,
    StopReason,
    Visit,
)

__all__ = [
    "COLUMNS",
    "SCHEMA",
    "Ceiling",
    "CellRecord",
    "Control",
    "Failure",
    "FailureKind",
    "Note",
    "Record",
    "Run",
    "RunInfo",
    "RunStatus",
    "RunWriter",
    "Samples",
    "Scalar",
    "Skip",
    "StopReason",
    "Visit",
    "device_label",
    "load_run",
]
