"""Draws the pictures of a report: matplotlib is what takes long there, so they are drawn beside each other."""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import forkserver, get_context
from types import TracebackType
from typing import Final, Self

Picture = Callable[[], Mapping[str, bytes]]

SUFFIXES: Final = ("png", "svg")
_MOST: Final = 8
_START: Final = "forkserver"  # numpy's threads do not survive a fork


class Pictures(Mapping[str, bytes]):
    """File name -> bytes of every picture begun, waited for, or drawn on a single CPU, where it is asked for.

    They are drawn in processes beside this one. Used as a context manager it ends them.
    """

    def __init__(self) -> None:
        self._pictures: dict[str, Picture] = {}
        self._pool: ProcessPoolExecutor | None = None
        self._processes = min(_MOST, len(os.sched_getaffinity(0)))

    def begin(self, stem: str, picture: Picture) -> None:
        """Draw the files `stem`.png and `stem`.svg by calling `picture`, which can be pickled, now or later."""
        self._pictures[stem] = cache(picture)
        if self._processes > 1:
            try:
                self._pool = self._pool or ProcessPoolExecutor(
                    self._processes, mp_context=get_context(_START), initializer=gc.disable
                )  # a few charts, and the process ends: nothing is worth collecting
            except OSError:  # no semaphores, as in a container without /dev/shm: one process has to do
                self._processes = 1
            else:
                self._pictures[stem] = self._pool.submit(picture).result

    def __getitem__(self, name: str) -> bytes:
        stem, _, suffix = name.rpartition(".")
        return self._pictures[stem]()[suffix]

    def __iter__(self) -> Iterator[str]:
        return (f"{stem}.{suffix}" for stem in self._pictures for suffix in SUFFIXES)

    def __len__(self) -> int:
        return len(self._pictures) * len(SUFFIXES)

    def __enter__(self) -> Self:
        if self._processes > 1:  # matplotlib is imported over there while this process works out what to draw
            forkserver.set_forkserver_preload(["kvbench.report.sections", "kvbench.report.charts.heatmap"])
            forkserver.ensure_running()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)
