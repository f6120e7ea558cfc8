"""Why a cell cannot run: a list of checks, and the memory that a cell takes and may take."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
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
    """The first objection to a cell, None without any."""
    return next(chain.from_iterable(check(cell, context) for check in CHECKS), None)


def _objections_to_axes(cell: Cell, context: Context) -> Iterator[str]:
    device, backend = context.device, context.backend
    if backend.unavailable:
        yield backend.unavailable
    lacks = [
        f"{'the cpu device' if device.kind == 'cpu' and axis.cuda_only else backend.name} has no {axis.noun}"
        for name, axis in AXES.items()
        if axis.depends_on_backend and name not in backend.axes and getattr(cell, axis.field) != axis.unused
    ]
    if lacks:
        yield "; ".join(lacks)
    if cell.sms == ALL_SMS:
        yield f"the number of SMs of {device.name} is not known"
    if cell.sms is not None and device.sm_count is not None and cell.sms > device.sm_count:
        yield f"{cell.sms} SMs requested; {device.name} has {device.sm_count}"


def _objections_to_stream(cell: Cell, context: Context) -> Iterator[str]:
    if cell.stream_state is not StreamState.BUSY and (cell.queued > 0 or cell.streams > 1):
        yield "queued swaps require a busy stream (stream_state=busy)"
    if cell.priority is not Priority.NONE and context.device.kind == "cpu":
        yield "the cpu device has no priorities of streams"
    if cell.priority is not Priority.NONE and cell.streams > 1:
        yield "swaps on several streams have no priority"
    if cell.list_place is ListPlace.GPU:
        if cell.pace != NO_PACE:
            yield "a gather by ids on the GPU (list=gpu) is held at no pace"
        alone = cell.stream_state in (StreamState.IDLE, StreamState.BUSY) and cell.neighbour == Neighbour.NONE
        equal = cell.direction is Direction.H2D and cell.sizes == EQUAL and cell.sequence == "whole"
        if not (alone and equal):
            yield "ids on the GPU (list=gpu) are for whole h2d swaps of equal blocks on an idle or busy stream"


def _objections_to_work_beside(cell: Cell, context: Context) -> Iterator[str]:
    """Objections to the neighbour, to swaps of the other direction and to the number of devices and ranks."""
    device, spec = context.device, context.spec
    if cell.ranks > 1:
        gpus = len(spec.devices) if device.kind == "cuda" else 0
        if cell.neighbour != Neighbour.DECODE or cell.layers:
            yield f"ranks={cell.ranks} joins decode steps: it requires neighbour=decode, without layers that wait"
        if gpus != cell.ranks:
            has = f"this sweep has {gpus or 'none'}"
            yield f"ranks={cell.ranks} requires {cell.ranks} GPUs that swap at once (--device cuda:all); {has}"
        if cell.devices != cell.ranks:
            yield f"the steps of ranks={cell.ranks} run while all their GPUs swap (devices={cell.ranks})"
    if cell.neighbour != Neighbour.NONE:
        if cell.stream_state is not StreamState.IDLE:
            yield "swaps beside a neighbour require an idle stream (stream_state=idle)"
        if cell.pause_us:
            yield "pause is not supported beside a neighbour"
    if cell.neighbour.uses_torch:
        if device.kind == "cpu":
            yield f"the neighbour {cell.neighbour} needs a GPU; the cpu device supports idle"
        if not device.has_torch:
            yield f"the neighbour {cell.neighbour} needs torch; install kvbench[cuda]"
    if cell.opposite:
        alone = cell.neighbour == Neighbour.NONE and cell.devices == 1 and not cell.pause_us
        whole = cell.sequence == "whole" and cell.list_place is ListPlace.HOST
        if not (cell.stream_state is StreamState.IDLE and alone and whole):
            yield (
                "swaps of both directions at once (opposite=on) are whole, on an idle stream, without a neighbour and "
                "a pause, on one device"
            )
    if cell.devices not in (1, len(spec.devices)):
        yield f"devices={cell.devices} requires --device to name {cell.devices} devices"


def _objections_to_blocks(cell: Cell, context: Context) -> Iterator[str]:
    """Why no swap of `cell` fits into the pool; swaps of a trace are left out one by one when they are made."""
    spec = context.spec
    if spec.trace is not None and cell.pool_bytes:
        least = spec.trace.swaps_of(cell.direction).least
        if least > spec.trace.capacity(cell.pool_bytes):
            pool, enough = format_size(cell.pool_bytes), spec.trace.enough_for(least)
            yield (
                f"the smallest swap of the trace, of {least} blocks, does not fit a pool of {pool}; "
                f"-a pool={enough} does"
            )
    elif objection := misfit(cell):
        yield objection
    if objection := unfit(cell):
        yield objection


def _objections_to_host_memory(cell: Cell, context: Context) -> Iterator[str]:
    """Why the blocks cannot lie in the slots, huge pages or runs of host memory that the cell or its backend needs."""
    device, spec = context.device, context.spec
    slots, least_run, run = slots_of(cell.memory), context.backend.host_run_bytes, cell.host_run_bytes
    if slots and least_run:
        yield f"{cell.backend} copies runs of blocks, which can end in another slot: memory={cell.memory}"
    if run < least_run:
        enough = max(2, -(-least_run // cell.block_bytes))  # a run has two blocks or more
        yield (
            f"{cell.backend} is for blocks in runs of {rough_size(least_run)} or more on the host, not of "
            f"{rough_size(run)}: name pages there, such as host_pattern=runs-{enough}"
        )
    if slots:
        if slots.slot_bytes % cell.block_bytes:
            size, block = format_size(slots.slot_bytes), format_size(cell.block_bytes)
            yield f"memory={cell.memory}: a slot of {size} does not hold whole blocks of {block}"
        count = footprint(cell, spec.sampling, device.kind) // slots.slot_bytes
        if count > MOST_SLOTS:
            yield f"memory={cell.memory}: {count} slots; the maximum is {MOST_SLOTS}: use a smaller pool"
    if page_bytes := HUGE_BYTES.get(cell.memory or ""):
        needed = -(-_pool_bytes(cell, spec.sampling, device.kind) // page_bytes)
        free = device.free_2mib_pages if page_bytes == 1 << 21 else device.free_1gib_pages
        if needed > free:
            of_size = f"hugepages-{page_bytes // KIB}kB"
            remedy = f"as root: echo {needed} > /sys/kernel/mm/hugepages/{of_size}/nr_hugepages"
            yield f"needs {counted(needed, 'huge page')} of {format_size(page_bytes)}; {free} are free ({remedy})"


def _objections_to_memory(cell: Cell, context: Context) -> Iterator[str]:
    device, spec = context.device, context.spec
    side_bytes = footprint(cell, spec.sampling, device.kind)
    side_bytes += region_bytes(opposite_of(cell), 0) if cell.opposite else 0
    on_device_bytes = side_bytes + _neighbour_bytes(cell, device, spec)
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
            yield f"needs {rough_size(needed)} of {memory}; the limit is {rough_size(usable)} ({option})"


# In this order: a later one may rely on the earlier ones.
CHECKS: Final[Sequence[Callable[[Cell, Context], Iterator[str]]]] = (
    _objections_to_axes,
    _objections_to_stream,
    _objections_to_work_beside,
    _objections_to_blocks,
    _objections_to_host_memory,
    _objections_to_memory,
)


def footprint(cell: Cell, sampling: Sampling, device_kind: str) -> int:
    """The bytes that measuring `cell` takes on each side: a pool (also used for the ceiling) and descriptors."""
    return _pool_bytes(cell, sampling, device_kind) + cell.blocks * DESCRIPTOR_BYTES


def _pool_bytes(cell: Cell, sampling: Sampling, device_kind: str) -> int:
    return max(region_bytes(cell, submissions(sampling, cell.stream_state)), CEILING_BYTES[device_kind])


def _neighbour_bytes(cell: Cell, device: DeviceFacts, spec: SweepSpec) -> int:
    model = spec.step_model or USUAL
    if device.kind != "cuda" or not cell.neighbour.uses_torch:
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
