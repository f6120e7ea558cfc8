"""A comparison under way: both sides checked, rounds measured in turn, some cells again, all in one folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from kvbench.errors import UsageError
from kvbench.gate.judgement import Judgement
from kvbench.gate.pairing import partners
from kvbench.gate.pairs import check_identity
from kvbench.gate.schedule import A, B, SideName, Turn, folder_of, turns
from kvbench.gate.sides import Build, Side, probe
from kvbench.gate.turn import Preview, Suite, measure, preview
from kvbench.results import Run, load_run

ROUNDS_FOLDER: Final = "rounds"
UNFINISHED: Final = ".unfinished"
OPTIONS: Final[Mapping[SideName, str]] = {A: "--base", B: "--cand"}


class Watcher(Protocol):
    """Who watches the rounds, to show progress."""

    def begins(self, rounds: int, again: int, visits: int, estimate_s: float) -> None:
        """Tell that so many rounds with so many visits in all come next: of `again` cells, of all of them if 0."""
        ...

    def turn(self, turn: Turn, side: Side) -> None:
        """Tell that a turn begins."""
        ...

    def event(self, event: Mapping[str, Any]) -> None:
        """Pass on an event of the sweep under way."""
        ...


@dataclass(frozen=True, slots=True)
class Contest:
    """What is compared: the sides, what each measures, and the faults that are injected (cpu device only).

    `forced` goes on where the sides turn out to be of two kinds of machine.
    """

    sides: Mapping[SideName, Side]
    suite: Suite
    faults: Mapping[SideName, str | None]
    seed: int
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """A contest whose sides were checked: their builds, what each would measure, and who answers to whom (cell ids)."""

    contest: Contest
    builds: Mapping[SideName, Build]
    previews: Mapping[SideName, Preview]
    partners: Mapping[str, str]


def check(contest: Contest) -> Ready:
    """Check both sides without measuring. Raises UsageError where one cannot measure, or no cell has a partner."""
    builds: dict[SideName, Build] = {}
    previews: dict[SideName, Preview] = {}
    for name, side in contest.sides.items():
        if side == contest.sides[A] and A in builds and contest.faults[name] == contest.faults[A]:
            builds[name], previews[name] = builds[A], previews[A]  # one side against itself is asked once
            continue
        builds[name] = probe(OPTIONS[name], side)
        options = contest.suite.options(side, contest.faults[name], None)
        previews[name] = preview(OPTIONS[name], side, options)
    paired = {cell.id: partner.id for cell, partner in partners(previews[A].cells, previews[B].cells).items()}
    if not paired:
        raise UsageError("--base and --cand have no cell in common")
    return Ready(contest, builds, previews, paired)


class Rounds:
    """The rounds measured so far, in `folder`/rounds, and the way to more of them."""

    def __init__(self, ready: Ready, folder: Path, watcher: Watcher) -> None:
        """Make `folder`; raises UsageError unless it is new or empty."""
        self._ready = ready
        self.folder = folder
        self.runs_folder = folder / ROUNDS_FOLDER
        self._watcher = watcher
        self._runs: dict[SideName, list[Run]] = {A: [], B: []}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise UsageError(f"--out {folder} is not empty; choose another folder")
            self.runs_folder.mkdir()
        except OSError as error:
            raise UsageError(f"--out {folder} cannot be made: {error.strerror}") from None

    @property
    def base(self) -> Sequence[Run]:
        """The base's run of every round that both sides have measured."""
        return self._runs[A]

    @property
    def cand(self) -> Sequence[Run]:
        """The candidate's run of every round that both sides have measured."""
        return self._runs[B]

    def measure(self, rounds: int, cells: Sequence[str] | None = None) -> None:
        """Measure `rounds` more rounds, of these cells of the base (ids) and their partners, None for all.

        Raises MismatchError when the first round shows two kinds of machine, TurnError, and KeyboardInterrupt for
        Ctrl-C: a round that lacks a side is left beside the whole ones, under a name that is not theirs.
        """
        contest = self._ready.contest
        wanted = self._wanted(cells)
        options = {
            name: contest.suite.options(side, contest.faults[name], wanted[name])
            for name, side in contest.sides.items()
        }
        first = len(self._runs[A])
        planned = list(turns(first, rounds, contest.seed))
        self._watcher.begins(rounds, len(cells or ()), *self._effort(planned, wanted))
        try:
            for number in range(first, first + rounds):
                for turn in turns(number, 1, contest.seed):
                    self._take(turn, options[turn.side])
                for name in contest.sides:
                    self._runs[name].append(load_run(self.runs_folder / folder_of(number, name)))
                check_identity(self._runs[A][-1:], self._runs[B][-1:], forced=contest.forced)
        finally:
            self._set_aside(len(self._runs[A]))

    def _take(self, turn: Turn, options: Sequence[str]) -> None:
        side = self._ready.contest.sides[turn.side]
        self._watcher.turn(turn, side)
        measure(turn, side, options, self.runs_folder / turn.folder, self._watcher.event)

    def _wanted(self, cells: Sequence[str] | None) -> dict[SideName, list[str] | None]:
        if cells is None:
            return {A: None, B: None}
        partner = self._ready.partners
        known = [cell for cell in cells if cell in partner]
        return {A: known, B: [partner[cell] for cell in known]}

    def _effort(self, planned: Sequence[Turn], wanted: Mapping[SideName, Sequence[str] | None]) -> tuple[int, float]:
        visits, seconds = 0, 0.0
        for turn in planned:
            whole = self._ready.previews[turn.side]
            asked = wanted[turn.side]
            count = len(whole.cells) if asked is None else len(asked)
            visits += count
            seconds += whole.estimate_s * count / len(whole.cells)
        return visits, seconds

    def _set_aside(self, number: int) -> None:
        """Rename the runs of a round that lacks one, so that `rounds/*-a` and `rounds/*-b` match whole rounds alone."""
        for name in (A, B):
            run = self.runs_folder / folder_of(number, name)
            if run.is_dir():
                run.rename(run.with_name(run.name + UNFINISHED))


def compare(rounds: Rounds, count: int, judge: Callable[[Sequence[Run], Sequence[Run]], Judgement]) -> Judgement:
    """Measure `count` rounds, judge, measure what that leaves open `count` times again, and judge once more.

    There is no look in between: whoever stops as soon as a figure pleases finds regressions in noise. Raises what
    `Rounds.measure` and `judge` raise.
    """
    rounds.measure(count)
    judgement = judge(rounds.base, rounds.cand)
    again = [cell.id for cell in judgement.to_measure_again()]
    if not again:
        return judgement
    rounds.measure(count, again)
    return judge(rounds.base, rounds.cand)
