"""The recorders of docs/how-to/record_swaps.py, behind stubs of the engines' classes and on the classes."""

import ast
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvbench.sweep.swap_file import TraceReader, runs_of
from tests.command import succeeds

ROOT = Path(__file__).parents[3]

VLLM = "vllm.v1.kv_offload.cpu.gpu_worker"
SGLANG = "sglang.srt.managers.cache_controller"


@pytest.fixture
def file() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs/how-to/record_swaps.py"))


class Handler:
    """A stub of vLLM's class: a transfer is done at the second look."""

    def __init__(self, gpu_to_cpu: bool) -> None:
        self.gpu_to_cpu = gpu_to_cpu
        self.transfers: list[int] = []

    def transfer_async(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        assert len(src_spec.block_ids) == len(dst_spec.block_ids)
        self.transfers.append(job_id)
        return True

    def get_finished(self) -> list[Any]:
        return [SimpleNamespace(job_id=self.transfers.pop(0))] if self.transfers else []


class Controller:
    """A stub of SGLang's class."""

    page_size = 4

    def __init__(self) -> None:
        self.write_queue: list[Any] = []
        self.load_queue: list[Any] = []
        self.ack_write_queue: list[Any] = []
        self.ack_load_queue: list[Any] = []

    def start_writing(self) -> None:
        self._start(self.write_queue, self.ack_write_queue)

    def start_loading(self) -> int:
        self._start(self.load_queue, self.ack_load_queue)
        return 3

    def _start(self, queue: list[Any], acks: list[Any]) -> None:
        if queue:
            queue.clear()
            acks.append(SimpleNamespace(finish_event=SimpleNamespace(query=lambda: True)))


def stand_in(monkeypatch: pytest.MonkeyPatch, path: str, **names: type) -> None:
    """Make `from path import name` work, with copies of the classes that a recorder may change."""
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:end]))
        module.__path__ = []
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name, kind in names.items():
        setattr(module, name, type(name, (kind,), dict(kind.__dict__)))


def swaps_of(path: Path) -> list[Any]:
    return list(TraceReader(path))


def test_the_vllm_recorder_writes_its_swaps(
    file: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch, VLLM, SingleDirectionOffloadingHandler=Handler)
    recorder = file["Recorder"](tmp_path / "vllm.jsonl", 4096)
    file["record_vllm"](recorder)
    kind = sys.modules[VLLM].SingleDirectionOffloadingHandler
    store, load = kind(True), kind(False)
    specs = [SimpleNamespace(block_ids=np.array(ids)) for ids in ([9, 8, 7, 1], [0, 1, 2, 3])]
    assert store.transfer_async(5, *specs)
    assert load.transfer_async(6, *specs[::-1])
    assert swaps_of(tmp_path / "vllm.jsonl") == []
    assert [result.job_id for result in load.get_finished()] == [6]
    assert swaps_of(tmp_path / "vllm.jsonl") == [], "not before the swap ahead of it"
    store.get_finished()
    one, other = swaps_of(tmp_path / "vllm.jsonl")
    assert (one.direction, other.direction) == ("d2h", "h2d")
    for swap in (one, other):
        assert (swap.gpu.tolist(), swap.host.tolist()) == ([9, 8, 7, 1], [0, 1, 2, 3])
        assert swap.done_s >= swap.at_s
    succeeds("trace", "show", "vllm.jsonl", cwd=tmp_path)


def test_the_sglang_recorder_writes_its_swaps(
    file: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch, SGLANG, HiCacheController=Controller)
    recorder = file["Recorder"](tmp_path / "sglang.jsonl", 4096)
    file["record_sglang"](recorder)
    controller = sys.modules[SGLANG].HiCacheController()
    rows = np.arange(16)
    first = SimpleNamespace(host_indices=rows[:8], device_indices=rows[:8])
    second = SimpleNamespace(host_indices=rows[8:] + 100, device_indices=rows[8:])
    controller.start_writing()
    controller.write_queue += [first, second]
    controller.start_writing()
    controller.load_queue += [second]
    assert controller.start_loading() == 3
    recorder.flush()
    store, load = swaps_of(tmp_path / "sglang.jsonl")
    assert (store.direction, load.direction) == ("d2h", "h2d")
    assert (store.host.tolist(), load.gpu.tolist()) == ([0, 1, 27, 28], [2, 3])


@pytest.mark.parametrize("ids", [[4], [4, 5, 6], [6, 5, 4], [1, 2, 1, 0], [7, 3, 4, 4 + 1, 0]])
def test_recorders_encode_runs_as_traces_do(file: dict[str, Any], ids: list[int]) -> None:
    assert file["runs"](ids) == runs_of(np.array(ids))


def test_unfinished_swaps_are_written_at_the_end(file: dict[str, Any], tmp_path: Path) -> None:
    recorder = file["Recorder"](tmp_path / "cut.jsonl", 4096)
    recorder.record(0.5, "h2d", [1], [2], lambda: False)
    recorder.flush(everything=True)
    (swap,) = swaps_of(tmp_path / "cut.jsonl")
    assert swap.done_s is None


@pytest.mark.parametrize(
    ("path", "name", "methods"),
    [(VLLM, "SingleDirectionOffloadingHandler",
      {"transfer_async": ["self", "job_id", "src_spec", "dst_spec"], "get_finished": ["self"]}),
     (SGLANG, "HiCacheController", {"start_writing": ["self"], "start_loading": ["self"]})],
)  # fmt: skip
def test_installed_engines_have_what_the_recorders_wrap(path: str, name: str, methods: dict[str, list[str]]) -> None:
    package = path.split(".")[0]
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed: its class was not compared")
    file = Path(spec.submodule_search_locations[0], *path.split(".")[1:]).with_suffix(".py")
    classes = (node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef))
    (wrapped,) = (node for node in classes if node.name == name)
    arguments = {
        node.name: [arg.arg for arg in node.args.args] for node in wrapped.body if isinstance(node, ast.FunctionDef)
    }
    assert {method: arguments.get(method) for method in methods} == methods
