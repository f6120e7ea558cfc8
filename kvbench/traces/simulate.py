"""Run the requests of a trace through a two-tier block cache: the swaps that an engine makes for them.

Each tier is a pool of block ids with the order in which vLLM 0.33 gives them out (`v1/core/block_pool.py`,
`v1/kv_offload/cpu/manager.py` with its LRU policy); a test runs both on the same requests.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import takewhile

import msgspec

from kvbench.sweep.swap_file import Swap
from kvbench.traces.requests import Request


class Allocator(StrEnum):
    """Which ids a request gets: as vLLM gives them, or in an order that merges better."""

    VLLM = "vllm"
    VLLM_SORTED = "vllm-sorted"


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes and rules of the cache. Pools are in blocks of `block_tokens` tokens.

    A request holds its blocks for `prefill_s` and `token_s` for every token of its output, whose blocks are left out.
    """

    gpu_blocks: int
    host_blocks: int
    block_tokens: int
    allocator: Allocator = Allocator.VLLM
    prefill_s: float = 0.2
    token_s: float = 0.02


class GpuPool:
    """GPU blocks: a FIFO queue of free ones, which keep their contents until they are taken.

    Block 0 is never given out: in vLLM it is the null block.
    """

    def __init__(self, blocks: int) -> None:
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, blocks))
        self.capacity = len(self.free)
        self._users = [0] * blocks
        self._key_of: dict[int, int] = {}
        # Equal contents can lie in several blocks: a prompt that is cached whole computes its last block again.
        self._ids_of: dict[int, tuple[int, ...]] = {}

    def prefix(self, keys: Iterable[int]) -> list[int]:
        return [self._ids_of[key][0] for key in takewhile(self._ids_of.__contains__, keys)]

    def fits(self, blocks: int, hits: Sequence[int]) -> bool:
        """Whether a request of `blocks` blocks, of which `hits` are cached, can start now."""
        users = self._users
        return blocks - sum(1 for block in hits if users[block]) <= len(self.free)

    def hold(self, hits: Sequence[int]) -> None:
        """Take cached blocks out of the free queue for one more request."""
        for block in hits:
            if not self._users[block]:
                del self.free[block]
            self._users[block] += 1

    def take(self, count: int) -> list[int]:
        """`count` ids from the head of the queue; what was in these blocks is forgotten."""
        ids = []
        for _ in range(count):
            block, _ = self.free.popitem(last=False)
            self._users[block] = 1
            ids.append(block)
            key = self._key_of.pop(block, None)
            if key is not None:
                left = tuple(other for other in self._ids_of[key] if other != block)
                if left:
                    self._ids_of[key] = left
                else:
                    del self._ids_of[key]
        return ids

    def label(self, ids: Sequence[int], keys: Sequence[int]) -> None:
        """Record that each block of `ids` holds the content of its key."""
        for block, key in zip(ids, keys, strict=True):
            self._key_of[block] = key
            self._ids_of[key] = (*self._ids_of.get(key, ()), block)

    def release(self, ids: Sequence[int]) -> None:
        """Give back the blocks of a request: the last first, those without a key before all that are free."""
        for block in ids:
            self._users[block] -= 1
        unused = [block for block in ids if not self._users[block]]
        self.free.update(dict.fromkeys(reversed(unused)))
        for block in unused:
            if block not in self._key_of:
                self.free.move_to_end(block, last=False)


class HostPool:
    """Host chunks: fresh ids ascend, then a LIFO list of what the least recently used chunks leave."""

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks
        self._fresh = 0
        self._free: list[int] = []
        self._id_of: OrderedDict[int, int] = OrderedDict()

    def __contains__(self, key: int) -> bool:
        return key in self._id_of

    def prefix(self, keys: Iterable[int]) -> list[int]:
        return [self._id_of[key] for key in takewhile(self.__contains__, keys)]

    def use(self, keys: Sequence[int]) -> None:
        """Make the keys of a request the most recently used, the first of them the most."""
        for key in reversed(keys):
            if key in self._id_of:
                self._id_of.move_to_end(key)

    def take(self, count: int, kept: int) -> list[int] | None:
        """`count` ids, or None if the `kept` most recently used chunks would have to go for them."""
        fresh = min(count, self._chunks - self._fresh)
        evicted = count - fresh - len(self._free)
        if evicted > len(self._id_of) - kept:
            return None
        for _ in range(evicted):
            self._free.append(self._id_of.popitem(last=False)[1])
        ids = list(range(self._fresh, self._fresh + fresh))
        self._fresh += fresh
        return ids + [self._free.pop() for _ in range(count - fresh)]

    def store(self, keys: Sequence[int], ids: Sequence[int]) -> None:
        self._id_of.update(zip(keys, ids, strict=True))


class CacheRun:
    """The swaps of `requests`, in order of time; `counts` says what became of requests and blocks."""

    def __init__(self, requests: Iterable[Request], settings: CacheSettings) -> None:
        self.counts: Counter[str] = Counter()
        self._requests = requests
        self._settings = settings
        self._gpu, self._host = GpuPool(settings.gpu_blocks), HostPool(settings.host_blocks)
        # Heaps: (end, number, ids, keys) of running requests, and swaps that were decided on but come later.
        self._running: list[tuple[float, int, list[int], list[int]]] = []
        self._coming: list[tuple[float, int, Swap]] = []

    def __iter__(self) -> Iterator[Swap]:
        now_s = 0.0
        for number, request in enumerate(self._requests):
            blocks = -(-request.input_tokens // self._settings.block_tokens)
            if blocks > self._gpu.capacity:
                self.counts["requests larger than the GPU pool"] += 1
                continue
            keys = request.keys(self._settings.block_tokens)
            now_s = max(now_s, request.arrival_s)
            while self._running and self._running[0][0] <= now_s:
                self._finish()
            # The last token is always computed, even if all are cached.
            usable = keys[: (request.input_tokens - 1) // self._settings.block_tokens]
            hits = self._gpu.prefix(usable)
            if not self._gpu.fits(blocks, hits):
                self.counts["requests that waited for blocks"] += 1
            while not self._gpu.fits(blocks, hits):
                now_s = max(now_s, self._finish())
            ids, used = self._admit(now_s, blocks, keys, hits, len(usable))
            end_s = now_s + self._settings.prefill_s + self._settings.token_s * request.output_tokens
            heapq.heappush(self._running, (end_s, number, ids, used))
            yield from self._until(now_s)
        yield from self._until(float("inf"))

    def _finish(self) -> float:
        """End the request that ends first; return when it does."""
        end_s, _, ids, keys = heapq.heappop(self._running)
        self._gpu.release(ids)
        self._host.use(keys)
        return end_s

    def _admit(
        self, now_s: float, blocks: int, keys: list[int], hits: list[int], usable: int
    ) -> tuple[list[int], list[int]]:
        """Give a request its blocks; return their ids, and the keys that it used on the host."""
        cached = len(hits)
        sources = self._host.prefix(keys[cached:usable])
        loaded = keys[cached : cached + len(sources)]
        # As in vLLM, a request that loads does not offer what it found on the GPU.
        offered = keys[cached + len(sources) if sources else 0 :]
        self._gpu.hold(hits)
        new = self._gpu.take(blocks - cached)
        if self._settings.allocator is Allocator.VLLM_SORTED:
            new.sort()
        self._gpu.label(new[: len(keys) - cached], keys[cached:])
        ids = [*hits, *new]
        if sources:
            self._emit(now_s, "h2d", sources, new[: len(sources)])
        used = loaded + offered
        self._host.use(used)
        if offered:
            self._store(now_s + self._settings.prefill_s, offered, ids[len(keys) - len(offered) :], len(loaded))
            self._host.use(used)
        self.counts["requests"] += 1
        self.counts["blocks"] += blocks
        self.counts["blocks found on the GPU"] += cached
        self.counts["blocks loaded from the host"] += len(sources)
        return ids, used

    def _store(self, at_s: float, keys: Sequence[int], ids: Sequence[int], kept: int) -> None:
        """Store the keys that the host does not hold yet; `kept` chunks were used by the same request before."""
        missing = {key: block for key, block in zip(keys, ids, strict=False) if key not in self._host}
        if not missing:
            return
        chunks = self._host.take(len(missing), kept + len(keys) - len(missing))
        if chunks is None:
            self.counts["stores without room on the host"] += 1
            return
        if self._settings.allocator is Allocator.VLLM_SORTED:
            chunks.sort()
        self._host.store(list(missing), chunks)
        self._emit(at_s, "d2h", chunks, list(missing.values()))

    def _emit(self, at_s: float, direction: str, host: list[int], gpu: list[int]) -> None:
        self.counts["jobs"] += 1
        job = self.counts["jobs"]
        heapq.heappush(self._coming, (at_s, job, Swap(at_s, direction, job, host, gpu)))

    def _until(self, now_s: float) -> Iterator[Swap]:
        while self._coming and self._coming[0][0] <= now_s:
            yield heapq.heappop(self._coming)[2]
