"""The named values of the axes of a sweep."""

from enum import StrEnum
from typing import Final


class Direction(StrEnum):
    """The direction of a swap: to the GPU (h2d, onload) or from it (d2h, offload)."""

    H2D = "h2d"
    D2H = "d2h"


class Order(StrEnum):
    """CUmemcpySrcAccessOrder: when a batched copy may read its sources, relative to the stream's order."""

    STREAM = "stream"
    DURING_API_CALL = "during_api_call"
    ANY = "any"


DEFAULT_ORDER: Final = {Direction.H2D: Order.ANY, Direction.D2H: Order.STREAM}


class StreamState(StrEnum):
    """What is pending on the stream when a swap is submitted, which decides the quantity that GB/s measure.

    idle: nothing; latency. busy: a delay that outlasts the submission; execution. gated: a wait for an event that
    another stream reaches after the submission; execution, from the opening of the gate. opened: a wait for an event
    that was reached before; latency. sustained: the previous swaps, submitted one after the other without waiting;
    sustained.
    """

    IDLE = "idle"
    BUSY = "busy"
    GATED = "gated"
    OPENED = "opened"
    SUSTAINED = "sustained"

    @property
    def pending(self) -> bool:
        return self in (StreamState.BUSY, StreamState.GATED)

    @property
    def quantity(self) -> str:
        """The name of the quantity that GB/s measure."""
        if self is StreamState.SUSTAINED:
            return "sustained"
        return "execution" if self.pending else "latency"

    @property
    def ungated(self) -> "StreamState":
        """The state in which the driver takes the same path without an event to wait for."""
        return {StreamState.GATED: StreamState.BUSY, StreamState.OPENED: StreamState.IDLE}.get(self, self)


class Reuse(StrEnum):
    """Whether each swap moves different blocks from the previous one, as in an engine, or the same blocks again."""

    FRESH = "fresh"
    SAME = "same"


class Neighbour(StrEnum):
    """The work that runs continuously on the device beside the swaps."""

    NONE = "none"
    IDLE = "idle"
    GEMM = "gemm"
    DECODE = "decode"
    SWAP = "swap"


class Memory(StrEnum):
    """How host memory is pinned: allocated by the driver, or pages that are registered with the driver.

    These are the program's own, of one file in /dev/shm, as engines share their pool between ranks, or huge pages.
    """

    ALLOCATED = "allocated"
    REGISTERED = "registered"
    SHARED = "shared"
    HUGE_2MIB = "huge-2MiB"
    HUGE_1GIB = "huge-1GiB"


class ListPlace(StrEnum):
    """Where the list of a swap lies at submission: in arrays of the host, or as ids on the GPU, for a CUDA graph."""

    HOST = "host"
    GPU = "gpu"
