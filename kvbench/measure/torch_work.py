"""The work of neighbours that run through torch, which is imported only for them: it takes seconds to load."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from kvbench.cells.axes import Neighbour
from kvbench.models.geometry import Geometry
from kvbench.models.presets import find_model

GEMM_SIDE: Final = 4096
COPY_BYTES: Final = 512 << 20
WARMUPS: Final = 3
# The decode step uses this model: the KV cache of its preset, and the widths of its layers.
MODEL: Final = "llama-3-8b"
WIDTH, HEADS, MLP_WIDTH = 4096, 32, 14_336
BATCH, CONTEXT = 16, 2048

Iterate = Callable[[], object]


class TorchWork:
    """Iterations of one kind on the stream `handle`, with their data in memory of torch."""

    in_stream = True

    def __init__(self, kind: Neighbour, ordinal: int, handle: int) -> None:
        import torch
        import torch.nn.attention

        self._torch: Any = torch
        self._ordinal = ordinal
        self._stream = self._torch.cuda.ExternalStream(handle, device=ordinal)
        make = {Neighbour.GEMM: _gemm, Neighbour.MEMORY: _copies, Neighbour.DECODE: _decode}[kind]
        with self.thread():
            self._iterate = make(torch, torch.device("cuda", ordinal))
            for _ in range(WARMUPS):
                self._iterate()
        self._stream.synchronize()

    @contextmanager
    def thread(self) -> Iterator[None]:
        cuda = self._torch.cuda
        with cuda.device(self._ordinal), cuda.stream(self._stream), self._torch.inference_mode():
            yield

    def submit(self) -> None:
        self._iterate()


def _gemm(torch: Any, device: Any) -> Iterate:
    a, b, out = (torch.randn(GEMM_SIDE, GEMM_SIDE, dtype=torch.bfloat16, device=device) for _ in range(3))
    return lambda: torch.mm(a, b, out=out)


def _copies(torch: Any, device: Any) -> Iterate:
    source, destination = (torch.ones(COPY_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    return lambda: destination.copy_(source)


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A step captured in a CUDA graph; `step` owns the memory that the graph reads and writes."""

    graph: Any
    step: Iterate

    def __call__(self) -> None:
        self.graph.replay()


def _decode(torch: Any, device: Any) -> Iterate:
    """Return a function that replays a captured decode step."""
    step = decode_step(torch, device, find_model(MODEL))
    for _ in range(WARMUPS):
        step()
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream(device)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        step()
    return CapturedStep(graph, step)


def decode_step(
    torch: Any,
    device: Any,
    model: Geometry,
    *,
    width: int = WIDTH,
    heads: int = HEADS,
    mlp_width: int = MLP_WIDTH,
    batch: int = BATCH,
    context: int = CONTEXT,
) -> Iterate:
    """Return a function that runs one decode step of `batch` sequences of `context` tokens through every layer.

    It returns hidden states of shape (batch, width). Heads that share a KV head are queries of the same attention.
    """
    functional, attention = torch.nn.functional, torch.nn.attention
    kv_heads, head_dim = model.kv_heads, model.head_dim
    sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]

    def random(*shape: int) -> Any:
        return torch.randn(*shape, dtype=torch.bfloat16, device=device)

    def weights(rows: int, columns: int) -> Any:
        return random(rows, columns).mul_(rows**-0.5)

    layers = [
        (
            weights(width, sum(sizes)),
            weights(sizes[0], width),
            weights(width, 2 * mlp_width),
            weights(mlp_width, width),
            random(batch, kv_heads, context, head_dim),
            random(batch, kv_heads, context, head_dim),
        )
        for _ in range(model.layers)
    ]
    entered = random(batch, width)
    # not cuDNN's attention, which makes a new plan for every shape
    kinds = [attention.SDPBackend.FLASH_ATTENTION, attention.SDPBackend.EFFICIENT_ATTENTION, attention.SDPBackend.MATH]

    def step() -> Any:
        hidden = entered
        for project, out, up, down, keys, values in layers:
            query, key, value = (functional.rms_norm(hidden, (width,)) @ project).split(sizes, dim=1)
            keys[:, :, -1] = key.view(batch, kv_heads, head_dim)
            values[:, :, -1] = value.view(batch, kv_heads, head_dim)
            grouped = query.view(batch, kv_heads, heads // kv_heads, head_dim)
            with attention.sdpa_kernel(kinds):
                seen = functional.scaled_dot_product_attention(grouped, keys, values)
            hidden = hidden + seen.reshape(batch, sizes[0]) @ out
            gate, lifted = (functional.rms_norm(hidden, (width,)) @ up).chunk(2, dim=1)
            hidden = hidden + (functional.silu(gate) * lifted) @ down
        return hidden

    return step
