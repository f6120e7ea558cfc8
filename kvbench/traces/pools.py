"""The two tiers of a block cache, each a pool of block ids with the order in which vLLM gives them out.

The rules are those of vLLM 0.33 (`v1/core/block_pool.py`, `v1/kv_offload/cpu/manager.py` with its LRU policy); a test
runs both on the same requests.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile


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
        """Return whether a request of `blocks` blocks, of which `hits` are cached, can start now."""
        users = self._users
        return blocks - sum(1 for one in hits if users[one]) <= len(self.free)

    def hold(self, hits: Sequence[int]) -> None:
        """Take cached blocks out of the free queue for one more request."""
        for one in hits:
            if not self._users[one]:
                del self.free[one]
            self._users[one] += 1

    def take(self, count: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Return `count` ids from the head of the queue, and (key, id) of what they held, which is forgotten."""
        ids, lost = [], []
        for _ in range(count):
            one = self.free.popitem(last=False)[0]
            self._users[one] = 1
            ids.append(one)
            key = self._key_of.pop(one, None)
            if key is not None:
                lost.append((key, one))
                left = tuple(other for other in self._ids_of[key] if other != one)
                if left:
                    self._ids_of[key] = left
                else:
                    del self._ids_of[key]
        return ids, lost

    def name(self, ids: Sequence[int], keys: Sequence[int]) -> None:
        """Record that each block of `ids` holds the content of its key."""
        for one, key in zip(ids, keys, strict=True):
            self._key_of[one] = key
            self._ids_of[key] = (*self._ids_of.get(key, ()), one)

    def release(self, ids: Sequence[int]) -> None:
        """Give back the blocks of a request: the last first, those without a key before all that are free."""
        for one in ids:
            self._users[one] -= 1
        unused = [one for one in ids if not self._users[one]]
        self.free.update(dict.fromkeys(reversed(unused)))
        for one in unused:
            if one not in self._key_of:
                self.free.move_to_end(one, last=False)


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
        known, to_end = self._id_of, self._id_of.move_to_end
        for key in reversed(keys):
            if key in known:
                to_end(key)

    def take(self, count: int, kept: int) -> list[int] | None:
        """Return `count` ids, or None if the `kept` most recently used chunks would have to go for them."""
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
