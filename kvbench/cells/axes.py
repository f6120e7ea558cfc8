"""The words on the axes of a sweep."""

from enum import StrEnum


class Direction(StrEnum):
    """Which way a swap goes: into the GPU (onload) or out of it (offload)."""

    H2D = "h2d"
    D2H = "d2h"


class Order(StrEnum):
    """CUmemcpySrcAccessOrder: when a batched copy may read its sources, relative to the stream's order."""

    STREAM = "stream"
    DURING_API_CALL = "during_api_call"
    ANY = "any"


class StreamState(StrEnum):
    """What the stream is at when a swap is submitted, and with it the quantity that GB/s are of.

    idle: nothing is pending; latency. busy: a delay that outlasts the submission; execution. sustained: the swaps
    before it, one behind the other without a wait.
    """

    IDLE = "idle"
    BUSY = "busy"
    SUSTAINED = "sustained"

    @property
    def swap_clock(self) -> str:
        """The sample's time that GB/s come from: on a busy stream wall_us would include the rest of the delay."""
        return "gpu_us" if self is StreamState.BUSY else "wall_us"

    @property
    def quantity(self) -> str:
        """The name of what GB/s are of."""
        return {"idle": "latency", "busy": "execution", "sustained": "sustained"}[self.value]


class Reuse(StrEnum):
    """Whether a swap moves other blocks than the swap before it, as an engine's does, or the same again."""

    FRESH = "fresh"
    SAME = "same"


class Neighbour(StrEnum):
    """What runs on the device beside the swaps, all the time."""

    NONE = "none"
    IDLE = "idle"
    GEMM = "gemm"
    MEMORY = "memory"
    DECODE = "decode"
    SWAP = "swap"


class Priority(StrEnum):
    """Which stream the device serves first: the swaps' or the neighbour's; normal is neither."""

    NORMAL = "normal"
    LOW = "low"
    HIGH = "high"


class Memory(StrEnum):
    """How host memory was pinned: allocated by the driver, or the program's own pages registered with it."""

    ALLOCATED = "allocated"
    REGISTERED = "registered"
