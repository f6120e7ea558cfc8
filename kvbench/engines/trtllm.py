"""TensorRT-LLM: whether its native code loads, which it does not say itself.

It copies between addresses in `copy_host_to_device` and `copy_device_to_host`. No backend calls them: PyPI has no wheel
in which these names could be checked.
"""

from importlib.machinery import EXTENSION_SUFFIXES
from typing import Final

from kvbench.engines.code import EngineCode
from kvbench.sweep.installed import Engine

_CODE: Final = EngineCode("tensorrt_llm", {f"tensorrt_llm/bindings{EXTENSION_SUFFIXES[0]}": ()})
CODES: Final = (_CODE,)


def _unused_code() -> tuple[str, str | None]:
    return _CODE.title, _CODE.missing() or _CODE.load_error()


ENGINE: Final = Engine(name="trtllm", title="TensorRT-LLM", unused_code=_unused_code)
