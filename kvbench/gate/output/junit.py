"""The gate's rows as JUnit XML, which CI systems show as tests."""

from collections import Counter
from typing import Final
from xml.etree import ElementTree

from kvbench.gate.output.sheet import Level, Sheet, SheetRow
from kvbench.text import printable

_TAGS: Final = {Level.ERROR: "error", Level.BAD: "failure", Level.OPEN: "skipped", Level.VOID: "skipped"}


def junit(sheet: Sheet) -> str:
    """Return the document: FAILED is an error, REGRESSED or BROKEN a failure; what nobody can tell is skipped."""
    faults = [SheetRow("FAILED", "run", fault, reason=fault) for fault in sheet.faults]
    rows = [*faults, *sheet.rows]
    counts = Counter(_TAGS.get(row.level) for row in rows)
    suite = ElementTree.Element(
        "testsuite",
        name=printable(sheet.title),
        tests=str(len(rows)),
        errors=str(counts["error"]),
        failures=str(counts["failure"]),
        skipped=str(counts["skipped"]),
    )
    properties = ElementTree.SubElement(suite, "properties")
    ElementTree.SubElement(properties, "property", name="status", value=sheet.status)
    for row in rows:
        case = ElementTree.SubElement(suite, "testcase", classname=f"kvbench.gate.{row.kind}", name=printable(row.name))
        if row.level in _TAGS:
            message = printable(f"{row.verdict}: {row.message}")
            found = ElementTree.SubElement(case, _TAGS[row.level], message=message)
            found.text = printable(row.command)
    out = ElementTree.SubElement(suite, "system-out")
    out.text = "\n".join(map(printable, (*sheet.summary, *sheet.warnings)))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
