"""The work of neighbours that run through torch, which is imported only for them: it takes seconds to load."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from kvbench.cells.axes import Neighbour
from kvbench.cells.blocks import LAYERS_OF_70B
from kvbench.models.steps import BATCH, CONTEXT, OF_70B, USUAL, StepSizes
from kvbench.run.rendezvous import Meeting

WARMUPS: Final = 3

Iterate = Callable[[], object]
Layer = Callable[[Any], Any]


class TorchWork:
    """Iterations of one kind on the stream `handle`, captured in CUDA graphs, with their data in memory of torch.

    An iteration is a decode step of `BATCH` sequences, or one layer of a prefill of one sequence: layer by layer, the
    launches of a prefill would leave gaps that swaps fill. Both are of `model`. With `layers`, it is a decode step of
    that number of layers. `parts` are its graphs: of a layer each with `layers`, else one. A decode step with a
    `meeting` is one of its ranks.
    """

    reads_back: ClassVar = False

    def __init__(
        self, kind: Neighbour, ordinal: int, handle: int, layers: int = 0, model: StepSizes = USUAL,
        meeting: Meeting | None = None,
    ) -> None:  # fmt: skip
        import torch
        import torch.nn.attention

        self._torch: Any = torch
        self._ordinal = ordinal
        self._stream = self._torch.cuda.ExternalStream(handle, device=ordinal)
        device = torch.device("cuda", ordinal)
        with self.thread():
            if layers:
                self.parts = _captured_layers(layers, torch, device)
            elif kind == Neighbour.DECODE:
                add_up = None if meeting is None else join(torch.distributed, meeting, device)
                self.parts = [_captured(torch, device, decode_step(torch, device, model, add_up=add_up))]
            else:
                self.parts = [_captured(torch, device, prefill_layer(torch, device, model, kind.tokens))]
            for _ in range(WARMUPS):
                self.submit()
        self._stream.synchronize()

    @contextmanager
    def thread(self) -> Iterator[None]:
        cuda = self._torch.cuda
        with cuda.device(self._ordinal), cuda.stream(self._stream), self._torch.inference_mode():
            yield

    def submit(self, _computed: object = None) -> None:
        for part in self.parts:
            part()


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A step, or a layer of one, captured in a CUDA graph; `memory` owns what the graph reads and writes."""

    graph: Any
    memory: object

    def __call__(self) -> None:
        self.graph.replay()


def join(distributed: Any, meeting: Meeting, device: Any, backend: str = "nccl") -> Layer:
    """Join the ranks of a visit; return what replaces a tensor by the sum of those of all ranks, on the stream.

    The group of before, of which a worker has ended, is given up.
    """
    if distributed.is_initialized():
        distributed.destroy_process_group()
    here, rank = "127.0.0.1", meeting.place
    store = None if rank else distributed.TCPStore(here, 0, is_master=True, wait_for_workers=False)
    ports = meeting.exchange(store.port if store else 0)
    store = store or distributed.TCPStore(here, ports[0])
    distributed.init_process_group(backend, store=store, rank=rank, world_size=len(ports), device_id=device)

    def add_up(hidden: Any) -> Any:
        distributed.all_reduce(hidden)
        return hidden

    return add_up


def step_model(count: int) -> StepSizes:
    """Return the sizes of a step of `count` layers on one rank."""
    return OF_70B if count == LAYERS_OF_70B else replace(USUAL, layers=count)


def _captured_layers(count: int, torch: Any, device: Any) -> list[Iterate]:
    """Capture each layer in a graph of its own, which reads the hidden states that the one before it writes."""
    hidden, layers = step_layers(torch, device, step_model(count))
    for _ in range(WARMUPS):
        reduce(lambda entered, layer: layer(entered), layers, hidden)
    torch.cuda.current_stream(device).synchronize()
    pool = torch.cuda.graph_pool_handle()
    captured: list[Iterate] = []
    for layer in layers:
        graph = torch.cuda.CUDAGraph()
        # not torch.cuda.graph, which frees cached memory before every capture
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        entered, hidden = hidden, layer(hidden)
        graph.capture_end()
        captured.append(CapturedStep(graph, (layer, entered, hidden)))
    return captured


def _captured(torch: Any, device: Any, work: Iterate) -> CapturedStep:
    for _ in range(WARMUPS):
        work()
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream(device)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    return CapturedStep(graph, work)


def decode_step(
    torch: Any, device: Any, model: StepSizes, batch: int = BATCH, context: int = CONTEXT, add_up: Layer | None = None
) -> Iterate:
    """Return a function that runs one decode step through every layer; it returns hidden states of (batch, width).

    `add_up` makes the sum over all ranks of what attention and what the MLP of a layer add to the hidden states.
    """
    entered, layers = step_layers(torch, device, model, batch=batch, context=context, add_up=add_up)
    return lambda: reduce(lambda hidden, layer: layer(hidden), layers, entered)


def prefill_layer(torch: Any, device: Any, model: StepSizes, tokens: int) -> Iterate:
    """Return a function that runs one layer on `tokens` tokens of one sequence; it returns hidden states of (tokens,
    width).
    """
    entered, (layer,) = step_layers(torch, device, replace(model, layers=1), batch=1, tokens=tokens)
    return lambda: layer(entered)


def step_layers(
    torch: Any, device: Any, model: StepSizes, *, batch: int = BATCH, tokens: int = 1, context: int = CONTEXT,
    add_up: Layer | None = None,
) -> tuple[Any, list[Layer]]:  # fmt: skip
    """Return the hidden states that enter a step of `batch` sequences, of shape (batch x tokens, width), and a function
    for each layer.

    With one token, each sequence decodes: it attends to a cache of `context` tokens, where heads that share a KV head
    are queries of the same attention. With more, each prefills: its tokens attend to those before them.
    """
    functional, attention, combined = torch.nn.functional, torch.nn.attention, add_up or (lambda part: part)
    width, mlp_width = model.width, model.mlp_width
    heads, kv_heads, head_dim = model.heads, model.kv_heads, model.head_dim
    sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]

    def random(*shape: int) -> Any:
        return torch.randn(*shape, dtype=torch.bfloat16, device=device)

    def weights(rows: int, columns: int) -> Any:
        return random(rows, columns).mul_(rows**-0.5)

    owned = [
        (
            weights(width, sum(sizes)),
            weights(sizes[0], width),
            weights(width, 2 * mlp_width),
            weights(mlp_width, width),
            *(random(batch, kv_heads, context, head_dim) for _ in range(2 if tokens == 1 else 0)),
        )
        for _ in range(model.layers)
    ]
    # not cuDNN's attention, which makes a new plan for every shape
    kinds = [attention.SDPBackend.FLASH_ATTENTION, attention.SDPBackend.EFFICIENT_ATTENTION, attention.SDPBackend.MATH]

    def decode(cache: Sequence[Any], query: Any, key: Any, value: Any) -> Any:
        keys, values = cache
        keys[:, :, -1] = key.view(batch, kv_heads, head_dim)
        values[:, :, -1] = value.view(batch, kv_heads, head_dim)
        grouped = query.view(batch, kv_heads, heads // kv_heads, head_dim)
        return functional.scaled_dot_product_attention(grouped, keys, values)

    def prefill(_: Sequence[Any], *states: Any) -> Any:
        by_head = (state.view(batch, tokens, -1, head_dim).transpose(1, 2) for state in states)
        seen = functional.scaled_dot_product_attention(*by_head, is_causal=True, enable_gqa=True)
        return seen.transpose(1, 2)

    def layer(tensors: Sequence[Any], hidden: Any) -> Any:
        project, out, up, down, *cache = tensors
        states = (functional.rms_norm(hidden, (width,)) @ project).split(sizes, dim=1)
        with attention.sdpa_kernel(kinds):
            seen = (decode if tokens == 1 else prefill)(cache, *states)
        hidden = hidden + combined(seen.reshape(batch * tokens, sizes[0]) @ out)
        gate, lifted = (functional.rms_norm(hidden, (width,)) @ up).chunk(2, dim=1)
        return hidden + combined((functional.silu(gate) * lifted) @ down)

    return random(batch * tokens, width), [partial(layer, tensors) for tensors in owned]
