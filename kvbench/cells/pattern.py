"""The layout of the blocks of a swap in memory: the values of the axis `pattern`, and the memory that each needs."""

import itertools
import re
from dataclasses import dataclass, replace
from typing import Final

from kvbench.ground.text import quoted

_PLAIN_ORDERS: Final = ("shuffled", "contiguous", "descending")
_RUNS: Final = re.compile(r"runs-([1-9]\d{0,5})")
_TERM: Final = r"[1-9]\d{0,5}x[1-9]\d{0,8}"
_TERMS: Final = re.compile(rf"tensors-{_TERM}(\+{_TERM}){{1,15}}")
_PAGES: Final = re.compile(
    r"page-first-(?P<pages>(?P<tensors>[1-9]\d{0,5})(x(?P<page>[1-9]\d{0,5}))?)(?P<apart>\+(?P=pages))?"
)
_FRAGMENTS: Final = re.compile(r"fragments-([1-9]\d{0,5})x([1-9]\d{0,3})(?:x([1-9]\d{0,5}))?")
_RIGHT: Final = (
    "write shuffled, contiguous, descending, reversed, runs-R with R >= 2, "
    "tensors-T (blocks in T tensors, the same ids in each), tensors-TxK+TxK (T tensors of K ids each, then T other "
    "tensors of K ids each), page-first-T, page-first-TxC or page-first-T+T, "
    "fragments-FxR or fragments-FxRxT (F fragments a block in rows of R ranks, of T tensors); after tensors and "
    "page-first, /runs-R or another order says how the ids lie"
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

    An order of blocks: `shuffled`, `contiguous`, `descending`, `reversed` (the source descends, the destination
    ascends), or shuffled runs of R adjacent blocks each: `runs-R`.

    Blocks of tensors: `tensors-T` (T tensors, each its own region, with the same ids in all of them);
    `tensors-TxK+TxK` (several kinds of tensors, T tensors of K ids each, as in hybrid models, whose layers with a
    sliding window keep fewer blocks); `page-first-T` (the blocks of one id in all T tensors lie side by side, in a
    page); `page-first-TxC` (a page holds C ids, tensor by tensor); `page-first-T+T` (K and V have a region of pages
    each). The ids are shuffled unless `/` and an order follow: `tensors-64/runs-16`.

    Fragments: `fragments-FxR`, where each descriptor is one of F fragments that one of R ranks has in a page of the
    host. A page has F rows, in each of which the fragments of all ranks lie side by side; `fragments-FxRxT` has such
    pages of T tensors one after the other. On the device the fragments of a page are adjacent (`on_device`).

    `terms` are the kinds of tensors; a single one has 0 ids, because the number of blocks determines them. `page` is
    the number of ids in a page, 0 without pages; `regions` the number of regions of pages; `ranks` the number of ranks
    that share a page; `order` the order of the ids, or of the pages. Each pattern has exactly one text: consecutive
    terms differ in K, and a single term has no K.
    """

    kind: str
    run: int = 1
    terms: tuple[Tensors, ...] = ()
    page: int = 0
    regions: int = 1
    order: "Pattern | None" = None
    ranks: int = 1

    def __str__(self) -> str:
        return f"{self._head}/{self.order}" if self.order else self._head

    @property
    def _head(self) -> str:
        if self.kind == "runs":
            return f"runs-{self.run}"
        if self.kind == "fragments":
            tensors = self.terms[0].count
            return f"fragments-{self.page}x{self.ranks}" + (f"x{tensors}" if tensors > 1 else "")
        if self.page:
            of_region = str(self.terms[0].count // self.regions)
            page = of_region if self.page == 1 else f"{of_region}x{self.page}"
            return "page-first-" + "+".join([page] * self.regions)
        if self.terms:
            many = len(self.terms) > 1
            return "tensors-" + "+".join(f"{term.count}x{term.ids}" if many else str(term.count) for term in self.terms)
        return self.kind

    @classmethod
    def parse(cls, text: str) -> "Pattern":
        """Read a pattern in the form that `str` writes; raises ValueError."""
        if text == "reversed":
            return cls(text)
        head, _, tail = text.partition("/")
        order, tensors = _order(tail or head), _of_tensors(head)
        pattern = replace(tensors, order=order if tail else None) if tensors else order
        ordered = pattern is not None and (pattern.order == SHUFFLED or (tail and pattern.kind == "fragments"))
        if pattern is None or str(pattern) != text or ordered:
            raise ValueError(f"{quoted(text)} is not a pattern; {_RIGHT}")
        return pattern

    @classmethod
    def of_side(cls, text: str) -> "Pattern":
        """Read the pattern of one side, or `pattern`, which leaves it to the axis `pattern`; raises ValueError."""
        if text == "reversed":
            raise ValueError("reversed is of both sides; write descending on one of them")
        return AS_PATTERN if text == AS_PATTERN.kind else cls.parse(text)

    @classmethod
    def of_tensors(cls, *kinds: Tensors) -> "Pattern":
        """The pattern of these kinds of tensors; consecutive kinds with equal ids become one."""
        merged = [
            Tensors(sum(kind.count for kind in kinds_of_it), ids)
            for ids, kinds_of_it in itertools.groupby(kinds, key=lambda kind: kind.ids)
        ]
        return cls("tensors", terms=tuple(merged) if len(merged) > 1 else (Tensors(merged[0].count, 0),))

    @classmethod
    def of_pages(cls, tensors: int, page: int = 1, regions: int = 1) -> "Pattern":
        return cls("page-first", terms=(Tensors(tensors, 0),), page=page, regions=regions)

    @classmethod
    def of_fragments(cls, page: int, ranks: int, tensors: int = 1) -> "Pattern":
        """The pattern of `page` fragments a block in rows of `ranks` ranks, of `tensors` tensors."""
        return cls("fragments", terms=(Tensors(tensors, 0),), page=page, ranks=ranks)

    @property
    def on_device(self) -> "Pattern":
        """The pattern of device memory where this one is of both sides: there, fragments of a block are adjacent."""
        if self.kind != "fragments":
            return self
        return Pattern("tensors", terms=self.terms, order=Pattern("runs", self.page) if self.page > 1 else None)

    def tensors(self, blocks: int) -> tuple[Tensors, ...]:
        """The kinds of tensors that hold `blocks` blocks; () for a pattern without tensors.

        `blocks` must be valid for the pattern (`unfit` returns None).
        """
        if len(self.terms) == 1:
            return (Tensors(self.terms[0].count, blocks // self.terms[0].count),)
        return self.terms

    def unfit(self, blocks: int) -> str | None:
        """Why `blocks` blocks cannot have this pattern, or None if they can."""
        if self.run > blocks:
            return f"{self} needs at least {self.run} blocks"
        unit = self.terms[0].count * max(1, self.page) if len(self.terms) == 1 else 1
        if blocks % unit:
            return f"{self} needs a multiple of {unit} blocks, not {blocks}"
        total = sum(term.blocks for term in self.terms)
        if len(self.terms) > 1 and total != blocks:
            return f"{self} needs {total} blocks, not {blocks}"
        fewest = min((kind.ids // max(1, self.page) for kind in self.tensors(blocks)), default=0)
        if self.order and (objection := self.order.unfit(fewest)):
            return f"{self}: {objection} in each {'region of pages' if self.page else 'tensor'}, not {fewest}"
        return None

    def run_blocks(self, blocks: int) -> int:
        """How many of `blocks` blocks lie together, in whatever order; of several kinds of tensors the fewest.

        `blocks` must be valid for the pattern.
        """
        if not self.terms:
            return {"shuffled": 1, "runs": self.run}.get(self.kind, blocks)
        if self.ranks > 1:
            return 1
        order, page = self.order or SHUFFLED, max(1, self.page)
        ids = min(order.run_blocks(kind.ids // page) for kind in self.tensors(blocks))
        return ids * page * self.terms[0].count // self.regions if self.page else ids

    def pool_rows(self, blocks: int) -> int:
        """The rows of a memory pool for swaps of `blocks` blocks; every tensor has its own spare rows."""
        page = max(1, self.page)
        kinds = self.tensors(blocks)
        return sum(self.ranks * kind.count * page * pool_rows(kind.ids // page) for kind in kinds) or pool_rows(blocks)


def pool_rows(blocks: int) -> int:
    """The rows of a memory pool for swaps of `blocks` blocks.

    Spare rows keep a known pattern, which proves that a swap wrote nothing else.
    """
    return blocks + max(2, blocks // 16)


def unfit_sides(source: Pattern, destination: Pattern, blocks: int) -> str | None:
    """Why `blocks` blocks cannot have these patterns on their two sides, or None if they can."""
    if objection := source.unfit(blocks) or destination.unfit(blocks):
        return objection
    same = source.tensors(blocks) == destination.tensors(blocks)
    return None if same else f"both sides need the same tensors, not {source} and {destination}"


def _order(text: str) -> Pattern | None:
    if (match := _RUNS.fullmatch(text)) and match[1] != "1":
        return Pattern("runs", int(match[1]))
    return Pattern(text) if text in _PLAIN_ORDERS else None


def _of_tensors(text: str) -> Pattern | None:
    """The pattern of tensors that `text` names, without an order of ids, or None."""
    if match := re.fullmatch(r"tensors-([1-9]\d{0,5})", text):
        return Pattern("tensors", terms=(Tensors(int(match[1]), 0),))
    if match := _FRAGMENTS.fullmatch(text):
        return Pattern.of_fragments(int(match[1]), int(match[2]), int(match[3] or 1))
    if match := _PAGES.fullmatch(text):
        regions = 2 if match["apart"] else 1
        return Pattern.of_pages(int(match["tensors"]) * regions, int(match["page"] or 1), regions)
    if _TERMS.fullmatch(text):
        pairs = (term.split("x") for term in text.removeprefix("tensors-").split("+"))
        return Pattern.of_tensors(*(Tensors(int(count), int(ids)) for count, ids in pairs))
    return None


SHUFFLED: Final = Pattern("shuffled")
CONTIGUOUS: Final = Pattern("contiguous")
DESCENDING: Final = Pattern("descending")
# The pattern of a side that has none of its own.
AS_PATTERN: Final = Pattern("pattern")
