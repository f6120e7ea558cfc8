"""How the blocks of a swap lie in memory: the values of the axis `pattern`, and the room that each needs."""

import itertools
import re
from dataclasses import dataclass
from typing import Final

from kvbench.cells.facts import pool_rows

_WORDS: Final = ("shuffled", "contiguous", "reversed")
_MAX_TERMS: Final = 16
_TERM: Final = re.compile(r"([1-9]\d{0,5})x([1-9]\d{0,8})")
_RIGHT: Final = (
    "write shuffled, contiguous, reversed or runs-R with R >= 2, tensors-T (blocks in T tensors, the same ids in each) "
    "or tensors-TxK+TxK (T tensors of K ids, then T of K others)"
)


@dataclass(frozen=True, slots=True)
class Tensors:
    """`count` tensors that each hold a block for every one of the same `ids` ids."""

    count: int
    ids: int

    @property
    def blocks(self) -> int:
        """Descriptors that swapping these ids in all tensors takes."""
        return self.count * self.ids


@dataclass(frozen=True, slots=True)
class Pattern:
    """How blocks lie in memory.

    `shuffled`, `contiguous`, `reversed`; `runs-R`: shuffled runs of R neighbours; `tensors-T`: T tensors, each a region
    of its own, with the same scattered ids in all of them; `tensors-TxK+TxK`: several kinds of tensors, T of K ids
    each, as hybrid models have (layers with a sliding window keep fewer blocks). `terms` are the kinds of tensors; the
    one of `tensors-T` has 0 ids, since the number of blocks decides them. A text names one pattern only: neighbouring
    terms differ in K, and a single term has none.
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
        """Read a pattern as `str` writes it; raises ValueError."""
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
        """Return the pattern of these kinds of tensors; neighbouring kinds of equal ids become one."""
        merged = [
            Tensors(sum(kind.count for kind in kinds_of_it), ids)
            for ids, kinds_of_it in itertools.groupby(kinds, key=lambda kind: kind.ids)
        ]
        return cls("tensors", terms=tuple(merged) if len(merged) > 1 else (Tensors(merged[0].count, 0),))

    def tensors(self, blocks: int) -> tuple[Tensors, ...]:
        """Return the kinds of tensors that `blocks` blocks lie in; () for a pattern without tensors.

        `blocks` is one that `unfit` does not object to.
        """
        if len(self.terms) == 1:
            return (Tensors(self.terms[0].count, blocks // self.terms[0].count),)
        return self.terms

    def unfit(self, blocks: int) -> str | None:
        """Return why `blocks` blocks cannot lie so, None when they can."""
        if self.run > blocks:
            return f"{self} needs at least {self.run} blocks"
        if len(self.terms) == 1 and blocks % self.terms[0].count:
            return f"{self} needs a number of blocks that {self.terms[0].count} divides; {blocks} is none"
        total = sum(term.blocks for term in self.terms)
        if len(self.terms) > 1 and total != blocks:
            return f"{self} has {total} blocks, not {blocks}"
        return None

    def pool_rows(self, blocks: int) -> int:
        """Return the rows of a memory pool for swaps of `blocks` blocks; every tensor has spare rows of its own."""
        return sum(kind.count * pool_rows(kind.ids) for kind in self.tensors(blocks)) or pool_rows(blocks)


def _terms(text: str) -> tuple[Tensors, ...]:
    """Return the terms of `TxK+TxK`; () when it is none."""
    matches = [_TERM.fullmatch(term) for term in text.split("+", _MAX_TERMS)]
    terms = tuple(Tensors(int(match[1]), int(match[2])) for match in matches if match)
    apart = all(one.ids != other.ids for one, other in itertools.pairwise(terms))
    return terms if 1 < len(terms) == len(matches) <= _MAX_TERMS and apart else ()


SHUFFLED: Final = Pattern("shuffled")
