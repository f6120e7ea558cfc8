"""Filters select cells of a sweep, for example `--filter "block_size<=24KiB,backend=per_block|batched"`."""

import math
import operator
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kvbench.cells.axes import Axis, AxisValue, size
from kvbench.cells.cell import AXES, Cell
from kvbench.cells.units import parse_size
from kvbench.ground.errors import UsageError
from kvbench.ground.text import hint, located, quoted

# Bytes per swap: blocks x block size.
SWAP_BYTES: Final = Axis("2GiB", parse_size, size, ranged=True, name="swap_bytes", field="swap_bytes")
_FILTERED: Final[dict[str, Axis]] = {**AXES, SWAP_BYTES.name: SWAP_BYTES}
_COMPARISONS: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
# What axes write where there is no limit, which counts as more than any number.
_WITHOUT_LIMIT: Final = "all"
_CONDITION: Final = re.compile(r"([A-Za-z_]+)\s*(!=|<=|>=|=|<|>)\s*([^=<>!].*)")
_GRAMMAR: Final = "write axis OP value with OP one of = != < <= > >=, for example block_size<=24KiB"


@dataclass(frozen=True, slots=True)
class Filter:
    """One condition on a cell: the value on `axis` compared with `values` (several only for `=` and `!=`).

    `axis` is the name of an axis or `swap_bytes`. A cell without a value on the axis meets only `!=`.
    """

    axis: str
    operator: str
    values: tuple[AxisValue, ...]

    def __str__(self) -> str:
        axis = _FILTERED[self.axis]
        return f"{self.axis}{self.operator}{'|'.join(axis.write(value) for value in self.values)}"

    @classmethod
    def parse(cls, text: str) -> "Filter":
        """Read one condition in the form that `str` writes; raises UsageError."""
        with located(f"filter {quoted(text)}"):
            match = _CONDITION.fullmatch(text.strip())
            if match is None:
                raise UsageError(_GRAMMAR)
            name, sign, alternatives = match.groups()
            axis = _FILTERED.get(name)
            if axis is None:
                raise UsageError(f"unknown axis {quoted(name)}; {hint(name, _FILTERED)}")
            if sign in _COMPARISONS and not axis.ranged:
                raise UsageError(f"axis {name} has no order; compare it with = or !=")
            if sign in _COMPARISONS and "|" in alternatives:
                raise UsageError("alternatives with | require = or !=")
            values = tuple(dict.fromkeys(axis.parse_one(item.strip()) for item in alternatives.split("|")))
            if name == "sms" and 0 in values:
                raise UsageError("a cell has a number of SMs, not all; write the number")
        return cls(name, sign, values)

    def holds(self, cell: Cell) -> bool:
        value = getattr(cell, _FILTERED[self.axis].field)
        if self.operator == "=":
            return value in self.values
        if self.operator == "!=":
            return value not in self.values
        if value is None:
            return False
        return bool(_COMPARISONS[self.operator](self._size(value), self._size(self.values[0])))

    def values_text(self, cells: Iterable[Cell]) -> str:
        """The values that the condition met, at most four: "64MiB, 256MiB"."""
        axis = _FILTERED[self.axis]
        values = dict.fromkeys(getattr(cell, axis.field) for cell in cells)
        texts = ["no value" if value is None else axis.write(value) for value in values]
        return f"{', '.join(texts[:4])}{', ...' if len(texts) > 4 else ''}"

    def _size(self, value: AxisValue) -> float:
        number = int(str(value))
        return math.inf if _FILTERED[self.axis].write(number) == _WITHOUT_LIMIT else number


def refusal(filters: Sequence[Filter], cells: Collection[Cell]) -> str:
    """Why none of `cells` meets all `filters`: the first that none meets, and what it met."""
    for condition in filters:
        if not any(map(condition.holds, cells)):
            return f"no cell meets the filter {condition}: {condition.axis} is {condition.values_text(cells)}"
    return f"no cell meets all of the filters {', '.join(map(str, filters))}"


def parse_filters(text: str) -> tuple[Filter, ...]:
    """Read the comma-separated conditions of one `--filter`; raises UsageError."""
    return tuple(Filter.parse(item) for item in text.split(","))
