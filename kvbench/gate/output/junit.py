"""The gate's rows as JUnit XML, which CI systems show as tests."""

from collections import Counter
from typing import Final
from xml.etree import ElementTree

from kvbench.gate.output.sheet import Level, Line, Sheet
from kvbench.text import printable

_TAGS: Final = {Level.ERROR: "error", Level.BAD: "failure", Level.OPEN: "skipped", Level.VOID: "skipped"}


def junit(sheet: Sheet) -> str:
    """Return the document: FAILED is an error, REGRESSED or BROKEN a failure; what nobody can tell is skipped."""
    faults = [Line("FAILED", Level.ERROR, "run", fault, (), fault, "") for fault in sheet.faults]
    lines = [*faults, *sheet.lines]
    counts = Counter(_TAGS.get(line.level) for line in lines)
    suite = ElementTree.Element(
        "testsuite",
        name=printable(sheet.title),
        tests=str(len(lines)),
        errors=str(counts["error"]),
        failures=str(counts["failure"]),
        skipped=str(counts["skipped"]),
    )
    properties = ElementTree.SubElement(suite, "properties")
    ElementTree.SubElement(properties, "property", name="status", value=sheet.status)
    for line in lines:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"kvbench.gate.{line.kind}", name=printable(line.name)
        )
        if line.level in _TAGS:
            found = ElementTree.SubElement(
                case, _TAGS[line.level], message=printable(f"{line.verdict}: {line.message}")
            )
            found.text = printable(line.command)
    out = ElementTree.SubElement(suite, "system-out")
    out.text = "\n".join(map(printable, (*sheet.summary, *sheet.warnings)))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
