"""An engine's package in a folder of its own: what is read from it, and what its absence or a crash costs."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvbench.backends.base import facts_of
from kvbench.cells.facts import DeviceFacts
from kvbench.engines.code import EngineCode, _error_of
from kvbench.engines.vllm import load_wrapper
from kvbench.ground.errors import KvbenchError
from tests.command import succeeds
from tests.strategies import CPU, H200

LIBRARY = "vllm/_C_stable_libtorch.abi3.so"
WRAPPER = "vllm/v1/kv_offload/cpu/swap_blocks_triton.py"
TEXT = """from vllm import _custom_ops as ops
from vllm.triton_utils import tl, triton

NUM_SMS = 7
THRESHOLD_BYTES = 28 * 1024
MIN_N: int = 1 << 4

def swap_blocks_batch(src, dst, sizes, any_order, *, bytes_per_chunk):
    return NUM_SMS, MIN_N, bytes_per_chunk, ops.swap_blocks_batch, triton.__name__
"""

# As much of torch as a process needs that tries to load an engine's code: to import torch itself takes two seconds.
TORCH = """import ctypes

class ops:
    load_library = ctypes.CDLL

class cuda:
    pass
"""
HICACHE = """import torch
from sglang.srt.environ import envs
from sglang.srt.utils.common import is_cuda

assert is_cuda()
TMA_BLOCK_QUOTA = 4
TMA_STAGE_BYTES = 32 * 1024
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages with a vllm 0.99.0 that has metadata alone."""
    (tmp_path / "vllm-0.99.0.dist-info").mkdir()
    (tmp_path / "vllm-0.99.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.4\nName: vllm\nVersion: 0.99.0\n"
        "Requires-Dist: torchvision==0.1\nRequires-Dist: torch==9.9\n"
    )
    put(tmp_path / "stand-in", "torch.py", TORCH)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'stand-in'}:{tmp_path}")
    load_wrapper.cache_clear()
    _error_of.cache_clear()
    return tmp_path


def put(site: Path, file: str, content: bytes | str) -> None:
    (site / file).parent.mkdir(parents=True, exist_ok=True)
    (site / file).write_bytes(content.encode() if isinstance(content, str) else content)


def put_sglang(site: Path, hicache: str) -> None:
    """Install an sglang 0.99.0 whose packages cannot be imported, as where its dependencies are missing."""
    text = (site / "vllm-0.99.0.dist-info/METADATA").read_text()
    put(site, "sglang-0.99.0.dist-info/METADATA", text.replace("vllm", "sglang"))
    for package in ("sglang", "sglang/kernels/ops/kvcache"):
        put(site, f"{package}/__init__.py", "import a_dependency_that_is_not_there")
    put(site, "sglang/srt/environ.py", "envs = 1")
    put(site, "sglang/kernels/ops/kvcache/hicache.py", hicache)
    for kernel in ("hicache", "hicache_tma"):
        put(site, f"sglang/kernels/jit/csrc/kvcacheio/{kernel}.cuh", "")
    put(site, "tvm_ffi.py", "")


def why_not(name: str, device: DeviceFacts = H200) -> str:
    return facts_of(name, device).unavailable or ""


@pytest.mark.parametrize(
    "name",
    ["vllm_batch", "vllm_triton", "sglang_aot", "sglang_jit", "sglang_hisparse", "sglang_store", "vllm_hisparse"],
)
def test_an_engine_is_unavailable_without_its_package_and_without_a_gpu(name: str) -> None:
    assert "is not installed" in why_not(name)
    assert "needs a GPU" in why_not(name, CPU)


def test_the_reason_names_the_version_and_the_missing_file(site: Path) -> None:
    assert why_not("vllm_batch") == f"vllm 0.99.0 has no file {LIBRARY}"
    put(site, LIBRARY, b"")
    assert why_not("vllm_triton") == f"vllm 0.99.0 has no file {WRAPPER}"


def test_a_damaged_library_is_one_line_with_the_torch_that_is_needed(site: Path) -> None:
    put(site, LIBRARY, "no library")
    reason = why_not("vllm_batch")
    assert reason.startswith("vllm 0.99.0 needs torch==9.9, this is torch ")
    assert "_C_stable_libtorch.abi3.so does not load: " in reason
    assert str(site) not in reason
    assert "\n" not in reason


def test_a_library_that_crashes_while_it_loads_ends_no_command(site: Path) -> None:
    source = site / "crash.c"
    source.write_text("#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }\n")
    put(site, LIBRARY, b"")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(site / LIBRARY), str(source)], check=True)
    assert "ends the process that loads it with signal 6" in why_not("vllm_batch")


def test_settings_are_read_with_their_places_and_change_the_identity_of_the_code(site: Path) -> None:
    put(site, WRAPPER, TEXT)
    facts = facts_of("vllm_triton", H200)
    assert [(one.name, one.default, one.place) for one in facts.settings] == [
        ("NUM_SMS", 7, f"{WRAPPER}:4"),
        ("THRESHOLD_BYTES", 28_672, f"{WRAPPER}:5"),
        ("MIN_N", 16, f"{WRAPPER}:6"),
    ]
    put(site, WRAPPER, TEXT.replace("= 7", "= 8"))
    changed = facts_of("vllm_triton", H200)
    assert facts.package.startswith("vllm==0.99.0 (")
    assert changed.package != facts.package


def test_a_setting_that_the_package_lacks_is_an_error_that_says_so(site: Path) -> None:
    put(site, WRAPPER, TEXT.replace("NUM_SMS", "SMS"))
    with pytest.raises(KvbenchError, match=rf"vllm 0\.99\.0: {WRAPPER} has no whole number NUM_SMS"):
        EngineCode("vllm", {WRAPPER: ("NUM_SMS", "MIN_N")}).settings(WRAPPER)
    assert "has no whole number NUM_SMS" in why_not("vllm_triton")


def test_the_wrapper_loads_without_its_engine_and_with_other_constants(site: Path) -> None:
    put(site, WRAPPER, TEXT)
    shipped, other = load_wrapper(()), load_wrapper((("NUM_SMS", 32), ("MIN_N", 0)))
    assert shipped.swap_blocks_batch(1, 2, 3, True, bytes_per_chunk=64)[:3] == (7, 16, 64)
    sms, least, _, fallback, triton = other.swap_blocks_batch(1, 2, 3, True, bytes_per_chunk=64)
    assert (sms, least, triton) == (32, 0, "triton")
    assert callable(fallback)
    assert not {"vllm", "vllm._custom_ops", "vllm.triton_utils"} & sys.modules.keys()


def test_an_engine_loads_without_its_package_being_imported_or_is_one_line_with_the_file_and_the_cause(
    site: Path,
) -> None:
    put_sglang(site, HICACHE)
    put(site, WRAPPER, f"import gone_for_good\n{TEXT}")
    printed = succeeds("doctor", "--engines", cwd=site).stdout
    lines = {line.split()[1]: line for line in printed.splitlines() if line.strip()}
    assert lines["sglang_jit"].endswith(" loads")
    assert "vllm 0.99.0 needs torch==9.9, this is torch " in lines["vllm_triton"]
    assert "swap_blocks_triton.py does not load: No module named 'gone_for_good'" in lines["vllm_triton"]
    assert "sglang-kernel is not installed" in lines["sglang_aot"]
    assert "lmcache is not installed" in lines["lmcache"]


def test_an_engine_is_measured_on_request_only(tmp_path: Path) -> None:
    usual = ("sweep", "--device=cpu", "-ablocks=4", "-ablock_size=4KiB", "--dry-run")
    assert "vllm" not in succeeds(*usual, cwd=tmp_path).stdout
    assert "the code of vllm needs a GPU" in succeeds(*usual, "-abackend=batched,vllm_batch", cwd=tmp_path).stdout
