"""Effective paths: what ran in place of what was asked for."""

import math
from typing import Final

import pandas as pd

from kvbench.report.model import Finding
from kvbench.report.numbers import count, noun
from kvbench.report.select import where

_INLINE: Final = "CPU inline"


def primed_inline(cells: pd.DataFrame) -> list[Finding]:
    """Return in how many cells priming did not keep the CPU from copying, which is what it is for."""
    primed = where(cells, status="ok", backend="primed")
    inline = int(primed["path"].fillna("").str.contains(_INLINE, regex=False).sum())
    text = f"primed took the path {_INLINE}, in some visits or all, in {count(inline)} of {noun(len(primed), 'cell')}."
    return [Finding(text, math.log1p(inline / len(primed)))] if inline else []
