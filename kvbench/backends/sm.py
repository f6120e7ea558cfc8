"""kvbench's copy kernel: few SMs, any size and alignment, descriptors passed with the launch or read in place."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvbench.backends.base import Mechanism, PreparedSwap, SwapRequest
from kvbench.cells.axes import Direction
from kvbench.cells.backend_facts import SM, SmsRow, SmsRule
from kvbench.cells.blocks import SCATTERED_FROM_BYTES
from kvbench.cells.cell import Cell
from kvbench.cells.device_facts import DeviceFacts
from kvbench.cells.kernel_shape import MAX_SHARED_BYTES, RULE, KernelShape
from kvbench.cells.units import KIB
from kvbench.engine.device import DIRECTIONS, Device, SmKernel, SmMethod, sm_copy, sm_copy_tensors
from kvbench.engine.nvrtc import cached_cubin
from kvbench.errors import UsageError

# How the descriptor list reaches the kernel. Up to the limit in csrc it is passed with the launch, which saves a read
# over the link. A longer list is read in place, ahead of the bytes: an upload was never measurably faster, up to
# 100 000 descriptors.
INLINE_UP_TO_BYTES: Final = 4 * KIB
_ALIGNMENT: Final = 16
BULK_FROM_COMPUTE: Final = 90
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
# (maximum block size in bytes, shape) for scattered blocks d2h: lanes have more misses in flight than bulk stores.
_SCATTERED_STORES: Final = ((2 * KIB, _MANY_LANES), (8 * KIB, _LANES), (32 * KIB, _MANY_LANES))


def shape_for(
    cell: Cell, largest_bytes: int, address_bits: int, compute: int, shared_bytes: int = MAX_SHARED_BYTES
) -> KernelShape:
    """Return the kernel shape for a swap: the shape in the cell or by the rule, with as many warps as fit.

    `largest_bytes` is the size of the largest block, `address_bits` the bitwise or of all addresses and sizes,
    `compute` the compute capability times ten, `shared_bytes` the maximum shared memory of a thread block. Raises
    UsageError for a kernel that does not support this swap.
    """
    aligned = address_bits % _ALIGNMENT == 0
    takes_bulk = compute >= BULK_FROM_COMPUTE and aligned
    if cell.kernel != RULE:
        shape = KernelShape.parse(cell.kernel)
        if shape.method == "bulk" and not takes_bulk:
            raise UsageError(
                f"axis kernel={cell.kernel}: bulk copies need sm_90 or newer and multiples of {_ALIGNMENT} bytes"
            )
        if shape.method == "words" and not aligned:
            raise UsageError(f"axis kernel={cell.kernel}: words need multiples of {_ALIGNMENT} bytes")
        return shape
    if aligned and cell.blocks <= FEW_BLOCKS and largest_bytes <= _FEW_UP_TO_BYTES:
        return _WORDS
    scattered_stores = cell.direction is Direction.D2H and cell.spread_bytes >= SCATTERED_FROM_BYTES
    shapes = (*(_SCATTERED_STORES if scattered_stores else ()), *(_BULK if takes_bulk else ()))
    shape = next((shape for most_bytes, shape in shapes if largest_bytes <= most_bytes), _LANES)
    return shape.fitted(shared_bytes) or _LANES


def shape_on(device: Device, cell: Cell, largest_bytes: int, address_bits: int) -> KernelShape:
    """Return the kernel shape for a swap on a GPU; see `shape_for`."""
    info = device.driver.info
    compute = 10 * info.compute_major + info.compute_minor
    return shape_for(cell, largest_bytes, address_bits, compute, info.shared_bytes)


class Sm:
    """csrc/kernels/sm_copy.cu, compiled by NVRTC for this GPU."""

    name = SM
    summary = "kvbench's copy kernel, with a chosen SM count"
    kernels = ("bulk", "lanes", "words")
    default_sms = DEFAULT_SMS

    def __init__(self) -> None:
        self._device: Device | None = None
        self._kernels: dict[KernelShape, SmKernel] = {}

    def axes(self, _device: DeviceFacts) -> frozenset[str]:
        return frozenset({"memory", "sms", "kernel"})

    def unavailable(self, device: DeviceFacts) -> str | None:
        return None if device.kind == "cuda" else "kernels need a GPU; the cpu device has no SMs"

    def create(self, request: SwapRequest) -> PreparedSwap:
        memory = request.memory
        bits = _bits(memory.kernel_sources) | _bits(memory.kernel_destinations) | _bits(memory.sizes)
        shape = shape_on(request.device, request.cell, int(memory.sizes.max()), bits)
        kernel, direction = self.kernel(request.device, shape), DIRECTIONS[request.cell.direction]
        sms = request.cell.sms or DEFAULT_SMS[-1].sms
        if len(memory.grids) == 1:
            (grid,) = memory.grids
            swap = sm_copy_tensors(
                kernel,
                grid.source_bases,
                grid.destination_bases,
                grid.source_ids,
                grid.destination_ids,
                direction,
                stride=grid.row_bytes,
                block_bytes=grid.row_bytes,
                sms=sms,
                inline_up_to=INLINE_UP_TO_BYTES,
            )
        else:
            swap = sm_copy(
                kernel,
                memory.kernel_sources,
                memory.kernel_destinations,
                memory.sizes,
                direction,
                sms=sms,
                inline_up_to=INLINE_UP_TO_BYTES,
            )
        return PreparedSwap(swap, Mechanism.SM_KERNEL)

    def kernel(self, device: Device, shape: KernelShape) -> SmKernel:
        """Return the kernel of a shape, compiled and loaded once for a device."""
        if self._device is not device:
            self._device, self._kernels = device, {}
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
