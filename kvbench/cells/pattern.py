"""The layout of the blocks of a swap in memory: the values of the axis `pattern`, and the memory that each needs."""

import itertools
import re
from dataclasses import dataclass
from typing import Final

from kvbench.cells.facts import pool_rows

_WORDS: Final = ("shuffled", "contiguous", "reversed")
_MAX_TERMS: Final = 16
_TERM: Final = re.compile(r"([1-9]\d{0,5})x([1-9]\d{0,8})")
_RIGHT: Final = (
    "write shuffled, contiguous, reversed, runs-R with R >= 2, tensors-T (blocks in T tensors, the same ids in each) "
    "or tensors-TxK+TxK (T tensors of K ids each, then T other tensors of K ids each)"
)


@dataclass(frozen=True, slots=True)
class Tensors:
    """`count` tensors, each with one block for each of the same `ids` ids."""

    count: int
    ids: int

    @property
    def blocks(self) -> int:
        """The descriptors of a swap of these ids in all tensors."""
        return self.count * self.ids


@dataclass(frozen=True, slots=True)
class Pattern:
    """The layout of blocks in memory.

    `shuffled`, `contiguous`, `reversed`; `runs-R`: shuffled runs of R adjacent blocks; `tensors-T`: T tensors, each its
    own region, with the same scattered ids in all of them; `tensors-TxK+TxK`: several kinds of tensors, T tensors of K
    ids each, as in hybrid models (layers with a sliding window keep fewer blocks). `terms` are the kinds of tensors;
    the one of `tensors-T` has 0 ids, because the number of blocks determines them. Each pattern has exactly one text:
    consecutive terms differ in K, and a single term has no K.
    """

    kind: str
    run: int = 1
    terms: tuple[Tensors, ...] = ()

    def __str__(self) -> str:
        if self.kind == "runs":
            return f"runs-{self.run}"
        if self.kind == "tensors":
            several = len(self.terms) > 1
            return "tensors-" + "+".join(
                f"{term.count}x{term.ids}" if several else str(term.count) for term in self.terms
            )
        return self.kind

    @classmethod
    def parse(cls, text: str) -> "Pattern":
        """Read a pattern in the form that `str` writes; raises ValueError."""
        if text in _WORDS:
            return cls(text)
        if (match := re.fullmatch(r"runs-(\d{1,6})", text)) and int(match[1]) >= 2:
            return cls("runs", int(match[1]))
        if match := re.fullmatch(r"tensors-([1-9]\d{0,5})", text):
            return cls("tensors", terms=(Tensors(int(match[1]), 0),))
        if text.startswith("tensors-") and (terms := _terms(text.removeprefix("tensors-"))):
            return cls("tensors", terms=terms)
        raise ValueError(f"{text!r} is not a pattern; {_RIGHT}")

    @classmethod
    def of_tensors(cls, *kinds: Tensors) -> "Pattern":
        """Return the pattern of these kinds of tensors; consecutive kinds with equal ids become one."""
        merged = [
            Tensors(sum(kind.count for kind in kinds_of_it), ids)
            for ids, kinds_of_it in itertools.groupby(kinds, key=lambda kind: kind.ids)
        ]
        return cls("tensors", terms=tuple(merged) if len(merged) > 1 else (Tensors(merged[0].count, 0),))

    def tensors(self, blocks: int) -> tuple[Tensors, ...]:
        """Return the kinds of tensors that hold `blocks` blocks; () for a pattern without tensors.

        `blocks` must be valid for the pattern (`unfit` returns None).
        """
        if len(self.terms) == 1:
            return (Tensors(self.terms[0].count, blocks // self.terms[0].count),)
        return self.terms

    def unfit(self, blocks: int) -> str | None:
        """Return why `blocks` blocks cannot have this pattern, or None if they can."""
        if self.run > blocks:
            return f"{self} needs at least {self.run} blocks"
        if len(self.terms) == 1 and blocks % self.terms[0].count:
            return f"{self} needs a multiple of {self.terms[0].count} blocks, not {blocks}"
        total = sum(term.blocks for term in self.terms)
        if len(self.terms) > 1 and total != blocks:
            return f"{self} needs {total} blocks, not {blocks}"
        return None

    def pool_rows(self, blocks: int) -> int:
        """Return the rows of a memory pool for swaps of `blocks` blocks; every tensor has its own spare rows."""
        return sum(kind.count * pool_rows(kind.ids) for kind in self.tensors(blocks)) or pool_rows(blocks)


def _terms(text: str) -> tuple[Tensors, ...]:
    """Return the terms of `TxK+TxK`, or () if `text` has another form."""
    matches = [_TERM.fullmatch(term) for term in text.split("+", _MAX_TERMS)]
    terms = tuple(Tensors(int(match[1]), int(match[2])) for match in matches if match)
    apart = all(one.ids != other.ids for one, other in itertools.pairwise(terms))
    return terms if 1 < len(terms) == len(matches) <= _MAX_TERMS and apart else ()


SHUFFLED: Final = Pattern("shuffled")
