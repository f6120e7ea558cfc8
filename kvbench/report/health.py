"""Whether a host is healthy: three figures, what was expected of each, and one sentence; and many hosts side by side.

Any run on a GPU has the figures: large copies, scattered small blocks, and up to which block size the CPU makes batched
copies. What is expected comes from the link or from committed runs of such cards (`configs/cards.json`, written by
`python -m reports.cards --write`); of a card without committed runs it is unknown, and said to be.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Final, Literal

import msgspec

from kvbench.analysis.margins import HEALTHY
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.blocks import SCATTERED_FROM_BYTES
from kvbench.cells.facts import BATCHED, PER_BLOCK, SM
from kvbench.cells.units import size_text
from kvbench.ground.errors import UsageError
from kvbench.ground.files import read_as, read_capped, shipped_folder
from kvbench.ground.text import convert, located, printable_tree
from kvbench.machine.doctor import Check, Status
from kvbench.report.whole_runs import faults_of
from kvbench.results import Run
from kvbench.results.between_runs import LARGE_FROM_BYTES, kind_of, spread_between
from kvbench.results.schema import Disturbance, EffectivePath, Roof
from kvbench.sweep.spec import Sampling, SweepSpec

FILE: Final = "cards.json"
# What a run for these figures visits: sizes around that at which the CPU stops to copy, and a d2h swap. Few rounds: no
# interval is needed.
SPEC: Final = SweepSpec(
    name="health",
    question="Is this host healthy?",
    groups=(
        {
            "backend": (BATCHED,), "direction": ("h2d",), "stream_state": ("idle",), "blocks": ("64",),
            "block_size": tuple(str(kib << 10) for kib in (4, 8, 16, 20, 24, 28, 32, 48, 64)),
        },
        {
            "backend": (BATCHED,), "direction": ("d2h",), "stream_state": ("idle",), "blocks": ("64",),
            "block_size": ("65536",),
        },
    ),
    sampling=Sampling(rounds=4, warmups=1, min_samples=3, max_samples=15, cell_seconds=0.01),
)  # fmt: skip

# Gbit/s of a lane: transfers a second, and the share that the line code leaves (8b/10b, then 128b/130b, then flits, of
# whose 256 bytes 236 are for packets).
_LANE_GBITS: Final = {
    1: 2.5 * 8 / 10, 2: 5 * 8 / 10, 3: 8 * 128 / 130, 4: 16 * 128 / 130, 5: 32 * 128 / 130, 6: 64 * 236 / 256,
}  # fmt: skip
# Of that, the data of a packet: 256 bytes beside 24 of framing, header and CRC (PCI Express Base Specification; the
# largest payload that servers set). About 4.5% go to acknowledgements and flow control: what is then left, 55.0 GB/s of
# PCIe 5 x16, is what large copies reached on the committed H100.
_PAYLOAD: Final = 256 / (256 + 24)
_OF_DATA: Final = 0.955
_HOST_COPIES: Final = "the device cpu makes host copies, which say nothing about a GPU"

# Checks of the doctor that decide, in the order in which to mend: first causes, then what they lead to.
_CAUSES: Final = ("engine", "device", "copies", "link", "NUMA", "other processes", "throttle", "batch entry")
_LIMITS: Final = ("host load", "memlock")
_HIDDEN: Final = ("IOMMU", "huge pages")


class Reached(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What runs reached, medians of their medians; None where none measured it.

    GB/s are of large copies, blocks a second of scattered blocks of 512 B that all SMs copy. `cpu_up_to_bytes` is the
    largest block that the CPU copies in a batched call on an idle stream, 0 if it copies none. `link` is "PCIe 5 x16",
    "NVLink-C2C" or "".
    """

    link: str
    h2d_gbps: float | None
    d2h_gbps: float | None
    h2d_blocks_per_s: float | None
    d2h_blocks_per_s: float | None
    cpu_up_to_bytes: int | None


class Problem(msgspec.Struct, frozen=True):
    """What is wrong, and what to do."""

    what: str
    remedy: str = ""

    @property
    def text(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, in a sentence too; what was reached and expected (None where that is unknown), and every problem."""

    answer: Literal["yes", "no", "unknown"]
    sentence: str
    reached: Reached | None = None
    expected_gbps: float | None = None
    expected_blocks_per_s: float | None = None
    problems: list[Problem] = []


@cache
def cards() -> Mapping[str, Reached]:
    """What the committed runs of each card reached, by its title."""
    return msgspec.json.decode((shipped_folder() / FILE).read_bytes(), type=dict[str, Reached])


def link_gbps(link: str) -> float | None:
    """The GB/s of large copies over a PCIe link such as "PCIe 5 x16"; None for another link."""
    words = link.removeprefix("PCIe ").split(" x")
    if link == words[0] or len(words) != 2 or int(words[0]) not in _LANE_GBITS:
        return None
    return _LANE_GBITS[int(words[0])] * int(words[1]) / 8 * _PAYLOAD * _OF_DATA


def reached_by(runs: Sequence[Run]) -> Reached:
    """What runs of one card reached."""
    limits = [limit for limit in map(_cpu_up_to_bytes, runs) if limit is not None]
    return Reached(
        link=next(filter(None, map(_link_of, runs)), ""),
        h2d_gbps=_median(run.ceilings_gbps.get(Direction.H2D) for run in runs),
        d2h_gbps=_median(run.ceilings_gbps.get(Direction.D2H) for run in runs),
        h2d_blocks_per_s=_median(_scattered(run, Direction.H2D) for run in runs),
        d2h_blocks_per_s=_median(_scattered(run, Direction.D2H) for run in runs),
        cpu_up_to_bytes=max(limits) if limits else None,
    )


def health_of(run: Run, checks: Sequence[Check] = ()) -> Health:
    """Whether the host of a run is healthy, by its records and, if given, by the checks of the doctor."""
    if run.info.device.get("kind") != "cuda":
        return Health(answer="unknown", sentence=f"healthy: not answered: {_HOST_COPIES}", reached=reached_by([run]))
    reached, card = reached_by([run]), cards().get(str(run.info.device.get("title")))
    expected_gbps = link_gbps(reached.link) or (_least(card.h2d_gbps, card.d2h_gbps) if card else None)
    expected_blocks_per_s = _least(card.h2d_blocks_per_s, card.d2h_blocks_per_s) if card else None
    by_name = {check.name: check for check in checks}
    hidden = [by_name[name].found for name in _HIDDEN if name in by_name]
    problems = [
        *(Problem(fault) for fault in faults_of(run)),
        *_failed(by_name, _CAUSES),
        *_lesser_link(reached, card),
        *_fallbacks(run),
        *_slow(reached, expected_gbps, expected_blocks_per_s, hidden),
        *_disturbed(run),
        *_failed(by_name, _LIMITS),
    ]
    answer: Literal["yes", "no", "unknown"] = "no" if problems else "yes" if expected_gbps else "unknown"
    figures = _figures_text(reached, expected_gbps, expected_blocks_per_s)
    sentence = _problems_text(problems, figures) if problems else f"healthy: {answer}, {figures}{_advice(reached)}"
    return Health(
        answer=answer,
        sentence=sentence,
        reached=reached,
        expected_gbps=expected_gbps,
        expected_blocks_per_s=expected_blocks_per_s,
        problems=problems,
    )


def unmeasured_health(checks: Sequence[Check], device: str) -> Health:
    """What the checks of the doctor say without a measurement: what is wrong, or that it is not known."""
    if device == "cpu":
        return Health(answer="unknown", sentence=f"healthy: not answered: {_HOST_COPIES}")
    by_name = {check.name: check for check in checks}
    problems = [*_failed(by_name, (*_CAUSES, *_LIMITS))]
    if problems:
        return Health(answer="no", sentence=_problems_text(problems, "nothing was measured"), problems=problems)
    how = "kvbench doctor --measure answers in half a minute"
    return Health(answer="unknown", sentence=f"healthy: not measured, and no check found anything wrong; {how}")


def _median(values: Iterable[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return median(measured) if measured else None


def _least(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _scattered(run: Run, direction: Direction) -> float | None:
    """The blocks a second of a run's rounds, if their blocks were scattered over a pool that is large enough."""
    roofs = [record for record in run.others if isinstance(record, Roof) and record.direction == direction]
    times_us = [(roof.blocks, median(roof.scattered_us)) for roof in roofs if roof.pool_bytes >= SCATTERED_FROM_BYTES]
    return _median(blocks / us * 1e6 for blocks, us in times_us if us > 0)


def _cpu_up_to_bytes(run: Run) -> int | None:
    """The largest block that the CPU copied, if the next larger one that was measured was copied by the copy engine."""
    paths: dict[int, set[str]] = {}
    for cell, outcome in run.outcomes.items():
        idle = cell.backend == BATCHED and cell.stream_state is StreamState.IDLE and cell.direction is Direction.H2D
        if idle and outcome.path:
            paths.setdefault(cell.block_bytes, set()).add(outcome.path)
    by_cpu = [size for size, moved_by in paths.items() if EffectivePath.CPU_INLINE in moved_by]
    by_engine = [size for size, moved_by in paths.items() if moved_by == {EffectivePath.COPY_ENGINE}]
    largest = max(by_cpu, default=0)
    return largest if any(size > largest for size in by_engine) else None


def _link_of(run: Run) -> str:
    """The fastest link that was seen while the run ran; the card's largest, where copies were faster than that: then
    the GPU was idle whenever it was looked at.
    """
    observed, identity = run.info.link, run.info.identity
    largest = identity.get("pcie_max_generation"), identity.get("pcie_max_width")
    copied_gbps, observed_gbps = max(run.ceilings_gbps.values(), default=0.0), link_gbps(observed)
    was_idle = observed_gbps is not None and copied_gbps > (1 + HEALTHY.fraction) * observed_gbps
    return "PCIe {} x{}".format(*largest) if was_idle and None not in largest else observed


def _failed(checks: Mapping[str, Check], names: Iterable[str]) -> Iterator[Problem]:
    for name in names:
        check = checks.get(name)
        if check is not None and check.status in (Status.WARN, Status.FAIL):
            yield Problem(f"{name}: {check.found}", check.remedy)


def _lesser_link(reached: Reached, card: Reached | None) -> Iterator[Problem]:
    gbps, usual_gbps = link_gbps(reached.link), card and link_gbps(card.link)
    if card and gbps and usual_gbps and gbps < (1 - HEALTHY.fraction) * usual_gbps:
        yield Problem(f"the link is {reached.link}, such cards have {card.link}", f"use a slot of {card.link}")


def _fallbacks(run: Run) -> Iterator[Problem]:
    if any(EffectivePath.FALLBACK in (outcome.path or "") for outcome in run.outcomes.values()):
        yield Problem("a batched call falls back to one copy for each block", "install a driver of 570 or newer")


def _slow(reached: Reached, gbps: float | None, blocks_per_s: float | None, hidden: Sequence[str]) -> Iterator[Problem]:
    """Yield the figures that lie below what is expected, with what no other check can rule out."""
    least, suspects = 1 - HEALTHY.fraction, "; ".join(hidden) or "kvbench doctor"
    for direction, value in ((Direction.H2D, reached.h2d_gbps), (Direction.D2H, reached.d2h_gbps)):
        if value is not None and gbps is not None and value < least * gbps:
            why = f"look for other traffic on this link, and how far the memory is ({suspects})"
            yield Problem(f"large copies {direction} reach {value:.1f} of about {gbps:.0f} GB/s", why)
    for direction, value in ((Direction.H2D, reached.h2d_blocks_per_s), (Direction.D2H, reached.d2h_blocks_per_s)):
        if value is not None and blocks_per_s is not None and value < least * blocks_per_s:
            rates = f"{_millions(value)} of {_millions(blocks_per_s)} M/s of such cards"
            yield Problem(f"scattered blocks {direction} reach {rates}", f"look at what translates ({suspects})")


def _disturbed(run: Run) -> Iterator[Problem]:
    """Yield a host that disturbed most visits, without those with a neighbour, whose own work takes CPUs."""
    visits = [visit for visit in run.visits if visit.beside is None]
    slow = sum(Disturbance.SLOW_CPU in visit.disturbed for visit in visits)
    if 2 * slow > len(visits):
        what = f"other work slowed the CPU in {slow} of {len(visits)} visits"
        yield Problem(what, "stop it, or reserve CPUs: submissions are timed on them")


def _figures_text(reached: Reached, gbps: float | None, blocks_per_s: float | None) -> str:
    parts = []
    if (copies := _least(reached.h2d_gbps, reached.d2h_gbps)) is not None:
        gives = f"that {reached.link} gives" if link_gbps(reached.link) else "on such cards"
        unknown = f"GB/s, and what this link ({reached.link or 'unknown'}) gives is not known"
        parts.append(f"{copies:.1f} " + (f"of about {gbps:.0f} GB/s {gives}" if gbps else unknown))
    if (scattered := _least(reached.h2d_blocks_per_s, reached.d2h_blocks_per_s)) is not None:
        expected = f"of {_millions(blocks_per_s)} M on such cards" if blocks_per_s else "(this card was not measured)"
        parts.append(f"scattered 512 B {_millions(scattered)} M/s {expected}")
    return ", ".join(parts) or "nothing was measured"


def _advice(reached: Reached) -> str:
    """What to set: who copies small blocks."""
    limit = reached.cpu_up_to_bytes
    if limit is None:
        return ""
    if limit == 0:
        return "; batched copies do not take the CPU"
    return (
        f"; batched copies take the CPU up to {size_text(limit)}: have a kernel copy such blocks (kvbench sweep, then "
        "kvbench show, says with how many SMs)"
    )


def _problems_text(problems: Sequence[Problem], figures: str) -> str:
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"healthy: no: {problems[0].text}{more}; {figures}"


def _millions(blocks_per_s: float) -> str:
    millions = blocks_per_s / 1e6
    return f"{millions:.0f}" if millions >= 10 else f"{millions:.1f}" if math.isfinite(millions) else "?"


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
HOST_HEADER: Final = ("host", "healthy", *(title for _, title, _, _ in _FIGURES), "CPU up to")


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


def host_row(name: str, report: HostReport) -> list[str]:
    """The texts of a host's line, as in `HOST_HEADER`."""
    reached = report.health.reached
    figures = [_figure_text(reached, field, per) for field, _, per, _ in _FIGURES]
    limit = None if reached is None else reached.cpu_up_to_bytes
    return [name, report.health.answer, *figures, "" if limit is None else size_text(limit) if limit else "none"]


def host_remarks(hosts: Mapping[str, HostReport]) -> list[str]:
    """A line for everything by which a host stands out among those of its card, and for every problem."""
    lines = []
    for name, report in hosts.items():
        others = [hosts[other] for other in hosts if other != name and hosts[other].card == report.card]
        if len(others) + 1 >= LEAST_HOSTS:
            lines += [f"{name}: {text}" for text in _outlying_figures(report, others)]
        lines += [f"{name}: {problem.text}" for problem in report.health.problems]
    return lines


def _outlying_figures(report: HostReport, others: Sequence[HostReport]) -> list[str]:
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
