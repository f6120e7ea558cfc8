"""Why a cell cannot run: a list of checks, and the memory that a cell takes and may take."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kvbench.cells.axes import HUGE_BYTES, NO_PACE, Direction, ListPlace, Neighbour, Priority, StreamState, slots_of
from kvbench.cells.blocks import LAYERS_OF_8B, LAYERS_OF_70B, misfit, opposite_of, region_bytes, unfit
from kvbench.cells.cell import AXES, EQUAL, Cell
from kvbench.cells.facts import CEILING_BYTES, BackendFacts, DeviceFacts
from kvbench.cells.units import KIB, format_size, rough_size
from kvbench.ground.text import counted
from kvbench.models.steps import USUAL
from kvbench.sweep.spec import Sampling, SweepSpec, submissions

ALL_SMS: Final = 0
DESCRIPTOR_BYTES: Final = 24
# Generous bounds on the GPU memory of neighbours of the usual model, including torch itself: of a decode step, of the
# one layer of a prefill, and of what that keeps of a token.
DECODE_BYTES: Final = 22 << 30
PREFILL_BYTES, TOKEN_BYTES = 4 << 30, 256 << 10
# Share of the free memory that a sweep may use unless a limit says otherwise.
FREE_SHARE: Final = 0.9
# To register one takes 90 us (H100, driver 580); vLLM's largest pools have about as many.
MOST_SLOTS: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class Context:
    """Where a cell is to run: the device, its backend there, and the sweep."""

    device: DeviceFacts
    backend: BackendFacts
    spec: SweepSpec


def why_not(cell: Cell, context: Context) -> str | None:
    return next(filter(None, (check(cell, context) for check in CHECKS)), None)


def _without_axes(cell: Cell, context: Context) -> str:
    device, backend = context.device, context.backend
    return "; ".join(
        f"{'the cpu device' if device.kind == 'cpu' and axis.cuda_only else backend.name} has no {axis.noun}"
        for name, axis in AXES.items()
        if axis.depends_on_backend and name not in backend.axes and getattr(cell, axis.field) != axis.unused
    )


def _without_sms(cell: Cell, context: Context) -> str | None:
    name, most = context.device.name, context.device.sm_count
    if cell.sms == ALL_SMS:
        return f"the number of SMs of {name} is not known"
    if cell.sms is not None and most is not None and cell.sms > most:
        return f"{cell.sms} SMs requested; {name} has {most}"
    return None


def _queued_on_no_busy_stream(cell: Cell, _: Context) -> str | None:
    if cell.stream_state is not StreamState.BUSY and (cell.queued > 0 or cell.streams > 1):
        return "queued swaps require a busy stream (stream_state=busy)"
    return None


def _without_priority(cell: Cell, context: Context) -> str | None:
    if cell.priority is Priority.NONE:
        return None
    if context.device.kind == "cpu":
        return "the cpu device has no priorities of streams"
    return "swaps on several streams have no priority" if cell.streams > 1 else None


def _without_gather(cell: Cell, _: Context) -> str | None:
    alone = cell.stream_state in (StreamState.IDLE, StreamState.BUSY) and cell.neighbour == Neighbour.NONE
    equal = cell.direction is Direction.H2D and cell.sizes == EQUAL and cell.sequence == "whole"
    if cell.list_place is ListPlace.GPU and cell.pace != NO_PACE:
        return "a gather by ids on the GPU (list=gpu) is held at no pace"
    if cell.list_place is ListPlace.HOST or (alone and equal):
        return None
    return "ids on the GPU (list=gpu) are for whole h2d swaps of equal blocks on an idle or busy stream"


def _without_neighbour(cell: Cell, context: Context) -> str | None:
    if cell.neighbour == Neighbour.NONE:
        return None
    if cell.stream_state is not StreamState.IDLE:
        return "swaps beside a neighbour require an idle stream (stream_state=idle)"
    if cell.pause_us:
        return "pause is not supported beside a neighbour"
    if context.device.kind == "cpu":
        if not cell.neighbour.uses_torch:
            return None
        return f"the neighbour {cell.neighbour} needs a GPU; the cpu device supports idle"
    if cell.neighbour.uses_torch and not context.device.has_torch:
        return f"the neighbour {cell.neighbour} needs torch; install kvbench[cuda]"
    return None


def _without_opposite(cell: Cell, _: Context) -> str | None:
    alone = cell.neighbour == Neighbour.NONE and cell.devices == 1 and not cell.pause_us
    whole = cell.sequence == "whole" and cell.list_place is ListPlace.HOST
    if not cell.opposite or (cell.stream_state is StreamState.IDLE and alone and whole):
        return None
    return (
        "swaps of both directions at once (opposite=on) are whole, on an idle stream, without a neighbour and a pause, "
        "on one device"
    )


def _without_devices(cell: Cell, context: Context) -> str | None:
    if cell.devices in (1, len(context.spec.devices)):
        return None
    return f"devices={cell.devices} requires --device to name {cell.devices} devices"


def _without_ranks(cell: Cell, context: Context) -> str | None:
    if cell.ranks == 1:
        return None
    if cell.neighbour != Neighbour.DECODE or cell.layers:
        return f"ranks={cell.ranks} joins decode steps: it requires neighbour=decode, without layers that wait"
    gpus = len(context.spec.devices) if context.device.kind == "cuda" else 0
    if gpus != cell.ranks:
        has = f"this sweep has {gpus or 'none'}"
        return f"ranks={cell.ranks} requires {cell.ranks} GPUs that swap at once (--device cuda:all); {has}"
    all_swap = cell.devices == cell.ranks
    return None if all_swap else f"the steps of ranks={cell.ranks} run while all their GPUs swap (devices={cell.ranks})"


def _without_room(cell: Cell, context: Context) -> str | None:
    """Why no swap of `cell` fits into the pool; swaps of a trace are left out one by one when they are made."""
    trace = context.spec.trace
    if trace is None or not cell.pool_bytes:
        return misfit(cell)
    least = trace.swaps_of(cell.direction).least
    if least <= trace.capacity(cell.pool_bytes):
        return None
    pool, enough = format_size(cell.pool_bytes), trace.enough_for(least)
    return f"the smallest swap of the trace, of {least} blocks, does not fit a pool of {pool}; -a pool={enough} does"


def _without_slots(cell: Cell, context: Context) -> str | None:
    slots = slots_of(cell.memory)
    if slots is None:
        return None
    if slots.slot_bytes % cell.block_bytes:
        size, block = format_size(slots.slot_bytes), format_size(cell.block_bytes)
        return f"memory={cell.memory}: a slot of {size} does not hold whole blocks of {block}"
    count = footprint(cell, context.spec.sampling, context.device.kind) // slots.slot_bytes
    most = f"memory={cell.memory}: {count} slots; the maximum is {MOST_SLOTS}: use a smaller pool"
    return most if count > MOST_SLOTS else None


def _without_huge_pages(cell: Cell, context: Context) -> str | None:
    size = HUGE_BYTES.get(cell.memory or "", 0)
    if not size:
        return None
    needed = -(-_pool_bytes(cell, context.spec.sampling, context.device.kind) // size)
    free = context.device.free_2mib_pages if size == 1 << 21 else context.device.free_1gib_pages
    if needed <= free:
        return None
    of_size = f"hugepages-{size // KIB}kB"
    remedy = f"as root: echo {needed} > /sys/kernel/mm/hugepages/{of_size}/nr_hugepages"
    return f"needs {counted(needed, 'huge page')} of {format_size(size)}; {free} are free ({remedy})"


def _without_pages(cell: Cell, context: Context) -> str | None:
    least, run = context.backend.host_run_bytes, cell.host_run_bytes
    if slots_of(cell.memory) and least:
        return f"{cell.backend} copies runs of blocks, which can end in another slot: memory={cell.memory}"
    if run >= least:
        return None
    enough = max(2, -(-least // cell.block_bytes))  # a run has two blocks or more
    return (
        f"{cell.backend} is for blocks in runs of {rough_size(least)} or more on the host, not of {rough_size(run)}: "
        f"name pages there, such as host_pattern=runs-{enough}"
    )


def _without_memory(cell: Cell, context: Context) -> str | None:
    device, spec = context.device, context.spec
    side_bytes = footprint(cell, spec.sampling, device.kind)
    side_bytes += region_bytes(opposite_of(cell), 0) if cell.opposite else 0
    on_device_bytes = side_bytes + _neighbour_bytes(cell, context)
    host_bytes, host_memory = side_bytes, "pinned memory"
    if device.has_one_memory:
        host_bytes, host_memory = side_bytes + on_device_bytes, "host memory for both sides"
    count = len(spec.devices)
    host_option = f"--host-memory, shared by {count} devices" if count > 1 else "--host-memory"
    device_limit = usable_bytes(spec.limits.device_bytes, device.device_free_bytes)
    for needed, memory, usable, option in (
        (host_bytes, host_memory, usable_of_host(device, spec), host_option),
        (on_device_bytes, f"memory on {device.name}", device_limit, "--device-memory"),
    ):
        if needed > usable:
            return f"needs {rough_size(needed)} of {memory}; the limit is {rough_size(usable)} ({option})"
    return None


# In the order in which they are asked: a later check may rely on the earlier ones.
CHECKS: Final[Sequence[Callable[[Cell, Context], str | None]]] = (
    lambda _, context: context.backend.unavailable,
    _without_axes,
    _without_sms,
    _queued_on_no_busy_stream,
    _without_priority,
    _without_gather,
    _without_ranks,
    _without_neighbour,
    _without_opposite,
    _without_devices,
    _without_room,
    lambda cell, _: unfit(cell),
    _without_pages,
    _without_slots,
    _without_huge_pages,
    _without_memory,
)


def footprint(cell: Cell, sampling: Sampling, device_kind: str) -> int:
    """The bytes that measuring `cell` takes on each side: a pool (also used for the ceiling) and descriptors."""
    return _pool_bytes(cell, sampling, device_kind) + cell.blocks * DESCRIPTOR_BYTES


def _pool_bytes(cell: Cell, sampling: Sampling, device_kind: str) -> int:
    return max(region_bytes(cell, submissions(sampling, cell.stream_state)), CEILING_BYTES[device_kind])


def _neighbour_bytes(cell: Cell, context: Context) -> int:
    model = context.spec.step_model or USUAL
    if context.device.kind != "cuda" or not cell.neighbour.uses_torch:
        return 0
    if cell.neighbour != Neighbour.DECODE:
        usual = PREFILL_BYTES + cell.neighbour.tokens * TOKEN_BYTES
        return usual * max(model.layer_bytes, USUAL.layer_bytes) // USUAL.layer_bytes
    if cell.layers:
        return DECODE_BYTES * max(cell.layers % LAYERS_OF_70B, LAYERS_OF_8B) // LAYERS_OF_8B
    return DECODE_BYTES * model.decode_bytes // USUAL.decode_bytes


def free_for_a_pool(device: DeviceFacts, spec: SweepSpec) -> int:
    """The bytes that a pool may take on each side, leaving room for descriptors."""
    usable = usable_of_host(device, spec)
    if device.has_one_memory:
        usable //= 2
    if device.kind == "cuda":
        usable = min(usable, usable_bytes(spec.limits.device_bytes, device.device_free_bytes))
    return usable - usable // 16


def usable_of_host(device: DeviceFacts, spec: SweepSpec) -> int:
    """The bytes of host memory for one device: all devices of a sweep take theirs from one host."""
    return usable_bytes(spec.limits.host_bytes, device.host_free_bytes) // len(spec.devices)


def usable_bytes(limit_bytes: int | None, free_bytes: int) -> int:
    return int(free_bytes * FREE_SHARE) if limit_bytes is None else min(limit_bytes, free_bytes)
