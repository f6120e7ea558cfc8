"""A comparison under way: both sides checked, rounds measured in turn, some cells again, all in one folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from kvbench.errors import UsageError
from kvbench.gate.judge import Judge
from kvbench.gate.judgement import Judgement
from kvbench.gate.pairs import check_identity, partners
from kvbench.gate.sides import Build, Side, probe
from kvbench.gate.turns import A, B, SideName, Suite, Turn, TurnPreview, measure, preview, turns
from kvbench.results import Failure, Run, load_run

ROUNDS_FOLDER: Final = "rounds"
UNFINISHED: Final = ".unfinished"
_OPTIONS: Final[Mapping[SideName, str]] = {A: "--base", B: "--cand"}


class RoundsWatcher(Protocol):
    """Who watches the rounds, to show progress."""

    def begins(self, rounds: int, again: int, visits: int, estimate_s: float) -> None:
        """Tell that so many rounds with so many visits in all come next: of `again` cells, of all of them if 0."""
        ...

    def turn(self, turn: Turn, side: Side) -> None:
        """Tell that a turn begins."""
        ...

    def visit(self, failure: Failure | None) -> None:
        """Tell that a visit was made, and how it failed if it did."""
        ...


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared: the sides, what each measures, and the faults that are injected (cpu device only).

    `forced` goes on where the sides turn out to be of two kinds of machine.
    """

    sides: Mapping[SideName, Side]
    suite: Suite
    faults: Mapping[SideName, str | None]
    seed: int
    forced: bool = False

    def options(self, name: SideName, cells: Sequence[str] | None = None) -> list[str]:
        """Return the options of a side's sweep, of these cells (ids), None for the whole suite."""
        return self.suite.options(self.sides[name], self.faults[name], cells)


@dataclass(frozen=True, slots=True)
class Ready:
    """A comparison whose sides were checked: their builds, what each would measure, and partners by cell ids."""

    comparison: Comparison
    builds: Mapping[SideName, Build]
    previews: Mapping[SideName, TurnPreview]
    partners: Mapping[str, str]


def check(comparison: Comparison) -> Ready:
    """Check both sides without measuring. Raises UsageError where one cannot measure, or no cell has a partner."""
    builds: dict[SideName, Build] = {}
    previews: dict[SideName, TurnPreview] = {}
    for name, side in comparison.sides.items():
        if A in builds and (side, comparison.faults[name]) == (comparison.sides[A], comparison.faults[A]):
            builds[name], previews[name] = builds[A], previews[A]  # one side against itself is asked once
            continue
        builds[name] = probe(_OPTIONS[name], side)
        previews[name] = preview(_OPTIONS[name], side, comparison.options(name))
    paired = {cell.id: partner.id for cell, partner in partners(previews[A].cells, previews[B].cells).items()}
    if not paired:
        raise UsageError("--base and --cand have no cell in common")
    return Ready(comparison, builds, previews, paired)


class Rounds:
    """The rounds measured so far, in `folder`/rounds, and the way to more of them.

    `base` and `cand` hold either side's run of every round that both have measured.
    """

    def __init__(self, ready: Ready, folder: Path, watcher: RoundsWatcher) -> None:
        """Make `folder`; raises UsageError unless it is new or empty."""
        self._ready = ready
        self._watcher = watcher
        self.folder = folder
        self.runs_folder = folder / ROUNDS_FOLDER
        self.base: list[Run] = []
        self.cand: list[Run] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise UsageError(f"--out {folder} is not empty; choose another folder")
            self.runs_folder.mkdir()
        except OSError as error:
            raise UsageError(f"--out {folder} cannot be made: {error.strerror}") from None

    def measure(self, rounds: int, cells: Sequence[str] | None = None) -> None:
        """Measure `rounds` more rounds, of these cells of the base (ids) and their partners, None for all.

        Raises MismatchError when the first round shows two kinds of machine, TurnError, and KeyboardInterrupt for
        Ctrl-C: a round that lacks a side is left beside the whole ones, under a name that is not theirs.
        """
        comparison = self._ready.comparison
        partner = self._ready.partners
        known = None if cells is None else [cell for cell in cells if cell in partner]
        wanted = {A: known, B: None if known is None else [partner[cell] for cell in known]}
        first = len(self.base)
        visits, seconds = 0, 0.0
        for name, whole in self._ready.previews.items():
            asked = wanted[name]
            count = rounds * (len(whole.cells) if asked is None else len(asked))
            visits += count
            seconds += whole.estimate_s * count / len(whole.cells)
        self._watcher.begins(rounds, len(cells or ()), visits, seconds)
        try:
            for number in range(first, first + rounds):
                made: dict[SideName, Run] = {}
                for turn in turns(number, 1, comparison.seed):
                    side, out = comparison.sides[turn.side], self.runs_folder / turn.folder
                    self._watcher.turn(turn, side)
                    measure(turn, side, comparison.options(turn.side, wanted[turn.side]), out, self._watcher.visit)
                    made[turn.side] = load_run(out)
                self.base.append(made[A])
                self.cand.append(made[B])
                check_identity(self.base[-1:], self.cand[-1:], forced=comparison.forced)
        finally:
            self._set_aside(len(self.base))

    def compare(self, rounds: int, judge: Judge, notes: Sequence[str]) -> Judgement:
        """Measure `rounds` rounds, judge, measure what that leaves open as many times again, and judge once more.

        There is no look in between: whoever stops as soon as a figure pleases finds regressions in noise. Raises what
        `measure` and `judge` raise.
        """
        self.measure(rounds)
        judgement = judge.judge(self.base, self.cand, notes)
        again = [cell.id for cell in judgement.to_measure_again()]
        if not again:
            return judgement
        self.measure(rounds, again)
        return judge.judge(self.base, self.cand, notes)

    def _set_aside(self, number: int) -> None:
        """Rename the runs of a round that lacks one, so that `rounds/*-a` and `rounds/*-b` match whole rounds alone."""
        for turn in turns(number, 1, 0):
            run = self.runs_folder / turn.folder
            if run.is_dir():
                run.rename(run.with_name(run.name + UNFINISHED))
