"""A comparison under way: both sides checked, rounds measured in turn, some cells again, all in one folder."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kvbench.errors import UsageError, brief
from kvbench.gate.judge import Judge
from kvbench.gate.judgement import Judgement
from kvbench.gate.pairs import check_identity, partners
from kvbench.gate.sides import Build, Side, probe, remarks
from kvbench.gate.turns import A, B, SideName, Suite, Turn, TurnPreview, measure, preview, turns
from kvbench.results import Failure, Run, load_run
from kvbench.units import format_duration

ROUNDS_FOLDER: Final = "rounds"
UNFINISHED: Final = ".unfinished"
Say = Callable[[str], None]


class Rounds:
    """Rounds of two sides; `base` and `cand` hold either side's run of every round that both have measured.

    `runs_folder` holds all runs, `notes` are what the reader should know of the sides.
    """

    def __init__(self, base: Side, cand: Side, suite: Suite, folder: Path, say: Say, *, forced: bool = False) -> None:
        """Check both sides without measuring, and make `folder` for all runs; `say` gets a line on whatever goes on.

        `forced` goes on where the sides turn out to be of two kinds of machine. Raises UsageError where a side cannot
        measure, where only one is a backend, where no cell has a partner, and unless `folder` is new or empty.
        """
        if (base.backend is None) != (cand.backend is None):
            raise UsageError(
                f"--base {brief(base.text)} --cand {brief(cand.text)}: a backend is compared with another backend; "
                "name one on either side"
            )
        builds: dict[Side, Build] = {}
        plans: dict[Side, TurnPreview] = {}
        for option, side in (("--base", base), ("--cand", cand)):
            if side not in plans:  # one side against itself is asked once
                builds[side] = probe(option, side)
                plans[side] = preview(option, side, suite.options(side))
        paired = partners(plans[base].cells, plans[cand].cells)
        if not paired:
            raise UsageError("--base and --cand have no cell in common")
        self.notes = remarks(builds[base], builds[cand]) if base.backend == cand.backend else []
        for note in self.notes:
            say(f"note: {note}")
        self.base: list[Run] = []
        self.cand: list[Run] = []
        self._sides = {A: base, B: cand}
        self._plans = {A: plans[base], B: plans[cand]}
        self._partners = {cell.id: partner.id for cell, partner in paired.items()}
        self._suite, self._say, self._forced = suite, say, forced
        self.runs_folder = _make_folder(folder)

    def compare(self, rounds: int, judge: Judge) -> Judgement:
        """Measure `rounds` rounds, judge, measure what that leaves open as many times again, and judge once more.

        There is no look in between: whoever stops as soon as a figure pleases finds regressions in noise. Raises what
        `measure` and `judge` raise.
        """
        self.measure(rounds)
        judgement = judge.judge(self.base, self.cand, self.notes)
        again = [cell.id for cell in judgement.to_measure_again()]
        if again:
            self._say(f"{len(again)} cells cannot be told yet")
            self.measure(rounds, again)
            judgement = judge.judge(self.base, self.cand, self.notes)
        return judgement

    def measure(self, rounds: int, cells: Sequence[str] | None = None) -> None:
        """Measure `rounds` more rounds, of these cells of the base (ids) and their partners, None for all.

        Raises MismatchError when the first round shows two kinds of machine, TurnError, and KeyboardInterrupt for
        Ctrl-C: a round that lacks a side is left beside the whole ones, under a name that is not theirs.
        """
        known = None if cells is None else [cell for cell in cells if cell in self._partners]
        wanted = {A: known, B: None if known is None else [self._partners[cell] for cell in known]}
        options = {name: self._suite.options(side, wanted[name]) for name, side in self._sides.items()}
        progress = _Progress(rounds, [(plan, wanted[name]) for name, plan in self._plans.items()], self._say)
        first = len(self.base)
        try:
            for number in range(first, first + rounds):
                made: dict[SideName, Run] = {}
                for turn in turns(number, self._suite.seed):
                    side, out = self._sides[turn.side], self.runs_folder / turn.folder
                    progress.turn(turn, side)
                    measure(turn, side, options[turn.side], out, progress.visit)
                    made[turn.side] = load_run(out)
                self.base.append(made[A])
                self.cand.append(made[B])
                check_identity(self.base[-1:], self.cand[-1:], forced=self._forced)
        finally:
            self._set_aside(len(self.base))

    def _set_aside(self, number: int) -> None:
        """Rename the runs of a round that lacks one, so that `rounds/*-a` and `rounds/*-b` match whole rounds alone."""
        for turn in turns(number, 0):
            run = self.runs_folder / turn.folder
            if run.is_dir():
                run.rename(run.with_name(run.name + UNFINISHED))


def _make_folder(folder: Path) -> Path:
    runs_folder = folder / ROUNDS_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"--out {folder} is not empty; choose another folder")
        runs_folder.mkdir()
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be made: {error.strerror}") from None
    return runs_folder


class _Progress:
    """A line when rounds begin, one a turn, one for each failure.

    The time left starts as the plan's guess and then follows the visits made.
    """

    def __init__(self, rounds: int, sides: Sequence[tuple[TurnPreview, Sequence[str] | None]], say: Say) -> None:
        counts = [len(plan.cells) if cells is None else len(cells) for plan, cells in sides]
        shares = zip(counts, sides, strict=True)
        self._left_s = rounds * sum(plan.estimate_s * count / len(plan.cells) for count, (plan, _) in shares)
        self._turns, self._turn = 2 * rounds, 0
        self._visits, self._made = rounds * sum(counts), 0
        self._started_s = time.monotonic()
        self._say = say
        say(f"{rounds} rounds of two sides, {self._visits} visits; about {format_duration(self._left_s)}")

    def turn(self, turn: Turn, side: Side) -> None:
        self._turn += 1
        if self._made:
            passed_s = time.monotonic() - self._started_s
            self._left_s = passed_s / self._made * max(self._visits - self._made, 0)
        what = f"round {turn.round}, {'base' if turn.side == A else 'candidate'} {side.text}"
        self._say(f"{self._turn} of {self._turns}: {what}; {format_duration(self._left_s)} left")

    def visit(self, failure: Failure | None) -> None:
        self._made += 1
        if failure is not None:
            self._say(f"FAILED ({failure.kind}) {failure.cell.label}: {failure.message}")
            self._say(f"  again: {failure.command}")
