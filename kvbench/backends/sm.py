"""Our own copy kernel: few SMs, descriptors read in place or uploaded, any size and alignment."""

from typing import Final

from kvbench.backends.base import Mechanism, PreparedSwap, SwapRequest
from kvbench.engine import Device, SmKernels, sm_copy
from kvbench.facts import DeviceFacts
from kvbench.nvrtc import cached_cubin

DEFAULT_SMS: Final = 2
# The kernel reads descriptors ahead, so that a list in pinned memory costs it nothing; none is uploaded.
UPLOAD_FROM: Final = 1 << 62


class Sm:
    """csrc/kernels/sm_copy.cu, compiled by NVRTC for the GPU at hand."""

    name = "sm"
    summary = "our copy kernel on a chosen number of SMs"
    default_sms = DEFAULT_SMS

    def __init__(self) -> None:
        self._loaded: tuple[Device, SmKernels] | None = None

    def axes(self, device: DeviceFacts) -> frozenset[str]:
        del device
        return frozenset({"memory", "sms"})

    def unavailable(self, device: DeviceFacts) -> str | None:
        return None if device.kind == "cuda" else "kernels need a GPU; the cpu device has no SMs"

    def create(self, request: SwapRequest) -> PreparedSwap:
        memory = request.memory
        swap = sm_copy(
            self._kernels(request.device),
            memory.kernel_sources,
            memory.kernel_destinations,
            memory.sizes,
            sms=request.cell.sms or DEFAULT_SMS,
            upload_from=UPLOAD_FROM,
        )
        return PreparedSwap(swap, Mechanism.SM_KERNEL)

    def _kernels(self, device: Device) -> SmKernels:
        if self._loaded is None or self._loaded[0] is not device:
            self._loaded = device, SmKernels(device.driver, cached_cubin("sm_copy", device.arch))
        return self._loaded[1]
