"""TensorRT-LLM: how large its rule lets its pool be. No backend runs its code, whose names no wheel on PyPI shows."""

from typing import Final

from kvbench.cells.facts import HostMemory
from kvbench.cells.installed import Engine
from kvbench.cells.units import rough_size
from kvbench.ground.text import counted


def _pool(host: HostMemory) -> str:
    terms = {
        f"half of the available memory over {counted(host.ranks, 'rank')}": host.available_bytes // 2 // host.ranks
    }
    if host.memlock_bytes is not None:
        terms["0.8 of the memlock limit"] = host.memlock_bytes * 4 // 5
    return f"up to {rough_size(min(terms.values()))} a rank: the least of {', '.join(terms)} and the quota"


ENGINE: Final = Engine(name="trtllm", title="TensorRT-LLM", pool=_pool)
