"""The visits of a tuning: first all candidates, then those that can still win, then sizes in between.

A candidate is dropped early if it is far slower than the fastest, or no faster than one that the rule of `decide_all`
prefers. A verdict needs six visits, and every candidate that can be chosen gets them.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from kvbench.analysis.compare import MIN_PAIRS
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.cell import Cell
from kvbench.results import Visit
from kvbench.tune.fit import Decision, choice_at, decide, preference
from kvbench.tune.table import Choice

# Number of visits -> the maximum ratio to the best time with which a candidate stays in the race, and the maximum ratio
# to the time of every candidate that the rule prefers at equal times.
DROPPED_BEYOND: Final[Mapping[int, float]] = {1: 2.5, 2: 1.3, 3: 1.2, 4: 1.15, 5: 1.1}
OUTDONE_BEYOND: Final[Mapping[int, float]] = {1: 2.0, 2: 1.1, 3: 1.05, 4: 1.03, 5: 1.01}
# The minimum number of visits of a reference of the answers, even if it is far slower.
REFERENCE_VISITS: Final = 3
# Visits per candidate of the first sizes, including those of the sizes between them: in eight searches on an H100 and
# an H200, 4.8 to 7.1.
VISITS_PER_CANDIDATE: Final = 6.0
# The time of a visit there, as a share of that of the plan: most visits are of the fastest candidates.
VISIT_TIME: Final = 0.7
# The maximum number of visits for a point that is still open.
MOST_ROUNDS: Final = 12
BISECTIONS: Final = 2

Place = tuple[Direction, StreamState, int, int]  # with blocks and block bytes


class Search:
    """A search among the cells of a plan; `note` takes the results, `stages` yields the next visits."""

    def __init__(
        self,
        cells: Collection[Cell],
        first_sizes: Sequence[int],
        sustained_counts: Sequence[int],
        seed: int,
        in_time: Callable[[], bool],
    ) -> None:
        """Start with the block sizes `first_sizes`, the smallest and the largest, or, if the plan has none of
        `first_sizes`, with all sizes.

        Sustained swaps are measured at the numbers of blocks `sustained_counts`, or at all numbers if the plan has none
        of them: a chain of swaps depends little on the length of each. `in_time` returns whether there is time for more
        than six visits, and for more sizes.
        """
        counts = {cell.blocks for cell in cells}
        counts = counts & set(sustained_counts) or counts
        self._cells: dict[Place, dict[Choice, Cell]] = {}
        for cell in cells:
            if cell.stream_state is not StreamState.SUSTAINED or cell.blocks in counts:
                place = cell.direction, cell.stream_state, cell.blocks, cell.block_bytes
                self._cells.setdefault(place, {})[choice_at(cell)] = cell
        sizes = {place[-1] for place in self._cells}
        if sizes & set(first_sizes):
            sizes &= {*first_sizes, min(sizes), max(sizes)}
        self._first = {place: own for place, own in self._cells.items() if place[-1] in sizes}
        self._times: dict[Cell, dict[int, float]] = {}
        self._seed = seed
        self._in_time = in_time

    def note(self, visit: Visit) -> None:
        """Record a visit; of several attempts the last one counts."""
        clock = visit.cell.stream_state.swap_clock
        self._times.setdefault(visit.cell, {})[visit.round] = median(getattr(visit.samples, clock))

    @property
    def expected_visits(self) -> int:
        """The estimated number of visits."""
        return round(VISITS_PER_CANDIDATE * sum(map(len, self._first.values())))

    def stages(self) -> Iterator[list[tuple[int, Cell]]]:
        """Yield the visits (round, cell) stage by stage; each stage depends on the results of all before it."""
        yield from self._race(self._first)
        for _ in range(BISECTIONS):
            if self._in_time() and (between := self._between()):
                yield from self._race(between)

    def _race(self, running: Mapping[Place, Mapping[Choice, Cell]]) -> Iterator[list[tuple[int, Cell]]]:
        for number in range(MOST_ROUNDS):
            if number >= MIN_PAIRS and not self._in_time():
                return
            stage = [(number, cell) for own in running.values() for cell in own.values()]
            if stage:
                yield sorted(stage, key=lambda visit: visit[1].place_in(number, self._seed))
            kept = {place: self._still(place, own, number + 1) for place, own in running.items()}
            running = {place: own for place, own in kept.items() if own}

    def _still(self, place: Place, own: Mapping[Choice, Cell], made: int) -> dict[Choice, Cell]:
        """Return the candidates of a place that stay in the race after `made` visits."""
        measured = {choice: cell for choice, cell in own.items() if len(self._times.get(cell, {})) == made}
        if not measured:
            return {}
        if made >= MIN_PAIRS:
            decision = self._decide(place)
            wanted = {decision.choice, decision.fastest, *decision.others} if decision and decision.others else set()
            return {choice: cell for choice, cell in measured.items() if choice in wanted}
        # the fastest visit of each: a disturbance only slows
        times = {choice: min(self._times[cell].values()) for choice, cell in measured.items()}
        most = DROPPED_BEYOND[made] * min(times.values())

        def goes_on(choice: Choice) -> bool:
            preferred = [times[other] for other in times if preference(other) < preference(choice)]
            outdone = times[choice] >= OUTDONE_BEYOND[made] * min(preferred, default=math.inf)
            return times[choice] <= most and not outdone

        wanted = {choice for choice in times if goes_on(choice) or (_is_reference(choice) and made < REFERENCE_VISITS)}
        return {choice: measured[choice] for choice in wanted}

    def _decide(self, place: Place) -> Decision | None:
        arms = {choice: self._times[cell] for choice, cell in self._cells[place].items() if cell in self._times}
        return decide(arms) if arms else None

    def _between(self) -> dict[Place, dict[Choice, Cell]]:
        """Return the size between two consecutive sizes with different choices, with all that can win at either."""
        decided = {place: decision for place in sorted(self._cells) if (decision := self._decide(place))}
        found: dict[Place, dict[Choice, Cell]] = {}
        for low, high in pairwise(decided):
            between = [place for place in sorted(self._cells) if low < place < high]
            if low[:-1] != high[:-1] or decided[low].choice == decided[high].choice or not between:
                continue
            ends = [(choice, cell) for end in (low, high) for choice, cell in self._cells[end].items()]
            able = {choice for choice, cell in ends if len(self._times.get(cell, {})) >= MIN_PAIRS}
            able.update(*(decided[end].others for end in (low, high)))
            place = between[len(between) // 2]
            own = self._cells[place].items()
            found[place] = {choice: cell for choice, cell in own if choice in able or _is_reference(choice)}
        return found


def _is_reference(choice: Choice) -> bool:
    """Return whether a choice is the reference of the answers: batched copies."""
    return choice.backend == "batched"
