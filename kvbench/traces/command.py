"""`kvbench trace`: turn the requests that an engine served into its swaps, and describe the swaps."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from kvbench.cells.backend_facts import MERGED
from kvbench.cells.units import parse_size
from kvbench.cli.options import NO_OPTIONS, Command, FromStruct, Group, with_struct_options
from kvbench.cli.tables import print_rows
from kvbench.errors import UsageError
from kvbench.models.presets import ModelChoice
from kvbench.sweep.replay_spec import SIDES
from kvbench.text import printable
from kvbench.traces.simulate import Allocator, CacheSettings, StorePolicy

if TYPE_CHECKING:
    from kvbench.results.replays import SwapCost
    from kvbench.sweep.swap_file import Header
    from kvbench.traces.requests import Request

trace = typer.Typer(
    name="trace", cls=Group, help="Turn request traces into swaps, and describe the swaps. Needs no GPU."
)

_Requests = Annotated[
    Path, typer.Argument(help="Requests as JSON lines: Mooncake, Bailian, AIPerf, Weka and their like.")
]
_Model = Annotated[str, typer.Option(help="Model: a name (kvbench list models) or a config.json.")]
_GpuPool = Annotated[str, typer.Option(metavar="SIZE", help="GPU memory for the KV cache: 40GiB.")]
_HostPool = Annotated[str, typer.Option(metavar="SIZE", help="Host memory for the KV cache: 400GiB.")]
_Store = Annotated[
    StorePolicy, typer.Option(help="When blocks are stored: after prefill, or when the GPU evicts them.")
]
_Prefill = Annotated[float, typer.Option(min=0, max=3600, help="Seconds from the start of a request to its output.")]
_Token = Annotated[float, typer.Option(min=0, max=60_000, help="Milliseconds for each token of output.")]
_Geometry = Annotated[Mapping[str, Any], FromStruct(ModelChoice, leave_out=("models", "tokens", "layout"))]
_HashTokens = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=1 << 20, help="Tokens of one id of the requests (default: told by the file)."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@trace.command(cls=Command)
@with_struct_options
def make(
    requests: _Requests,
    model: _Model,
    gpu_pool: _GpuPool,
    host_pool: _HostPool,
    out: Annotated[Path, typer.Option("--out", "-o", help="Trace to write (gzip).")],
    allocator: Annotated[Allocator, typer.Option(help="Order in which block ids are allocated.")] = Allocator.VLLM,
    store: _Store = StorePolicy.WRITE_THROUGH,
    prefill_s: _Prefill = 0.2,
    token_ms: _Token = 20.0,
    hash_tokens: _HashTokens = None,
    geometry: _Geometry = NO_OPTIONS,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is not a trace.")] = False,
) -> None:
    """Run requests through a GPU cache and a host cache of blocks, and write the swaps."""
    from kvbench.sweep.swap_file import TraceReader, write_trace
    from kvbench.traces.simulate import CacheRun

    if out.exists() and not force:
        try:
            TraceReader(out)
        except UsageError:
            raise UsageError(f"-o {out}: the file exists with other content; add --force to replace it") from None
    header, settings = _cache(requests, model, gpu_pool, host_pool, geometry, store, prefill_s, token_ms, allocator)
    run = CacheRun(_read(requests, hash_tokens, settings), settings)
    write_trace(out, header, run, run.counts)
    for name, count in run.counts.items():
        typer.echo(f"{count:>12,} {name}")


def _read(path: Path, hash_tokens: int | None, settings: CacheSettings, *, quiet: bool = False) -> "list[Request]":
    """Return the requests of a file whose ids fit the blocks; say what is left out. Raises UsageError."""
    from kvbench.traces.requests import check_block, read_requests

    made = read_requests(path, hash_tokens, lambda tokens: settings.prefill_s + settings.token_s * tokens)
    check_block(settings.block_tokens, made.hash_tokens)
    for reason, count in made.skipped.items() if not quiet else ():
        typer.echo(
            f"{count:>12,} requests left out, the first in line {made.first_skipped[reason]}: {printable(reason)}"
        )
    return made.requests


@trace.command(cls=Command)
def show(
    file: Annotated[Path, typer.Argument(help="Trace, made by kvbench trace make or written by a recorder.")],
    as_json: _Json = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for a page with charts: trace.md.")] = None,
) -> None:
    """Show sizes, rates and run lengths of the swaps of a trace, and the descriptors left after merging."""
    from kvbench.sweep.swap_file import TraceReader
    from kvbench.traces.statistics import TraceStatistics, rows_of, span_text

    reader = TraceReader(file)
    statistics = TraceStatistics(reader)
    summary = statistics.summary(reader.header.block_bytes)
    if out is not None:
        from kvbench.report.build import write_files
        from kvbench.traces.page import trace_files

        write_files(trace_files(f"The swaps of {file.name}", statistics, reader.header.block_bytes), out)
    if as_json:
        typer.echo(json.dumps({"made_from": reader.header.made_from, "end": reader.end, **summary}, indent=2))
        return
    end = "" if reader.end else "; the file has no end line: its writer was interrupted, or is a recorder"
    typer.echo(f"{span_text(summary)}{end}")
    print_rows(rows_of(summary), ("", *SIDES.values()))


@trace.command(cls=Command)
@with_struct_options
def compare(
    requests: _Requests,
    model: _Model,
    gpu_pool: _GpuPool,
    host_pool: _HostPool,
    store: _Store = StorePolicy.WRITE_THROUGH,
    prefill_s: _Prefill = 0.2,
    token_ms: _Token = 20.0,
    hash_tokens: _HashTokens = None,
    geometry: _Geometry = NO_OPTIONS,
    run: Annotated[
        list[Path] | None,
        typer.Option("--run", metavar="RUN", help="Finished replay whose times say what is saved. Repeatable."),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Compare the descriptors left after merging the same requests under each order of allocation."""
    from kvbench.traces.simulate import CacheRun
    from kvbench.traces.statistics import TraceStatistics, rows_of

    header, settings = _cache(requests, model, gpu_pool, host_pool, geometry, store, prefill_s, token_ms)
    costs: Mapping[str, Mapping[str, SwapCost]] = {}
    if run:
        from kvbench.results import load_run
        from kvbench.results.replays import costs_by

        # what merged copies of such swaps cost, by direction and time
        costs = costs_by([load_run(path) for path in run], MERGED, header.row_bytes, _TIMES)
    summaries: dict[str, dict[str, Any]] = {}
    everything = _read(requests, hash_tokens, settings, quiet=as_json)
    for allocator in Allocator:
        one = msgspec.structs.replace(settings, allocator=allocator)
        summary = TraceStatistics(CacheRun(everything, one)).summary(header.block_bytes)
        summaries[str(allocator)] = dict(summary)
        for way, cost in costs.items():
            summaries[str(allocator)][way] = _with_times(summary[way], cost, header)
    if as_json:
        typer.echo(json.dumps(summaries, indent=2))
        return
    print_rows([_row(name, summary) for name, summary in summaries.items()], _HEADER)
    for allocator_name, summary in summaries.items():
        typer.echo(f"\n{allocator_name}")
        times = _time_rows(summary, summaries[str(Allocator.VLLM)]) if costs else []
        print_rows([*rows_of(summary), *times], ("", *SIDES.values()))


_HEADER: Final = ("Order of allocation", "Loads", "Left by merging", "Merged", "Stores", "Left by merging", "Merged")


def _row(name: str, summary: Mapping[str, Any]) -> list[str]:
    """Return the line of an order: swaps of each direction, what merging leaves of the descriptors, and its time."""
    row = [name]
    for side in (summary[direction] for direction in SIDES):
        left, merged = side["share_left_by_merging"], side.get("merged_s")
        row += [
            str(side["swaps"]),
            "-" if left is None else f"{left:.1%}",
            "-" if merged is None else f"{merged:.1f} s",
        ]
    return row


_TIMES: Final = {"wall_us": "merged_s", "caller_us": "merged_caller_s"}
_MERGED: Final = {"merged_s": "As merged copies", "merged_caller_s": "As merged copies, thread"}


def _with_times(side: Mapping[str, Any], costs: Mapping[str, "SwapCost"], header: "Header") -> Mapping[str, Any]:
    """Return the side with the seconds that its swaps take as merged copies, and that they take from the thread."""
    copies = header.descriptors * side["blocks"] * (side["share_left_by_merging"] or 0.0)
    swap_bytes = side["blocks"] * header.block_bytes
    times = {_TIMES[time]: cost.total_s(side["swaps"], copies, swap_bytes) for time, cost in costs.items()}
    return {**side, **times, "fit_error": max(cost.error for cost in costs.values())}


def _time_rows(summary: Mapping[str, Any], usual: Mapping[str, Any]) -> list[list[str]]:
    """Return rows of the times of merged copies, with what an order saves against the usual one, and of their fit."""
    rows = [[words] for words in (*_MERGED.values(), "Fit to the run, off at the median")]
    for side, other in ((summary[direction], usual[direction]) for direction in SIDES):
        texts = [f"{side[name]:.1f} s{_less(side[name], other[name])}" for name in _MERGED if name in side]
        for row, text in zip(rows, [*texts, f"{side['fit_error']:.0%}"] if texts else ["-"] * 3, strict=True):
            row.append(text)
    return rows


def _less(value: float, usual: float) -> str:
    """Return how much less than `usual` it is, if it is another value."""
    return f" ({1 - value / usual:+.1%} saved)" if usual and value != usual else ""


def _cache(
    requests: Path,
    model: str,
    gpu_pool: str,
    host_pool: str,
    geometry: Mapping[str, Any],
    store: StorePolicy,
    prefill_s: float,
    token_ms: float,
    allocator: Allocator = Allocator.VLLM,
) -> tuple["Header", CacheSettings]:
    """Return the header of a trace and the settings of the cache; raises UsageError for bad options."""
    from kvbench.sweep.swap_file import Header
    from kvbench.text import convert

    block_tokens = geometry.get("block_tokens", 16)
    wanted = {**geometry, "block_tokens": block_tokens, "tokens": block_tokens}
    choice: ModelChoice = convert({"models": [model], **wanted}, ModelChoice)
    swap, *others = choice.swaps()
    if others:
        raise UsageError(
            f"--model {model}: blocks of {len(others) + 1} sizes, but a trace has one; give the numbers of one "
            "group, such as layers=15,kv_heads=2,head_size=256"
        )
    block_bytes = swap.blocks * swap.block_bytes
    settings = CacheSettings(
        gpu_blocks=_blocks("--gpu-pool", gpu_pool, block_bytes),
        host_blocks=_blocks("--host-pool", host_pool, block_bytes),
        block_tokens=block_tokens,
        allocator=allocator,
        policy=store,
        prefill_s=prefill_s,
        token_s=token_ms / 1e3,
    )
    origin = {"requests": requests.name, "model": model, **msgspec.structs.asdict(settings)}
    return Header(block_bytes=block_bytes, descriptors=swap.blocks, made_from=origin), settings


def _blocks(option: str, text: str, block_bytes: int) -> int:
    """Return how many blocks fit into a pool; raises UsageError for fewer than 64, or more than 2^24."""
    try:
        blocks = parse_size(text) // block_bytes
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if not 64 <= blocks <= 1 << 24:
        raise UsageError(f"{option} {text}: holds {blocks} blocks of {block_bytes} bytes; choose from 64 to {1 << 24}")
    return blocks
