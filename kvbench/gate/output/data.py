"""The gate's outcome as JSON, for programs: `gate.json`."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from kvbench.gate.judgement import Judgement
from kvbench.gate.rule_check import RulesReport

SCHEMA: Final = 1


def judgement_data(judgement: Judgement, exit_code: int) -> dict[str, Any]:
    """Return a comparison as JSON takes it; what is not known is null, `cells` are ids of the base's cells."""
    return {
        "schema": SCHEMA,
        "kind": "comparison",
        "exit_code": exit_code,
        **_finite(asdict(judgement)),
        "controls": [_finite(asdict(control)) for control in judgement.controls],
        "rows": [_finite(asdict(row)) | {"cells": [cell.id for cell in row.cells]} for row in judgement.rows],
    }


def rules_data(report: RulesReport) -> dict[str, Any]:
    """Return rules against a run as JSON takes them."""
    return {
        "schema": SCHEMA,
        "kind": "rules",
        "status": report.verdict,
        "exit_code": int(report.exit_code),
        "run": report.run,
        "config": report.config,
        "rules": [asdict(result) for result in report.results],
        "warnings": list(report.warnings),
    }


def as_json(data: Mapping[str, Any]) -> str:
    """Return `data` as text, ASCII alone, so that it is harmless on a terminal too."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _finite(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in fields.items()
    }
