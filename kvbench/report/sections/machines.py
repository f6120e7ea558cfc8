"""Machines side by side: a column for each card and driver, with the cells that all of them have."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kvbench.cells.backend_facts import BATCHED, NO_CHOICES, is_marked, marked, method_label, plug_ins_of
from kvbench.cells.units import KIB
from kvbench.errors import UsageError
from kvbench.report.model import DataTable, Part, PartOrReason, Text
from kvbench.report.numbers import ABSENT, TIMES, bytes_size, count, figure
from kvbench.report.sections.cliff import MIN_SIZES, RateCurves, cliff_curves
from kvbench.report.tables import INCLUDES, sms_of
from kvbench.report.view import DIRECTIONS, Row, View, ceiling_of, grouped, rows_of, where
from kvbench.tune.text import link_text, rule_for_all

Shape = tuple[str, int, int]  # direction, N, block bytes
Cells = Mapping[Shape, Sequence[Row]]

# Of the swaps that all machines have: a small one in us, and a large one in GB/s.
WANTED: Final = ((64, 4 * KIB), (10_000, 4 * KIB))
MANY: Final = 1024


def make(view: View) -> PartOrReason:
    table = machines_table([*view.earlier, view])
    return "it needs runs of several machines" if table is None else lambda: Part(tables=[table])


def machines_table(views: Sequence[View]) -> DataTable | None:
    """Return a table with a column for each machine, a card with a driver; None for runs of one."""
    machines = list(grouped(views, lambda view: view.machine).values())
    if len(machines) < 2:
        return None
    cells = [_idle_cells(runs) for runs in machines]
    heads = [_head(runs[0], machines) for runs in machines]
    rows: list[tuple[Text, ...]] = [(name, *map(text, machines)) for name, text in _FACTS.items()]
    common = set[Shape].intersection(*(set(one) for one in cells))
    for shape in _shown(common):
        rows += _swap_rows(shape, cells)
    rows += [(f"Recommended, {way}, idle", *(_rule(runs, way) for runs in machines)) for way in DIRECTIONS]
    return DataTable(
        "Machines side by side", ("", *heads), rows, _alone(heads, cells), f"{INCLUDES['idle']}. Medians", left=1
    )


def _head(view: View, machines: Sequence[Sequence[View]]) -> str:
    card = view.title.removeprefix("NVIDIA ")
    several = sum(runs[0].title == view.title for runs in machines) > 1
    return f"{card}, {view.driver}" if several else card


def _ceilings(runs: Sequence[View]) -> str:
    rates = [[ceiling_of(where(view.frame, direction=way)) for view in runs] for way in DIRECTIONS]
    return " / ".join(figure(max(known)) if (known := [one for one in side if one]) else ABSENT for side in rates)


def _cliff(runs: Sequence[View]) -> str:
    """Return between which two sizes, the closest of any run, batched h2d copies on an idle stream jump."""
    curves = [one for view in runs if isinstance(one := cliff_curves(view.pinned), RateCurves)]
    same = [
        curve
        for one in curves
        for curve in one.at(one.main, "h2d")
        if (curve.backend, curve.state) == (BATCHED, "idle") and len(curve.x) >= MIN_SIZES
    ]
    cliffs = [cliff for curve in same if (cliff := curve.cliff)]
    if not cliffs:
        return "none" if same else ABSENT
    at = min(cliffs, key=lambda cliff: cliff.above_bytes / cliff.below_bytes)
    return f"between {bytes_size(at.below_bytes)} and {bytes_size(at.above_bytes)}"


_FACTS: Final[Mapping[str, Callable[[Sequence[View]], str]]] = {
    "Link": lambda runs: link_text(runs[0].run) or ABSENT,
    "Driver": lambda runs: runs[0].driver.removeprefix("driver "),
    "Date": lambda runs: " to ".join(dict.fromkeys((min(view.date for view in runs), max(view.date for view in runs)))),
    "Ceiling h2d / d2h, GB/s": _ceilings,
    "Cliff of batched h2d copies": _cliff,
}


def _idle_cells(runs: Sequence[View]) -> Cells:
    """Return the cells of a machine on an idle stream by their shape, where batched copies are among them.

    Those of a shape are of one run, the one with the most cells of kvbench's own; only other packages' code may come
    from others.
    """
    known = [facts for view in runs for facts in view.run.info.backends]
    others = {facts.name for facts in known if not _is_ours(facts.package)} | {*map(marked, plug_ins_of(known))}
    shapes: dict[Shape, list[list[Row]]] = {}
    for view in sorted(runs, key=lambda view: int((~view.every["backend"].isin(others)).sum()), reverse=True):
        rows = rows_of(where(view.pinned.cells, status="ok", stream_state="idle"))
        rows = [row | {"foreign": row["backend"] in others} for row in rows]
        for shape, same in grouped(rows, lambda row: (row["direction"], row["blocks"], row["block_bytes"])).items():
            shapes.setdefault(shape, []).append(same)
    chosen: dict[Shape, list[Row]] = {}
    for shape, of_runs in shapes.items():
        fullest = next((rows for rows in of_runs if any(row["backend"] == BATCHED for row in rows)), None)
        if fullest:
            foreign = [row for rows in of_runs for row in rows if row["foreign"]]
            chosen[shape] = [row for row in fullest if not row["foreign"]] + foreign
    return chosen


def _is_ours(package: str) -> bool:
    return package.partition("==")[0] in ("", "kvbench")


def _shown(common: set[Shape]) -> list[Shape]:
    """Return the wanted shapes that all machines have, or the smallest and the largest of each direction."""
    wanted = [shape for way in DIRECTIONS for n, size in WANTED if (shape := (way, n, size)) in common]
    if wanted:
        return wanted
    sides = (sorted((shape for shape in common if shape[0] == way), key=lambda one: one[1:]) for way in DIRECTIONS)
    return [shape for side in sides if side for shape in dict.fromkeys((side[0], side[-1]))]


def _swap_rows(shape: Shape, cells: Sequence[Cells]) -> list[tuple[Text, ...]]:
    direction, blocks, block_bytes = shape
    in_us = blocks < MANY
    head = f"{direction}, {count(blocks)} {TIMES} {bytes_size(block_bytes)}, {'us' if in_us else 'GB/s'}"

    def shown(row: Row | None) -> str:
        return ABSENT if row is None else figure(row["swap_us_median"] if in_us else row["gbps"])

    def best(one: Cells) -> Row:
        own = [row for row in one[shape] if row["backend"] not in NO_CHOICES and not row["foreign"]]
        return min(own, key=lambda row: float(row["swap_us_median"]))

    def named(row: Row) -> str:
        share = "" if in_us else f", {row['ceiling_share']:.0%} of the ceiling"
        return f"{shown(row)}: {method_label(row['backend'], sms_of(row))}{share}"

    foreign = sorted({row["backend"] for one in cells for row in one[shape] if row["foreign"]})
    shipped = {name: name if is_marked(name) else f"{name} (its package's code)" for name in foreign}
    names = {BATCHED: "batched", **shipped}
    rows: list[tuple[Text, ...]] = [
        (f"{head}: {text}", *(shown(_of(one[shape], name)) for one in cells)) for name, text in names.items()
    ]
    return [*rows, (f"{head}: best", *(named(best(one)) for one in cells))]


def _of(rows: Sequence[Row], backend: str) -> Row | None:
    """Return the cell of a backend, as its package ships it where others were measured too."""
    same = [row for row in rows if row["backend"] == backend]
    return min(same, key=lambda row: sms_of(row) is not None, default=None)


def _rule(runs: Sequence[View], direction: str) -> str:
    try:
        rule = rule_for_all([view.run for view in runs])
    except UsageError:
        return ABSENT
    for (way, state), lines in rule.lines.items():
        if (way, state) == (direction, "idle"):
            choices = dict.fromkeys(line.choice.label for line in lines)
            return ", ".join(choices) + (" by size" if len(choices) > 1 else "")
    return ABSENT


def _alone(heads: Sequence[str], cells: Sequence[Cells]) -> list[Text]:
    """Return what was measured on some of the machines only."""
    backends = [{row["backend"] for rows in one.values() for row in rows} for one in cells]
    every = set[str].intersection(*backends)
    return [
        f"Only {head} has {', '.join(sorted(own - every))}"
        for head, own in zip(heads, backends, strict=True)
        if own - every
    ]
