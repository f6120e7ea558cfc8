"""TensorRT-LLM: whether its native code loads, which it does not say itself.

It copies between addresses in `copy_host_to_device` and `copy_device_to_host`. No backend calls them: PyPI has no wheel
in which these names could be checked.
"""

from importlib.machinery import EXTENSION_SUFFIXES
from typing import Final

from kvbench.cells.facts import HostMemory
from kvbench.cells.units import rough_size
from kvbench.engines.code import EngineCode
from kvbench.sweep.installed import Engine
from kvbench.text import counted

_CODE: Final = EngineCode("tensorrt_llm", {f"tensorrt_llm/bindings{EXTENSION_SUFFIXES[0]}": ()})
CODES: Final = (_CODE,)


def _unused_code() -> tuple[str, str | None]:
    return _CODE.title, _CODE.missing() or _CODE.load_error()


def _pool(host: HostMemory) -> str:
    terms = {
        f"half of the available memory over {counted(host.ranks, 'rank')}": host.available_bytes // 2 // host.ranks
    }
    if host.memlock_bytes is not None:
        terms["0.8 of the memlock limit"] = host.memlock_bytes * 4 // 5
    return f"up to {rough_size(min(terms.values()))} a rank: the least of {', '.join(terms)} and the quota"


ENGINE: Final = Engine(name="trtllm", title="TensorRT-LLM", unused_code=_unused_code, pool=_pool)
