"""The block cache gives out the same ids as vLLM's own classes: as frozen, and out of an installed package."""

import hashlib
import importlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any
from unittest import mock

from kvbench.traces.requests import Request
from kvbench.traces.simulate import CacheRun, CacheSettings

OWN = ("vllm.v1.core.block_pool", "vllm.v1.core.kv_cache_utils", "vllm.v1.kv_offload.base")
# What the classes of vLLM 0.33.0 answered for the requests of the test.
OF_VLLM = "4d46e4aff6fa055f39728d67a1e804b84b016125fc44e4e900f28f564685487c"


class _StandIn(ModuleType):
    __path__: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__class_getitem__": classmethod(lambda cls, _: cls), "HOST": 0})


class _Finder(MetaPathFinder, Loader):
    """Imports vLLM's caches from its files, and stands in for all else that they import of it."""

    def __init__(self, root: str) -> None:
        self.root = root

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> ModuleSpec | None:
        if name.split(".")[0] != "vllm":
            return None
        if name in OWN or (name.startswith("vllm.v1.kv_offload.cpu.") and "common" not in name):
            return PathFinder.find_spec(name, [f"{self.root}/{'/'.join(name.split('.')[:-1])}"])
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.init_logger = mock.MagicMock()  # type: ignore[attr-defined]
        module.CPULoadStoreSpec = list  # type: ignore[attr-defined]


@contextmanager
def vllm_in(folder: str) -> Iterator[None]:
    finder = _Finder(folder)
    with mock.patch.dict(sys.modules), mock.patch.object(sys, "meta_path", [finder, *sys.meta_path]):
        yield


def _vllm_swaps(requests: list[Request], gpu_blocks: int, chunks: int) -> list[tuple[str, list[int], list[int]]]:
    """Return the swaps of requests that end before the next begins, decided by vLLM's classes."""
    pool_module = importlib.import_module("vllm.v1.core.block_pool")
    utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
    base = importlib.import_module("vllm.v1.kv_offload.base")
    manager = importlib.import_module("vllm.v1.kv_offload.cpu.manager").CPUOffloadingManager(chunks)
    pool = pool_module.BlockPool(gpu_blocks, True, 16)
    swaps = []
    for number, request in enumerate(requests):
        keys = [base.OffloadKey(key.to_bytes(32, "big") + bytes(4)) for key in request.keys(16)]
        hashes = [utils.make_block_hash_with_group_id(key[:32], 0) for key in keys]
        context = base.ReqContext(str(number))
        for at, key in enumerate(keys):
            context.set_offload_key_position(key, at)
        manager.on_new_request(context)
        usable = (request.input_tokens - 1) // 16
        hits = []
        for one in hashes[:usable]:
            block = pool.cached_block_hash_to_block.get_one_block(one)
            if block is None:
                break
            hits.append(block)
        load = []
        for key in keys[len(hits) : usable]:
            if manager.lookup(key, context) is not base.LookupResult.HIT:
                break
            load.append(key)
        pool.touch(hits)
        new = pool.get_new_blocks(-(-request.input_tokens // 16) - len(hits))
        blocks = [*hits, *new]
        for block, one in zip(blocks[len(hits) : len(keys)], hashes[len(hits) :], strict=True):
            block.set_block_hash(one)
            pool.cached_block_hash_to_block.insert(one, block)
        if load:
            swaps.append(("h2d", list(manager.prepare_load(load, context)[0:]), [b.block_id for b in new[: len(load)]]))
            manager.complete_load(load, context)
        offered = keys[len(hits) + len(load) if load else 0 :]
        stored = manager.prepare_store(offered, context) if offered else None
        if stored is not None and stored.keys_to_store:
            at_key = {key: block.block_id for key, block in zip(keys, blocks, strict=False)}
            swaps.append(("d2h", list(stored.store_spec), [at_key[key] for key in stored.keys_to_store]))
            manager.complete_store(stored.keys_to_store, context)
        pool.free_blocks(reversed(blocks))
        manager.on_request_finished(context)
    return swaps


def test_two_thousand_requests_get_the_ids_that_vllm_gives_them() -> None:
    chance = random.Random(1)
    requests = []
    for number in range(2000):
        family, ids = chance.randrange(150), chance.randint(1, 6)
        tokens = ids * 512 - chance.choice((0, 0, 5, 300))
        requests.append(Request(number * 1e3, tokens, 1, [family * 10 + at for at in range(ids)], 512))
    settings = CacheSettings(gpu_blocks=2000, host_blocks=9000, block_tokens=16)
    ours = [(swap.direction, list(swap.host), list(swap.gpu)) for swap in CacheRun(requests, settings)]
    assert {swap[0] for swap in ours} == {"h2d", "d2h"}
    assert hashlib.sha256(repr(ours).encode()).hexdigest() == OF_VLLM
    folder = next((root for root in sys.path if PathFinder.find_spec("vllm", [root])), None)
    if folder is not None:
        with vllm_in(folder):
            assert ours == _vllm_swaps(requests, 2000, 9000)
