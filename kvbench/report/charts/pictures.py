"""What draws the charts, by names that cost nothing: matplotlib is loaded by the process that draws one."""

from collections.abc import Mapping, Sequence

from kvbench.report.charts.layout import Grid, Words
from kvbench.report.charts.palette import Ink
from kvbench.report.ratios import RatioMap
from kvbench.report.sections.queue_depth import QueueLine


def cliff_chart(grid: Grid, words: Words, inks: Mapping[str, Ink]) -> dict[str, bytes]:
    """Return {"png": …, "svg": …}: GB/s over block size."""
    from kvbench.report.charts import lines as charts

    return charts.cliff_chart(grid, words, inks)


def sm_chart(grid: Grid, words: Words, inks: Mapping[str, Ink]) -> dict[str, bytes]:
    """Return {"png": …, "svg": …}: GB/s over the SM count."""
    from kvbench.report.charts import lines as charts

    return charts.sm_chart(grid, words, inks)


def ratio_chart(grid: Sequence[Sequence[RatioMap]], words: Words) -> dict[str, bytes]:
    """Return {"png": …, "svg": …}: the crossover map."""
    from kvbench.report.charts import heatmap

    return heatmap.ratio_chart(grid, words)


def queue_chart(
    grid: Sequence[Sequence[Sequence[QueueLine]]], words: Words, inks: Mapping[str, Ink]
) -> dict[str, bytes]:
    """Return {"png": …, "svg": …}: submission time over queued swaps."""
    from kvbench.report.charts import queue as module

    return module.queue_chart(grid, words, inks)
