"""The answers of `kvbench tune` as they are printed: what to use, the table of all answers, and what is open."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import typer

from kvbench.units import size_words, two_digits

if TYPE_CHECKING:
    from kvbench.results import Run
    from kvbench.tune.answer import Answer
    from kvbench.tune.beside import BesideAnswer, Way

_MOST_OPEN: Final = 20


def to_json(run: "Run", answers: Sequence["Answer | BesideAnswer"]) -> str:
    """Return the answers as JSON; `run` tells the machine."""
    info = run.info
    driver = info.identity.get("driver_version")
    origin = {"kvbench": info.kvbench, "device": info.device.get("title"), "driver": driver, "created": info.created}
    return json.dumps({**origin, "answers": [answer.to_plain() for answer in answers]}, indent=2) + "\n"


def show_answers(runs: Sequence["Run"], answers: Sequence["Answer"]) -> None:
    """Print the answers; `runs` tell the machine and the workload."""
    from kvbench.tune.answer import open_points, sentences, workload_of

    doubt = "differently, by more than a tie (largest difference first)"
    about = f"{machine_words(runs[0])}; {workload_of(runs)}"
    _show(about, sentences(answers), (_HEADER, *map(_row, answers)), doubt, open_points(answers))


def show_beside(run: "Run", answers: Sequence["BesideAnswer"]) -> None:
    """Print the answers beside a neighbour; `run` tells the machine."""
    rows = (_row_beside(answer, way) for answer in answers for way in answer.ways)
    unsure = [line for answer in answers for line in answer.open_points()]
    told = [answer.sentence() for answer in answers]
    _show(machine_words(run), told, (_HEADER_BESIDE, *rows), "otherwise", unsure)


def _show(about: str, told: Sequence[str], rows: Iterable[Sequence[str]], doubt: str, unsure: Sequence[str]) -> None:
    """Print what the answers are about, what to use, the table of all answers, and the first of the open choices."""
    from kvbench.cli.tables import print_rows

    typer.echo("\n".join((about, "", *told, "")))
    print_rows([*rows])
    if unsure:
        typer.echo(f"\nOpen: another run could choose {doubt}")
    for line in unsure[:_MOST_OPEN]:
        typer.echo(f"  {line}")
    if len(unsure) > _MOST_OPEN:
        typer.echo(f"  and {len(unsure) - _MOST_OPEN} more (--json has all)")


def machine_words(run: "Run") -> str:
    """Return what a run was measured on and when."""
    info = run.info
    on_host = info.device.get("kind") == "cpu"
    host = "; all figures are copies between two host buffers, without a GPU" if on_host else ""
    driver = info.identity.get("driver_version")
    named = [info.device.get("title"), driver and f"driver {driver}", info.created[:10]]
    return ", ".join(str(part) for part in named if part) + host


_HEADER: Final = (
    "Dir", "Quantity", "Blocks", "Size", "Choice", "us", "95%", "GB/s", "x batched", "Tied with",
)  # fmt: skip
_HEADER_BESIDE: Final = (
    "", "Dir", "Blocks", "Size", "Burst", "Swaps", "GB/s", "95%", "Slower", "95%", "p99", "Lost us/GB",
)  # fmt: skip


def _row(answer: "Answer") -> list[str]:
    interval = answer.interval_us
    known = "-" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}"
    gain = answer.gain_over(answer.best_of("batched"))
    return [
        answer.direction.value,
        answer.state.quantity,
        str(answer.blocks),
        size_words(answer.block_bytes),
        str(answer.choice),
        f"{answer.time_us:.1f}",
        known,
        f"{answer.gbps:.1f}",
        "-" if gain is None else two_digits(gain.ratio),
        "; ".join(map(str, answer.tied)) or "-",
    ]


def _row_beside(answer: "BesideAnswer", way: "Way") -> list[str]:
    from kvbench.tune.answer import words_of
    from kvbench.tune.beside import percent

    shape, rates, slowdowns = answer.shape, way.gbps_interval, way.slowdown_interval
    return [
        "->" if way is answer.chosen else "",
        shape.direction.value,
        str(shape.blocks),
        size_words(shape.block_bytes),
        shape.burst,
        words_of(way.choice),
        f"{way.gbps:.1f}",
        "-" if rates is None else f"{rates[0]:.1f} to {rates[1]:.1f}",
        percent(way.slowdown),
        "-" if slowdowns is None else " to ".join(map(percent, slowdowns)),
        percent(way.slowdown_p99),
        f"{way.exposure_us_per_gb:.0f}",
    ]
