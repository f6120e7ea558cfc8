"""Hosts side by side: a line for each that `kvbench doctor --measure --json` measured, and those that stand out."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from kvbench.cells.facts import PER_BLOCK, SM
from kvbench.cells.units import size_text
from kvbench.ground.errors import UsageError
from kvbench.ground.files import read_as, read_capped
from kvbench.ground.text import convert, located, printable_tree
from kvbench.report.health import Health, Reached
from kvbench.results.between_runs import LARGE_FROM_BYTES, kind_of, spread_between

_MOST_BYTES: Final = 1 << 20
# The least that can tell which host stands out: of two that differ, neither does.
LEAST_HOSTS: Final = 3
# What a line has: the figure, its title, its unit, and whose swaps repeat from start to start as its copies do.
_COPIES, _KERNELS = kind_of(PER_BLOCK, LARGE_FROM_BYTES), kind_of(SM, LARGE_FROM_BYTES)
_FIGURES: Final = (
    ("h2d_gbps", "h2d GB/s", 1e0, _COPIES),
    ("d2h_gbps", "d2h GB/s", 1e0, _COPIES),
    ("h2d_blocks_per_s", "h2d M/s", 1e6, _KERNELS),
    ("d2h_blocks_per_s", "d2h M/s", 1e6, _KERNELS),
)
HEADER: Final = ("host", "healthy", *(title for _, title, _, _ in _FIGURES), "CPU up to")


class HostReport(msgspec.Struct, frozen=True):
    """What the doctor wrote for a GPU of a host; other fields are passed over."""

    card: str
    device: str
    health: Health


def hosts_in(paths: Sequence[Path]) -> dict[str, HostReport]:
    """The reports in files, by the names of the files; raises UsageError for a file that is none."""
    hosts: dict[str, HostReport] = {}
    for path in paths:
        with located(str(path)):
            with read_as("JSON"):
                plain = printable_tree(json.loads(read_capped(path, _MOST_BYTES)))
            with located("not what kvbench doctor --measure --json writes"):
                hosts[path.stem] = convert(plain, HostReport)
    if len(hosts) < len(paths):
        raise UsageError("two files have one name, which is that of the host: give each host a name of its own")
    return hosts


def row(name: str, report: HostReport) -> list[str]:
    """The texts of a host's line, as in `HEADER`."""
    reached = report.health.reached
    figures = [_figure_text(reached, field, per) for field, _, per, _ in _FIGURES]
    limit = None if reached is None else reached.cpu_up_to_bytes
    return [name, report.health.answer, *figures, "" if limit is None else size_text(limit) if limit else "none"]


def remarks(hosts: Mapping[str, HostReport]) -> list[str]:
    """A line for everything by which a host stands out among those of its card, and for every problem."""
    lines = []
    for name, report in hosts.items():
        others = [hosts[other] for other in hosts if other != name and hosts[other].card == report.card]
        if len(others) + 1 >= LEAST_HOSTS:
            lines += [f"{name}: {text}" for text in _apart(report, others)]
        lines += [f"{name}: {problem.text}" for problem in report.health.problems]
    return lines


def _apart(report: HostReport, others: Sequence[HostReport]) -> list[str]:
    """The figures of a host that differ from the others' by more than two starts on one host do."""
    texts = []
    for field, title, _, kind in _FIGURES:
        figures = [getattr(other.health.reached, field, None) for other in others]
        values = [figure for figure in figures if figure is not None]
        value = getattr(report.health.reached, field, None)
        spread = spread_between(report.card, kind).fraction
        if value is None or not values or not median(values) > 0:
            continue
        change = value / median(values) - 1
        if abs(change) > spread:
            side = "below" if change < 0 else "above"
            starts = f"two starts differ by up to {spread:.1%}"
            texts.append(f"{title} lies {abs(change):.1%} {side} the others' ({starts})")
    return texts


def _figure_text(reached: Reached | None, field: str, per: float) -> str:
    value = getattr(reached, field, None)
    return "" if value is None else f"{value / per:.1f}"
