"""Engines whose native code no backend calls: whether it loads, which the engine itself cannot say.

LMCache stages blocks through its own buffers and objects; without its library it copies with torch, and only warns.
TensorRT-LLM copies between addresses in `copy_host_to_device` and `copy_device_to_host`.
"""

from importlib.machinery import EXTENSION_SUFFIXES
from typing import Final

from kvbench.engines.code import EngineCode

_SUFFIX: Final = EXTENSION_SUFFIXES[0]
# Newer names of a library come first.
CODES: Final = {
    "lmcache": tuple(EngineCode("lmcache", {f"lmcache/{name}{_SUFFIX}": ()}) for name in ("cuda_ops", "c_ops")),
    "trtllm": (EngineCode("tensorrt_llm", {f"tensorrt_llm/bindings{_SUFFIX}": ()}),),
}


def load_error(name: str) -> tuple[str, str | None]:
    """Return the package of an engine in `CODES`, with its version, and why its library does not load, or None."""
    code = next((one for one in CODES[name] if one.missing() is None), CODES[name][0])
    return code.title, code.missing() or code.load_error(*code.files)
