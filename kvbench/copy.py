"""Copy lists of KV blocks from an engine, each list in the way that is the fastest for it."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kvbench.backends.auto import DEFAULTS, copier_for, serves
from kvbench.cells.axes import PACES_GBPS, Situation
from kvbench.cells.faults import FaultPlan
from kvbench.cells.policy import Policy, load_policy
from kvbench.engine.device import Device, open_device, resolve_device
from kvbench.ground.errors import UsageError
from kvbench.machine.probes import identity

# Room for a list of this many entries takes about 1.2 GiB.
MOST_ENTRIES: Final = 1 << 24


class BlockCopier:
    """Copies lists of blocks between pinned host memory and a GPU, in the way that a policy names for each.

    `device` is "cuda:N", "cpu" or "auto"; `policy` a file that `kvbench tune -p` wrote, without which built-in defaults
    serve. The way depends on the direction, on the mean block size and on the number of blocks; from 8 MiB on (64 MiB
    between SM counts) also on whether work is pending on the stream. Memory for lists of `max_entries` blocks of one
    size is taken at once; a list that needs more takes it when it comes. Raises UsageError for a device or policy that
    is not valid and for a policy of another device, EngineError where the driver fails; warns of a policy of another
    driver.

    `pace` holds the copy kernel at a rate in GB/s, whatever the policy says: at about 85% of the link and less, copies
    leave what else runs on the GPU most of its speed. Copies that are not by kernel run as fast as they can.

    `beside` is what the swaps run beside: "nothing", or "decode" or "prefill" steps of a model, for which a policy has
    tables of their own (`kvbench sweep beside`). Raises UsageError for one that it has no table for: what is the
    fastest alone can slow a step more than anything.

    `pools` are contiguous tensors, or pairs of an address and bytes, each of which the caller vouches to be one range
    of registered or allocated memory. Their blocks are accepted without asking the driver about each registration.
    Raises ValueError for one that begins or ends in other memory.

    One instance serves one thread at a time: a call of a second one raises RuntimeError. Instances are independent. The
    GPU's primary context is used, which is also PyTorch's; the constructor, a call and the end of an instance leave the
    thread's current device and context as they were. The constructor loads every kernel.
    """

    copy: Callable[..., None]
    """Submit a list: `copy(sources, destinations, sizes, stream, *, source_order_any=False, beside=None)`.

    `sources` and `destinations` are addresses, `sizes` bytes: contiguous CPU tensors or NumPy arrays of 64-bit integers
    of one length, of one direction. `stream` is a torch stream or the handle of a CUDA stream. The call returns when
    the list is submitted; the arrays may change from then on, the blocks once the stream has passed. Where destinations
    overlap, each byte is that of one of the entries. `source_order_any` lets the driver read sources ahead of earlier
    work on the stream. `beside` says what this list runs beside, in place of what the constructor was told; raises
    ValueError for what the policy has no table for. With nothing submitted, raises ValueError for an invalid list, with
    the number of its first entry of a negative size, else of its first invalid one, or for no stream; TypeError for
    arguments of another type; EngineError for the legacy default stream, for a stream that is captured, and in a
    process that was forked since. Raises EngineError also where the driver fails; a part of the list may have been
    submitted then.
    """
    not_staged: Callable[[], int]
    """Return how many lists so far did not go through pages on the GPU although the policy says `staged`, as their
    blocks lie in runs of less than 256 KiB on the host: the copy kernel copied them. `not_staged()`."""
    forget: Callable[[], None]
    """Forget where pools lie, also those of `pools`: `forget()`. To be called after a pool was freed and before its
    addresses come again."""

    def __init__(
        self,
        device: str = "auto",
        policy: Path | str | None = None,
        *,
        max_entries: int = 0,
        pools: Sequence[object] = (),
        pace: float | None = None,
        beside: str = "nothing",
    ) -> None:
        if type(max_entries) is not int or not 0 <= max_entries <= MOST_ENTRIES:
            raise UsageError(f"max_entries: must be a whole number from 0 to {MOST_ENTRIES}, not {max_entries!r}")
        if pace is not None:
            _check_pace(pace)
        ranges = [_range_of(number, pool) for number, pool in enumerate(pools)]
        opened = open_device(resolve_device(device), FaultPlan())
        if pace is not None and not opened.is_cuda:
            raise UsageError(f"pace={pace}: the device {opened.name} has no copy kernel to hold at a rate")
        policies = (DEFAULTS,) if policy is None else (_policy_for(opened, Path(policy)), DEFAULTS)
        situation = _situation_of(beside, policies)
        copier = copier_for(opened, policies, max_entries, ranges, pace, situation).engine
        # The engine's own methods: no Python code runs in a call.
        self.copy, self.forget, self.not_staged = copier.copy, copier.forget, copier.not_staged


def _situation_of(beside: object, policies: Sequence[Policy]) -> Situation:
    """Return what swaps run beside; raises UsageError where the policy has no table for it."""
    named = {situation.beside: situation for situation in Situation}
    if not isinstance(beside, str) or beside not in named:
        raise UsageError(f"beside: must be one of {', '.join(named)}, not {beside!r:.80}")
    if not serves(policies, named[beside]):
        raise UsageError(
            f"beside={beside}: the policy has no table for swaps beside it; measure them with kvbench sweep beside, "
            "and build one with kvbench show RUN -p FILE"
        )
    return named[beside]


def _check_pace(pace: object) -> None:
    low, high = PACES_GBPS
    if isinstance(pace, bool) or not isinstance(pace, int | float) or not low <= pace <= high:
        raise UsageError(f"pace: must be a rate from {low:g} to {high:g} in GB/s, not {pace!r:.80}")


def _range_of(number: int, pool: object) -> tuple[int, int]:
    """Return the address and the bytes of an entry of `pools`."""
    match pool:
        case (int(address), int(size)) if address > 0 and size > 0 and address + size <= 1 << 64:
            return address, size
        case object(data_ptr=data_ptr, is_contiguous=is_contiguous, nbytes=int(size)) if is_contiguous() and size:
            return int(data_ptr()), size
    raise UsageError(f"pools: entry {number} must be a contiguous tensor or (address, bytes), not {pool!r:.80}")


def _policy_for(device: Device, path: Path) -> Policy:
    """Return the policy of a file as a sweep takes it; raises UsageError for one of another device."""
    policy = load_policy(path)
    driver = identity(device.name, "")["driver_version"] or ""
    if doubt := policy.check_machine(device.driver.info.title, str(driver)):
        warnings.warn(doubt, stacklevel=3)
    return policy
