"""No test compares times: `python -m tests.clocks`, a part of `make lint`, prints every place where one could.

Other work on a machine makes times longer, so a test that says how long is red by chance. Looked for are reads of a
clock and, in files that measure, asserts that a time is less than or about something. That a time is at least what its
work took holds on any machine, and so does that a part is no longer than the whole. CPU time is no clock: other work
takes none of it.
"""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from tests.sources import ROOT, syntax

MEASURING: Final = ("kvbench.engine.device", "kvbench.measure", "tests.visits")
PARTS: Final = {("caller_us", "wall_us"), ("arrived_us", "both_us")} | {
    ("first_us", whole) for whole in ("wall_us", "last_us", "end_us")
}
_READ: Final = re.compile(r"time\.(perf_counter|monotonic|time)(_ns)?\(")
_TIME: Final = re.compile(r"(?<!cpu)_(us|ns|gbps)$")
_CXX: Final = re.compile(
    r"(steady|system|high_resolution)_clock|Clock::now|sleep_(for|until)|wall_ns|clock_gettime|"
    r"check::that\(.*(?<!cpu)_us <"
)
# Part of "file::function" -> why it may.
EXCEPTIONS: Final = {
    "tests/bench_": "is no test",
    "tests/fuzz.py::_main": "says how long it took",
    "tests/gate_rates.py": "is no test",
    "tests/slow_backend/": "is slower by a share of its time; what tests see is the order",
    "::await_cpu_time": "ends a hang",
    "::test_every_layer_is_swapped_verified_and_marked": "the longest gap is between the mean and the sum",
    "::test_every_layer_arrives_one_after_the_other": "the longest gap is no longer than their sum",
    "::test_a_delay_is_no_shorter_than_asked_for": "at least what was asked for",
    "tests/unit/measure/test_figures.py": "times are given",
    "csrc/tests/test_timing.cpp": "a part is no longer than the whole: what a swap saw, and the events around it",
    "csrc/tests/bench_": "is no test",
}


def _times(node: ast.expr) -> list[str]:
    """Return the names of times in an expression."""
    names = (str(getattr(one, "attr", None) or getattr(one, "id", "")) for one in ast.walk(node))
    return [name for name in names if _TIME.search(name)]


def _bounds_a_time(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> bool:
    """Return whether a comparison fails once a time is long enough."""
    if isinstance(operator, ast.Eq):
        return "approx(" in ast.unparse(right) and bool(_times(left))
    if not isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        return False
    less, more = (left, right) if isinstance(operator, ast.Lt | ast.LtE) else (right, left)
    parts, wholes = _times(less), _times(more)
    return any(all((part, whole) not in PARTS for whole in wholes) for part in parts)


def complaints(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, int, str]]:
    """Yield the function, the line and the source of each read of a clock and comparison in a Python file."""
    imported = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    measures = any(module.startswith(MEASURING) for module in imported)
    for function in (node for node in nodes if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and _READ.match(source := ast.unparse(node)):
                yield function.name, node.lineno, source
            asserted = ast.walk(node.test) if measures and isinstance(node, ast.Assert) else ()
            for compare in (one for one in asserted if isinstance(one, ast.Compare)):
                pairs = zip([compare.left, *compare.comparators], compare.ops, compare.comparators, strict=False)
                if any(_bounds_a_time(*pair) for pair in pairs):
                    yield function.name, compare.lineno, ast.unparse(compare)


def main() -> int:
    """Print every complaint that is no exception; return 1 if there is one."""
    found = [
        (f"{file.relative_to(ROOT)}::{function}", line, source)
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for function, line, source in complaints(syntax(file))
    ] + [
        (f"{file.relative_to(ROOT)}::", number, line.strip())
        for file in sorted((ROOT / "csrc" / "tests").glob("*.?pp"))
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if _CXX.search(line)
    ]
    lines = [
        f"{where.partition('::')[0]}:{line}: a test compares no times: {source}"
        for where, line, source in found
        if not any(part in where for part in EXCEPTIONS)
    ]
    lines += [
        f"EXCEPTIONS: nothing to allow in {part}" for part in EXCEPTIONS if not any(part in one[0] for one in found)
    ]
    print("\n".join(lines), file=sys.stderr, end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
