"""Settings of serving engines, from cells of each engine's own code, as a difference to its defaults."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import geometric_mean
from typing import Final

from kvbench.analysis.margins import KNEE, TIED
from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.backend_facts import EngineSetting
from kvbench.errors import UsageError
from kvbench.policy import Choice
from kvbench.results import Run
from kvbench.sweep.installed import installed
from kvbench.text import ends
from kvbench.tune.answer import Answer, workload_of
from kvbench.tune.fit import sms_of
from kvbench.units import size_text

_LEAST_SHAPES: Final = 10
_OFFERED_FROM: Final = 0.9  # share of the shapes at which an SM count must have been measured

Values = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine whose code was measured.

    `same_as` is the backend that calls the function of the driver that kvbench's `batched` calls, `prefers` the one
    that the engine takes wherever it runs. An engine of `pages` copies blocks that lie in pages on the host, and no
    others.
    """

    name: str
    same_as: str = ""
    prefers: str = ""
    pages: bool = False

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(backend for backend, engine in _ENGINE_OF.items() if engine == self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settable(Engine):
    """An engine with settings, and which of its backends they choose.

    `kernel` is the backend that takes an SM count, by the first of `settings`. `choose` returns what the engine takes
    for a swap with some values of its settings, `values` the values to try for the settings after the first, from the
    shapes and the defaults. `how` says how the settings are set. `states` are those in which the engine's swaps begin,
    the one that decides first.
    """

    title: str
    kernel: str
    settings: tuple[str, ...]
    how: str
    directions: tuple[Direction, ...] = tuple(Direction)
    states: tuple[StreamState, ...] = (StreamState.IDLE,)
    choose: Callable[[Answer, Values], Choice]
    values: Callable[[Sequence[Answer], Values], tuple[Sequence[int], ...]] = lambda _answers, _defaults: ()


def _vllm_choice(answer: Answer, values: Values) -> Choice:
    sms, below_bytes, from_blocks = values
    if answer.direction is Direction.H2D and answer.block_bytes < below_bytes and answer.blocks >= from_blocks:
        return Choice("vllm_triton", (("sms", str(sms)),))
    return answer.best_of("vllm_batch") or Choice("vllm_batch")


def _vllm_values(answers: Sequence[Answer], defaults: Values) -> tuple[Sequence[int], ...]:
    sizes, counts = (sorted({answer.point[axis] for answer in answers}) for axis in (0, 1))
    _, below_bytes, from_blocks = defaults
    return sorted({below_bytes, *sizes, sizes[-1] + 1}), sorted({from_blocks, *counts})


_EDIT: Final = "a constant: nobody can set it without editing the file"
_KNOWN: Final = (
    Engine("lmcache", prefers="lmcache_direct", pages=True),
    Settable(
        "vllm",
        same_as="vllm_batch",
        title="vLLM",
        kernel="vllm_triton",
        settings=("NUM_SMS", "THRESHOLD_BYTES", "MIN_N"),
        how=f"{_EDIT}. THRESHOLD_BYTES acts on the largest page of all groups",
        directions=(Direction.H2D,),
        # Loads wait for an event of the compute stream from version 0.28 on.
        states=(StreamState.GATED, StreamState.OPENED),
        choose=_vllm_choice,
        values=_vllm_values,
    ),
    Settable(
        "sglang",
        title="SGLang",
        kernel="sglang_jit",
        settings=("TMA_BLOCK_QUOTA",),
        how=f"{_EDIT}. SGLANG_HICACHE_TMA_TRANSFER=0 takes the other kernel, which was not measured",
        choose=lambda _, values: Choice("sglang_jit", (("sms", str(values[0])),)),
    ),
)
_BY_NAME: Final = {engine.name: engine for engine in _KNOWN}
EXPORTS: Final = {engine.name: engine for engine in _KNOWN if isinstance(engine, Settable)}
_ENGINE_OF: Final = {name: backend.engine for name, backend in installed()[0].items() if backend.engine}
ENGINE_BACKENDS: Final = frozenset(_ENGINE_OF)
MEASURED: Final = tuple(_BY_NAME.get(name) or Engine(name) for name in sorted({*_ENGINE_OF.values()}))
# Those that an answer about any blocks can be compared with.
ENGINES: Final = {engine.name: engine for engine in MEASURED if not engine.pages}


@dataclass(frozen=True, slots=True)
class _Times:
    """Times of one choice divided by those of another, shape by shape."""

    ratios: Sequence[float]

    @property
    def mean(self) -> float:
        return geometric_mean(self.ratios) - 1

    @property
    def worst(self) -> float:
        return max(self.ratios) - 1

    def gain(self) -> str:
        """Return the change of time as text, seen as a gain."""
        worst = f"at worst loses {self.worst:.0%}" if self.worst >= 0.005 else "loses nowhere"
        mean = f"{'gains' if self.mean <= 0 else 'loses'} {abs(self.mean):.0%} on average"
        return f"{mean} at {_sizes_and_counts(len(self.ratios))}, {worst}"


@dataclass(frozen=True, slots=True)
class Change:
    """A setting whose best value is not its default: what it is, and what it gains with the others as they are."""

    setting: EngineSetting
    value: int
    gain: str


@dataclass(frozen=True, slots=True)
class Export:
    """The settings of an engine that differ from its defaults, what was measured (`about`), and remarks (`notes`)."""

    about: Sequence[str]
    changes: Sequence[Change]
    how: str
    notes: Sequence[str]

    def text(self, origin: str) -> str:
        """Return the export, measured on `origin`, as lines NAME=VALUE; everything else is a comment."""
        lines = [f"# {line}" for line in (*self.about, origin)]
        for change in self.changes:
            setting, value = change.setting, change.value
            comment = f"# {setting.name} {setting.default} -> {value}: {change.gain}"
            lines += ["", comment, f"# {setting.place}, {self.how}", f"{setting.name}={value}"]
        rest = "nothing else changes" if self.changes else "nothing to change"
        return "\n".join([*lines, "", *(f"# {line}" for line in (rest, *self.notes))]) + "\n"


def export(name: str, runs: Sequence[Run], answers: Sequence[Answer]) -> Export:
    """Return the settings of the engine `name`; raises UsageError without enough cells of its own code."""
    engine = EXPORTS[name]
    package, settings = _recorded(name, engine, runs)
    defaults = tuple(setting.default for setting in settings)
    by_state = {
        state: shapes
        for state in sorted({answer.state for answer in answers}, key=lambda state: _rank(engine, state))
        if (shapes := _shapes(engine, [answer for answer in answers if answer.state == state], defaults))
    }
    if not by_state or len(next(iter(by_state.values())).answers) < _LEAST_SHAPES:
        raise _needs(name, engine, f"at {_LEAST_SHAPES} sizes and counts, each with the SM counts that are compared")
    (state, shapes), *others = by_state.items()
    values = _fit(shapes, defaults)
    changes = [
        Change(setting, value, _times(shapes, _with(values, index, setting.default), values).gain())
        for index, (setting, value) in enumerate(zip(settings, values, strict=True))
        if value != setting.default
    ]
    notes = []
    if values[0] == max(shapes.counts):
        notes.append(f"{settings[0].name}={values[0]} is the largest count that was measured; larger ones may gain")
    notes.append(f"{state} stream; SM counts compared: {', '.join(map(str, shapes.counts))}")
    for other, other_shapes in others:
        best = _fit(other_shapes, defaults)
        named = ", ".join(f"{setting.name}={value}" for setting, value in zip(settings, best, strict=True))
        notes.append(f"{other} stream ({_sizes_and_counts(len(other_shapes.answers))}): {named}")
        if {state, other} == {StreamState.GATED, StreamState.OPENED}:
            notes.append(_share_text(shapes, other_shapes, values, best))
    notes.append(f"{state} stream; against the free choice: {_loss(shapes, values)}")
    about = [f"{engine.title}: {package}", f"{workload_of(runs)}; {_extent(shapes.answers)}, {state} stream"]
    return Export(about, changes, engine.how, notes)


def shipped_choice(engine: Engine, answer: Answer, run: Run) -> Choice | None:
    """Return what the engine takes with the settings that `run` recorded, or None if it was not measured."""
    recorded = {one.name: one.default for facts in run.info.backends for one in facts.settings}
    as_shipped = [Choice(name) for name in (engine.prefers, *engine.backends)]
    if isinstance(engine, Settable) and recorded.keys() >= set(engine.settings):
        wanted = engine.choose(answer, tuple(recorded[name] for name in engine.settings))
        as_shipped = [Choice(wanted.backend), wanted] if wanted.backend == engine.kernel else [wanted]
    return next((choice for choice in as_shipped if choice in answer.arms), None)


@dataclass(frozen=True, slots=True)
class _Shapes:
    """The shapes at which every candidate was measured, and the SM counts that are compared."""

    engine: Settable
    answers: Sequence[Answer]
    counts: Sequence[int]

    def time_of(self, answer: Answer, values: Values) -> float:
        return answer.time_of(self.engine.choose(answer, values))


def _rank(engine: Settable, state: StreamState) -> tuple[int, str]:
    return (engine.states.index(state) if state in engine.states else len(engine.states)), state


def _recorded(name: str, engine: Settable, runs: Sequence[Run]) -> tuple[str, Sequence[EngineSetting]]:
    """Return the engine's package and its settings as the runs recorded them; raises UsageError."""
    facts = {one.package: one for run in runs for one in run.info.backends if one.name == engine.kernel}
    known = {title: {setting.name: setting for setting in one.settings} for title, one in facts.items() if one.settings}
    if len(known) > 1:
        raise UsageError(f"--export {name}: the runs measured different code: {' and '.join(sorted(known))}")
    for title, settings in known.items():
        if set(engine.settings) <= settings.keys():
            return title, [settings[one] for one in engine.settings]
    raise _needs(name, engine, "and what its package says")


def _needs(name: str, engine: Settable, what: str) -> UsageError:
    backends = " and ".join(engine.backends)
    return UsageError(
        f"--export {name}: requires cells of {engine.title}'s own code ({backends}) {what}; "
        f"measure them: kvbench tune --engine {name}"
    )


def _shapes(engine: Settable, answers: Sequence[Answer], defaults: Values) -> _Shapes | None:
    """Return the shapes with all candidates, or None if there are none."""
    counts = {
        answer: {sms_of(choice) for choice in answer.arms if choice.backend == engine.kernel} - {0}
        for answer in answers
        if answer.direction in engine.directions
    }
    measured = [answer for answer, sm_counts in counts.items() if sm_counts]
    shapes = Counter(count for sm_counts in counts.values() for count in sm_counts)
    offered = sorted(count for count, number in shapes.items() if number >= _OFFERED_FROM * len(measured))
    if defaults[0] not in offered:
        return None
    needed = [*product(offered, *engine.values(measured, defaults))]
    complete = [
        answer
        for answer in measured
        if counts[answer] >= set(offered) and all(engine.choose(answer, values) in answer.arms for values in needed)
    ]
    return _Shapes(engine, complete, offered) if complete else None


def _fit(shapes: _Shapes, defaults: Values) -> Values:
    """Return the values with the fewest changes among those whose mean time is within `KNEE` of the best."""
    tried = product(shapes.counts, *shapes.engine.values(shapes.answers, defaults))
    ordered = sorted(tried, key=lambda values: (sum(a != b for a, b in zip(values, defaults, strict=True)), values))
    means = {values: geometric_mean(shapes.time_of(one, values) for one in shapes.answers) for values in ordered}
    enough = min(means.values()) * (1 + KNEE.fraction)
    return next(values for values, mean in means.items() if mean <= enough)


def _times(shapes: _Shapes, before: Values, after: Values) -> _Times:
    """Return the times with `after` over those with `before`, at the shapes where they differ in what they choose."""
    differing = [a for a in shapes.answers if shapes.engine.choose(a, before) != shapes.engine.choose(a, after)]
    return _Times([shapes.time_of(a, after) / shapes.time_of(a, before) for a in differing] or [1.0])


def _with(values: Values, index: int, value: int) -> Values:
    return (*values[:index], value, *values[index + 1 :])


def _loss(shapes: _Shapes, values: Values) -> str:
    ratios = {answer: shapes.time_of(answer, values) / answer.time_us for answer in shapes.answers}
    lost, worst = _Times([*ratios.values()]), max(ratios, key=lambda answer: ratios[answer])
    if lost.worst <= TIED.fraction:
        return f"within {TIED.fraction:.0%} of it at all shapes"
    where = f"{worst.direction}, {worst.blocks} x {size_text(worst.block_bytes)}, {worst.choice}"
    return f"takes {lost.mean:z.0%} more time on average, at worst {lost.worst:.0%} ({where})"


def break_even(gated_loss: float, opened_loss: float) -> float:
    """Return the share of loads that must find the gate closed for the settings of gated streams to be the better.

    `gated_loss` is what the settings of opened streams lose on gated ones, `opened_loss` what the settings of gated
    streams lose on opened ones, both as fractions of the time; a negative loss counts as none.
    """
    gated, opened = max(gated_loss, 0.0), max(opened_loss, 0.0)
    return opened / (gated + opened) if gated + opened else 0.0


def _share_text(gated: _Shapes, opened: _Shapes, of_gated: Values, of_opened: Values) -> str:
    if of_gated == of_opened:
        return "the settings are the same whether a load finds the gate closed or open"
    share = break_even(_times(gated, of_gated, of_opened).mean, _times(opened, of_opened, of_gated).mean)
    return f"these settings are right if more than {share:.0%} of the loads find the gate closed"


def _extent(answers: Iterable[Answer]) -> str:
    shapes = [*answers]
    blocks, sizes = ends((a.blocks for a in shapes), str), ends((a.block_bytes for a in shapes), size_text)
    ways = " and ".join(dict.fromkeys(answer.direction.value for answer in shapes))
    return f"{_sizes_and_counts(len(shapes))}: {ways}, {blocks} blocks of {sizes}"


def _sizes_and_counts(number: int) -> str:
    return "1 size and count" if number == 1 else f"{number} sizes and counts"
