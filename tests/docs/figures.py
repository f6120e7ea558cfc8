"""The figures of README, from the runs of the newest committed report; without one, a line says so."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pandas as pd

from kvbench.analysis.compare import compare_in_turn
from kvbench.analysis.margins import IN_TURN
from kvbench.report.document import table_text
from kvbench.report.model import DataTable
from kvbench.report.numbers import count, figure, size
from kvbench.results import Run, load_run
from kvbench.results.outcomes import paired_samples
from kvbench.text import ends
from kvbench.tune.answer import rule_for_all
from kvbench.tune.text import answer_table
from reports.cards import cards
from tests.docs.markup import code

ROOT: Final = Path(__file__).parents[2]
# The reports of README's first table, newest first, and the one of all other figures.
CARDS: Final = sorted(cards(), key=lambda card: card.name[-len("2026-01-01") :], reverse=True)
REPORT: Final = CARDS[0] if CARDS else ROOT
RUNS: Final = REPORT / "runs"
# The runs of a card that the first table is of, where it has them.
_NUMBERS: Final = ("engine", "engines", "neighbour", "call")
_LINK: Final = REPORT.relative_to(ROOT).as_posix()


def numbers() -> str:
    """The answer of the newest card, and where its figures come from."""
    runs = [committed(name) for name in _NUMBERS if (RUNS / name).is_dir()]
    rule = rule_for_all(runs)
    table = answer_table(rule, runs)
    return "\n\n".join(
        (
            table_text(DataTable("", table.header, table.rows, left=3)),
            f"{table.caption} Times are between CUDA events, of different blocks each time, scattered over 16 GiB on "
            "each side; `batched` is unmodified `cuMemcpyBatchAsync`, `sm` the copy kernel of kvbench, an SM one of "
            f"the multiprocessors of the GPU. {_origin(REPORT, *_NUMBERS)}",
        )
    )


def surprises() -> str:
    """What the runs of the card show."""
    shown = (("order", _order), ("cliff", _cliff), ("queue", _queue), ("engine", _limit), ("call", _call))
    return "\n".join(f"- {text()}" for run, text in shown if (RUNS / run).is_dir())


def _cliff() -> str:
    swap = {"backend": "batched", "direction": "h2d"}
    idle = _cells("cliff", **swap, stream_state="idle", blocks=10_000).sort_values("block_bytes")
    below = idle[idle.path == "CPU inline"].iloc[-1]
    above = idle[idle.block_bytes > below.block_bytes].iloc[0]
    busy = _cell("cliff", **swap, stream_state="busy", block_size=below.block_size)
    last = _size(below.block_size)
    return (
        f"**The CPU causes the cliff at {last}.** On an idle stream, the CPU copies host blocks of up to {last} "
        f"while the call to `cuMemcpyBatchAsync` runs: 10 000 blocks of {last} move at {figure(below.gbps)} GB/s. The "
        f"copy engine copies larger blocks: {_size(above.block_size)} blocks move at {figure(above.gbps)} GB/s. If "
        f"earlier work is still pending on the stream, it copies blocks of {last} too: {count(busy.blocks)} at "
        f"{figure(busy.gbps)} GB/s, measured from the start of the copies to their end. ({_evidence('Cliff')}; "
        f"[why](reports/README.md#why-the-cliff-exists-and-how-to-check-it))"
    )


def _order() -> str:
    pairs: dict[Any, dict[str, Any]] = {}
    for cell, outcome in committed("order").outcomes.items():
        pairs.setdefault(replace(cell, order=None), {})[str(cell.order)] = outcome.visits
    found = [compare_in_turn(paired_samples(of["stream"], of["any"]), IN_TURN) for of in pairs.values()]
    apart = [one.ratio - 1 for one in found if one.low > 1 or one.high < 1]
    differ = (
        f"in {len(apart)} of {len(found)} kinds of swaps, by {min(apart):+.1%} to {max(apart):+.1%}"
        if apart
        else f"in none of {len(found)} kinds of swaps"
    )
    return (
        "**The access order hardly matters here.** Batched copies that may read their sources at any time (ANY) differ "
        f"from copies in stream order {differ}, on idle and busy streams. ({_evidence('Access order')})"
    )


def _queue() -> str:
    swap = {"backend": "per_block", "direction": "h2d", "blocks": 64, "block_size": "1MiB", "queued": 32}
    one, eight = (_cell("queue", **swap, streams=streams).caller_us_median for streams in (1, 8))
    return (
        f"**One stream's queue fills.** Behind 32 queued swaps of 64 blocks of 1 MiB, one more takes the thread "
        f"{figure(one)} us on the same stream and {figure(eight)} us on a pool of eight. ({_evidence('Queue depth')})"
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
