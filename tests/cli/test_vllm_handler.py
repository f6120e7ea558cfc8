"""Two stand-ins for vLLM, with the signatures of handler and op of 0.20 and of 0.33, on the device cpu."""

from pathlib import Path

import pytest

from kvbench.results import load_run
from tests.command import BRIEF, kvbench_here, tiny

# As much of torch and triton as the stand-ins and the backend touch.
TORCH = """
from contextlib import contextmanager
from types import SimpleNamespace

int64 = "int64"

class Tensor:
    def __init__(self, base, shape):
        self._base, self._shape = base, shape
    def data_ptr(self):
        return self._base
    def stride(self, _dim):
        return self._shape[1]

def from_numpy(array):
    return Tensor(array.ctypes.data, array.shape)

def as_tensor(memory, device):
    about = memory.__cuda_array_interface__
    return Tensor(about["data"][0], about["shape"])

class Stream:
    def __init__(self, *_, **__): pass
    def wait_stream(self, _other): pass
    def wait_event(self, _event): pass

@contextmanager
def stream(_stream):
    yield

def load_library(path):
    exec(open(path).read(), vars(ops._C_cache_ops))

ops = SimpleNamespace(load_library=load_library, _C_cache_ops=SimpleNamespace())
cuda = SimpleNamespace(Stream=Stream, ExternalStream=Stream, stream=stream, current_stream=Stream)
"""
LIBRARY = """
import ctypes

def swap_blocks_batch({arguments}):
    for one in zip(dst.tolist(), src.tolist(), sizes.tolist()):
        ctypes.memmove(*one)
"""
SPECS = """
import numpy as np

class BlockIDsLoadStoreSpec:
    def __init__(self, block_ids):
        self.block_ids = np.array(block_ids, dtype=np.int64)

class GPULoadStoreSpec(BlockIDsLoadStoreSpec):
    def __init__(self, block_ids, group_sizes, block_indices):
        super().__init__(block_ids)

class CanonicalKVCacheRef:
    def __init__(self, tensor_idx, page_size_bytes):
        self.page_size_bytes = page_size_bytes
"""
HANDLER = """
import numpy as np
import torch
from vllm import _custom_ops as ops
from vllm.logger import init_logger
from vllm.not_installed.anywhere import Anything
from vllm.v1.kv_offload.{specs} import BlockIDsLoadStoreSpec, CanonicalKVCacheRef, GPULoadStoreSpec

logger = init_logger(__name__)

class SingleDirectionOffloadingHandler:
    def __init__(self, gpu_tensors, cpu_tensors, {factor}, {refs}, gpu_to_cpu):
        sides = gpu_tensors[0], cpu_tensors[0]
        self._sides = sides if gpu_to_cpu else sides[::-1]
        self._refs = {refs}
        self._stream_pool, self._transfers, self._transfer_events = [], [], {{}}

    def transfer_async(self, job_id, {taken}):
        both = zip(self._sides, ({used}))
        src, dst = (side.data_ptr() + spec.block_ids * side.stride(0) for side, spec in both)
        sizes = np.full(len(src), self._refs[0][0].page_size_bytes)
        ops.swap_blocks_batch(src, dst, sizes{more})
        self._transfers.append((job_id, self._stream_pool.pop()))
        self._transfer_events[job_id] = None
        return True

    def get_finished(self):
        done, self._transfers = self._transfers, []
        for job_id, stream in done:
            self._stream_pool.append(stream)
            del self._transfer_events[job_id]
        return done
"""
# The backend as it is, but on the device cpu, whose streams the stand-in for torch does not know.
PLUG_IN = """
from kvbench import PreparedSwap
from kvbench.engines.vllm import VllmHandler

class OnHost(VllmHandler):
    name = "vllm_on_host"

    def unavailable(self, device):
        return self.code.missing()

    def create(self, request):
        prepared = super().create(request)
        return PreparedSwap(InOrder(request.device.driver, prepared.swap), prepared.mechanism)

class InOrder:
    calls = 1

    def __init__(self, driver, swap):
        self._driver, self._swap = driver, swap

    def submit(self, stream):
        self._driver.synchronize(stream)
        self._swap.submit(stream)
"""
OLD = {
    "vllm/_C.abi3.so": LIBRARY.format(arguments="src, dst, sizes"),
    "vllm/v1/kv_offload/mediums.py": SPECS,
    "vllm/v1/kv_offload/worker/cpu_gpu.py": HANDLER.format(
        specs="mediums", factor="block_size_factor", refs="kv_cache_groups_data_refs",
        taken="transfer_spec", used="*transfer_spec,", more="",
    ),
}  # fmt: skip
NEW = {
    "vllm/_C_stable_libtorch.abi3.so": LIBRARY.format(arguments="src, dst, sizes, is_src_access_order_any"),
    "vllm/v1/kv_offload/base.py": SPECS,
    "vllm/v1/kv_offload/cpu/gpu_worker.py": HANDLER.format(
        specs="base", factor="blocks_per_chunk", refs="layer_refs_per_group",
        taken="src_spec, dst_spec", used="src_spec, dst_spec", more=", is_src_access_order_any=True",
    ),
}  # fmt: skip


def installed(folder: Path, version: str, files: dict[str, str]) -> Path:
    """Lay out a vllm that cannot be imported, with what stands in for the rest of its environment."""
    about = {
        "torch.py": TORCH,
        "triton/__init__.py": "",
        "triton/language.py": "",
        "vllm/__init__.py": "raise ImportError",
        "on_host.py": PLUG_IN,
        f"vllm-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n",
        "on_host-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: on-host\nVersion: 1\n",
        "on_host-1.dist-info/entry_points.txt": "[kvbench.backends]\nvllm_on_host = on_host:OnHost\n",
    }
    for name, text in {**about, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(("version", "form"), [("0.20.0", OLD), ("0.33.0", NEW)])
def test_a_handler_of_either_form_swaps_and_its_bytes_are_compared(
    tmp_path: Path, version: str, form: dict[str, str]
) -> None:
    """Lists of 8 blocks go to the wrong places."""
    wrong = "    if len(sizes) == 8: dst = dst - sizes[0]\n    for one"
    site = installed(
        tmp_path / "site", version, {name: text.replace("    for one", wrong) for name, text in form.items()}
    )
    cells = tiny(backend="vllm_on_host", direction="h2d,d2h", blocks="8,16", block_size="16KiB")
    done = kvbench_here("sweep", *cells, *BRIEF, "--out=run", cwd=tmp_path, env={"PYTHONPATH": str(site)})
    assert done.returncode == 5, done.stdout + done.stderr
    run = load_run(tmp_path / "run")
    assert {(one.cell.blocks, one.status) for one in run.outcomes.values()} == {(8, "failed"), (16, "ok")}
    (package,) = (facts.package for facts in run.info.backends if facts.name == "vllm_on_host")
    assert package.startswith(f"vllm=={version} (")
