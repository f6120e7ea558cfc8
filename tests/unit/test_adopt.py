"""The recipe of docs/how-to/adopt.md, against a stub of vLLM's worker and the source of an installed one."""

import ast
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

ROOT = Path(__file__).parents[2]
WORKER = "vllm/v1/kv_offload/cpu/gpu_worker.py"
CALL = {"is_src_access_order_any"}
TAKES = ["layer_refs_per_group", "gpu_to_cpu", "host_memory_is_pinned"]


def recipe() -> str:
    text = (ROOT / "docs/how-to/adopt.md").read_text()
    (block,) = re.findall(r"^```python gpu\n(import torch\n.*?)```", text, re.DOTALL | re.MULTILINE)
    return str(block)


class Copier:
    """Records what an engine asks of a BlockCopier."""

    made: ClassVar[list["Copier"]] = []

    def __init__(self, device: str, policy: str) -> None:
        self.device, self.policy, self.calls = device, policy, list[tuple[Any, ...]]()
        Copier.made.append(self)

    def copy(self, *lists: object, source_order_any: bool) -> None:
        self.calls.append((*lists, source_order_any))


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    torch = ModuleType("torch")
    torch.cuda = ModuleType("cuda")  # type: ignore[attr-defined]
    torch.cuda.current_device, torch.cuda.current_stream = lambda: 3, lambda: "stream"
    cpu, worker = ModuleType("vllm.v1.kv_offload.cpu"), ModuleType("gpu_worker")
    worker._select_swap_blocks_fn = lambda *asked: ("shipped", *asked)  # type: ignore[attr-defined]
    cpu.gpu_worker = worker  # type: ignore[attr-defined]
    stubs = {"torch": torch, "vllm.v1.kv_offload.cpu": cpu}
    stubs |= {name: ModuleType(name) for name in ("vllm", "vllm.v1", "vllm.v1.kv_offload")}
    for name, module in stubs.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("kvbench.copy.BlockCopier", Copier)
    exec(compile(recipe(), "adopt.md", "exec"), {})
    return worker


def test_the_recipe_hands_each_list_and_the_current_stream_to_a_copier(worker: ModuleType) -> None:
    swap = worker._select_swap_blocks_fn([], gpu_to_cpu=False)
    copier = Copier.made[-1]
    assert (copier.device, copier.policy) == ("cuda:3", "policy.toml")
    swap("sources", "destinations", "sizes", is_src_access_order_any=True)
    assert copier.calls == [("sources", "destinations", "sizes", "stream", True)]
    worker._select_swap_blocks_fn([], gpu_to_cpu=True)
    assert Copier.made[-1] is not copier


def test_memory_that_is_not_pinned_keeps_what_the_engine_ships(worker: ModuleType) -> None:
    chosen = worker._select_swap_blocks_fn(["refs"], True, False)
    assert chosen == ("shipped", ["refs"], True, False)


def test_an_installed_worker_selects_and_calls_as_the_recipe_expects() -> None:
    try:
        source = Path(str(distribution("vllm").locate_file(WORKER)))
    except PackageNotFoundError:
        pytest.skip("vllm is not installed")
    tree = ast.parse(source.read_text())
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert [argument.arg for argument in functions["_select_swap_blocks_fn"].args.args] == TAKES
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "_swap_blocks_batch"
    ]
    assert calls
    for call in calls:
        assert (len(call.args), {keyword.arg for keyword in call.keywords}) == (3, CALL)
