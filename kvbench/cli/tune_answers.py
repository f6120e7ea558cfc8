"""The answers of `kvbench tune` as they are printed and written: the rule, the table of all, what is open."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import typer

from kvbench.analysis.margins import TIED
from kvbench.cells.backend_facts import BATCHED
from kvbench.cli.tables import print_lines, print_rows
from kvbench.errors import UsageError
from kvbench.files import write_output
from kvbench.models.geometry import ModelSwap
from kvbench.policy import load_policy
from kvbench.results import Run
from kvbench.tune.answer import Answer, choice_text, machine_plain, machine_text, open_points
from kvbench.tune.beside import BesideAnswer, WayBeside, percent
from kvbench.tune.exports import export
from kvbench.tune.figures import to_plain
from kvbench.tune.fit import policy_of
from kvbench.tune.headline import headline, origin
from kvbench.tune.model_swaps import Load, loads_of, totals_of
from kvbench.tune.rule import SmallestRule, rule_of
from kvbench.units import size_text, two_digits


def to_json(runs: Sequence[Run], rule: SmallestRule, swaps: Sequence[ModelSwap] = ()) -> str:
    """Return the answer of a rule of `runs` and the swaps of models as JSON."""
    models = [load.to_plain() for swap in swaps for load in loads_of(rule, swap)]
    return json.dumps({**to_plain(rule, runs), "models": models}, indent=2) + "\n"


def beside_json(run: Run, answers: Sequence[BesideAnswer]) -> str:
    """Return the answers beside a neighbour as JSON; `run` has the machine."""
    return json.dumps({**machine_plain(run), "answers": [answer.to_plain() for answer in answers]}, indent=2) + "\n"


def write_policy(path: Path, runs: Sequence[Run], rule: SmallestRule, *, exact: bool, force: bool) -> None:
    text = policy_of(runs, rule.choices_by_point(exact=exact)).to_toml()
    write_output("-p", path, text.encode(), load_policy, force=force)


def write_export(name: str, file: Path | None, runs: Sequence[Run], answers: Sequence[Answer], *, force: bool) -> None:
    """Write an export to a file, or to standard output."""
    text = to_json(runs, rule_of(answers)) if name == "json" else export(name, runs, answers).text(machine_text(*runs))
    if file is None:
        typer.echo(text, nl=False)
    else:
        write_output(f"--export {name}=", file, text.encode(), _no_telling, force=force)


def _no_telling(file: Path) -> None:
    """Raise UsageError: kvbench cannot recognize settings of another program."""
    raise UsageError(str(file))


def show_rule(runs: Sequence[Run], rule: SmallestRule, swaps: Sequence[ModelSwap], *, table: bool, open_: bool) -> None:
    """Print what was asked for: the table, what is open or, without these, the rule; and the swaps of models."""
    print_lines([origin(runs)] if table or open_ else headline(rule, runs))
    for swap in swaps:
        size = size_text(swap.block_bytes)
        print_lines(["", f"{swap.title}, {swap.tokens} tokens: {swap.blocks} blocks of {size}"])
        print_rows([*map(_row_model, loads_of(rule, swap))], _HEADER_MODEL)
    print_lines(line for total in totals_of(rule, swaps) for line in ("", total))
    if table:
        print_lines(["", f"Tied with: another run could choose these; they differ by at most {TIED.fraction:.0%}"])
        print_rows([*map(_row, rule.answers)], _HEADER)
    if open_:
        lines = open_points(rule.answers)
        print_lines(["", f"Open: another run could choose otherwise, by more than {TIED.fraction:.0%}"])
        print_lines(f"  {line}" for line in lines or ["nothing"])


def show_beside(run: Run, answers: Sequence[BesideAnswer]) -> None:
    """Print the answers beside a neighbour: a sentence each, the table of all, and what is open."""
    print_lines([machine_text(run), "", *(answer.sentence() for answer in answers), ""])
    print_rows([_row_beside(answer, way) for answer in answers for way in answer.ways], _HEADER_BESIDE)
    if unsure := [line for answer in answers for line in answer.open_points()]:
        print_lines(["", "Open: another run could choose otherwise", *(f"  {line}" for line in unsure)])


_HEADER_MODEL: Final = ("Dir", "Stream", "Use", "us", "GB/s", "Thread us", "Measured at")
_HEADER: Final = (
    "Dir", "Stream", "Blocks", "Size", "Choice", "us", "95%", "GB/s", "Thread us", "The speed of batched", "Tied with",
)  # fmt: skip
_HEADER_BESIDE: Final = (
    "", "Dir", "Blocks", "Size", "Swaps", "GB/s", "95%", "Slower", "95%", "p99", "Lost us/GB",
)  # fmt: skip


def _row(answer: Answer) -> list[str]:
    interval = answer.interval_us
    known = "-" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}"
    gain = answer.gain_over(BATCHED)
    return [
        answer.direction.value,
        answer.state.value,
        str(answer.blocks),
        size_text(answer.block_bytes),
        str(answer.choice),
        f"{answer.time_us:.1f}",
        known,
        f"{answer.gbps:.1f}",
        f"{answer.caller_us[answer.choice]:.1f}",
        "-" if gain is None else f"{two_digits(gain)}x",
        "; ".join(map(str, answer.tied)) or "-",
    ]


def _row_model(load: Load) -> list[str]:
    return [
        load.nearest.direction.value,
        load.nearest.state.value,
        choice_text(load.choice),
        f"{load.us:.0f}",
        f"{load.gbps:.1f}",
        f"{load.caller_us:.0f}",
        f"{load.nearest.blocks} x {size_text(load.nearest.block_bytes)}",
    ]


def _row_beside(answer: BesideAnswer, way: WayBeside) -> list[str]:
    shape, rates, slowdowns = answer.shape, way.gbps_interval, way.slowdown_interval
    return [
        "->" if way is answer.chosen else "",
        shape.direction.value,
        str(shape.blocks),
        size_text(shape.block_bytes),
        choice_text(way.choice),
        f"{way.gbps:.1f}",
        "-" if rates is None else f"{rates[0]:.1f} to {rates[1]:.1f}",
        percent(way.slowdown),
        "-" if slowdowns is None else " to ".join(map(percent, slowdowns)),
        percent(way.slowdown_p99),
        f"{way.exposure_us_per_gb:.0f}",
    ]
