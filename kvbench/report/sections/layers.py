"""Layers: loads layer by layer, and how much of them a step hides whose layers wait for them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Final

from kvbench.analysis.compare import Verdict, median_interval
from kvbench.cells.axes import Neighbour
from kvbench.cells.blocks import AT_ONCE
from kvbench.cells.cell import Cell
from kvbench.ground.errors import UsageError
from kvbench.models.geometry import ModelSwap, swaps_from_plain
from kvbench.report.model import DataTable, Part, PartOrReason, Text
from kvbench.report.numbers import ABSENT, SIGNS, bytes_size, count, figure
from kvbench.report.tables import INCLUDES, comma_separated, measured_table, method_of
from kvbench.report.view import View
from kvbench.results import Beside
from kvbench.results.outcomes import Outcome, grouped

# The share that counts as hidden, and the length of the loads that findings speak of.
HIDDEN: Final = 0.95
TOKENS: Final = 2048
_HIDDEN: Final = (
    "Hidden: 1 - (step with loads - step alone) / time until the last layer has arrived, with its 95% interval; "
    "below 0 where the loads delay the step by more than their own time. At once: one swap, for which all layers wait"
)
_NOTE: Final = (
    "First, last: from the caller's arrays until the first and the last layer have arrived, without the step. Slowest "
    "gap: the longest time between two layers. Caller: time of the thread that submits, for each layer. Step: alone, "
    f"then with the loads that its layers wait for, from the submission of the loads. {_HIDDEN}"
)
_HEADER: Final = (
    "Method", "First, us", "Last, us", "Slowest gap, us", "Caller, us a layer", "Step, us", "With loads, us", "Hidden",
)  # fmt: skip


@dataclass(frozen=True)
class LayerLoad:
    """Loads by layers: what is loaded beside what, its size in tokens or blocks, and what it took."""

    outcome: Outcome
    what: str
    size: int

    @property
    def at_once(self) -> bool:
        return AT_ONCE in self.outcome.cell.sequence

    @property
    def method(self) -> str:
        return comma_separated(method_of(self.outcome), "at once" * self.at_once)

    @property
    def caller_of_layer_us(self) -> float:
        return self.outcome.us("caller_us") / self.outcome.cell.layers

    @property
    def times_us(self) -> list[float]:
        """The times of a line: of the first layer, the last, and so on as the header of the table names them."""
        arrivals = (self.outcome.us(time) for time in ("first_layer_us", "swap_us", "slowest_gap_us"))
        return [*arrivals, self.caller_of_layer_us, *self._steps_us]

    @property
    def _steps_us(self) -> tuple[float, float]:
        """The time of a step without its loads, and with them: means of the visits, and the median of these."""
        visits = [turns for turns in self.outcome.beside.values() if turns.neighbour_beside_us]
        alone_us = [fmean(turns.neighbour_alone_us) for turns in visits if turns.neighbour_alone_us]
        beside_us = [fmean(turns.neighbour_beside_us) for turns in visits if turns.neighbour_alone_us]
        return (median(alone_us), median(beside_us)) if alone_us else (math.nan, math.nan)

    @cached_property
    def hidden(self) -> tuple[float, float, float]:
        """The share of the loads that the step hides, median of the visits, and its 95% interval; NaN without one."""
        by_visit = map(hidden_share, self.outcome.beside.values())
        shares = [share for share in by_visit if share is not None]
        if not shares:
            return math.nan, math.nan, math.nan
        low, high = median_interval(shares)
        return median(shares), *((low, high) if math.isfinite(low) else (math.nan, math.nan))

    @property
    def share_text(self) -> str:
        share, low, high = self.hidden
        if not math.isfinite(share):
            return ABSENT
        return (
            f"{share:z.0%} ({low:z.0%} to {high:z.0%})"
            if math.isfinite(low)
            else f"{SIGNS[Verdict.UNDECIDED]}{share:z.0%}"
        )


def hidden_share(beside: Beside) -> float | None:
    """The share of the swaps' time that a step hides whose layers wait for them; None without such a time."""
    if not (beside.neighbour_alone_us and beside.neighbour_beside_us and beside.swaps_alone_us):
        return None
    alone_us, beside_us, swaps_us = (
        median(times) for times in (beside.neighbour_alone_us, beside.neighbour_beside_us, beside.swaps_alone_us)
    )
    share = 1 - (beside_us - alone_us) / swaps_us if swaps_us > 0 else math.nan
    return share if math.isfinite(share) else None


def make(view: View) -> PartOrReason:
    outcomes = [outcome for outcome in view.measured if outcome.cell.layers]
    if not outcomes:
        return "it needs swaps by layers (sequence=layers-L)"
    loads, unit = _loads(view, outcomes)
    groups = grouped(loads, lambda load: load.what)
    tables = [_table(view, what, unit, loaded) for what, loaded in groups.items()]
    findings = []
    for what, loaded in groups.items():
        with_interval = [load for load in loaded if math.isfinite(load.hidden[1])]
        findings += [_finding(what, unit, with_interval)] if with_interval else []
    return lambda: Part(findings, tables=tables)


def _loads(view: View, outcomes: Sequence[Outcome]) -> tuple[list[LayerLoad], str]:
    """The swaps by layers, and the unit of their sizes: tokens where all are of a model of the run, or blocks."""
    try:
        models = swaps_from_plain(view.run.info.spec.get("models", []))
    except UsageError:
        models = ()
    swaps = {(swap.blocks, swap.block_bytes, swap.pattern, swap.host_pattern): swap for swap in models}
    model_swaps = [swaps.get(_shape(outcome.cell)) for outcome in outcomes]
    if all(model_swaps):
        pairs = zip(outcomes, filter(None, model_swaps), strict=True)
        return [LayerLoad(outcome, _what(outcome.cell, swap), swap.tokens) for outcome, swap in pairs], "tokens"
    return [LayerLoad(outcome, _what(outcome.cell), outcome.cell.blocks) for outcome in outcomes], "blocks"


def _shape(cell: Cell) -> tuple[int, int, str, str]:
    return cell.blocks, cell.block_bytes, str(cell.pattern), str(cell.host_pattern)


def _what(cell: Cell, swap: ModelSwap | None = None) -> str:
    blocks = f"{cell.layers} layers of {bytes_size(cell.block_bytes)} blocks, {cell.pattern}"
    beside = "" if cell.neighbour == Neighbour.NONE else f" beside {cell.neighbour}"
    return f"{swap.title if swap else blocks}, {cell.direction}{beside}"


def _table(view: View, title: str, unit: str, loads: Sequence[LayerLoad]) -> DataTable:
    ordered = sorted(loads, key=lambda load: (load.size, load.method))
    body = [[count(load.size), load.method, *map(figure, load.times_us), load.share_text] for load in ordered]
    outcomes = [load.outcome for load in loads]
    header = (unit.capitalize(), *_HEADER)
    return measured_table(view, outcomes, INCLUDES["swap_us"], title, header, body, [_NOTE], left=2)


def _finding(what: str, unit: str, loads: Sequence[LayerLoad]) -> Text:
    """Name the methods that hide the loads of TOKENS, or of the most that was loaded, and their submission times."""
    sizes = {load.size for load in loads}
    size = TOKENS if unit == "tokens" and TOKENS in sizes else max(sizes)
    ranked = sorted((load for load in loads if load.size == size), key=lambda load: -load.hidden[0])
    hiding = [load.method for load in ranked if load.hidden[1] >= HIDDEN]
    callers = sorted((load.caller_of_layer_us, load.method) for load in ranked if not load.at_once)
    text = f"{what}, {count(size)} {unit}: "
    if hiding:
        text += f"{' and '.join(hiding)} {'hide' if len(hiding) > 1 else 'hides'} at least {HIDDEN:.0%} of the loads"
    else:
        best = ranked[0]
        text += f"no backend clearly hides {HIDDEN:.0%} of the loads; {best.method} {best.share_text}"
    if callers:
        (least_us, cheapest), (most_us, dearest) = callers[0], callers[-1]
        text += f"; submission alone takes {figure(least_us)} us a layer ({cheapest})"
        text += f" to {figure(most_us)} us ({dearest})" if dearest != cheapest else ""
    return f"{text}."
