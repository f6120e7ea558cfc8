"""Our own copy kernel: few SMs, a list that comes with the launch or is read in place, any size and alignment."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvbench.backends.base import Mechanism, PreparedSwap, SwapRequest
from kvbench.cells.facts import DeviceFacts, SmsRule
from kvbench.cells.kernel_shape import RULE, KernelShape
from kvbench.engine.device import DIRECTIONS, Device, SmKernel, SmMethod, sm_copy, sm_copy_tensors
from kvbench.engine.nvrtc import cached_cubin
from kvbench.errors import UsageError
from kvbench.units import KIB, MIB

# Two SMs fill the link of an H200; very large swaps, whose blocks miss the GPU's address translation, need four.
DEFAULT_SMS: Final[SmsRule] = ((0, 2), (512 * MIB, 4))
# How a list reaches the kernel. With the launch, as much as csrc allows: saves a read over the link. Above, it is read
# in place, ahead of the bytes: an upload was nowhere faster by more than the noise, up to 100 000 descriptors.
INLINE_UP_TO_BYTES: Final = 4 * KIB
_BULK_ALIGNMENT: Final = 16
_BULK_FROM_COMPUTE: Final = 90
_LANES: Final = KernelShape("lanes", 16, 8, 4 * KIB)
# (blocks of up to so many bytes, shape): small blocks want many in flight, large ones few large pieces.
_BULK: Final = (
    (1 * KIB, KernelShape("bulk", 32, 6, 1 * KIB)),
    (2 * KIB, KernelShape("bulk", 16, 6, 2 * KIB)),
)
_BULK_LARGE: Final = KernelShape("bulk", 8, 6, 4 * KIB)


def shape_for(kernel: str, largest_bytes: int, address_bits: int, compute: int) -> KernelShape:
    """Return the kernel for a swap: the one that `kernel` names, or by the rule the one that was fastest on an H200.

    `largest_bytes` is the largest block, `address_bits` the bitwise or of all addresses and sizes, `compute` the
    compute capability times ten. Raises UsageError for a bulk kernel that cannot do it.
    """
    takes_bulk = compute >= _BULK_FROM_COMPUTE and address_bits % _BULK_ALIGNMENT == 0
    if kernel != RULE:
        shape = KernelShape.parse(kernel)
        if shape.method == "bulk" and not takes_bulk:
            raise UsageError(f"axis kernel={kernel}: bulk copies need sm_90 and multiples of {_BULK_ALIGNMENT} bytes")
        return shape
    if not takes_bulk:
        return _LANES
    return next((shape for most_bytes, shape in _BULK if largest_bytes <= most_bytes), _BULK_LARGE)


class Sm:
    """csrc/kernels/sm_copy.cu, compiled by NVRTC for the GPU at hand."""

    name = "sm"
    summary = "our copy kernel on a chosen number of SMs"
    default_sms = DEFAULT_SMS

    def __init__(self) -> None:
        self._device: Device | None = None
        self._kernels: dict[KernelShape, SmKernel] = {}

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        del device
        return frozenset({"memory", "sms", "kernel"})

    def unavailable(self, device: DeviceFacts) -> str | None:
        return None if device.kind == "cuda" else "kernels need a GPU; the cpu device has no SMs"

    def create(self, request: SwapRequest) -> PreparedSwap:
        memory, info = request.memory, request.device.driver.info
        bits = _bits(memory.kernel_sources) | _bits(memory.kernel_destinations) | _bits(memory.sizes)
        compute = 10 * info.compute_major + info.compute_minor
        shape = shape_for(request.cell.kernel, int(memory.sizes.max()), bits, compute)
        return _prepared(request, self._kernel(request.device, shape))

    def _kernel(self, device: Device, shape: KernelShape) -> SmKernel:
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


def _prepared(request: SwapRequest, kernel: SmKernel) -> PreparedSwap:
    memory, direction = request.memory, DIRECTIONS[request.cell.direction]
    sms = request.cell.sms or DEFAULT_SMS[0][1]
    if len(memory.grids) == 1:
        (grid,) = memory.grids
        swap = sm_copy_tensors(
            kernel,
            grid.source_bases,
            grid.destination_bases,
            *grid.ids(),
            direction,
            stride=grid.row_bytes,
            block_bytes=grid.row_bytes,
            sms=sms,
            inline_up_to=INLINE_UP_TO_BYTES,
        )
        return PreparedSwap(swap, Mechanism.SM_KERNEL, retarget=lambda: swap.retarget_ids(*grid.ids()))
    swap = sm_copy(
        kernel,
        memory.kernel_sources,
        memory.kernel_destinations,
        memory.sizes,
        direction,
        sms=sms,
        inline_up_to=INLINE_UP_TO_BYTES,
    )
    return PreparedSwap(
        swap,
        Mechanism.SM_KERNEL,
        retarget=lambda: swap.retarget(memory.kernel_sources, memory.kernel_destinations),
    )


def _bits(addresses: NDArray[np.uint64]) -> int:
    return int(np.bitwise_or.reduce(addresses))
