"""Rules: statements about one run, mostly as ratios within it, and the strict form in which they are written.

    [QUANTITY of] CELLS >= [FACTOR *] ceiling | CELLS   [at CONDITIONS]    (or <=)
    QUANTITY of CELLS >= NUMBER                         [at CONDITIONS]    (or <=)
    no cliff higher than FACTOR in CELLS
    crossover BACKEND/BACKEND [CONDITIONS] between SIZE and SIZE

CELLS is a backend and conditions: `sm h2d 4KiB x 10000 @ 4 SMs`, or `sm h2d at 4KiB`. CONDITIONS are h2d, d2h, idle,
busy, a block size (16KiB), a number of blocks (N=10000), both (16KiB x 10000), SMs (@ 4 SMs), or AXIS=VALUE.
`batched primed` is another name of the backend `primed`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kvbench.analysis.curves import MIN_HEIGHT
from kvbench.cells.axis import AxisValue
from kvbench.cells.cell import AXES, Cell
from kvbench.errors import UsageError, brief
from kvbench.gate.outcomes import QUANTITIES
from kvbench.units import format_size, parse_size

Sign = Literal[">=", "<="]
CEILING: Final = "ceiling"
_DEFAULT_QUANTITY: Final = "gbps"
_LONGEST: Final = 300
_NUMBER: Final = re.compile(r"\d{1,9}(?:\.\d{1,9})?")
_SIZE: Final = re.compile(r"\d+(?:\.\d+)?(?:[KMG]i?)?B")
_WORDS: Final = {
    word: axis
    for axis, words in {"direction": ("h2d", "d2h"), "stream_state": ("idle", "busy")}.items()
    for word in words
}
_FORMS: Final = (
    "write CELLS >= FACTOR * ceiling, CELLS >= FACTOR * CELLS, QUANTITY of CELLS <= NUMBER, "
    "no cliff higher than FACTOR in CELLS, or crossover A/B CONDITIONS between SIZE and SIZE"
)


@dataclass(frozen=True, slots=True)
class Conditions:
    """Values that cells must have on some axes, in the order of the axes."""

    values: tuple[tuple[str, AxisValue], ...] = ()

    def __str__(self) -> str:
        texts = {name: AXES[name].write(value) for name, value in self.values}
        size, blocks = texts.get("block_size"), texts.get("blocks")
        parts = [texts.get("direction"), texts.get("stream_state"), f"{size} x {blocks}" if size and blocks else size]
        parts += [None if blocks is None or size else f"N={blocks}"]
        parts += [f"@ {texts['sms']} SMs" if "sms" in texts else None]
        own = ("direction", "stream_state", "block_size", "blocks", "sms")
        return " ".join(filter(None, [*parts, *(f"{name}={text}" for name, text in texts.items() if name not in own)]))

    @property
    def axes(self) -> frozenset[str]:
        """The names of the axes that these conditions set."""
        return frozenset(name for name, _ in self.values)

    def hold(self, cell: Cell) -> bool:
        """Tell whether `cell` has these values."""
        return all(getattr(cell, AXES[name].field) == value for name, value in self.values)

    def joined(self, other: "Conditions") -> "Conditions":
        """Return both conditions together; raises UsageError where they speak of the same axis."""
        twice = self.axes & other.axes
        if twice:
            raise UsageError(f"{', '.join(sorted(twice))} is set twice")
        return _conditions_of(dict(self.values) | dict(other.values))


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a backend that meet conditions."""

    backend: str
    conditions: Conditions = Conditions()

    def __str__(self) -> str:
        return f"{self.backend} {self.conditions}".rstrip()

    def hold(self, cell: Cell) -> bool:
        """Tell whether `cell` is one of them."""
        return cell.backend == self.backend and self.conditions.hold(cell)


@dataclass(frozen=True, slots=True)
class Bound:
    """`quantity` of every one of `cells` against `factor` times that of its partner; alone if `against` is None.

    `against` is `CEILING` (of the cell's direction), or cells: those with the same values on every axis that they leave
    open.
    """

    quantity: str
    cells: Cells
    sign: Sign
    factor: float
    against: Cells | Literal["ceiling"] | None

    def __str__(self) -> str:
        quantity = "" if self.quantity == _DEFAULT_QUANTITY and self.against is not None else f"{self.quantity} of "
        factor = _number(self.factor)
        return f"{quantity}{self.cells} {self.sign} {factor if self.against is None else f'{factor} * {self.against}'}"


@dataclass(frozen=True, slots=True)
class NoCliff:
    """No curve of `cells` has a cliff higher than `height`."""

    height: float
    cells: Cells

    def __str__(self) -> str:
        return f"no cliff higher than {_number(self.height)}x in {self.cells}"


@dataclass(frozen=True, slots=True)
class CrossoverBetween:
    """The faster of two backends changes, and only between these two block sizes."""

    one: str
    other: str
    conditions: Conditions
    low_bytes: int
    high_bytes: int

    def __str__(self) -> str:
        head = f"crossover {self.one}/{self.other} {self.conditions}".rstrip()
        return f"{head} between {format_size(self.low_bytes)} and {format_size(self.high_bytes)}"


Rule = Bound | NoCliff | CrossoverBetween


def parse_rule(text: str) -> Rule:
    """Read one rule as `str` writes it; raises UsageError that names it and says what would be right."""
    words = text.split()
    try:
        if not words or len(text) > _LONGEST or not text.isprintable():
            raise UsageError(_FORMS)
        if words[:4] == ["no", "cliff", "higher", "than"]:
            return _no_cliff(words[4:])
        return _crossover(words[1:]) if words[0] == "crossover" else _bound(words)
    except UsageError as error:
        raise UsageError(f"rule {brief(text)!r}: {error}") from None


def _no_cliff(words: Sequence[str]) -> NoCliff:
    if len(words) < 3 or words[1] != "in":
        raise UsageError("write no cliff higher than FACTOR in CELLS")
    height = _factor(words[0].removesuffix("x"))
    if height < MIN_HEIGHT:
        raise UsageError(f"height {brief(words[0])}: what is lower than {MIN_HEIGHT} is no cliff")
    return NoCliff(height, _cells(*_split_at(words[2:])))


def _crossover(words: Sequence[str]) -> CrossoverBetween:
    if len(words) < 5 or words[-4] != "between" or words[-2] != "and":
        raise UsageError("write crossover A/B CONDITIONS between SIZE and SIZE")
    one, slash, other = words[0].partition("/")
    if not (one and slash and other) or one == other:
        raise UsageError(f"{brief(words[0])!r} is not two backends, as in batched/sm")
    before, after = _split_at(words[1:-4])
    conditions = _conditions(before).joined(after)
    if "block_size" in conditions.axes:
        raise UsageError("a crossover is found over block sizes; leave the block size out before between")
    low_bytes, high_bytes = (_size_bytes(words[place]) for place in (-3, -1))
    if low_bytes >= high_bytes:
        raise UsageError(f"between {words[-3]} and {words[-1]}: the smaller size comes first")
    return CrossoverBetween(_backend(one), _backend(other), conditions, low_bytes, high_bytes)


def _bound(words: Sequence[str]) -> Bound:
    signs = [place for place, word in enumerate(words) if word in (">=", "<=")]
    if len(signs) != 1:
        raise UsageError(_FORMS)
    left = words[: signs[0]]
    sign: Sign = ">=" if words[signs[0]] == ">=" else "<="
    quantity = None
    if len(left) > 2 and left[1] == "of":
        quantity, left = left[0], left[2:]
        if quantity not in QUANTITIES:
            raise UsageError(f"{brief(quantity)!r} is no quantity; there are {', '.join(QUANTITIES)}")
    right, both = _split_at(words[signs[0] + 1 :])
    factor = 1.0
    if right and right[0][0].isdecimal():
        factor = _factor(right[0])
        if len(right) == 1:
            if quantity is None:
                raise UsageError("a number alone needs a quantity: write gbps of CELLS, or FACTOR * ceiling")
            return Bound(quantity, _cells(left, both), sign, factor, None)
        if right[1] != "*":
            raise UsageError(f"{brief(right[1])!r} follows the number {right[0]}; write {right[0]} * CELLS")
        right = right[2:]
    if list(right) == [CEILING]:
        if quantity not in (None, _DEFAULT_QUANTITY):
            raise UsageError(f"the ceiling is GB/s and {quantity} is not; leave out {quantity} of")
        return Bound(_DEFAULT_QUANTITY, _cells(left, both), sign, factor, CEILING)
    return Bound(quantity or _DEFAULT_QUANTITY, _cells(left, both), sign, factor, _cells(right, both))


def _split_at(words: Sequence[str]) -> tuple[Sequence[str], Conditions]:
    """Return the words before `at`, and the conditions that follow it."""
    if "at" not in words:
        return words, Conditions()
    place = words.index("at")
    after = _conditions(words[place + 1 :])
    if not after.values:
        raise UsageError("nothing follows at; write conditions, for example at 16KiB x 10000")
    return words[:place], after


def _cells(words: Sequence[str], more: Conditions) -> Cells:
    if not words:
        raise UsageError("cells are missing: write a backend and conditions, for example sm h2d 4KiB")
    if list(words[:2]) == ["batched", "primed"]:
        words = words[1:]
    return Cells(_backend(words[0]), _conditions(words[1:]).joined(more))


def _backend(word: str) -> str:
    if word in _WORDS or word == CEILING:
        raise UsageError(f"{word!r} stands where a backend's name belongs")
    return str(AXES["backend"].parse_one(word))


def _conditions(words: Sequence[str]) -> Conditions:
    found: dict[str, AxisValue] = {}

    def put(axis: str, value: str) -> None:
        if axis in found:
            raise UsageError(f"{axis} is set twice")
        found[axis] = AXES[axis].parse_one(value)

    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if word in _WORDS:
            put(_WORDS[word], word)
        elif word == "@":
            if len(left) < 2 or left[1] not in ("SM", "SMs") or not left[0].isdecimal() or left[0] == "0":
                raise UsageError("write SMs as @ 4 SMs")
            put("sms", left[0])
            del left[:2]
        elif _SIZE.fullmatch(word):
            put("block_size", word)
            if left[:1] == ["x"]:
                put("blocks", left[1] if len(left) > 1 else "")
                del left[:2]
        elif equals and name == "N":
            put("blocks", value)
        elif equals and name in AXES and name != "backend":
            if (name, value) == ("sms", "all"):
                raise UsageError("cells hold the number of SMs, never 'all'; write the number")
            put(name, value)
        else:
            raise UsageError(
                f"{brief(word)!r} is no condition; write h2d, d2h, idle, busy, 16KiB, 16KiB x 10000, N=10000, @ 4 SMs "
                "or AXIS=VALUE"
            )
    return _conditions_of(found)


def _conditions_of(values: Mapping[str, AxisValue]) -> Conditions:
    return Conditions(tuple((name, values[name]) for name in AXES if name in values))


def _size_bytes(word: str) -> int:
    try:
        return parse_size(word)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _factor(word: str) -> float:
    if not _NUMBER.fullmatch(word) or not 0 < float(word) < math.inf:
        raise UsageError(f"{brief(word)!r} is no number above 0, such as 0.85")
    return float(word)


def _number(value: float) -> str:
    return f"{value:.9f}".rstrip("0").rstrip(".")
