"""The visits of a tuning: all candidates, then the faster half of them again and again, then sizes in between.

After every two visits, the half that the rule of `decide_all` ranks last is dropped, until the rest has the six visits
of a verdict. What was chosen is then visited afresh: the fastest of many visits is fast by chance too, so those visits
that chose it would flatter it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from statistics import median
from typing import Final

from kvbench.analysis.compare import MIN_PAIRS
from kvbench.analysis.margins import TIED
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.backend_facts import BATCHED
from kvbench.cells.cell import Cell
from kvbench.cells.pattern import Pattern
from kvbench.policy import Choice
from kvbench.results import Visit
from kvbench.tune.answer import Answer
from kvbench.tune.fit import FRESH_FROM, Arms, Decision, decide, decide_all, preference
from kvbench.tune.rule import rule_of

# The visits between two halvings: one slow visit drops nothing.
STAGE_VISITS: Final = 2
# Visits per candidate of the first sizes, including those of the sizes between them and the fresh ones.
VISITS_PER_CANDIDATE: Final = 7.0
# The maximum number of visits to choose by, for a point that is still open.
MOST_ROUNDS: Final = 12
BISECTIONS: Final = 2

SwapShape = tuple[Direction, StreamState, int, int]  # with blocks and block bytes


class Search:
    """A search among the cells of a plan; `note` takes the results, `stages` yields the next visits."""

    command = "kvbench tune"
    made = 0
    measures_roofs_once = True

    def __init__(
        self,
        cells: Collection[Cell],
        first_sizes: Sequence[int],
        sustained_counts: Sequence[int],
        seed: int,
        in_time: Callable[[], bool],
    ) -> None:
        """Start with the block sizes `first_sizes` and, for each number of blocks, the smallest and the largest; if the
        plan has none of `first_sizes`, with all sizes.

        Sustained swaps are measured at the numbers of blocks `sustained_counts`, or at all numbers if the plan has none
        of them: a chain of swaps depends little on the length of each. `in_time` returns whether there is time for more
        than six visits, and for more sizes. Cells in another layout than most of their shape are in no race: each gets
        six visits.
        """
        layouts = {shape: layout_counts.most_common(1)[0][0] for shape, layout_counts in _layouts(cells).items()}
        self._beside = [cell for cell in cells if cell.sides != layouts[cell.blocks, cell.block_bytes]]
        cells = [cell for cell in cells if cell.sides == layouts[cell.blocks, cell.block_bytes]]
        counts = {cell.blocks for cell in cells}
        counts = counts & set(sustained_counts) or counts
        self._cells: dict[SwapShape, dict[Choice, Cell]] = {}
        for cell in cells:
            if cell.stream_state is not StreamState.SUSTAINED or cell.blocks in counts:
                shape = cell.direction, cell.stream_state, cell.blocks, cell.block_bytes
                self._cells.setdefault(shape, {})[Choice.at(cell)] = cell
        sizes = {shape[-1] for shape in self._cells}
        first = set(first_sizes) & sizes or sizes
        rows = [list(row) for _, row in groupby(sorted(self._cells), key=lambda shape: shape[:-1])]
        ends = {shape for row in rows for shape in (row[0], row[-1])}
        self._first = {
            shape: candidates for shape, candidates in self._cells.items() if shape in ends or shape[-1] in first
        }
        self._times: dict[Cell, dict[int, float]] = {}
        self._seed = seed
        self._in_time = in_time

    def note(self, visit: Visit) -> None:
        """Record a visit; of several attempts the last one counts. One without a time of the swap is a slow one."""
        if visit.round < FRESH_FROM:
            times_us = visit.swap_times_us or visit.samples.wall_us
            self._times.setdefault(visit.cell, {})[visit.round] = median(times_us)

    @property
    def expected_visits(self) -> int:
        return round(VISITS_PER_CANDIDATE * sum(map(len, self._first.values()))) + MIN_PAIRS * len(self._beside)

    def stages(self) -> Iterator[list[tuple[int, Cell]]]:
        """Yield the visits (round, cell) stage by stage; each stage depends on the results of all before it."""
        yield from self._race(self._first)
        for _ in range(BISECTIONS):
            if self._in_time() and (between := self._between()):
                yield from self._race(between)
        winners = self._winners()
        for number in range(FRESH_FROM, FRESH_FROM + MIN_PAIRS if winners else FRESH_FROM):
            yield self._shuffled(number, winners)
        for number in range(MIN_PAIRS if self._beside else 0):
            yield self._shuffled(number, self._beside)

    def _race(self, running: Mapping[SwapShape, Mapping[Choice, Cell]]) -> Iterator[list[tuple[int, Cell]]]:
        for number in range(MOST_ROUNDS):
            if number >= MIN_PAIRS and not self._in_time():
                return
            if stage := [cell for candidates in running.values() for cell in candidates.values()]:
                yield self._shuffled(number, stage)
            kept = {shape: self._still(shape, candidates, number + 1) for shape, candidates in running.items()}
            running = {shape: candidates for shape, candidates in kept.items() if candidates}

    def _shuffled(self, number: int, cells: Collection[Cell]) -> list[tuple[int, Cell]]:
        return [(number, cell) for cell in sorted(cells, key=lambda cell: cell.shuffle_key(number, self._seed))]

    def _still(self, shape: SwapShape, candidates: Mapping[Choice, Cell], made: int) -> dict[Choice, Cell]:
        """Return the candidates of a shape that stay in the race after `made` visits."""
        measured = {choice: cell for choice, cell in candidates.items() if len(self._times.get(cell, {})) == made}
        if not measured:
            return {}
        if made >= MIN_PAIRS:
            arms = self._arms(shape)
            answer = _answer(shape, arms, decide(arms))
            wanted = {answer.choice, answer.decision.fastest, *answer.open} if answer.open else set()
            return {choice: cell for choice, cell in measured.items() if choice in wanted}
        if made % STAGE_VISITS:
            return measured
        # the fastest visit of each: a disturbance only slows
        times = {choice: min(self._times[cell].values()) for choice, cell in measured.items()}
        fastest = min(times, key=lambda choice: times[choice])
        enough = (1 + TIED.fraction) * times[fastest]

        def rank(choice: Choice) -> tuple[object, ...]:
            tied = times[choice] <= enough
            return choice != fastest, not tied, preference(choice) if tied else (), times[choice]

        return {choice: measured[choice] for choice in sorted(measured, key=rank)[: max(2, (len(measured) + 1) // 2)]}

    def _arms(self, shape: SwapShape) -> dict[Choice, dict[int, float]]:
        return {choice: self._times[cell] for choice, cell in self._cells[shape].items() if cell in self._times}

    def _winners(self) -> list[Cell]:
        """Return the cells of what `answers_of` and `rule_of` will choose, and of what these are compared with."""
        answers = []
        for _, shapes in groupby(sorted(self._cells), key=lambda shape: shape[:2]):
            by_point = {shape[:1:-1]: (shape, arms) for shape in shapes if (arms := self._arms(shape))}
            decisions = decide_all({point: arms for point, (_, arms) in by_point.items()})
            answers += [_answer(*by_point[point], decision) for point, decision in decisions.items()]
        winners = []
        for answer, choice in rule_of(answers).choices.items():
            wanted = {choice, answer.choice, answer.decision.fastest, answer.best_of(BATCHED)}
            candidates = self._cells[answer.direction, answer.state, answer.blocks, answer.block_bytes]
            winners += [candidates[one] for one in candidates if one in wanted]
        return winners

    def _between(self) -> dict[SwapShape, dict[Choice, Cell]]:
        """Return the size between two consecutive sizes with different choices, with all that can win at either."""
        decided = {shape: decide(arms) for shape in sorted(self._cells) if (arms := self._arms(shape))}
        middles: dict[SwapShape, dict[Choice, Cell]] = {}
        for low, high in pairwise(decided):
            between = [shape for shape in sorted(self._cells) if low < shape < high]
            if low[:-1] != high[:-1] or decided[low].choice == decided[high].choice or not between:
                continue
            ends = [(choice, cell) for end in (low, high) for choice, cell in self._cells[end].items()]
            able = {*decided[low].others, *decided[high].others}
            able |= {one for one, cell in ends if one.backend == BATCHED or len(self._times.get(cell, {})) >= MIN_PAIRS}
            shape = between[len(between) // 2]
            middles[shape] = {choice: cell for choice, cell in self._cells[shape].items() if choice in able}
        return middles


def _layouts(cells: Collection[Cell]) -> dict[tuple[int, int], Counter[tuple[Pattern, Pattern]]]:
    """Return the numbers of cells by blocks and block bytes, then by layout."""
    layouts: dict[tuple[int, int], Counter[tuple[Pattern, Pattern]]] = {}
    for cell in cells:
        layouts.setdefault((cell.blocks, cell.block_bytes), Counter())[cell.sides] += 1
    return layouts


def _answer(shape: SwapShape, arms: Arms, decision: Decision) -> Answer:
    direction, state, blocks, block_bytes = shape
    return Answer(direction, state, block_bytes, blocks, arms, decision, arms)
