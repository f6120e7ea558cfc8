"""What runs say of swaps, in lines."""

from collections.abc import Sequence

from kvbench.results import Run
from kvbench.tune.advice import Advice, advise
from kvbench.tune.page import answer_lines, in_lines, lines_of
from kvbench.tune.situations import USUAL, Question


def advice_of(runs: Sequence[Run], question: Question | None = None) -> Advice:
    return advise(runs, question or USUAL)


def summary(runs: Sequence[Run]) -> list[str]:
    """Return the machine, the rows and the lines below them, each unwrapped."""
    advice = advice_of(runs)
    return [*advice.origin.lines, *in_lines(advice), *lines_of(advice), *answer_lines(advice.alone)]
