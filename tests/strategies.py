"""What the tests of axes, filters, specs and plans draw from, and two machines that do not exist."""

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import strategies as st

from kvbench.cells.axes import AxisValue, Direction, ListPlace, Memory, Neighbour, Order, Priority, Reuse, StreamState
from kvbench.cells.cell import AXES, Cell
from kvbench.cells.facts import QUEUE_AXES, BackendFacts, DeviceFacts, SmsRow
from kvbench.cells.pattern import AS_PATTERN, Pattern, Tensors
from kvbench.run.protocol import Opened

GIB = 2**30


def opened(device: DeviceFacts, backends: Iterable[BackendFacts]) -> Opened:
    return Opened(device=device, backends=[*backends], engine_hash="", delay_us={}, pci_bus_id=None, notes=[])


tensors = st.lists(st.builds(Tensors, st.integers(1, 999), st.integers(1, 999_999)), min_size=1, max_size=16)
orders = st.sampled_from([Pattern("contiguous"), Pattern("descending")]) | st.builds(
    Pattern, st.just("runs"), st.integers(2, 999_999)
)
tensor_patterns = tensors.map(lambda kinds: Pattern.of_tensors(*kinds)) | st.builds(
    lambda count, page, regions: Pattern.of_pages(count * regions, page, regions),
    st.integers(1, 999),
    st.integers(1, 64),
    st.sampled_from([1, 2]),
)
fragments = st.builds(Pattern.of_fragments, st.integers(1, 99), st.integers(1, 99), st.integers(1, 99))
side_patterns = (
    st.just(Pattern("shuffled"))
    | orders
    | fragments
    | st.builds(lambda pattern, order: replace(pattern, order=order), tensor_patterns, st.none() | orders)
)
patterns = st.just(Pattern("reversed")) | side_patterns
AXIS_VALUES: dict[str, st.SearchStrategy[AxisValue]] = {
    "backend": st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,20}", fullmatch=True),
    "direction": st.sampled_from(Direction),
    "blocks": st.integers(1, 10**8),
    "block_size": st.integers(1, 2**34),
    "stream_state": st.sampled_from(StreamState),
    "pattern": patterns,
    "device_pattern": st.just(AS_PATTERN) | side_patterns,
    "host_pattern": st.just(AS_PATTERN) | side_patterns,
    "memory": st.sampled_from(Memory),
    "list": st.sampled_from(ListPlace),
    "order": st.sampled_from(Order),
    "sms": st.integers(0, 4096),
    "pace": st.sampled_from(["none", "85%", "12.5%", "46GB/s", "0.5GB/s"]),
    "descriptors_per_call": st.integers(0, 10**8),
    "overlap": st.booleans(),
    "queued": st.integers(0, 100_000),
    "streams": st.integers(1, 32),
    "priority": st.sampled_from(Priority),
    "sizes": st.sampled_from(["equal", "alternate-8", "last-2"]),
    "pool": st.just(0) | st.integers(2**12, 2**44),
    "reuse": st.sampled_from(Reuse),
    "pause": st.integers(0, 1_000_000),
    "neighbour": st.one_of(
        st.sampled_from([Neighbour.NONE, Neighbour.IDLE, Neighbour.DECODE, Neighbour.PREFILL]),
        st.builds(Neighbour.parse, st.integers(64, 65_536).map("prefill-{}".format)),
    ),
    "opposite": st.booleans(),
    "sequence": st.sampled_from(["whole", "layers-4", "layers-1024", "at-once-32"]),
    "devices": st.integers(1, 64),
    "ranks": st.integers(1, 64),
}
cells = st.builds(
    Cell,
    **{
        axis.field: AXIS_VALUES[name] | st.none() if axis.optional else AXIS_VALUES[name] for name, axis in AXES.items()
    },
)

H200 = DeviceFacts(
    name="cuda:0",
    kind="cuda",
    title="an H200 that does not exist",
    sm_count=132,
    device_free_bytes=139 * GIB,
    host_free_bytes=100 * GIB,
    batch_entry="cuMemcpyBatchAsync_v2",
)
CPU = DeviceFacts(
    name="cpu",
    kind="cpu",
    title="a host that does not exist",
    sm_count=None,
    device_free_bytes=8 * GIB,
    host_free_bytes=8 * GIB,
    batch_entry="host",
)
BATCH_AXES = QUEUE_AXES | {"memory", "order", "descriptors_per_call", "overlap"}
H200_BACKENDS = (
    BackendFacts("auto", "one of the others", frozenset({"memory"})),
    BackendFacts("per_block", "one copy a descriptor", QUEUE_AXES | {"memory"}),
    BackendFacts("batched", "one call", BATCH_AXES),
    BackendFacts("primed", "one call", BATCH_AXES - {"descriptors_per_call"}),
    BackendFacts("merged", "one call", BATCH_AXES - {"descriptors_per_call"}),
    BackendFacts("sm", "a kernel", frozenset({"list", "memory", "pace", "sms"}), default_sms=(SmsRow(2),)),
    BackendFacts("triton", "a kernel", frozenset({"list", "memory", "sms"})),
)
CPU_BACKENDS = (
    BackendFacts("auto", "one of the others", frozenset()),
    BackendFacts("per_block", "one copy a descriptor", QUEUE_AXES | {"memory"}),
    BackendFacts("batched", "one call", QUEUE_AXES | {"memory", "descriptors_per_call"}),
    BackendFacts("merged", "one call", QUEUE_AXES | {"memory"}),
    BackendFacts("primed", "one call", frozenset(), unavailable="the cpu device runs no kernels"),
    BackendFacts("sm", "a kernel", frozenset(), unavailable="the cpu device runs no kernels", default_sms=(SmsRow(2),)),
    BackendFacts("triton", "a kernel", frozenset(), unavailable="the cpu device runs no kernels"),
)
