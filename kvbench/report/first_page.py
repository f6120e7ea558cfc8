"""The answer on top of a report: what to use each way, the cliff, the limits of this machine, and how sure that is."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from statistics import median, mode
from typing import Final

from kvbench.analysis.margins import KNEE
from kvbench.cells.axes import Direction
from kvbench.errors import UsageError
from kvbench.report.model import Chapter, Strong, Text, spans
from kvbench.report.numbers import bytes_size, count, faster_words, noun
from kvbench.report.view import View
from kvbench.text import ends
from kvbench.tune.answer import Answer, answers_of, by_kind, words_of, workload_words
from kvbench.tune.fit import sms_of
from kvbench.units import two_digits

_USUAL: Final = ("batched", "per_block")


def box(views: Sequence[View], chapters: Sequence[Chapter]) -> list[Text]:
    """Return the answer of a report, at most eight lines; of runs of several machines that of the first."""
    first = views[0]
    same = [view for view in views if (view.title, view.driver) == (first.title, first.driver)]
    fullest = max(same, key=lambda view: view.weight)
    if fullest.measured.empty:
        return []
    try:
        answers = answers_of([view.run for view in same], lambda _: True)
    except UsageError:
        answers = []
    workload = workload_words(fullest.measured, bytes_size)
    dates = ends((view.date for view in same), str)
    lines: list[Text] = [(Strong(first.title), f", {first.driver}, {dates}; {workload}")]
    for direction in Direction:
        own = [answer for answer in answers if answer.direction is direction]
        if own:
            _, kind = next(iter(by_kind(own).items()))
            lines.append((Strong(direction.value), f" ({kind[0].state.quantity}): {_use(kind)}"))
            if gains := [text for name in _USUAL if (text := _gain(kind, name))]:
                lines.append((Strong(f"{direction.value} gain"), f" (median): {', '.join(gains)}"))
    for chapter in chapters:
        if (chapter.view.title, chapter.view.driver) != (first.title, first.driver):
            continue
        lines += [(Strong("Cliff"), ": ", *spans(one.text)) for one in chapter.part.told if one.headline]
    if limits := _limits(same, answers):
        lines.append((Strong("Limits"), f": {limits}"))
    lines.append((Strong("How sure"), f": {_sure(same, fullest, answers)}"))
    return lines


def _use(answers: Sequence[Answer]) -> str:
    """Return what to use by block size."""
    sizes = {size: list(own) for size, own in groupby(answers, key=lambda answer: answer.block_bytes)}
    # of few blocks the choice matters less
    usual = {size: mode(words_of(answer.choice) for answer in own[len(own) // 2 :]) for size, own in sizes.items()}
    runs = [(choice, [size for size, _ in run]) for choice, run in groupby(usual.items(), key=lambda item: item[1])]
    parts = []
    for place, (choice, members) in enumerate(runs):
        where = f"from {bytes_size(members[0])}" if place else f"up to {bytes_size(members[-1])}"
        parts.append(choice if len(runs) == 1 else f"{choice} {where}")
    return ", ".join(parts)


def _gain(answers: Iterable[Answer], name: str) -> str:
    gains = [found.ratio for answer in answers if (found := answer.gain_over(answer.best_of(name)))]
    if not gains or two_digits(max(gains)) == "1":
        return ""
    return f"{faster_words(median(gains))} than {name} (up to {faster_words(max(gains)).removesuffix(' faster')})"


def _limits(views: Sequence[View], answers: Sequence[Answer]) -> str:
    """Return what this machine can reach."""
    frame = max(views, key=lambda view: view.weight).measured
    ceilings = {str(way): float(gbps) for way, gbps in frame.groupby("direction")["ceiling_gbps"].first().items()}
    reach = next((roofs for view in views if (roofs := view.run.roofs())), {})
    limits = {way: (one.limit_blocks_per_s or 0.0) / 1e6 for way, one in reach.items()}
    filling = {way.value: _filling(one for one in answers if one.direction is way) or 0 for way in Direction}
    parts = (
        _each_way("ceiling", " GB/s", ceilings),
        _each_way("SM copies", " GB/s", {way: one.sm_gbps for way, one in reach.items()}),
        _each_way("translation limit", " million blocks per second", limits),
        _each_way("SMs to fill the link:", "", filling),
    )
    return "; ".join(filter(None, parts))


def _each_way(name: str, unit: str, values: Mapping[str, float]) -> str:
    """Return the values of both directions, one where they look the same; "" where there is none."""
    known = {way.value: two_digits(values[way.value]) for way in Direction if values.get(way.value, 0.0) > 0}
    if len(set(known.values())) > 1:
        return f"{name} {', '.join(f'{value}{unit} {way}' for way, value in known.items())}"
    return f"{name} {next(iter(known.values()))}{unit}" if known else ""


def _filling(answers: Iterable[Answer]) -> int | None:
    """Return the fewest SMs with which sm comes close to its best, in the swap of most bytes that has a ladder."""
    ladders = [
        (answer.block_bytes * answer.blocks, {sms_of(c): answer.time_of(c) for c in answer.arms if c.backend == "sm"})
        for answer in answers
    ]
    several = [(moved, times) for moved, times in ladders if len(times) > 1]
    if not several:
        return None
    _, times = max(several, key=lambda ladder: ladder[0])
    return min(sms for sms, us in times.items() if us <= min(times.values()) / (1 - KNEE.fraction))


def _sure(views: Sequence[View], fullest: View, answers: Sequence[Answer]) -> str:
    visits = [len(answer.arms[answer.choice]) for answer in answers] or fullest.measured["rounds"].tolist()
    parts = [f"{noun(int(median(visits)), 'visit')} per cell"]
    if answers:
        unsure = sum(bool(answer.open) for answer in answers)
        tied = sum(bool(answer.tied and not answer.open) for answer in answers)
        shapes = noun(len(answers), "shape")
        parts.append(f"the choice is open for {count(unsure)} and tied for {count(tied)} of {shapes}")
    failed = sum(int((view.frame["status"] == "failed").sum()) for view in views)
    parts += [f"{noun(failed, 'cell')} failed"] if failed else []
    return ", ".join(parts)
