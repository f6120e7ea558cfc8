"""What a run found, in plain sentences: each is worked out from the model of its section, and absent where that is."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvbench.analysis.curves import crossovers
from kvbench.analysis.intervals import Ratio
from kvbench.report import markdown as md
from kvbench.report.contest import BATCHED, a_stream
from kvbench.report.curves import MIN_SIZES, Curve, Curves
from kvbench.report.sections.order import OrderContest, OrderPair
from kvbench.report.sections.threshold import Duels, duel_winners
from kvbench.results.frame import BETWEEN

_OTHER: Final = ""  # stands for the one that batched is held against


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence in Markdown and its evidence: the section's name and title, and the label of the run."""

    text: str
    section: str
    title: str
    run: str


def cliff_sentences(curves: Sequence[Curve]) -> list[str]:
    """Return a sentence for every backend, direction and stream state of which most curves jump at the same sizes."""
    long = [curve for curve in curves if len(curve.x) >= MIN_SIZES]
    found = []
    for (backend, direction, state), group in _grouped(long, "backend", "direction", "state").items():
        jumps = Counter((c.cliff.below_bytes, c.cliff.above_bytes, c.cliff.rises) for c in group if c.cliff)
        if not jumps:
            continue
        (below, above, rises), times = jumps.most_common(1)[0]
        if times * 2 <= len(group):
            continue
        same = [c for c in group if c.cliff and (c.cliff.below_bytes, c.cliff.above_bytes) == (below, above)]
        heights = [c.cliff.height for c in same if c.cliff]
        counts = [c.panel for c in same]
        other = [c for c in long if (c.backend, c.direction) == (backend, direction) and c.state != state]
        none = f"; on {a_stream(other[0].state)} there is none" if other and not any(c.cliff for c in other) else ""
        found.append(
            f"{md.escape(backend)} {direction} on {a_stream(state)} {'jumps up' if rises else 'drops'} between "
            f"{md.bytes_size(below)} and {md.bytes_size(above)}, by {md.TIMES}{_span(heights, md.figure)} "
            f"(N = {_span(counts, md.count)}), {path_words(same)}{none}."
        )
    return found


def path_words(curves: Sequence[Curve]) -> str:
    """Return in Markdown what ran below and above the cliffs of these curves, each of which has one."""
    below, above = (
        " or ".join(sorted({md.escape(_path(curve, side)) for curve in curves})) for side in ("below", "above")
    )
    return f"effective path {below}" if below == above else f"effective path {below} below, {above} above"


def ladder_sentences(curves: Curves) -> list[str]:
    """Return a sentence for every kernel and stream state: from how many SMs on it is within 5% of its best."""
    found = []
    for (backend, state), group in _grouped(curves.curves, "backend", "state").items():
        knees: dict[int, list[str]] = {}
        for curve in group:
            if curve.knee is not None:
                knees.setdefault(curve.knee, []).append(f"{curve.direction} {md.bytes_size(curve.panel)}")
        last = max(curve.x[-1] for curve in group)
        parts = [
            f"{count} SM{'s' * (count > 1)}{' (the most measured)' * (count == last)} for {', '.join(shapes)}"
            for count, shapes in sorted(knees.items())
        ]
        if parts:
            found.append(
                f"{md.escape(backend)} on {a_stream(state)}, N = {md.count(curves.main)}, is within 5% of its best "
                f"from {'; '.join(parts)}."
            )
    return found


def threshold_sentences(duels: Duels) -> list[str]:
    """Return a sentence for every direction and stream state: where the faster of batched and another changes."""
    found = []
    for contest in duels.contests:
        alike: dict[tuple[tuple[int, str | None], ...], list[str]] = {}
        for other, fastest in duel_winners(duels.times(contest)).items():
            winners = ((size, _OTHER if name == other else name) for size, name in fastest.items())
            alike.setdefault(tuple(winners), []).append(md.escape(other))
        parts = [_duel(dict(winners), names) for winners, names in alike.items()]
        if parts:
            found.append(
                f"{contest.direction} on {a_stream(contest.state)}, N = {md.count(duels.blocks)}: {'; '.join(parts)}."
            )
    return found


def order_sentences(contests: Iterable[OrderContest]) -> list[str]:
    """Return a sentence for every backend and stream state: what ANY changes against STREAM, beyond the noise."""
    found = []
    for contest in contests:
        ways = {way: [pair for pair in contest.pairs if pair.direction == way] for way in ("h2d", "d2h")}
        parts = [f"{way} {_order(pairs)}" for way, pairs in ways.items() if pairs]
        head = f"ANY instead of STREAM for {md.escape(contest.backend)} on {a_stream(contest.state)}"
        found.append(f"{head}: {'; '.join(parts)}.")
    return found


def _duel(fastest: Mapping[int, str | None], names: Sequence[str]) -> str:
    """Return what became of batched against each of `names`, which all have these winners."""
    *first_names, last = names
    others = f"{', '.join(first_names)} and {last}" if first_names else last
    decided = [winner for winner in fastest.values() if winner is not None]
    changes = crossovers(fastest)
    if not decided:
        return f"{BATCHED} and {others} are not told apart"
    before = f"{others} {'are' if first_names else 'is'} faster than {BATCHED}"
    if (changes[0].before if changes else decided[0]) == BATCHED:
        before = f"{BATCHED} is faster than {others}"
    if not changes:
        return f"{before} {'at every size' if len(decided) == len(fastest) else 'wherever the noise lets it be told'}"
    after = ", ".join(
        f"{others if change.after == _OTHER else BATCHED} from {md.bytes_size(change.above_bytes)} on"
        for change in changes
    )
    return f"{before} up to {md.bytes_size(changes[0].below_bytes)}, {after}"


def _order(pairs: Sequence[OrderPair]) -> str:
    told = [_changed("GPU time", pairs, "gpu_us"), _changed("host submission", pairs, "submit_us")]
    return " and ".join(told)


def _changed(what: str, pairs: Sequence[OrderPair], time: str) -> str:
    ratios = [change for pair in pairs if isinstance(change := pair.changes[time], Ratio)]
    if not ratios:
        return f"{what} undecided (too few rounds)"
    beyond = [ratio.value - 1 for ratio in ratios if ratio.decided]
    if not beyond:
        return f"{what} within the noise in all {len(ratios)} cells"
    return f"{what} beyond the noise in {len(beyond)} of {len(ratios)} cells ({_span(beyond, _percent)})"


def _grouped(curves: Iterable[Curve], *keys: str) -> dict[tuple[str, ...], list[Curve]]:
    groups: dict[tuple[str, ...], list[Curve]] = {}
    for curve in curves:
        groups.setdefault(tuple(str(getattr(curve, key)) for key in keys), []).append(curve)
    return groups


def _path(curve: Curve, side: str) -> str:
    """Return the path of most visits on that side of a cliff."""
    assert curve.cliff is not None
    size = curve.cliff.below_bytes if side == "below" else curve.cliff.above_bytes
    return str(curve.points["path"].iloc[list(curve.x).index(size)]).partition(BETWEEN)[0]


def _span(values: Sequence[float], show: Callable[[float], str]) -> str:
    ends = dict.fromkeys((show(min(values)), show(max(values))))
    return " to ".join(ends)


def _percent(share: float) -> str:
    return f"{share:+.1%}"
