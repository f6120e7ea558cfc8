"""`kvbench tune --neighbour`: the limit that its user gives, and the answer as it is shown."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import typer

from kvbench.cells.axes import Neighbour
from kvbench.errors import UsageError, brief

if TYPE_CHECKING:
    from kvbench.results import Run
    from kvbench.tune.beside import BesideAnswer, Way

NEIGHBOURS: Final = tuple(name.value for name in Neighbour if name is not Neighbour.NONE)
USUAL: Final = "5%"
_LIMIT: Final = re.compile(r"(?P<percent>\d{1,4}(\.\d{1,6})?)%|(?P<fraction>0(\.\d{1,8})?)", re.ASCII)
_HEADER: Final = (
    "", "Dir", "Blocks", "Size", "Burst", "Swaps", "GB/s", "95%", "Slower", "95%", "p99", "Lost us/GB",
)  # fmt: skip
_MOST_OPEN: Final = 20


def limit_of(neighbour: str | None, at_most: str | None) -> float:
    """Return by which fraction --at-most lets a neighbour get slower: 0.05 for "5%" and "0.05"; raises UsageError."""
    if neighbour is None and at_most is not None:
        raise UsageError(f"--at-most {brief(at_most)}: it limits what a neighbour may lose; add --neighbour decode")
    if neighbour not in (None, *NEIGHBOURS):
        raise UsageError(f"--neighbour {brief(str(neighbour))}: not one of {', '.join(NEIGHBOURS)}")
    text = at_most or USUAL
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise UsageError(f"--at-most {brief(text)}: write a percentage (5%) or a fraction below 1 (0.05)")
    return float(found["percent"]) / 100 if found["percent"] else float(found["fraction"])


def machine_words(run: "Run") -> str:
    """Return what a run was measured on and when."""
    info = run.info
    on_host = info.device.get("kind") == "cpu"
    host = "; all figures are copies between two host buffers, without a GPU" if on_host else ""
    return f"{info.device.get('title')}, {info.created[:10]}{host}"


def show_open(what: str, lines: Sequence[str]) -> None:
    """Print the first of the open choices under the heading `what`; nothing without any."""
    if not lines:
        return
    typer.echo(f"\nOpen: {what}")
    for line in lines[:_MOST_OPEN]:
        typer.echo(f"  {line}")
    if len(lines) > _MOST_OPEN:
        typer.echo(f"  and {len(lines) - _MOST_OPEN} more (--json has all)")


def show_beside(run: "Run", answers: Sequence["BesideAnswer"]) -> None:
    """Print what to use beside the neighbour, the table that it rests on, and what is open."""
    from kvbench.cli.tables import print_rows

    typer.echo(f"{machine_words(run)}\n")
    for answer in answers:
        typer.echo(answer.sentence())
    typer.echo("")
    print_rows([_HEADER, *(_row(answer, way) for answer in answers for way in answer.ways)])
    show_open("another run could choose otherwise", [line for answer in answers for line in answer.open_points()])


def _row(answer: "BesideAnswer", way: "Way") -> list[str]:
    from kvbench.tune.answer import shown_size, words_of
    from kvbench.tune.beside import percent

    shape, rates, slowdowns = answer.shape, way.gbps_interval, way.slowdown_interval
    return [
        "->" if way is answer.chosen else "",
        shape.direction.value,
        str(shape.blocks),
        shown_size(shape.block_bytes),
        shape.burst,
        words_of(way.choice),
        f"{way.gbps:.1f}",
        "-" if rates is None else f"{rates[0]:.1f} to {rates[1]:.1f}",
        percent(way.slowdown),
        "-" if slowdowns is None else " to ".join(map(percent, slowdowns)),
        percent(way.slowdown_p99),
        f"{way.exposure_us_per_gb:.0f}",
    ]
