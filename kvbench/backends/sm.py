"""kvbench's copy kernel: few SMs, any size and alignment, descriptors passed with the launch or read in place. Also
copies through pages on the GPU that it fills or empties, for host memory in which many blocks of the GPU lie together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvbench.backends.base import Backend, Mechanism, PreparedSwap, SwapRequest
from kvbench.cells.axes import NO_PACE, Direction, ListPlace
from kvbench.cells.blocks import SCATTERED_FROM_BYTES
from kvbench.cells.cell import Cell
from kvbench.cells.facts import LEAST_RUN_BYTES, SM, STAGED, DeviceFacts, SmsRow, SmsRule
from kvbench.cells.units import KIB, format_size
from kvbench.engine.device import (
    DIRECTIONS,
    STAGED_PAGE_BYTES,
    Device,
    GatherKernel,
    GatherSwap,
    SmKernel,
    SmMethod,
    sm_copy,
    staged,
)
from kvbench.engine.nvrtc import cached_cubin
from kvbench.ground.errors import KvbenchError

# How the descriptor list reaches the kernel. Up to the limit in csrc it is passed with the launch, which saves a read
# over the link. A longer list is read in place, ahead of the bytes: an upload was never measurably faster, up to
# 100 000 descriptors.
INLINE_UP_TO_BYTES: Final = 4 * KIB
_ALIGNMENT: Final = 16
_ANY_SMS: Final = 1 << 16
BULK_FROM_COMPUTE: Final = 90
_LINE_BYTES: Final = 128
_BARRIER_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class KernelShape:
    """`bulk`: `warps` rings of `depth` stages of `piece_bytes` in shared memory (sm_90 or newer, 16-byte alignment).
    `lanes`: `warps` warps that keep `depth` loads per thread in flight, in pieces of `piece_bytes` (any alignment).
    `words`: the same with fewer instructions, for few blocks (16-byte alignment).
    `paced` ones of the first two are held at a rate.
    """

    method: str
    warps: int
    depth: int
    piece_bytes: int
    paced: bool = False

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a thread block."""
        stages = self.warps * self.depth if self.method == "bulk" else 0
        # A stage is a piece plus one line; the barriers come first, padded to a whole line.
        return stages * (self.piece_bytes + _LINE_BYTES) + -(-stages * _BARRIER_BYTES // _LINE_BYTES) * _LINE_BYTES

    def fitted(self, shared_bytes: int) -> "KernelShape | None":
        """The shape with as many of its warps as fit into `shared_bytes`, or None if not even one fits."""
        fewer = (replace(self, warps=warps) for warps in range(self.warps, 0, -1))
        return next((shape for shape in fewer if shape.shared_bytes <= shared_bytes), None)

    @property
    def defines(self) -> tuple[str, ...]:
        """The compiler options that select this kernel."""
        values = {"METHOD": self.method, "WARPS": self.warps, "DEPTH": self.depth, "PIECE_BYTES": self.piece_bytes}
        values |= {"PACED": 1} if self.paced else {}
        return tuple(f"-DKVBENCH_{name}={value}" for name, value in values.items())


_LANES: Final = KernelShape("lanes", 16, 8, 4 * KIB)
_MANY_LANES: Final = KernelShape("lanes", 32, 4, 4 * KIB)
# For few blocks a kernel of few instructions, whose list comes with the launch: 0.4 to 1.8 us less than the others on
# an H200 (driver 580.159.04).
_WORDS: Final = KernelShape("words", 32, 4, 2 * KIB)
FEW_BLOCKS: Final = 256
_FEW_UP_TO_BYTES: Final = 16 * KIB
# (maximum block size in bytes, shape): small blocks need many copies in flight, large blocks few large pieces.
_BULK: Final = (
    (1 * KIB, KernelShape("bulk", 32, 6, 1 * KIB)),
    (2 * KIB, KernelShape("bulk", 16, 6, 2 * KIB)),
    (1 << 34, KernelShape("bulk", 8, 6, 4 * KIB)),
)


# The smallest SM count within 3% of the best, for fresh blocks in 16 GiB and for dense blocks, on an H200 and an H100
# (for few blocks, on an H200). Scattered blocks mostly miss the GPU's address translations, and each SM has few misses
# in flight: small blocks need more SMs. So do few blocks, whose first bytes are then requested at once.
DEFAULT_SMS: Final[SmsRule] = (
    SmsRow(8, Direction.D2H, SCATTERED_FROM_BYTES, 2 * KIB),
    SmsRow(8, Direction.D2H, SCATTERED_FROM_BYTES, most_blocks=FEW_BLOCKS),
    SmsRow(4, most_block_bytes=_FEW_UP_TO_BYTES, most_blocks=FEW_BLOCKS),
    SmsRow(4, Direction.D2H, SCATTERED_FROM_BYTES, 8 * KIB),
    SmsRow(4, Direction.H2D, SCATTERED_FROM_BYTES, 8 * KIB),
    SmsRow(2),
)


class _Shapes(NamedTuple):
    """Rows of (maximum block size in bytes, maximum SM count where there are bulk copies, shape) for scattered blocks
    d2h; rows of (maximum block size, shape) of bulk copies; and the shape for every other list.
    """

    scattered_stores: Sequence[tuple[int, int, KernelShape]]
    bulk: Sequence[tuple[int, KernelShape]]
    lanes: KernelShape


# Lanes have more misses in flight than bulk stores, which small blocks need, and larger ones on few SMs. From 3 SMs on,
# bulk stores of 16 KiB are as fast alone and slow what runs beside them less: at 47 GB/s a decode step took 1.53x where
# beside lanes it took 2.37x (H200, 4 SMs).
_UNPACED: Final = _Shapes(
    ((2 * KIB, _ANY_SMS, _MANY_LANES), (8 * KIB, _ANY_SMS, _LANES), (32 * KIB, 2, _MANY_LANES)), _BULK, _LANES
)
# Held at a rate, small even pieces matter: lanes take their slots by 512 bytes, and serve what bulk stores cannot.
_PACED_LANES: Final = replace(_MANY_LANES, paced=True)
_PACED: Final = _Shapes(
    ((8 * KIB, _ANY_SMS, _PACED_LANES),),
    [(most_bytes, replace(shape, paced=True)) for most_bytes, shape in _BULK],
    _PACED_LANES,
)


def shape_for(cell: Cell, largest_bytes: int, address_bits: int, compute: int, shared_bytes: int) -> KernelShape:
    """Choose the kernel shape for a swap, with as many warps as fit.

    `largest_bytes` is the size of the largest block, `address_bits` the bitwise or of all addresses and sizes,
    `compute` the compute capability times ten, `shared_bytes` the maximum shared memory of a thread block.
    """
    aligned = address_bits % _ALIGNMENT == 0
    takes_bulk = compute >= BULK_FROM_COMPUTE and aligned
    paced = cell.pace != NO_PACE
    if aligned and not paced and cell.blocks <= FEW_BLOCKS and largest_bytes <= _FEW_UP_TO_BYTES:
        return _WORDS
    scattered_stores = cell.direction is Direction.D2H and cell.spread_bytes >= SCATTERED_FROM_BYTES
    sms, (stores, bulk, lanes) = cell.sms or DEFAULT_SMS[-1].sms, _PACED if paced else _UNPACED
    few = [(most_bytes, shape) for most_bytes, most_sms, shape in stores if sms <= most_sms or not takes_bulk]
    shapes = (*(few if scattered_stores else ()), *(bulk if takes_bulk else ()))
    shape = next((shape for most_bytes, shape in shapes if largest_bytes <= most_bytes), lanes)
    return shape.fitted(shared_bytes) or lanes


def shape_on(device: Device, cell: Cell, largest_bytes: int, address_bits: int) -> KernelShape:
    info = device.driver.info
    compute = 10 * info.compute_major + info.compute_minor
    return shape_for(cell, largest_bytes, address_bits, compute, info.shared_bytes)


class Sm:
    """csrc/kernels/sm_copy.cu, compiled by NVRTC for this GPU."""

    name = SM
    summary = "kvbench's copy kernel, with a chosen SM count"
    default_sms = DEFAULT_SMS

    def __init__(self, shape: KernelShape | None = None) -> None:
        """Without a shape, each swap gets that of `shape_for`."""
        self._shape = shape
        self._device: Device | None = None
        self._kernels: dict[KernelShape, SmKernel] = {}
        self._gathers: dict[int, GatherKernel] = {}

    def axes(self, _device: DeviceFacts) -> frozenset[str]:
        return frozenset({"list", "memory", "pace", "sms"})

    def unavailable(self, device: DeviceFacts) -> str | None:
        return None if device.kind == "cuda" else "kernels need a GPU; the cpu device has no SMs"

    def create(self, request: SwapRequest) -> PreparedSwap:
        if request.cell.list_place is ListPlace.GPU:
            return self._gather(request)
        memory = request.memory
        lists = memory.kernel_sources, memory.kernel_destinations, memory.sizes
        bits = _bits(np.concatenate(lists))
        shape = self._shape or shape_on(request.device, request.cell, int(memory.sizes.max()), bits)
        kernel, direction = self.kernel(request.device, shape), DIRECTIONS[request.cell.direction]
        sms = request.cell.sms or DEFAULT_SMS[-1].sms
        swap = sm_copy(
            kernel, *lists, direction, sms=sms, inline_up_to=INLINE_UP_TO_BYTES, pace_gbps=request.pace_gbps or 0.0
        )
        return PreparedSwap(swap, Mechanism.SM_KERNEL, pace_gbps=request.pace_gbps)

    def _gather(self, request: SwapRequest) -> PreparedSwap:
        memory, row_bytes = request.memory, request.cell.block_bytes
        self._load_on(request.device)
        if row_bytes not in self._gathers:
            bits = _bits(memory.kernel_sources) | _bits(memory.kernel_destinations) | row_bytes
            word_bytes = next(size for size in (16, 8, 4, 1) if bits % size == 0)
            defines = (f"-DKVBENCH_ROW_BYTES={row_bytes}", f"-DKVBENCH_WORD_BYTES={word_bytes}")
            cubin = cached_cubin("gather", request.device.arch, defines)
            self._gathers[row_bytes] = GatherKernel(request.device.driver, cubin, row_bytes)
        sms = request.cell.sms or DEFAULT_SMS[-1].sms
        swap = GatherSwap(self._gathers[row_bytes], memory.kernel_sources, memory.kernel_destinations, sms)
        return PreparedSwap(swap, Mechanism.SM_KERNEL, stage=swap.stage)

    def _load_on(self, device: Device) -> None:
        if self._device is not device:
            self._device, self._kernels, self._gathers = device, {}, {}

    def kernel(self, device: Device, shape: KernelShape) -> SmKernel:
        """Compiled and loaded once for a device."""
        self._load_on(device)
        if shape not in self._kernels:
            self._kernels[shape] = SmKernel(
                device.driver,
                cached_cubin("sm_copy", device.arch, shape.defines),
                method=SmMethod[shape.method],
                warps=shape.warps,
                depth=shape.depth,
                piece_bytes=shape.piece_bytes,
            )
        return self._kernels[shape]


def _bits(addresses: NDArray[np.uint64]) -> int:
    return int(np.bitwise_or.reduce(addresses))


# With 2, copies wait for pages, and a decode step pays more for a GB; 8 gain nothing (H200, driver 580).
STAGED_SMS: Final = 4


class Staged(Backend):
    """A kernel between blocks and pages on the device, and large copies between those and the host."""

    name = STAGED
    summary = "gathered into pages on the GPU, one large copy for each run of host memory; and back"
    default_sms = STAGED_SMS
    host_run_bytes = LEAST_RUN_BYTES
    on_request = True  # of the patterns that a sweep takes by default, no host side has such runs

    def __init__(self) -> None:
        self._sm = Sm()

    def axes(self, _device: DeviceFacts) -> frozenset[str]:
        return frozenset({"memory", "sms"})

    def unavailable(self, device: DeviceFacts) -> str | None:
        return self._sm.unavailable(device)

    def create(self, request: SwapRequest) -> PreparedSwap:
        cell, memory = request.cell, request.memory
        largest = int(memory.sizes.max())
        if largest > STAGED_PAGE_BYTES:
            raise KvbenchError(
                f"staged takes blocks of up to {format_size(STAGED_PAGE_BYTES)}, not {format_size(largest)}: "
                "the copy engine takes these as they are"
            )
        blocks = memory.kernel_destinations if cell.direction is Direction.H2D else memory.kernel_sources
        bits = _bits(blocks) | _bits(memory.sizes)
        swap = staged(
            self._sm.kernel(request.device, page_shape(request.device, cell, largest, bits)),
            *(memory.sources, memory.destinations, memory.sizes),
            DIRECTIONS[cell.direction],
            sms=cell.sms or STAGED_SMS,
        )
        return PreparedSwap(swap, Mechanism.STAGED)


def page_shape(device: Device, cell: Cell, largest_bytes: int, address_bits: int) -> KernelShape:
    """The shape of the kernel, as of `shape_on`: no block of it waits for the link, in either direction."""
    return shape_on(device, replace(cell, direction=Direction.H2D), largest_bytes, address_bits)
