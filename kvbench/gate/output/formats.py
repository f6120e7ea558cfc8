"""The gate's outcome as files and lines: Markdown, JUnit XML, annotations for GitHub, JSON. Each escapes for itself."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final
from xml.etree import ElementTree

import msgspec

from kvbench.errors import ExitCode
from kvbench.gate.judgement import GateVerdict, Judgement, Row
from kvbench.gate.output.sheet import Sheet, figures, message, name_of_row
from kvbench.gate.rules import RulesReport
from kvbench.report.markdown import bullets, code, escape, table
from kvbench.text import counted, printable, short

# https://docs.github.com/actions: a step summary has at most 1 MiB, a comment at most 65 536 characters.
SUMMARY_BYTES: Final = 1 << 20
COMMENT_BYTES: Final = 65_536
# Room for the headings of two tables, the line about hidden rows, and the separators.
_FRAME_BYTES: Final = 1024
_MOST_NOTES: Final = 20
# https://docs.github.com/actions: a step shows 10 warnings and 10 errors and silently drops the rest.
MOST_ANNOTATIONS: Final = 10
_LONGEST: Final = 1000
SCHEMA: Final = 1
# The element of a row in JUnit XML, by the exit code of its verdict; none if there is nothing to examine.
_ELEMENTS: Final[Mapping[ExitCode, str]] = {
    ExitCode.FAILED_CELLS: "error",
    ExitCode.REGRESSION: "failure",
    ExitCode.INCONCLUSIVE: "skipped",
}


def page(sheet: Sheet, limit_bytes: int) -> str:
    """Return Markdown of at most `limit_bytes` bytes of UTF-8; the worst rows are kept, the others counted."""
    parts = [
        f"## {escape(sheet.title)}: {escape(sheet.verdict)}",
        bullets(map(escape, sheet.summary)),
        bullets(f"**FAILED** {escape(fault)}" for fault in sheet.faults[:_MOST_NOTES]),
        bullets(f"warning: {escape(text)}" for text in sheet.warnings[:_MOST_NOTES]),
    ]
    header = ("verdict", "what", *sheet.headings, "reason", "command")
    left = limit_bytes - sum(map(_size, parts)) - _FRAME_BYTES
    fitting: list[list[str]] = []
    for row in (*sheet.loud, *sheet.quiet):
        numbers = [escape(figure) for figure in figures(row)] or [""] * len(sheet.headings)
        command = code(row.command) if row.command else ""
        cells = [escape(row.verdict), escape(name_of_row(row)), *numbers, escape(row.reason), command]
        left -= _size(f"| {' | '.join(cells)} |")
        if left < 0:
            break
        fitting.append(cells)
    loud, quiet = fitting[: len(sheet.loud)], fitting[len(sheet.loud) :]
    if loud:
        parts.append(table(header, loud, left=len(header)))
    if quiet:
        others = table(header, quiet, left=len(header))
        parts.append(f"<details><summary>{len(quiet)} others</summary>\n\n{others}\n\n</details>")
    hidden = len(sheet.rows) - len(fitting)
    if hidden:
        parts.append(f"{counted(hidden, 'row')} more than fit here; gate.json has all.")
    return "\n\n".join(filter(None, parts)) + "\n"


def _size(text: str) -> int:
    return len(text.encode()) + 2


def junit(sheet: Sheet) -> str:
    """Return JUnit XML: FAILED is an error, SLOWER or FAIL a failure; inconclusive rows are skipped."""
    rows = [*(Row("rule", fault, GateVerdict.FAILED, [], reason=fault) for fault in sheet.faults), *sheet.rows]
    counts = Counter(_ELEMENTS.get(row.verdict.exit_code) for row in rows)
    suite = ElementTree.Element(
        "testsuite",
        name=printable(sheet.title),
        tests=str(len(rows)),
        errors=str(counts["error"]),
        failures=str(counts["failure"]),
        skipped=str(counts["skipped"]),
    )
    properties = ElementTree.SubElement(suite, "properties")
    ElementTree.SubElement(properties, "property", name="verdict", value=sheet.verdict)
    for row in rows:
        name = printable(name_of_row(row))
        case = ElementTree.SubElement(suite, "testcase", classname=f"kvbench.gate.{row.kind}", name=name)
        if element := _ELEMENTS.get(row.verdict.exit_code):
            outcome = ElementTree.SubElement(case, element, message=printable(f"{row.verdict}: {message(row)}"))
            outcome.text = printable(row.command)
    out = ElementTree.SubElement(suite, "system-out")
    out.text = "\n".join(map(printable, (*sheet.summary, *sheet.warnings)))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def annotations(sheet: Sheet) -> list[str]:
    """Return one workflow command per line: the worst rows, and in the last line the number of other rows."""
    commands = [_command("error", "FAILED: run", fault) for fault in sheet.faults]
    for row in sheet.loud:
        kind = "warning" if row.verdict is GateVerdict.UNDECIDED else "error"
        again = f" | to measure it again: {row.command}" if row.command else ""
        commands.append(_command(kind, f"{row.verdict}: {name_of_row(row)}", f"{message(row)}{again}"))
    if sheet.verdict is GateVerdict.CONTAMINATED:  # no row is to blame
        commands = [_command("warning", f"{sheet.title}: {sheet.verdict}", "; ".join(sheet.summary))]
    if len(commands) <= MOST_ANNOTATIONS:
        return commands
    more = len(commands) - MOST_ANNOTATIONS + 1
    rest = f"and {more} more rows: see the step summary and gate.json"
    return [*commands[: MOST_ANNOTATIONS - 1], _command("warning", sheet.title, rest)]


def _command(kind: str, title: str, message: str) -> str:
    return f"::{kind} title={_data(title).replace(':', '%3A').replace(',', '%2C')}::{_data(message)}"


def _data(text: str) -> str:
    """Escape as the runner expects (actions/toolkit, command.ts), so that no text ends or starts a command."""
    return short(printable(text), _LONGEST).replace("%", "%25")


def judgement_data(judgement: Judgement, exit_code: int) -> dict[str, Any]:
    """Return a comparison as JSON-compatible data; unknown values are null, `cells` are ids of the base's cells."""
    return {
        "schema": SCHEMA,
        "kind": "comparison",
        "exit_code": exit_code,
        **_finite({name: getattr(judgement, name) for name in judgement.__slots__}),
        "margins": msgspec.structs.asdict(judgement.margins),
        "controls": [_finite(asdict(control)) for control in judgement.controls],
        "rows": [_finite(_row_data(row)) for row in judgement.rows],
    }


def _row_data(row: Row) -> dict[str, Any]:
    estimates = {"": row.estimate, **({"upper_": row.upper} if row.upper is not None else {})}
    return {
        **{name: getattr(row, name) for name in ("kind", "name", "verdict", "unit", "base", "cand", "margin")},
        **{
            f"{half}{name}": value
            for half, estimate in estimates.items()
            for name, value in zip(("effect", "low", "high"), estimate.ratios, strict=True)
        },
        "pairs": row.decisive.pairs,
        **{name: getattr(row, name) for name in ("reason", "settled", "passes", "command")},
        "cells": [cell.id for cell in row.cells],
    }


def rules_data(report: RulesReport) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": "rules",
        "verdict": report.verdict,
        "exit_code": int(report.verdict.exit_code),
        "run": report.run,
        "config": report.config,
        "rules": [
            {"rule": row.name, "verdict": row.verdict, "reason": row.reason, "command": row.command}
            for row in report.rows
        ],
        "warnings": list(report.warnings),
    }


def as_json(data: Mapping[str, Any]) -> str:
    """Return `data` as ASCII text, which is also safe on a terminal."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _finite(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in fields.items()
    }
