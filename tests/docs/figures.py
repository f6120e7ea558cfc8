"""The figures of README, from the runs of the newest committed report; without one, a line says so."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pandas as pd

from kvbench.analysis.margins import KNEE
from kvbench.cells.axes import Direction
from kvbench.report.document import table_text
from kvbench.report.model import plain
from kvbench.report.numbers import count, figure, size
from kvbench.report.sections.machines import machines_table
from kvbench.report.view import views_of
from kvbench.results import Run, load_run
from kvbench.results.replays import rate_of, replays_of
from kvbench.text import ends
from reports.cards import cards
from tests.docs.markup import code

ROOT: Final = Path(__file__).parents[2]
# The reports of README's first table, newest first, and the one of all other figures.
CARDS: Final = sorted(cards(), key=lambda card: card.name[-len("2026-01-01") :], reverse=True)
REPORT: Final = CARDS[0] if CARDS else ROOT
RUNS: Final = REPORT / "runs"
# The runs of a card that the first table is of, where it has them.
_NUMBERS: Final = ("engine", "engines", "cliff", "call")
_LINK: Final = REPORT.relative_to(ROOT).as_posix()
_SWAP: Final = {"blocks": 10_000, "block_size": "4KiB", "stream_state": "idle"}


def numbers() -> str:
    """What both cards reach, as `kvbench show` prints it, and where the figures come from."""
    runs = [committed(name, card) for card in CARDS for name in _NUMBERS if (card / "runs" / name).is_dir()]
    machines = machines_table(views_of(runs), least=1)
    assert machines
    names = [str(committed("engine", card).info.identity["gpu_name"]) for card in CARDS]
    (visits,) = {committed("engine", card).info.spec["sampling"]["rounds"] for card in CARDS}
    folders = " ".join(Path(run.path).relative_to(ROOT).as_posix() for run in runs)
    chart = "Throughput against block size of fresh blocks for batched and primed copies and two copy kernels"
    return "\n\n".join(
        (
            f"```sh\nkvbench show {folders}\n```",
            table_text(replace(machines, header=("", *names), title="", caption="", notes=())),
            "\n".join(f"- {_origin(card, *_NUMBERS)}" for card in CARDS),
            f"A figure is the median of {visits} visits: the latency of one swap on an idle stream, called in a tight "
            "loop, with different blocks each time, scattered over 16 GiB on each side. `batched` is unmodified "
            "`cuMemcpyBatchAsync`; `sm` is the copy kernel of kvbench. A *visit* is a series of such swaps; the "
            "visits of a figure are spread over the run. An SM is one of the multiprocessors of the GPU. The ceiling "
            "is the rate of large plain copies. In the chart, [`primed`](docs/reference/backends.md#primed) is "
            "`batched` after a short kernel, so that the driver does not copy on the CPU. "
            + " ".join(f"{plain(note)}." for note in machines.notes)
            + " Every committed report and the raw samples behind it are in [reports/](reports/README.md).",
            f"![{chart}, with the ceiling of the card]({_LINK}/cliff-cliff.png)",
        )
    )


def surprises() -> str:
    """What the runs of the card show."""
    shown = (
        ("cliff", _cliff),
        ("streams", _gate),
        ("call", _call),
        ("mla-sorted", _trace),
        ("engine", _few_sms),
        ("engine", _limit),
        ("locality", _locality),
    )
    return "\n".join(f"- {text()}" for run, text in shown if (RUNS / run).is_dir())


def _cliff() -> str:
    swap = {"backend": "batched", "direction": "h2d", "blocks": 1024}
    idle = _cells("cliff", **swap, stream_state="idle").sort_values("block_bytes")
    below = idle[idle.path == "CPU inline"].iloc[-1]
    above = idle[idle.block_bytes > below.block_bytes].iloc[0]
    busy = _cell("cliff", **swap, stream_state="busy", block_size=below.block_size)
    last = _size(below.block_size)
    return (
        f"**The CPU causes the cliff at {last}.** On an idle stream, the CPU copies host blocks of up to {last} "
        f"while the call to `cuMemcpyBatchAsync` runs: {last} blocks move at {figure(below.gbps)} GB/s. The copy "
        f"engine copies larger blocks: {_size(above.block_size)} blocks move at {figure(above.gbps)} GB/s. If earlier "
        f"work is still pending on the stream, the copy engine copies the {last} blocks too, at {figure(busy.gbps)} "
        f"GB/s, measured from the start of the copies to their end. ({_evidence('Cliff')}; "
        f"[why](reports/README.md#why-the-cliff-exists-and-how-to-check-it))"
    )


def _gate() -> str:
    swap = {"backend": "batched", "direction": "h2d", "blocks": 1024, "block_size": "16KiB"}
    opened, gated = (_cell("streams", **swap, stream_state=state) for state in ("opened", "gated"))
    return (
        f"**The cliff depends on timing.** An inference engine makes its loads wait for an event of its compute "
        f"stream. If that event has fired before the call, the CPU copies: 1 024 blocks of 16 KiB take "
        f"{figure(opened.swap_us_median)} us. If it fires after the call, the copy engine copies: the same blocks have "
        f"arrived {figure(gated.swap_us_median)} us after the event. That call itself returns after "
        f"{figure(gated.caller_us_median)} us. "
        f"({_evidence('Stream states')})"
    )


def _call() -> str:
    swap = {"direction": "h2d", "blocks": 64, "block_size": "4KiB", "stream_state": "idle"}

    def thread_us(backend: str) -> str:
        tight, after = _cells("call", backend=backend, **swap).sort_values("pause_us").caller_us_median
        return f"{figure(tight)} and {figure(after)}"

    return (
        "**A call takes longer in an engine than in a loop.** Between two calls, a step of the engine fills the "
        "caches with other code and data. For 64 blocks of 4 KiB, a call occupies its thread for these times, in a "
        f"tight loop and after a step: vLLM's batched copies {thread_us('vllm_batch')} us, vLLM's kernel "
        f"{thread_us('vllm_triton')} us, `BlockCopier` {thread_us('copier')} us, and a launch that copies nothing "
        f"{thread_us('empty')} us. "
        f"({_evidence('An engine')})"
    )


def _trace() -> str:
    """The loads of one hour, in the order in which vLLM allocates, and with sorted free lists."""
    usual, ordered = ({name: _replayed(run, name) for name in ("merged", "sm")} for run in ("mla", "mla-sorted"))
    vllm = _replayed("mla", "vllm_batch")
    return (
        "**Real swaps are scattered by the order of allocation.** In one hour of "
        "[Mooncake](docs/how-to/trace.md)'s public trace, replayed with `deepseek-v3` and the allocation order of "
        "vLLM, the blocks of a load form contiguous extents in host memory and on the GPU, but in different orders. "
        f"Merging adjacent copies therefore removes only {1 - usual['merged'].left:.0%} of them. vLLM's batched copies "
        f"load at {figure(vllm.gbps)} GB/s, `sm` at {figure(usual['sm'].gbps)}. If vLLM kept its list of free blocks "
        f"sorted, merging would remove {1 - ordered['merged'].left:.0%} of the copies. `merged`, which merges copies "
        f"and needs no copy kernel, would then load at {figure(ordered['merged'].gbps)} GB/s instead of "
        f"{figure(usual['merged'].gbps)} and occupy the calling thread for "
        f"{figure(ordered['merged'].caller_us / 1e3)} ms per swap instead of "
        f"{figure(usual['merged'].caller_us / 1e3)} ms. "
        f"({_evidence('Replay')})"
    )


class _Loads(NamedTuple):
    """The loads of a replay: their rate, the share of copies that is left, and the median thread time."""

    gbps: float
    left: float
    caller_us: float


def _replayed(name: str, backend: str) -> _Loads:
    (loads,) = (
        swaps
        for cell, swaps in replays_of(committed(name)).items()
        if (cell.backend, cell.direction) == (backend, Direction.H2D)
    )
    return _Loads(rate_of(loads), loads["pieces"].sum() / loads["blocks"].sum(), loads["caller_us"].median())


def _few_sms() -> str:
    swap = _SWAP | {"block_size": "16KiB", "backend": "sm", "direction": "h2d"}
    ladder = _cells("engine", **swap).sort_values("sms")
    every = ladder.iloc[-1]
    few = ladder[ladder.gbps >= (1 - KNEE.fraction) * ladder.gbps.max()].iloc[0]
    return (
        f"**{few.sms:.0f} SMs fill the link.** With {few.sms:.0f} SMs, `sm` moves 16 KiB blocks to the GPU at "
        f"{figure(few.gbps)} GB/s; with all {every.sms:.0f} SMs, at {figure(every.gbps)}. ({_evidence('SM ladder')})"
    )


def _limit() -> str:
    swap = _cells("engine", backend="sm", direction="h2d", blocks=50_000, block_size="1KiB").iloc[0]
    large_gbps = _cells("engine", backend="sm", direction="h2d", block_size="16KiB").iloc[0].roof_gbps
    return (
        f"**Small scattered blocks are limited by address translation, not by the link.** Even with all its SMs, the "
        f"GPU reaches no more than {swap.limit_blocks_per_s / 1e6:.0f} million scattered blocks a second. Blocks "
        f"smaller than {large_gbps * 1e9 / swap.limit_blocks_per_s / 1024:.1f} KiB therefore cannot fill the link: "
        f"{count(swap.blocks)} blocks of 1 KiB move at {figure(swap.gbps)} GB/s with {swap.sms:.0f} SMs. "
        f"([Run]({_LINK}/runs/engine))"
    )


def _locality() -> str:
    swap = {"backend": "batched", "direction": "h2d", "blocks": 1024, "block_size": "16KiB"}
    hot = _cell("locality", **swap, pool="dense", reuse="same")
    fresh = _cell("locality", **swap, pool="16GiB", reuse="fresh")
    return (
        f"**Hot-cache benchmarks flatter.** Batched copies move the same 1 024 adjacent blocks of 16 KiB at "
        f"{figure(hot.gbps)} GB/s, and fresh blocks from 16 GiB, as in an engine, at {figure(fresh.gbps)}. "
        f"({_evidence('Locality')})"
    )


def _origin(card: Path, *runs: str) -> str:
    """Return a sentence about a card and the commands of those of `runs` that it has."""
    origins = [committed(run, card) for run in runs if (card / "runs" / run).is_dir()]
    infos = [run.info for run in origins]
    identity, link = infos[0].identity, card.relative_to(ROOT).as_posix()
    commands = " and ".join(code(shlex.join(run.reproducing()).replace(f"{ROOT}/", "")) for run in origins)
    dates = ends((info.created[:10] for info in infos), str)
    engines = {facts.package for info in infos for facts in info.backends if facts.name == "vllm_triton"}
    packages = "".join(f", {package.partition(' ')[0]}" for package in sorted(engines))
    return (
        f"{identity['gpu_name']}, driver {identity['driver_version']}{packages}, {dates}: {commands} "
        f"([report]({link}/report.md), [runs]({link}/runs))."
    )


def _evidence(heading: str, card: Path = REPORT) -> str:
    """Return a link to the section of a card's report whose heading begins so."""
    report = card / "report.md"
    headings = re.findall(rf"^#+ ({re.escape(heading)}[^:\n]*)(.*)$", report.read_text(), re.MULTILINE)
    assert len(headings) == 1, f"{report} has {len(headings)} headings that begin with {heading}"
    (section, rest), *_ = headings
    anchor = re.sub(r"[^\w\- ]", "", (section + rest).lower()).replace(" ", "-")
    return f"[{section}]({report.relative_to(ROOT).as_posix()}#{anchor})"


@cache
def committed(run: str, card: Path = REPORT) -> Run:
    """Return a run of a card's report."""
    return load_run(card / "runs" / run)


@cache
def _frame(run: str, card: Path) -> pd.DataFrame:
    return committed(run, card).frame()


def _cells(run: str, card: Path = REPORT, **values: Any) -> pd.DataFrame:
    """Return the cells of shuffled blocks with these values."""
    frame = _frame(run, card)
    for name, value in ({"pattern": "shuffled"} | values).items():
        column = frame[name].astype(object).where(frame[name].notna(), "")
        frame = frame[column.isin(value if isinstance(value, tuple) else (value,))]
    return frame


def _cell(run: str, card: Path = REPORT, **values: Any) -> Any:
    cells = _cells(run, card, **values)
    assert len(cells) == 1, f"{card.name}/{run} has {len(cells)} cells of {values}"
    return cells.iloc[0]


def _size(text: str) -> str:
    return size(text).replace("\N{NO-BREAK SPACE}", " ")


def of_a_card(makers: Mapping[str, Callable[[], str]]) -> Mapping[str, Callable[[], str]]:
    """Return the makers of what a committed report has, or, while there is none, makers of a line that says so."""
    return makers if CARDS else dict.fromkeys(makers, lambda: "No report of this version is committed yet.")


MAKERS: Final = of_a_card({"numbers": numbers, "surprises": surprises})
