"""Engines whose native code no backend calls: whether it loads, which the engine itself does not say.

TensorRT-LLM copies between addresses in `copy_host_to_device` and `copy_device_to_host`. No backend calls them: PyPI
has no wheel of it in which these names could be checked.
"""

from importlib.machinery import EXTENSION_SUFFIXES
from typing import Final

from kvbench.engines.code import EngineCode

CODES: Final = {"trtllm": EngineCode("tensorrt_llm", {f"tensorrt_llm/bindings{EXTENSION_SUFFIXES[0]}": ()})}
