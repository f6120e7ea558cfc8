"""`kvbench sweep`: from options to a spec, and from a sweep under way to what its user sees."""

import signal
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from kvbench.axes import AXES
from kvbench.config import find_config, load_config, shipped_configs
from kvbench.errors import ExitCode, UsageError

DEFAULT_CONFIG: Final = "quick"
EPILOG: Final = (
    "Axes take lists and ranges:  -a blocks=16,64,256   -a block_size=1KiB:256KiB:x2   -a sms=1:32:x2   "
    "-a blocks=1000:5000:+1000.   kvbench list axes shows them all."
)


def register(app: typer.Typer) -> None:
    app.command(epilog=EPILOG)(sweep)


def sweep(
    config: Annotated[
        str | None,
        typer.Argument(
            help=f"A config's name or a TOML file.  [default: {DEFAULT_CONFIG}]",
            autocompletion=lambda incomplete: _beginning_with(incomplete, shipped_configs()),
        ),
    ] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            "-a",
            metavar="NAME=VALUES",
            help="Set an axis: -a block_size=4KiB,16KiB. Repeatable.",
            autocompletion=lambda incomplete: _beginning_with(incomplete, [f"{name}=" for name in AXES]),
        ),
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter", "-f", metavar="CONDITIONS", help="Keep cells that meet all: 'block_size<=24KiB,sms!=1'."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.  [default: auto]")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The run directory to make.  [default: runs/CONFIG-TIME]")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Finish what is missing in this run directory.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show cells, skips, memory and time; measure nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of text.")] = False,
    rounds: Annotated[int | None, typer.Option(help="Visits of every cell.")] = None,
    warmups: Annotated[int | None, typer.Option(help="Swaps before the samples of a visit.")] = None,
    min_samples: Annotated[int | None, typer.Option(help="Samples of a visit at least.")] = None,
    max_samples: Annotated[int | None, typer.Option(help="Samples of a visit at most.")] = None,
    target: Annotated[
        float | None, typer.Option(help="Stop when the median's interval is this narrow (relative half-width).")
    ] = None,
    cell_seconds: Annotated[float | None, typer.Option(help="Seconds of sampling in a visit at most.")] = None,
    busy_delay_us: Annotated[int | None, typer.Option(help="Length of the delay kernel before a busy sample.")] = None,
    deadline_s: Annotated[float | None, typer.Option(help="A visit that takes longer counts as hung.")] = None,
    host_memory: Annotated[str | None, typer.Option(help="Pinned memory that may be used: 8GiB.")] = None,
    device_memory: Annotated[str | None, typer.Option(help="GPU memory that may be used: 40GiB.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides bytes, places and order.")] = None,
    fault: Annotated[str | None, typer.Option(help="Inject a fault (cpu device only; see CONTRIBUTING).")] = None,
) -> None:
    """Measure KV block swaps over every axis, into a run directory."""
    from kvbench.cli.progress import make_reporter
    from kvbench.runner import preview, resume_sweep, start_sweep
    from kvbench.spec import SweepSpec, parse_assignments

    signal.signal(signal.SIGTERM, _terminate)
    reporter = make_reporter(as_json)
    changes = {
        "rounds": rounds,
        "warmups": warmups,
        "min_samples": min_samples,
        "max_samples": max_samples,
        "target": target,
        "cell_seconds": cell_seconds,
        "busy_delay_us": busy_delay_us,
        "deadline_s": deadline_s,
    }

    def asked() -> SweepSpec:
        spec = load_config(find_config(config or DEFAULT_CONFIG))
        return (
            spec.with_axes(parse_assignments(axis or []))
            .with_filters(filters or [])
            .with_sampling(changes)
            .with_limits(host_memory, device_memory)
            .with_options(device=device, seed=seed, fault=fault)
        )

    if resume is not None:
        if dry_run or out is not None:
            raise UsageError("--resume goes on with a run as it is: leave out --dry-run and --out")
        given = (config, axis, filters, device, seed, fault, host_memory, device_memory, *changes.values())
        told = any(value is not None for value in given)
        outcome = resume_sweep(resume, asked() if told else None, reporter)
    elif dry_run:
        reporter.preview(preview(asked()))
        return
    else:
        spec = asked()
        outcome = start_sweep(spec, out or _default_folder(spec.name), _command(), reporter)
    reporter.finished(outcome)
    if outcome.status == "interrupted":
        raise typer.Exit(ExitCode.INTERRUPTED)
    if outcome.failed or outcome.status != "complete":
        raise typer.Exit(ExitCode.FAILED_CELLS)


def _beginning_with(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _default_folder(name: str) -> Path:
    return Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _command() -> list[str]:
    return ["kvbench", *sys.argv[1:]]


def _terminate(number: int, frame: object) -> None:
    del number, frame
    raise KeyboardInterrupt
