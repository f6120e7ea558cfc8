"""kvbench measures how fast KV-cache blocks move between host memory and a GPU, on this machine.

Notebooks and backends of other packages import from here. Names load on first use: reading runs needs no GPU, no torch
and not the compiled module; backends do.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvbench.backends.base import Backend, Mechanism, PreparedSwap, SwapRequest
    from kvbench.cells.cell import Cell
    from kvbench.cells.facts import DeviceFacts
    from kvbench.results import Run, load_run

__version__: Final = "0.1.0"
__all__ = [
    "Backend", "Cell", "DeviceFacts", "Mechanism", "PreparedSwap", "Run", "SwapRequest", "__version__", "load_run",
]  # fmt: skip

_HOMES: Final = {
    "kvbench.backends.base": ("Backend", "Mechanism", "PreparedSwap", "SwapRequest"),
    "kvbench.cells.cell": ("Cell",),
    "kvbench.cells.facts": ("DeviceFacts",),
    "kvbench.results": ("Run", "load_run"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
