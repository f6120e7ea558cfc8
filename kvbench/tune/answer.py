"""The answers of a tuning from the times of all candidates: sentences, the table behind them, and open choices."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pandas as pd

from kvbench.analysis.compare import MIN_PAIRS, Comparison, compare_visits
from kvbench.analysis.intervals import median_interval
from kvbench.analysis.margins import IN_TURN, TIED
from kvbench.cells.axes import Direction, Reuse, StreamState
from kvbench.errors import UsageError
from kvbench.results import Run
from kvbench.text import counted, ends
from kvbench.tune.fit import Arms, Decision, Kind, Point, candidates, decide_all, sms_of, tried, typical
from kvbench.tune.table import Choice
from kvbench.units import gigabytes_per_second, parse_size, size_words, two_digits


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The choice for swaps of one shape, in one direction and stream state, and the times of all candidates."""

    direction: Direction
    state: StreamState
    block_bytes: int
    blocks: int
    arms: Arms
    decision: Decision

    @property
    def point(self) -> Point:
        return self.block_bytes, self.blocks

    @property
    def choice(self) -> Choice:
        return self.decision.choice

    @property
    def time_us(self) -> float:
        return self.time_of(self.choice)

    @property
    def interval_us(self) -> tuple[float, float] | None:
        """The 95% interval of the time, or None with too few visits."""
        visits = list(self.arms[self.choice].values())
        return median_interval(visits) if len(visits) >= MIN_PAIRS else None

    @property
    def gbps(self) -> float:
        return gigabytes_per_second(self.block_bytes * self.blocks, self.time_us)

    def time_of(self, choice: Choice) -> float:
        """Return what a swap by this candidate takes in microseconds."""
        return typical(self.arms[choice].values())

    def best_of(self, backend: str, sms: int | None = None) -> Choice | None:
        """Return the fastest candidate of a backend, optionally with this SM count, or None if there is none."""
        own = [c for c in self.arms if c.backend == backend and sms in (None, sms_of(c))]
        return min(own, key=self.time_of, default=None)

    @property
    def tied(self) -> list[Choice]:
        """What another run could choose instead for a difference within `TIED`."""
        return [other for other, found in self.decision.others.items() if _is_tie(found)]

    @property
    def open(self) -> Mapping[Choice, Comparison]:
        """What another run could choose instead for a larger difference, with its time over that of the choice."""
        return {other: found for other, found in self.decision.others.items() if not _is_tie(found)}

    def gain_over(self, other: Choice | None) -> Comparison | None:
        """Return the time of another candidate divided by that of the choice, or None without the other."""
        return None if other is None else compare_visits(self.arms[self.choice], self.arms[other], IN_TURN)

    def to_plain(self) -> dict[str, Any]:
        """Return the answer as JSON-compatible data."""
        interval = self.interval_us
        gains = {"batched": self.gain_over(self.best_of("batched"))}
        return {
            "direction": self.direction.value,
            "quantity": self.state.quantity,
            "block_bytes": self.block_bytes,
            "blocks": self.blocks,
            "choice": str(self.choice),
            "us": round(self.time_us, 3),
            "interval_us": None if interval is None else [round(end, 3) for end in interval],
            "gbps": round(self.gbps, 3),
            "times_as_fast_as": {name: round(found.ratio, 3) for name, found in gains.items() if found},
            "tied": [str(choice) for choice in self.tied],
            "open": [str(choice) for choice in self.open],
        }


def answers_of(
    runs: Sequence[Run], keep: Callable[[Choice], bool], points: Sequence[Point] | None = None
) -> list[Answer]:
    """Return an answer for every measured shape, from the candidates that `keep` accepts.

    The answers are sorted by direction, stream state, block size and number of blocks; `points` limits them to some
    shapes. Raises UsageError if none is left.
    """
    found = []
    for (direction, state), times in candidates(runs).items():
        allowed = {
            point: own
            for point, arms in times.items()
            if (own := {choice: visits for choice, visits in arms.items() if keep(choice)})
            and (points is None or point in points)
        }
        decisions = decide_all(allowed)
        found += [Answer(direction, state, *point, allowed[point], decisions[point]) for point in sorted(allowed)]
    if not found:
        raise UsageError(
            "nothing to choose from: no requested swap was measured with the allowed backends and SM counts"
        )
    return found


def workload_of(runs: Sequence[Run]) -> str:
    """Return which blocks the swaps behind answers move."""
    cells = tried(pd.concat(run.frame() for run in runs))
    return "no swaps" if cells.empty else workload_words(cells, size_words)


def workload_words(cells: pd.DataFrame, show: Callable[[int], str]) -> str:
    """Return which blocks the swaps of most of these cells move, with the bytes of their pool as `show` writes them.

    "Hot" means the same adjacent blocks every time.
    """
    pool, reuse = (str(cells[axis].mode().iloc[0]) for axis in ("pool", "reuse"))
    place = "from a dense pool" if pool == "dense" else f"from a pool of {show(parse_size(pool))}"
    if reuse == Reuse.FRESH.value:
        return f"fresh blocks in every swap, {place}"
    return f"{'hot: ' if pool == 'dense' else ''}the same blocks in every swap, {place}"


def by_kind(answers: Sequence[Answer]) -> Mapping[Kind, list[Answer]]:
    found: dict[Kind, list[Answer]] = {}
    for answer in answers:
        found.setdefault((answer.direction, answer.state), []).append(answer)
    return found


def sentences(answers: Sequence[Answer]) -> list[str]:
    """Return the choices as text, with one sentence for consecutive shapes with the same choice."""
    return [_sentence(run) for own in by_kind(answers).values() for run in _runs(own)]


def _runs(answers: Sequence[Answer]) -> Iterator[list[Answer]]:
    """Yield the answers of consecutive block sizes with the same choices, apart by choice over the blocks."""
    sizes = [list(own) for _, own in groupby(answers, key=lambda answer: answer.block_bytes)]
    for _, alike in groupby(sizes, key=lambda own: [(answer.blocks, answer.choice) for answer in own]):
        for _, run in groupby(zip(*alike, strict=True), key=lambda column: column[0].choice):
            yield [answer for column in run for answer in column]


def _sentence(run: Sequence[Answer]) -> str:
    kind = f"{run[0].direction} {run[0].state.quantity}"
    blocks, size = ends((answer.blocks for answer in run), str), ends((a.block_bytes for a in run), size_words)
    rates = ends((answer.gbps for answer in run), two_digits)
    said = [kind, f"{blocks} blocks of {size}: {words_of(run[0].choice)}", f"{rates} GB/s"]
    others = [(answer, other) for answer in run if (other := answer.best_of("batched")) and other != answer.choice]
    gains = [found.ratio for answer, other in others if (found := answer.gain_over(other))]
    if gains and two_digits(max(gains)) != "1":
        said.append(f"{ends(gains, two_digits)} times batched")
    return ", ".join(said)


def open_points(answers: Sequence[Answer]) -> list[str]:
    """Return the shapes whose choice is open, with the cost of each alternative, the largest difference first."""
    every = [(answer, other, found) for answer in answers for other, found in answer.open.items()]
    return [_doubt(*one) for one in sorted(every, key=lambda one: -_apart(one[2]))]


def _doubt(answer: Answer, other: Choice, found: Comparison) -> str:
    shape = f"{answer.direction} {answer.state.quantity}, {answer.blocks} x {size_words(answer.block_bytes)}"
    cost, low, high = (f"{(ratio - 1) * 100:+.1f}%" for ratio in (found.ratio, found.low, found.high))
    interval = f" ({low} to {high})" if math.isfinite(found.high) else ", too few visits for an interval"
    return f"{shape}: {words_of(answer.choice)}, or {words_of(other)} for {cost}{interval} of the time"


def _apart(found: Comparison) -> float:
    """Return the ratio of the larger time to the smaller; times of an untrusted run can have any ratio."""
    return max(found.ratio, 1 / found.ratio if found.ratio else math.inf)


def _is_tie(found: Comparison) -> bool:
    return not _apart(found) > 1 + TIED.fraction  # NaN ties


def words_of(choice: Choice) -> str:
    """Return a readable choice: "sm with 4 SMs, kernel bulk-8x6x4KiB"."""
    settings = dict(choice.axes)
    sms = settings.pop("sms", None)
    settings.pop("order", None)  # follows a rule that the reader does not need
    with_sms = f" with {counted(int(sms), 'SM')}" if sms else ""
    return ", ".join((f"{choice.backend}{with_sms}", *(f"{name} {value}" for name, value in settings.items())))
