"""Settings of serving engines, from cells of each engine's own code, as a diff against its defaults."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby, product
from operator import ne
from statistics import geometric_mean
from typing import Final, NamedTuple

from kvbench.analysis.margins import KNEE, TIED
from kvbench.cells.axes import Neighbour, Situation, StreamState
from kvbench.cells.facts import EngineSetting
from kvbench.cells.installed import Engine, Values, engines
from kvbench.cells.units import size_text
from kvbench.ground.errors import UsageError
from kvbench.ground.text import counted, range_text, wrapped
from kvbench.results import Run
from kvbench.tune.advice import taken
from kvbench.tune.candidates import Arm, Measured, fastest
from kvbench.tune.evidence import measured_beside, origin_of, shapes_of
from kvbench.tune.situations import Method

_LEAST_SHAPES: Final = 10
_OFFERED_FROM: Final = 0.9  # share of the shapes at which an SM count must have been measured
# Of a comment, without its mark.
_COLUMNS: Final = 118


# Times of one choice divided by those of another, shape by shape.
Ratios = Sequence[float]


def _mean_loss(ratios: Ratios) -> float:
    return geometric_mean(ratios) - 1


def _worst_loss(ratios: Ratios) -> float:
    return max(ratios) - 1


def _gain_text(ratios: Ratios) -> str:
    mean, worst = _mean_loss(ratios), _worst_loss(ratios)
    at_worst = f"at worst loses {worst:.0%}" if worst >= 0.005 else "loses nowhere"
    on_average = f"{'gains' if mean <= 0 else 'loses'} {abs(mean):.0%} on average"
    return f"{on_average} at {counted(len(ratios), 'shape')}, {at_worst}"


class Change(NamedTuple):
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


class Export(NamedTuple):
    """The settings of an engine that should change or stay, what was measured (`about`), and what more SMs cost."""

    about: Sequence[str]
    changes: Sequence[Change]
    notes: Sequence[str]
    kept: Sequence[EngineSetting]
    cost: str

    def line(self) -> str:
        """In one line: "Engine: package==1.2 (...): SETTING 12 to 48: gains ...; keep OTHER=28672; beside ..."."""
        keep = ", ".join(f"{setting.name}={setting.default}" for setting in self.kept)
        parts = [*self._gains(), keep and f"keep {keep}", self.cost.partition(":")[0]]
        return f"{self.about[0]}: {'; '.join(filter(None, parts))}"

    def _gains(self) -> Iterator[str]:
        for change in self.changes:
            yield f"{change.setting.name} {change.setting.default} to {change.value}: {change.gain}"

    def text(self) -> str:
        """A diff that `patch -p1` and `git apply --unidiff-zero` take; the rest are comments."""
        notes = filter(None, [*self.notes, self.cost, "" if self.changes else "nothing to change"])
        texts = (*self.about, "", *self._gains(), *notes, "")
        lines = [f"# {line}" if line else "" for text in texts for line in wrapped(text, _COLUMNS).split("\n")]
        in_order = sorted(self.changes, key=lambda change: change.place)
        for file, changes in groupby(in_order, key=lambda change: change.place[0]):
            lines += [f"--- a/{file}", f"+++ b/{file}", *chain.from_iterable(change.hunk() for change in changes)]
        return "\n".join(lines).rstrip() + "\n"


def export(name: str, runs: Sequence[Run]) -> Export:
    """The settings of the engine `name`; raises UsageError without enough cells of its own code."""
    measured, engine = shapes_of(runs, lambda _: True), engines()[name]
    package, settings = _recorded(name, engine, runs)
    defaults = tuple(setting.default for setting in settings)
    by_state = _by_state(engine, measured, defaults)
    if not by_state or len(by_state[0].measured) < _LEAST_SHAPES:
        raise _needs(name, engine, f"at {_LEAST_SHAPES} shapes, each with {settings[0].name}={defaults[0]} and others")
    shapes = by_state[0]
    beside = _beside_decode(runs, engine)
    values = shapes.fit([tried for tried in shapes.tried if _is_safe(shapes, beside, tried)])
    changes, kept = [], []
    for index, (setting, value) in enumerate(zip(settings, values, strict=True)):
        if value == setting.default:
            kept.append(setting)
        else:
            without = (*values[:index], setting.default, *values[index + 1 :])
            changes.append(Change(setting, value, _gain_text(shapes.ratios(without, values))))
    origin = origin_of(runs)
    about = [
        f"{engine.title}: {package}",
        f"{origin.workload_text}; {_extent(shapes.measured)}, {shapes.state} stream",
        origin.machine_text,
    ]
    notes = [*filter(None, [engine.remark]), *_left_out(shapes, beside, values), *_notes(by_state, values)]
    cost = _cost_text(beside[values[0]]) if changes and values[0] in beside else ""
    return Export(about, changes, notes, kept, cost)


def _notes(by_state: Sequence["_Shapes"], values: Values) -> Iterator[str]:
    """Yield what was compared, what the settings lose, and which are the best in other stream states."""
    shapes, *others = by_state
    names = shapes.engine.settings
    if values[0] == max(shapes.counts):
        yield f"{names[0]}={values[0]} is the largest count that was measured; larger ones may gain"
    yield f"{shapes.state} stream; SM counts compared: {', '.join(map(str, shapes.counts))}"
    for other in others:
        best = other.fit(other.tried)
        named = ", ".join(f"{name}={value}" for name, value in zip(names, best, strict=True))
        yield f"{other.state} stream ({counted(len(other.measured), 'shape')}): {named}"
        if {shapes.state, other.state} == {StreamState.GATED, StreamState.OPENED}:
            yield _share_text(shapes, other, values, best)
    yield f"{shapes.state} stream; against the free choice: {_loss_text(shapes, values)}"


def _beside_decode(runs: Sequence[Run], engine: Engine) -> Mapping[int, Arm]:
    """What the engine's own methods cost a decode step beside them, by SM count; that of its copies is 0."""
    measured = measured_beside(runs, lambda choice: choice.backend in engine.backends)
    arms: dict[int, Arm] = {}
    for direction in engine.directions:
        arms |= {arm.choice.sms: arm for arm in measured.get((direction, Situation.DECODE), ())}
    return arms


def _is_safe(shapes: "_Shapes", beside: Mapping[int, Arm], values: Values) -> bool:
    """Whether a patch may set these values: what they cost a decode step was measured, and no shape loses by them."""
    defaults = shapes.defaults
    measured = values[0] in beside and (values[1:] == defaults[1:] or 0 in beside)
    return values == defaults or (measured and _worst_loss(shapes.ratios(defaults, values)) <= TIED.fraction)


def _left_out(shapes: "_Shapes", beside: Mapping[int, Arm], values: Values) -> Iterator[str]:
    """Yield why a patch does not set what would be the fastest on average, and which sweep is missing."""
    best = shapes.fit(shapes.tried)
    if best == values:
        return
    engine = shapes.engine
    three = zip(engine.settings, best, values, strict=True)
    changed = [f"{name}={best_value}" for name, best_value, value in three if best_value != value]
    yield f"not in the patch: {', '.join(changed)} {_gain_text(shapes.ratios(values, best))}"
    # The settings after the first decide where the engine's copies, without SMs, replace its kernel.
    needed = [best[0], *([0] if best[1:] != shapes.defaults[1:] else [])]
    missing = [count for count in needed if count not in beside]
    if missing:
        copies = [name for name in engine.backends if name != engine.kernel]
        backends = ",".join([engine.kernel, *(copies[:1] if 0 in missing else [])])
        counts = f" -a sms={best[0]}" if best[0] in missing else ""
        yield (
            f"what that costs a decode step was not measured: kvbench sweep beside -a backend={backends}{counts} "
            f"-a neighbour={Neighbour.DECODE}, and give that run too"
        )


def _cost_text(arm: Arm) -> str:
    """Say what a decode step loses beside swaps by a method."""
    method = Method.beside_step(arm)
    assert method.slowdown is not None
    assert method.lost_ms_per_gb is not None
    return (
        f"beside swaps by {method.choice.label} a decode step takes {method.slowdown[0] - 1:.0%} longer and loses "
        f"{method.lost_ms_per_gb[0]:.2f} ms for each GB"
    )


class _Shapes(NamedTuple):
    """The shapes on a stream in one state at which every candidate was measured, the SM counts, and all values of the
    settings compared.
    """

    engine: Engine
    defaults: Values
    state: StreamState
    measured: Sequence[Measured]
    counts: Sequence[int]
    tried: Sequence[Values]

    def us_of(self, measured: Measured, values: Values) -> float:
        return measured.us_of(taken(self.engine, measured, values))

    def fit(self, tried: Sequence[Values]) -> Values:
        """The values with the fewest changes among those whose mean time is within `KNEE` of the best."""
        ordered = sorted(tried, key=lambda values: (sum(map(ne, values, self.defaults)), values))
        means = [geometric_mean(self.us_of(measured, values) for measured in self.measured) for values in ordered]
        limit = min(means) * (1 + KNEE.fraction)
        return next(values for values, mean in zip(ordered, means, strict=True) if mean <= limit)

    def ratios(self, before: Values, after: Values) -> Ratios:
        """The times with `after` over those with `before`, at the shapes where they differ in what they choose."""
        ratios = [
            self.us_of(measured, after) / self.us_of(measured, before)
            for measured in self.measured
            if taken(self.engine, measured, before) != taken(self.engine, measured, after)
        ]
        return ratios or [1.0]


def _recorded(name: str, engine: Engine, runs: Sequence[Run]) -> tuple[str, Sequence[EngineSetting]]:
    """The engine's package and its settings as the runs recorded them; raises UsageError."""
    by_package: dict[str, dict[str, EngineSetting]] = {}
    for facts in chain.from_iterable(run.info.backends for run in runs):
        if facts.name == engine.kernel and facts.settings:
            by_package[facts.package] = {setting.name: setting for setting in facts.settings}
    if len(by_package) > 1:
        raise UsageError(f"{name}: the runs measured different code: {' and '.join(sorted(by_package))}")
    for package, settings in by_package.items():
        if set(engine.settings) <= settings.keys():
            return package, [settings[setting] for setting in engine.settings]
    raise _needs(name, engine, "and what its package says")


def _needs(name: str, engine: Engine, what: str) -> UsageError:
    backends = " and ".join(engine.backends)
    return UsageError(
        f"{name}: the settings require cells of {engine.title}'s own code ({backends}) {what}; "
        f"measure them: kvbench tune engine {name}"
    )


def _by_state(engine: Engine, measured: Sequence[Measured], defaults: Values) -> list[_Shapes]:
    """The shapes with all candidates by stream state, that in which the engine's swaps begin first."""
    order = [*engine.states, *sorted(StreamState)]
    of_engine = [swaps for swaps in measured if swaps.shape.direction in engine.directions]
    of_engine.sort(key=lambda swaps: order.index(swaps.shape.stream_state))
    by_state = groupby(of_engine, key=lambda swaps: swaps.shape.stream_state)
    return [*filter(None, (_shapes(engine, [*shapes], defaults) for _, shapes in by_state))]


def _shapes(engine: Engine, measured: Sequence[Measured], defaults: Values) -> _Shapes | None:
    """The shapes with all candidates, or None if there are none."""
    counts = {swaps: {choice.sms for choice in swaps.methods if choice.backend == engine.kernel} for swaps in measured}
    with_kernel = [swaps for swaps in measured if any(counts[swaps])]
    numbers = Counter(chain.from_iterable(counts.values()))
    offered = sorted(count for count in filter(None, numbers) if numbers[count] >= _OFFERED_FROM * len(with_kernel))
    if defaults[0] not in offered:
        return None
    sizes = sorted({swaps.shape.block_bytes for swaps in with_kernel})
    blocks = sorted({swaps.shape.blocks for swaps in with_kernel})
    tried = [*product(offered, *engine.tries(sizes, blocks, defaults))]
    complete = [
        swaps
        for swaps in with_kernel
        if counts[swaps] >= set(offered) and all(taken(engine, swaps, values) in swaps.methods for values in tried)
    ]
    return _Shapes(engine, defaults, measured[0].shape.stream_state, complete, offered, tried) if complete else None


def _loss_text(shapes: _Shapes, values: Values) -> str:
    """Say what the settings lose against the fastest method of each shape."""

    def ratio(measured: Measured) -> float:
        return shapes.us_of(measured, values) / measured.us_of(fastest(measured.arms))

    ratios, worst = [*map(ratio, shapes.measured)], max(shapes.measured, key=ratio)
    if _worst_loss(ratios) <= TIED.fraction:
        return f"within {TIED.fraction:.0%} of it at all shapes"
    shape = f"{worst.shape.direction}, {worst.shape.size_text}, {fastest(worst.arms).label}"
    return f"takes {_mean_loss(ratios):z.0%} more time on average, at worst {_worst_loss(ratios):.0%} ({shape})"


def break_even(gated_loss: float, opened_loss: float) -> float:
    """The share of loads that must find the gate closed for the settings of gated streams to be the better.

    `gated_loss` is what the settings of opened streams lose on gated ones, `opened_loss` what the settings of gated
    streams lose on opened ones, both as fractions of the time; a negative loss counts as none.
    """
    gated, opened = max(gated_loss, 0.0), max(opened_loss, 0.0)
    return opened / (gated + opened) if gated + opened else 0.0


def _share_text(gated: _Shapes, opened: _Shapes, gated_best: Values, opened_best: Values) -> str:
    if gated_best == opened_best:
        return "the settings are the same whether a load finds the gate closed or open"
    gated_loss = _mean_loss(gated.ratios(gated_best, opened_best))
    share = break_even(gated_loss, _mean_loss(opened.ratios(opened_best, gated_best)))
    return f"these settings are right if more than {share:.0%} of the loads find the gate closed"


def _extent(measured: Sequence[Measured]) -> str:
    shapes = [swaps.shape for swaps in measured]
    blocks = range_text((shape.blocks for shape in shapes), str)
    sizes = range_text((shape.block_bytes for shape in shapes), size_text)
    directions = " and ".join(dict.fromkeys(shape.direction.value for shape in shapes))
    return f"{counted(len(shapes), 'shape')}: {directions}, {blocks} blocks of {sizes}"
