"""Settings of serving engines, from cells of each engine's own code, as a diff against its defaults."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from statistics import geometric_mean
from typing import Final

from kvbench.analysis.margins import KNEE, TIED
from kvbench.cells.axes import Neighbour, Situation, StreamState
from kvbench.cells.facts import EngineSetting
from kvbench.cells.installed import Engine, Values, engines
from kvbench.cells.units import size_text
from kvbench.errors import UsageError
from kvbench.results import Run
from kvbench.text import counted, ends, wrapped
from kvbench.tune.advice import origin_of
from kvbench.tune.answer import taken
from kvbench.tune.candidates import Measured
from kvbench.tune.rule import fastest
from kvbench.tune.situations import Arm, measured_beside
from kvbench.tune.text import machine_text, workload_text

_LEAST_SHAPES: Final = 10
_OFFERED_FROM: Final = 0.9  # share of the shapes at which an SM count must have been measured
# Of a comment, without its mark.
_COLUMNS: Final = 118


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
        worst = f"at worst loses {self.worst:.0%}" if self.worst >= 0.005 else "loses nowhere"
        mean = f"{'gains' if self.mean <= 0 else 'loses'} {abs(self.mean):.0%} on average"
        return f"{mean} at {counted(len(self.ratios), 'shape')}, {worst}"


@dataclass(frozen=True, slots=True)
class Change:
    """A setting whose best value is not its default: what it is, and what it gains with the others as they are."""

    setting: EngineSetting
    value: int
    gain: str

    @property
    def place(self) -> tuple[str, int]:
        file, _, line = self.setting.place.rpartition(":")
        return file, int(line)

    def hunk(self) -> list[str]:
        before = self.setting.line or f"{self.setting.name} = {self.setting.default}"
        after = re.sub(r"=\s*[^#]*?(?=\s*(#|$))", f"= {self.value}", before, count=1)
        return [f"@@ -{self.place[1]} +{self.place[1]} @@", f"-{before}", f"+{after}"]


@dataclass(frozen=True, slots=True)
class Export:
    """The settings of an engine that should change or stay, what was measured (`about`), and what more SMs cost."""

    about: Sequence[str]
    changes: Sequence[Change]
    notes: Sequence[str]
    kept: Sequence[EngineSetting]
    cost: str

    def line(self) -> str:
        """Return "Engine: package==1.2 (...): SETTING 12 to 48: gains ...; keep OTHER=28672; beside swaps ..."."""
        keep = ", ".join(f"{setting.name}={setting.default}" for setting in self.kept)
        parts = [*self._gains(), keep and f"keep {keep}", self.cost.partition(":")[0]]
        return f"{self.about[0]}: {'; '.join(filter(None, parts))}"

    def _gains(self) -> list[str]:
        return [f"{one.setting.name} {one.setting.default} to {one.value}: {one.gain}" for one in self.changes]

    def text(self) -> str:
        """Return the export as a diff that `patch -p1` and `git apply --unidiff-zero` take; the rest are comments."""
        notes = filter(None, [*self.notes, self.cost, "" if self.changes else "nothing to change"])
        texts = (*self.about, "", *self._gains(), *notes, "")
        lines = [f"# {line}" if line else "" for text in texts for line in wrapped(text, _COLUMNS).split("\n")]
        for file, changes in groupby(sorted(self.changes, key=lambda one: one.place), key=lambda one: one.place[0]):
            lines += [f"--- a/{file}", f"+++ b/{file}", *(line for change in changes for line in change.hunk())]
        return "\n".join(lines).rstrip() + "\n"


def export(name: str, runs: Sequence[Run], measured: Sequence[Measured]) -> Export:
    """Return the settings of the engine `name`; raises UsageError without enough cells of its own code."""
    engine = engines()[name]
    package, settings = _recorded(name, engine, runs)
    defaults = tuple(setting.default for setting in settings)

    def rank(state: StreamState) -> tuple[int, str]:
        return (engine.states.index(state) if state in engine.states else len(engine.states)), state

    by_state = {
        state: shapes
        for state in sorted({one.shape.stream_state for one in measured}, key=rank)
        if (shapes := _shapes(engine, [one for one in measured if one.shape.stream_state == state], defaults))
    }
    if not by_state or len(next(iter(by_state.values())).measured) < _LEAST_SHAPES:
        raise _needs(name, engine, f"at {_LEAST_SHAPES} shapes, each with {settings[0].name}={defaults[0]} and others")
    (state, shapes), *others = by_state.items()
    beside = _beside_decode(runs, engine)
    values = _fit(shapes, defaults, [one for one in shapes.tried if _is_safe(shapes, beside, defaults, one)])
    changes = [
        Change(setting, value, _times(shapes, (*values[:index], setting.default, *values[index + 1 :]), values).gain())
        for index, (setting, value) in enumerate(zip(settings, values, strict=True))
        if value != setting.default
    ]
    notes = [engine.remark] * bool(engine.remark)
    notes += _left_out(shapes, beside, defaults, values)
    if values[0] == max(shapes.counts):
        notes.append(f"{settings[0].name}={values[0]} is the largest count that was measured; larger ones may gain")
    notes.append(f"{state} stream; SM counts compared: {', '.join(map(str, shapes.counts))}")
    for other, other_shapes in others:
        best = _fit(other_shapes, defaults, other_shapes.tried)
        named = ", ".join(f"{setting.name}={value}" for setting, value in zip(settings, best, strict=True))
        notes.append(f"{other} stream ({counted(len(other_shapes.measured), 'shape')}): {named}")
        if {state, other} == {StreamState.GATED, StreamState.OPENED}:
            notes.append(_share_text(shapes, other_shapes, values, best))
    notes.append(f"{state} stream; against the free choice: {_loss(shapes, values)}")
    origin = origin_of(runs)
    about = [
        f"{engine.title}: {package}",
        f"{workload_text(origin)}; {_extent(shapes.measured)}, {state} stream",
        machine_text(origin),
    ]
    kept = [setting for setting, value in zip(settings, values, strict=True) if value == setting.default]
    cost = _cost_text(beside[values[0]]) if changes and values[0] in beside else ""
    return Export(about, changes, notes, kept, cost)


def _beside_decode(runs: Sequence[Run], engine: Engine) -> Mapping[int, Arm]:
    """Return what the engine's own methods cost a decode step beside them, by SM count; that of its copies is 0."""
    measured = measured_beside(runs, lambda choice: choice.backend in engine.backends)
    arms: dict[int, Arm] = {}
    for direction in engine.directions:
        arms |= {arm.choice.sms: arm for arm in measured.get((direction, Situation.DECODE), ())}
    return arms


def _is_safe(shapes: "_Shapes", beside: Mapping[int, Arm], defaults: Values, values: Values) -> bool:
    """Whether a patch may set these values: what they cost a decode step was measured, and no shape loses by them."""
    measured = values[0] in beside and (values[1:] == defaults[1:] or 0 in beside)
    return values == defaults or (measured and _times(shapes, defaults, values).worst <= TIED.fraction)


def _left_out(shapes: "_Shapes", beside: Mapping[int, Arm], defaults: Values, values: Values) -> Iterator[str]:
    """Yield why a patch does not set what would be the fastest on average, and which sweep is missing."""
    fastest_values = _fit(shapes, defaults, shapes.tried)
    if fastest_values == values:
        return
    engine, names = shapes.engine, shapes.engine.settings
    three = zip(names, fastest_values, values, strict=True)
    changed = [f"{name}={fastest_value}" for name, fastest_value, value in three if fastest_value != value]
    gain = _times(shapes, values, fastest_values)
    yield f"not in the patch: {', '.join(changed)} {gain.gain()}"
    wanted = [fastest_values[0], *([0] if fastest_values[1:] != defaults[1:] else [])]
    missing = [count for count in wanted if count not in beside]
    if missing:
        copies = [name for name in engine.backends if name != engine.kernel]
        backends = ",".join([engine.kernel, *(copies[:1] if 0 in missing else [])])
        counts = f" -a sms={fastest_values[0]}" if fastest_values[0] in missing else ""
        yield (
            f"what that costs a decode step was not measured: kvbench sweep beside -a backend={backends}{counts} "
            f"-a neighbour={Neighbour.DECODE}, and give that run too"
        )


def _cost_text(arm: Arm) -> str:
    """Say what a decode step loses beside swaps by a method."""
    method = arm.method
    assert method.slowdown is not None
    assert method.lost_ms_per_gb is not None
    return (
        f"beside swaps by {method.choice.label} a decode step takes {method.slowdown[0] - 1:.0%} longer and loses "
        f"{method.lost_ms_per_gb[0]:.2f} ms for each GB"
    )


@dataclass(frozen=True, slots=True)
class _Shapes:
    """The shapes at which every candidate was measured, the SM counts, and all values of the settings compared."""

    engine: Engine
    measured: Sequence[Measured]
    counts: Sequence[int]
    tried: Sequence[Values]

    def time_of(self, one: Measured, values: Values) -> float:
        return one.us_of(taken(self.engine, one, values))


def _recorded(name: str, engine: Engine, runs: Sequence[Run]) -> tuple[str, Sequence[EngineSetting]]:
    """Return the engine's package and its settings as the runs recorded them; raises UsageError."""
    facts = {one.package: one for run in runs for one in run.info.backends if one.name == engine.kernel}
    known = {title: {setting.name: setting for setting in one.settings} for title, one in facts.items() if one.settings}
    if len(known) > 1:
        raise UsageError(f"{name}: the runs measured different code: {' and '.join(sorted(known))}")
    for title, settings in known.items():
        if set(engine.settings) <= settings.keys():
            return title, [settings[one] for one in engine.settings]
    raise _needs(name, engine, "and what its package says")


def _needs(name: str, engine: Engine, what: str) -> UsageError:
    backends = " and ".join(engine.backends)
    return UsageError(
        f"{name}: the settings require cells of {engine.title}'s own code ({backends}) {what}; "
        f"measure them: kvbench tune engine {name}"
    )


def _shapes(engine: Engine, measured: Sequence[Measured], defaults: Values) -> _Shapes | None:
    """Return the shapes with all candidates, or None if there are none."""
    counts = {
        one: {choice.sms for choice in one.every if choice.backend == engine.kernel} - {0}
        for one in measured
        if one.shape.direction in engine.directions
    }
    measured = [one for one, sm_counts in counts.items() if sm_counts]
    shapes = Counter(count for sm_counts in counts.values() for count in sm_counts)
    offered = sorted(count for count, number in shapes.items() if number >= _OFFERED_FROM * len(measured))
    if defaults[0] not in offered:
        return None
    sizes = sorted({one.shape.block_bytes for one in measured})
    numbers = sorted({one.shape.blocks for one in measured})
    tried = [*product(offered, *engine.tries(sizes, numbers, defaults))]
    complete = [
        one
        for one in measured
        if counts[one] >= set(offered) and all(taken(engine, one, values) in one.every for values in tried)
    ]
    return _Shapes(engine, complete, offered, tried) if complete else None


def _fit(shapes: _Shapes, defaults: Values, tried: Sequence[Values]) -> Values:
    """Return the values with the fewest changes among those whose mean time is within `KNEE` of the best."""
    ordered = sorted(tried, key=lambda values: (sum(a != b for a, b in zip(values, defaults, strict=True)), values))
    means = {values: geometric_mean(shapes.time_of(one, values) for one in shapes.measured) for values in ordered}
    enough = min(means.values()) * (1 + KNEE.fraction)
    return next(values for values, mean in means.items() if mean <= enough)


def _times(shapes: _Shapes, before: Values, after: Values) -> _Times:
    """Return the times with `after` over those with `before`, at the shapes where they differ in what they choose."""
    engine = shapes.engine
    differing = [one for one in shapes.measured if taken(engine, one, before) != taken(engine, one, after)]
    return _Times([shapes.time_of(a, after) / shapes.time_of(a, before) for a in differing] or [1.0])


def _loss(shapes: _Shapes, values: Values) -> str:
    ratios = {one: shapes.time_of(one, values) / one.us_of(fastest(one.arms)) for one in shapes.measured}
    lost, worst = _Times([*ratios.values()]), max(ratios, key=lambda one: ratios[one])
    if lost.worst <= TIED.fraction:
        return f"within {TIED.fraction:.0%} of it at all shapes"
    where = f"{worst.shape.direction}, {worst.shape.size_text}, {fastest(worst.arms).label}"
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


def _extent(measured: Iterable[Measured]) -> str:
    shapes = [*measured]
    blocks = ends((one.shape.blocks for one in shapes), str)
    sizes = ends((one.shape.block_bytes for one in shapes), size_text)
    ways = " and ".join(dict.fromkeys(one.shape.direction.value for one in shapes))
    return f"{counted(len(shapes), 'shape')}: {ways}, {blocks} blocks of {sizes}"
