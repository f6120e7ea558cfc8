"""What `kvbench tune` measures: the sweeps, and the search among the cells of one.

A search visits all candidates, then the faster half of them again and again, then sizes in between. After every two
visits, the half that looks the slowest is dropped, until the rest has the six visits of a verdict.
What was chosen is then visited afresh: the fastest of many visits is fast by chance too, so those visits that chose it
would flatter it.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise
from statistics import median
from typing import Final

from msgspec.structs import replace

from kvbench.analysis.compare import MIN_PAIRS
from kvbench.analysis.margins import TIED
from kvbench.cells.axes import StreamState
from kvbench.cells.cell import Cell, SwapShape
from kvbench.cells.facts import BATCH_MAY_USE_SMS_FROM, BATCHED, MERGED, PRIMED
from kvbench.cells.installed import engines, of_engine
from kvbench.cells.pattern import Pattern
from kvbench.cells.policy import Choice
from kvbench.cells.units import KIB
from kvbench.ground.errors import UsageError, brief
from kvbench.models.presets import ModelChoice
from kvbench.results import Visit
from kvbench.sweep.spec import SweepSpec, find_config, load_config, parse_assignments
from kvbench.tune.advice import answers_of
from kvbench.tune.candidates import FRESH_FROM, Measured, preference
from kvbench.tune.rule import rule_of

_SHAPES: Final = {
    "blocks": "16,128,1024,10000",
    "block_size": "1KiB,2KiB,4KiB,8KiB,16KiB,24KiB,32KiB,48KiB,64KiB,96KiB,128KiB,192KiB,256KiB",
}
# With two stream states, an engine's ways are measured at fewer shapes, to take three minutes.
_ENGINE_SHAPES: Final = {"blocks": "16,64,256,1024", "block_size": "4KiB,16KiB,32KiB,64KiB"}
# Whether blocks in runs would change the answer, at a few shapes.
_IN_RUNS: Final = {
    "blocks": "1024", "block_size": "4KiB,16KiB,64KiB", "backend": "merged,sm", "pattern": "runs-8,runs-32",
    "overlap": "off",
}  # fmt: skip
_ONE_VALUE: Final = {"pattern", "device_pattern", "host_pattern", "sizes", "pause"}
# The other work before a call as an engine makes it, after a step.
_AFTER_A_STEP: Final = "5ms"
_FIRST_SIZES: Final = tuple(kib * KIB for kib in (1, 4, 16, 64, 256))
_SUSTAINED_COUNTS: Final = (128, 1024)
# After this time a search makes only necessary visits, so that tuning takes three minutes, start and end included.
_SECONDS: Final = 100.0
# The visits between two halvings: one slow visit drops nothing.
STAGE_VISITS: Final = 2
# Visits per candidate of the first sizes, including those of the sizes between them and the fresh ones.
VISITS_PER_CANDIDATE: Final = 7.0
# The maximum number of visits to choose by, for a point that is still open.
MOST_ROUNDS: Final = 12
BISECTIONS: Final = 2


def tuning_sweep(
    models: ModelChoice, axes: Sequence[str], backends: Collection[str], *, by_tokens: bool = False
) -> SweepSpec:
    """The sweep of a search: every method, or `backends` alone, for the swaps of models or for many shapes.

    With `by_tokens`, models are measured with fewer tokens too, and called in a tight loop as well as after other work.
    """
    settings = parse_assignments(axes)
    several = sorted(name for name in _ONE_VALUE & settings.keys() if "," in settings[name])
    if several:
        raise UsageError(f"-a {several[0]}={brief(settings[several[0]])}: an answer is for one {several[0]}; name one")
    spec = load_config(find_config("tune"), models.with_fewer_tokens() if by_tokens else models)
    spec = spec.with_axes(settings if models.models else {**_SHAPES, **settings})
    groups = spec.groups
    if models.models:
        if by_tokens and "pause" not in settings:
            groups += spec.with_axes({"pause": _AFTER_A_STEP, "stream_state": "idle"}).groups
    elif not (_ONE_VALUE | {"backend"}) & settings.keys() and "idle" in settings.get("stream_state", "idle"):
        groups += load_config(find_config("runs")).with_axes({**_IN_RUNS, **settings, "stream_state": "idle"}).groups
    return _of_backends(replace(spec, groups=groups), backends)


def engine_sweep(name: str, axes: Sequence[str]) -> SweepSpec:
    """The sweep for an engine's settings: its own methods, in the directions that the settings act on, and others."""
    engine, spec = engines()[name], load_config(find_config("engines"))
    groups = tuple(group for group in spec.groups if {*map(of_engine, group["backend"])} <= {"", name})
    engine_axes = {"direction": ",".join(engine.directions), "stream_state": ",".join(engine.states)}
    fewer = _ENGINE_SHAPES if len(engine.states) > 1 else {}
    return replace(spec, groups=groups).with_axes({**engine_axes, **fewer, **parse_assignments(axes)})


def trying_overlap(spec: SweepSpec, driver: int) -> SweepSpec:
    """The sweep with batched copies that leave the SMs to others too, where a driver (13010: CUDA 13.1) may use
    SMs for them and the sweep does not say whether they do.
    """
    able = {BATCHED, MERGED, PRIMED} if driver >= BATCH_MAY_USE_SMS_FROM and spec.device != "cpu" else set()
    open_groups = [(group, able & {*group["backend"]}) for group in spec.groups if "overlap" not in group]
    flagged = [{**group, "backend": (*sorted(names),), "overlap": ("on",)} for group, names in open_groups if names]
    return replace(spec, groups=(*spec.groups, *flagged))


def _of_backends(spec: SweepSpec, backends: Collection[str]) -> SweepSpec:
    """The sweep with some backends alone, if any; raises UsageError for one that it does not measure."""
    if not backends:
        return spec
    measured = dict.fromkeys(chain.from_iterable(group["backend"] for group in spec.groups))
    if not measured.keys() >= set(backends):
        raise UsageError(f"--backends {brief(','.join(backends))}: kvbench tune measures only {', '.join(measured)}")
    kept = ({**group, "backend": tuple(name for name in group["backend"] if name in backends)} for group in spec.groups)
    return replace(spec, groups=tuple(group for group in kept if group["backend"]))


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
        than six visits, and for more sizes. Cells in another layout than most of their shape, or after a longer pause,
        are in no race: each gets six visits.
        """
        # Other layouts and pauses answer questions of their own: they have no rivals here.
        raced = _raced(cells)
        self._not_raced = [cell for cell in cells if cell not in raced]
        cells = [cell for cell in cells if cell in raced]
        counts = {cell.blocks for cell in cells}
        counts = counts & set(sustained_counts) or counts
        self._cells: dict[SwapShape, dict[Choice, Cell]] = {}
        for cell in cells:
            if cell.stream_state is not StreamState.SUSTAINED or cell.blocks in counts:
                self._cells.setdefault(SwapShape.of_cell(cell), {})[Choice.of_cell(cell)] = cell
        sizes = {shape.block_bytes for shape in self._cells}
        first = set(first_sizes) & sizes or sizes
        outermost: set[SwapShape] = set()
        for _, row in groupby(sorted(self._cells), key=_row):
            smallest, *larger = row
            outermost |= {smallest, *larger[-1:]}
        started = [shape for shape in self._cells if shape in outermost or shape.block_bytes in first]
        self._first = {shape: self._cells[shape] for shape in started}
        self._times: dict[Cell, dict[int, float]] = {}
        self._seed = seed
        self._in_time = in_time

    def note(self, visit: Visit) -> None:
        """Record a visit; of several attempts the last one counts. One without a time of the swap is a slow one."""
        times_us = visit.swap_times_us or visit.samples.wall_us
        self._times.setdefault(visit.cell, {})[visit.round] = median(times_us)

    @property
    def expected_visits(self) -> int:
        return round(VISITS_PER_CANDIDATE * sum(map(len, self._first.values()))) + MIN_PAIRS * len(self._not_raced)

    def stages(self) -> Iterator[list[tuple[int, Cell]]]:
        """Yield the visits (round, cell) stage by stage; each stage depends on the results of all before it."""
        yield from self._race(self._first)
        for _ in range(BISECTIONS):
            if self._in_time():
                yield from self._race(self._between())
        winners = self._winners()
        for number in range(FRESH_FROM, FRESH_FROM + MIN_PAIRS if winners else FRESH_FROM):
            yield self._shuffled(number, winners)
        for number in range(MIN_PAIRS if self._not_raced else 0):
            yield self._shuffled(number, self._not_raced)

    def _race(self, running: Mapping[SwapShape, Mapping[Choice, Cell]]) -> Iterator[list[tuple[int, Cell]]]:
        for number in range(MOST_ROUNDS):
            if number >= MIN_PAIRS and not self._in_time():
                return
            stage = [*chain.from_iterable(candidates.values() for candidates in running.values())]
            if stage:
                yield self._shuffled(number, stage)
            kept = {shape: self._survivors(shape, candidates, number + 1) for shape, candidates in running.items()}
            running = {shape: candidates for shape, candidates in kept.items() if candidates}

    def _shuffled(self, number: int, cells: Collection[Cell]) -> list[tuple[int, Cell]]:
        return [(number, cell) for cell in sorted(cells, key=lambda cell: cell.shuffle_key(number, self._seed))]

    def _survivors(self, shape: SwapShape, candidates: Mapping[Choice, Cell], visits: int) -> dict[Choice, Cell]:
        """The candidates of a shape that stay in the race after a number of visits."""
        measured = {choice: cell for choice, cell in candidates.items() if len(self._times.get(cell, {})) == visits}
        if not measured:
            return {}
        if visits >= MIN_PAIRS:
            (answer,) = answers_of([self._measured(shape)])
            undecided = {answer.choice, answer.pick.best, *answer.open} if answer.open else set()
            return {choice: cell for choice, cell in measured.items() if choice in undecided}
        if visits % STAGE_VISITS:
            return measured
        # The fastest visit of each stands for it: a disturbance only slows.
        times = {choice: min(self._times[cell].values()) for choice, cell in measured.items()}
        fastest = min(times, key=lambda choice: times[choice])
        limit = (1 + TIED.fraction) * times[fastest]

        def rank(choice: Choice) -> tuple[object, ...]:
            tied = times[choice] <= limit
            return choice != fastest, not tied, preference(choice) if tied else (), times[choice]

        kept = sorted(measured, key=rank)[: max(2, (len(measured) + 1) // 2)]
        # What replaces batched copies must be told apart from them, which takes all their visits.
        copies = [choice for choice in measured if choice.backend == BATCHED and choice not in kept]
        return {choice: measured[choice] for choice in [*kept, *sorted(copies, key=rank)[:1]]}

    def _measured(self, shape: SwapShape) -> Measured:
        arms = {choice: self._times[cell] for choice, cell in self._cells[shape].items() if cell in self._times}
        return Measured(shape, arms, arms)

    def _all_measured(self) -> list[Measured]:
        return [measured for measured in map(self._measured, sorted(self._cells)) if measured.arms]

    def _winners(self) -> list[Cell]:
        """The cells of what the rule and the answers will choose, and of what these are compared with."""
        shapes = self._all_measured()
        choices = rule_of(shapes).choices if shapes else {}
        winners = []
        for answer in answers_of(shapes):
            measured = answer.measured
            wanted = {choices[measured], answer.choice, answer.pick.best, measured.best_of(BATCHED)}
            winners += [cell for choice, cell in self._cells[measured.shape].items() if choice in wanted]
        return winners

    def _between(self) -> dict[SwapShape, dict[Choice, Cell]]:
        """The size between two consecutive sizes with different choices, with all that can win at either."""
        middles: dict[SwapShape, dict[Choice, Cell]] = {}
        for low, high in pairwise(answers_of(self._all_measured())):
            first, last = low.measured.shape, high.measured.shape
            between = [shape for shape in sorted(self._cells) if first < shape < last]
            if _row(first) != _row(last) or low.choice == high.choice or not between:
                continue
            able = {low.choice, high.choice, *low.others, *high.others}
            measured = [*low.measured.arms.items(), *high.measured.arms.items()]
            able |= {choice for choice, visits in measured if choice.backend == BATCHED or len(visits) >= MIN_PAIRS}
            shape = between[len(between) // 2]
            middles[shape] = {choice: cell for choice, cell in self._cells[shape].items() if choice in able}
        return middles


def _row(shape: SwapShape) -> tuple[object, ...]:
    """A key that shapes share which differ in block size alone."""
    return shape[:-1]


def search_among(keep: Callable[[Choice], bool], spec: SweepSpec) -> Callable[[Sequence[Cell]], Search]:
    """A function that starts a search for the best methods that `keep` accepts among the cells of a plan.

    It measures every swap of a model.
    """
    ends_s = time.monotonic() + _SECONDS
    sizes, counts = ((), ()) if spec.models else (_FIRST_SIZES, _SUSTAINED_COUNTS)

    def searching(cells: Sequence[Cell]) -> Search:
        allowed = [cell for cell in cells if keep(Choice.of_cell(cell))]
        if not allowed:
            raise UsageError("nothing to choose from: no allowed backend runs on this machine")
        return Search(allowed, sizes, counts, spec.seed, lambda: time.monotonic() < ends_s)

    return searching


def _raced(cells: Collection[Cell]) -> set[Cell]:
    """The cells that compete: in the layout that most cells of their shape have, after the shortest pause."""
    layouts: dict[tuple[int, int], Counter[tuple[Pattern, Pattern]]] = {}
    for cell in cells:
        layouts.setdefault((cell.blocks, cell.block_bytes), Counter())[cell.sides] += 1
    usual = {shape: counts.most_common(1)[0][0] for shape, counts in layouts.items()}
    pause_us = min((cell.pause_us for cell in cells), default=0)
    first = (cell for cell in cells if cell.pause_us == pause_us)
    return {cell for cell in first if cell.sides == usual[cell.blocks, cell.block_bytes]}
