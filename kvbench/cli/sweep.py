"""`kvbench sweep`: from options to a spec, and from a sweep under way to what its user sees."""

import os
import signal
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from kvbench.cells.cell import AXES
from kvbench.errors import ExitCode, UsageError
from kvbench.models.presets import ModelChoice, presets
from kvbench.sweep.config import find_config, load_config, shipped_configs
from kvbench.sweep.spec import SweepSpec, parse_assignments
from kvbench.tune.table import Policy, load_policy

DEFAULT_CONFIG: Final = "quick"
MODELS_CONFIG: Final = "models"
POLICY_VARIABLE: Final = "KVBENCH_POLICY"
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
            help=f"A config's name or a TOML file.  [default: {DEFAULT_CONFIG}; with --model {MODELS_CONFIG}]",
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
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="Swap what a model's offload swaps: a name (kvbench list models) or a config.json. Repeatable.",
            autocompletion=lambda incomplete: _beginning_with(incomplete, presets()),
        ),
    ] = None,
    tp: Annotated[int | None, typer.Option(help="Ranks that a model's KV heads are spread over.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of a model that one swap moves.")] = None,
    block_tokens: Annotated[int | None, typer.Option(help="Tokens of a model in one block.")] = None,
    layout: Annotated[str | None, typer.Option(help="How a model's layers lie: per-layer or cross-layer.")] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Type of a model's KV cache: bf16, fp16, fp32, fp8.  [default: the model's]")
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
    controls: Annotated[
        int | None, typer.Option(help="Large copies without the engine, each way and round, for a gate.")
    ] = None,
    host_memory: Annotated[str | None, typer.Option(help="Pinned memory that may be used: 8GiB.")] = None,
    device_memory: Annotated[str | None, typer.Option(help="GPU memory that may be used: 40GiB.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides bytes, places and order.")] = None,
    policy: Annotated[
        Path | None,
        typer.Option(help=f"What the backend auto goes by: a policy's file or a run's; else ${POLICY_VARIABLE} says."),
    ] = None,
    fault: Annotated[str | None, typer.Option(help="Inject a fault (cpu device only; see CONTRIBUTING).")] = None,
) -> None:
    """Measure KV block swaps over every axis, into a run directory."""
    from kvbench.cli.progress import make_reporter
    from kvbench.run.runner import preview, resume_sweep, start_sweep

    signal.signal(signal.SIGTERM, terminate)
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
        "controls": controls,
    }

    choice = ModelChoice(tuple(model or ()), tp, tokens, block_tokens, layout, kv_dtype)

    def asked() -> SweepSpec:
        spec = load_config(find_config(config or (MODELS_CONFIG if model else DEFAULT_CONFIG)), choice)
        return _with_policy(
            spec.with_axes(parse_assignments(axis or []))
            .with_filters(filters or [])
            .with_sampling(changes)
            .with_limits(host_memory, device_memory)
            .with_options(device=device, seed=seed, fault=fault),
            policy,
        )

    if resume is not None:
        if dry_run or out is not None:
            raise UsageError("--resume goes on with a run as it is: leave out --dry-run and --out")
        given = (config, axis, filters, device, seed, fault, policy, host_memory, device_memory, *changes.values())
        told = choice != ModelChoice() or any(value is not None for value in given)
        outcome = resume_sweep(resume, asked() if told else None, reporter)
    elif dry_run:
        reporter.preview(preview(asked()))
        return
    else:
        spec = asked()
        outcome = start_sweep(spec, out or default_folder(spec.name), _command(), reporter)
    reporter.finished(outcome)
    if outcome.status == "interrupted":
        raise typer.Exit(ExitCode.INTERRUPTED)
    if outcome.failed or outcome.status != "complete":
        raise typer.Exit(ExitCode.FAILED_CELLS)


def _with_policy(spec: SweepSpec, option: Path | None) -> SweepSpec:
    """Return `spec` with the policy of `--policy`, else of the environment, where it asks for the backend auto."""
    if not spec.asks_for_auto:
        if option is not None:
            raise UsageError(f"--policy {option}: no cell would go by it; add -a backend=auto,batched")
        return spec
    path = option or os.environ.get(POLICY_VARIABLE)
    return spec.with_options(policy=_policy_at(Path(path))) if path else spec


def _policy_at(path: Path) -> Policy:
    """Return the policy in a file, or the one that a run went by."""
    if not path.is_dir():
        return load_policy(path)
    from kvbench.results import load_run

    policy = SweepSpec.from_plain(load_run(path).info.spec).policy
    if policy is None:
        raise UsageError(f"--policy {path}: this run went by none; kvbench policy {path} -o FILE makes one of it")
    return policy


def _beginning_with(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def default_folder(name: str) -> Path:
    """Return the run directory that a command makes where none is named."""
    return Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _command() -> list[str]:
    return ["kvbench", *sys.argv[1:]]


def terminate(number: int, frame: object) -> None:
    """Handle SIGTERM as Ctrl-C is handled."""
    del number, frame
    raise KeyboardInterrupt
