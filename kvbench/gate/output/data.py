"""The gate's outcome as JSON, for programs: `gate.json`."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kvbench.gate.judgement import Judgement, Row
from kvbench.gate.rule_check import RulesReport

SCHEMA = 1


def judgement_data(judgement: Judgement, exit_code: int) -> dict[str, Any]:
    """Return a comparison as JSON takes it; what is not known is null, `cells` are ids of the base's cells."""
    return {
        "schema": SCHEMA,
        "kind": "comparison",
        "status": judgement.status,
        "exit_code": exit_code,
        "rounds": judgement.rounds,
        "geometric_mean": _known(judgement.geometric_mean),
        "slot_bias": _known(judgement.slot_bias),
        "margins": asdict(judgement.margins),
        "controls": [_finite(asdict(control)) for control in judgement.controls],
        "rows": [_row(row) for row in judgement.rows],
        "faults": list(judgement.faults),
        "warnings": list(judgement.warnings),
    }


def rules_data(report: RulesReport) -> dict[str, Any]:
    """Return rules against a run as JSON takes them."""
    return {
        "schema": SCHEMA,
        "kind": "rules",
        "status": report.verdict,
        "exit_code": int(report.exit_code),
        "run": report.run,
        "rules": [asdict(result) for result in report.results],
        "warnings": list(report.warnings),
    }


def as_json(data: Mapping[str, Any]) -> str:
    """Return `data` as text, ASCII alone, so that it is harmless on a terminal too."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _row(row: Row) -> dict[str, Any]:
    names = ("kind", "name", "verdict", "unit", "base", "cand", "effect", "low", "high", "margin", "pairs", "reason")
    fields = {name: getattr(row, name) for name in names}
    return _finite(fields) | {"cells": [cell.id for cell in row.cells], "command": row.command}


def _finite(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _known(value) if isinstance(value, float) else value for name, value in fields.items()}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
