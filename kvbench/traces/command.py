"""`kvbench trace`: turn the requests that an engine served into its swaps, and describe the swaps."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from kvbench.cells.units import parse_size
from kvbench.cli.options import NO_OPTIONS, FromStruct, print_rows, with_struct_options
from kvbench.ground.errors import UsageError
from kvbench.ground.text import convert, counted, printable
from kvbench.models.presets import ModelChoice
from kvbench.sweep.spec import SIDES
from kvbench.traces.requests import MOST_HASH_TOKENS, RequestHeader, TimeUnit, check_block, read_requests, share_nothing
from kvbench.traces.simulate import Allocator, CacheSettings

if TYPE_CHECKING:
    from kvbench.traces.requests import Request

trace = typer.Typer(name="trace", help="Turn request traces into swaps, and describe the swaps. Needs no GPU.")


@trace.command()
@with_struct_options
def make(
    requests: Annotated[Path, typer.Argument(help="Requests as JSON lines, as in Mooncake's traces.")],
    model: Annotated[str, typer.Option(help="Model: a name (kvbench list models) or a config.json.")],
    gpu_pool: Annotated[str, typer.Option(metavar="SIZE", help="GPU memory for the KV cache: 40GiB.")],
    host_pool: Annotated[str, typer.Option(metavar="SIZE", help="Host memory for the KV cache: 400GiB.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Trace to write (gzip).")],
    allocator: Annotated[Allocator, typer.Option(help="Order in which block ids are allocated.")] = Allocator.VLLM,
    prefill_s: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds from the start of a request to its output.")
    ] = 0.2,
    token_ms: Annotated[float, typer.Option(min=0, max=60_000, help="Milliseconds for each token of output.")] = 20.0,
    hash_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=MOST_HASH_TOKENS, help="Tokens of an id (default: of the header, or 512)."
        ),
    ] = None,
    time_unit: Annotated[
        TimeUnit | None, typer.Option(help="Unit of the requests' times (default: of the header, or ms).")
    ] = None,
    geometry: Annotated[
        Mapping[str, Any], FromStruct(ModelChoice, leave_out=("models", "tokens", "layout", "chunk_tokens"))
    ] = NO_OPTIONS,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is not a trace.")] = False,
) -> None:
    """Run requests through a GPU cache and a host cache of blocks, and write the swaps."""
    from kvbench.sweep.swap_file import Header, TraceReader, write_trace
    from kvbench.traces.simulate import CacheRun

    if out.exists() and not force:
        try:
            TraceReader(out)
        except UsageError:
            raise UsageError(f"-o {out}: the file exists with other content; add --force to replace it") from None
    block_tokens = geometry.get("block_tokens", 16)
    wanted = {"models": [model], **geometry, "block_tokens": block_tokens, "tokens": block_tokens}
    choice: ModelChoice = convert(wanted, ModelChoice)
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
        prefill_s=prefill_s,
        token_s=token_ms / 1e3,
    )
    origin = {"requests": requests.name, "model": model, **msgspec.structs.asdict(settings)}
    run = CacheRun(_read(requests, RequestHeader(hash_tokens, time_unit), block_tokens), settings)
    write_trace(out, Header(block_bytes=block_bytes, descriptors=swap.blocks, made_from=origin), run, run.counts)
    for name, count in run.counts.items():
        typer.echo(f"{count:>12,} {name}")


def _read(path: Path, given: RequestHeader, block_tokens: int) -> "list[Request]":
    """Read the requests of a file whose ids fit the blocks, and say what they are; raises UsageError."""
    requests = read_requests(path, given)
    check_block(block_tokens, requests[0].hash_tokens)
    span_s = requests[-1].arrival_s - requests[0].arrival_s
    alone = "; no request shares a prefix with another, so nothing is found again" if share_nothing(requests) else ""
    typer.echo(f"{counted(len(requests), 'request')} within {span_s:.6g} s{alone}")
    return requests


@trace.command()
def show(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE...", help="Traces, made by kvbench trace make or written by a recorder."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show sizes, rates and run lengths of traces, side by side, and the descriptors left after merging."""
    from kvbench.sweep.swap_file import TraceReader
    from kvbench.traces.statistics import TraceStatistics, rows_of, span_text

    summaries: dict[str, dict[str, Any]] = {}
    for file in files:
        reader = TraceReader(file)
        summary = TraceStatistics(reader).summary(reader.header.block_bytes)
        summaries[str(file)] = {"made_from": reader.header.made_from, "end": reader.end, **summary}
    if as_json:
        typer.echo(json.dumps(summaries if len(files) > 1 else summaries[str(files[0])], indent=2))
        return
    for name, summary in summaries.items():
        end = "" if summary["end"] else "; the file has no end line: its writer was interrupted, or is a recorder"
        typer.echo(f"{printable(name)}: {span_text(summary)}{end}")
    tables = [rows_of(summary) for summary in summaries.values()]
    for column, side in enumerate(SIDES.values(), start=1):
        rows = [[rows[0][0], *(row[column] for row in rows)] for rows in zip(*tables, strict=True)]
        print_rows(rows, (side, *summaries))


def _blocks(option: str, text: str, block_bytes: int) -> int:
    """The blocks that fit into a pool; raises UsageError for fewer than 64, or more than 2^24."""
    try:
        blocks = parse_size(text) // block_bytes
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if not 64 <= blocks <= 1 << 24:
        raise UsageError(f"{option} {text}: holds {blocks} blocks of {block_bytes} bytes; choose from 64 to {1 << 24}")
    return blocks
