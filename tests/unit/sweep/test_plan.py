import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from kvbench.cells.axes import AxisValue, Direction, Memory, Order, Priority, Reuse, StreamState
from kvbench.cells.cell import AXES, Cell
from kvbench.cells.facts import AUTO, BackendFacts, DeviceFacts, SmsRow
from kvbench.cells.filter import Filter
from kvbench.cells.pattern import Pattern
from kvbench.cells.policy import Policy, Table
from kvbench.ground.errors import UsageError
from kvbench.sweep.checks import footprint
from kvbench.sweep.plan import Plan, by_package, expand, visits
from kvbench.sweep.spec import Limits, Sampling, SweepSpec
from tests.strategies import AXIS_VALUES, CPU, CPU_BACKENDS, GIB, H200, H200_BACKENDS

OPTIONAL = [name for name, axis in AXES.items() if axis.depends_on_backend]
HOT = {"pool": "dense", "reuse": "same"}
ONE_MEMORY = replace(H200, host_free_bytes=8 * GIB, device_free_bytes=8 * GIB, integrated=True)
SMALL_CPU = replace(CPU, host_free_bytes=GIB)
CELL = Cell(backend="batched", direction=Direction.H2D, blocks=1024, block_bytes=4096)
Machine = tuple[DeviceFacts, tuple[BackendFacts, ...]]
small_values = {**AXIS_VALUES, "blocks": st.integers(1, 5000), "block_size": st.integers(1, 2**20)}
machines = st.sampled_from([(H200, H200_BACKENDS), (CPU, CPU_BACKENDS)])


@st.composite
def small_groups(draw: st.DrawFn) -> dict[str, tuple[str, ...]]:
    names = draw(st.sets(st.sampled_from(list(AXES)), max_size=5))
    values = {**small_values, "backend": st.sampled_from([facts.name for facts in H200_BACKENDS])}
    return {
        name: tuple(map(AXES[name].write, draw(st.lists(values[name], min_size=1, max_size=3, unique=True))))
        for name in AXES
        if name in names
    }


small_specs = st.builds(
    SweepSpec,
    name=st.just("x"),
    groups=st.lists(small_groups(), min_size=1, max_size=3).map(tuple),
    filters=st.lists(st.sampled_from(["blocks<1000", "backend=batched|triton", "order!=any"])).map(tuple),
)


def plan_of(
    device: DeviceFacts = H200,
    backends: tuple[BackendFacts, ...] = H200_BACKENDS,
    limits: Limits | None = None,
    **axes: str,
) -> Plan:
    spec = SweepSpec(name="x", limits=limits or Limits()).with_axes(axes)
    return expand(spec, device, backends)


def reasons(plan: Plan) -> list[str]:
    return [skip.reason for skip in plan.skipped]


def _fits(value: AxisValue | None, wanted: AxisValue, first: AxisValue, device: DeviceFacts, axis: str) -> bool:
    all_sms = axis == "sms" and wanted == 0 and value == device.sm_count
    return (
        value == wanted or all_sms or (AXES[axis].depends_on_backend and value == AXES[axis].unused and wanted == first)
    )


def test_a_backend_on_request_runs_only_where_a_sweep_names_it() -> None:
    batched, other = (facts for facts in H200_BACKENDS if facts.name in ("batched", "triton"))
    both = batched, replace(other, on_request=True)
    assert {cell.backend for cell in plan_of(backends=both).cells} == {"batched"}
    named = plan_of(backends=both, backend="batched,triton")
    assert {cell.backend for cell in named.cells} == {"batched", "triton"}


@settings(max_examples=15)
@given(small_specs, machines)
def test_every_requested_cell_is_planned_skipped_or_filtered(spec: SweepSpec, machine: Machine) -> None:
    device, backends = machine
    plan = expand(structs.replace(spec, filters=()), device, backends)
    planned = [*plan.cells, *(skip.cell for skip in plan.skipped)]
    for group in spec.groups:
        values = {name: tuple(map(AXES[name].parse_one, texts)) for name, texts in group.items()}
        axes = {"backend": tuple(facts.name for facts in backends if facts.name != AUTO), **values}
        for wanted in itertools.product(*axes.values()):
            assert any(
                all(
                    _fits(getattr(cell, AXES[axis].field), value, axes[axis][0], device, axis)
                    for axis, value in zip(axes, wanted, strict=True)
                )
                for cell in planned
            ), wanted


@given(small_specs, machines)
def test_filters_divide_the_cells_of_a_plan(spec: SweepSpec, machine: Machine) -> None:
    plan, unfiltered = expand(spec, *machine), expand(structs.replace(spec, filters=()), *machine)
    for part, whole in (
        (plan.cells, unfiltered.cells),
        ([skip.cell for skip in plan.skipped], [skip.cell for skip in unfiltered.skipped]),
    ):
        assert list(part) == [cell for cell in whole if all(Filter.parse(text).holds(cell) for text in spec.filters)]
    dropped = len(unfiltered.cells) + len(unfiltered.skipped) - len(plan.cells) - len(plan.skipped)
    assert plan.filtered == dropped


@given(small_specs, machines)
def test_a_cell_has_exactly_the_axes_that_its_backend_supports(spec: SweepSpec, machine: Machine) -> None:
    device, backends = machine
    known = {facts.name: facts for facts in backends}
    for cell in expand(spec, device, backends).cells:
        used = {name for name in OPTIONAL if getattr(cell, AXES[name].field) != AXES[name].unused}
        axes = known[cell.backend].axes
        assert {name for name in axes if AXES[name].optional} <= used <= axes
        assert known[cell.backend].unavailable is None
        assert cell.sms is None or 1 <= cell.sms <= (device.sm_count or 0)


def test_a_kernel_has_no_more_sms_by_its_rule_than_the_gpu() -> None:
    tiny = replace(H200, sm_count=1)
    assert {cell.sms for cell in plan_of(tiny, backend="sm", block_size="1KiB,64KiB").cells} == {1}


def test_a_footprint_is_a_pool_and_its_descriptors() -> None:
    assert footprint(replace(CELL, pool_bytes=4 * GIB), Sampling(), "cuda") == 4 * GIB + CELL.blocks * 24


@given(small_specs, machines)
def test_a_plan_stays_within_its_stated_memory(spec: SweepSpec, machine: Machine) -> None:
    device, _ = machine
    plan = expand(spec, *machine)
    sizes = [footprint(cell, spec.sampling, device.kind) for cell in plan.cells]
    assert plan.side_bytes == max(sizes, default=0) <= min(device.host_free_bytes, device.device_free_bytes)


def test_a_priority_is_one_of_the_measured_stream_of_a_gpu() -> None:
    asked = {"backend": "batched", "direction": "d2h", "blocks": "16", "stream_state": "busy"}
    asked["priority"] = "none,low,high"
    assert [cell.priority for cell in plan_of(**asked).cells] == [*Priority]
    assert reasons(plan_of(**asked, streams="8")) == ["swaps on several streams have no priority"] * 2
    on_cpu = plan_of(CPU, CPU_BACKENDS, **asked)
    assert ([cell.priority for cell in on_cpu.cells], len(on_cpu.skipped)) == ([Priority.NONE], 2)
    assert set(reasons(on_cpu)) == {"the cpu device has no priorities of streams"}


def test_a_pace_is_for_the_copy_kernel_and_no_gather() -> None:
    plan = plan_of(backend="sm,batched,triton", direction="d2h", blocks="16", pace="85%,46GB/s")
    assert [(cell.backend, cell.pace) for cell in plan.cells] == [("sm", "85%"), ("sm", "46GB/s")]
    assert reasons(plan) == ["batched has no pace"] * 2 + ["triton has no pace"] * 2
    both = plan_of(backend="batched", direction="d2h", blocks="16", pace="none,85%")
    assert ([cell.pace for cell in both.cells], reasons(both)) == (["none"], ["batched has no pace"])
    on_cpu = plan_of(CPU, CPU_BACKENDS, backend="batched", direction="d2h", blocks="16", pace="85%")
    assert (on_cpu.cells, reasons(on_cpu)) == ((), ["the cpu device has no pace"])
    gathered = plan_of(backend="sm", direction="h2d", blocks="16", pace="85%", list="gpu")
    assert (gathered.cells, reasons(gathered)) == ((), ["a gather by ids on the GPU (list=gpu) is held at no pace"])


def test_axes_that_are_not_named_have_their_defaults() -> None:
    loads = Cell(
        "batched", Direction.H2D, 256, 16_384, StreamState.IDLE, Pattern("shuffled"), memory=Memory.ALLOCATED,
        order=Order.ANY, descriptors_per_call=0, overlap=False, pool_bytes=16 * GIB, reuse=Reuse.FRESH,
    )  # fmt: skip
    stores = replace(loads, direction=Direction.D2H, order=Order.STREAM)
    assert plan_of(backend="batched").cells == (loads, stores)


def test_auto_is_planned_with_a_policy_or_on_request() -> None:
    kind = {"direction": Direction.H2D, "stream_state": StreamState.IDLE}
    table = Table(**kind, block_bytes=(4096,), blocks=(16,), choices=(("batched",),))
    spec = SweepSpec(name="x", policy=Policy(device=H200.title, tables=(table,))).with_axes({"direction": "h2d"})
    assert [cell.backend for cell in expand(spec, H200, H200_BACKENDS).cells] == [facts.name for facts in H200_BACKENDS]
    assert {cell.backend for cell in plan_of(backend="auto").cells} == {AUTO}


def test_a_backend_of_pages_gets_cells_whose_blocks_lie_together_on_the_host() -> None:
    staged = BackendFacts("staged", "pages", frozenset({"memory", "sms"}), host_run_bytes=256 << 10)
    axes = {"backend": "staged", "direction": "d2h", "blocks": "1024", "block_size": "24KiB"}
    plan = plan_of(H200, (staged,), **axes, host_pattern="pattern,runs-10,runs-11,contiguous", sms="4")
    assert [str(cell.host_pattern) for cell in plan.cells] == ["runs-11", "contiguous"]
    assert reasons(plan) == [
        f"staged is for blocks in runs of 256.0 KiB or more on the host, not of {run}: name pages there, such as "
        "host_pattern=runs-11"
        for run in ("24.0 KiB", "238.6 KiB")
    ]
    pages = plan_of(H200, (staged,), **axes, pattern="tensors-64", host_pattern="page-first-64,page-first-8")
    assert [str(cell.host_pattern) for cell in pages.cells] == ["page-first-64"]
    smaller = plan_of(H200, (staged,), **axes, host_pattern="runs-64", sizes="last-2,alternate-2")
    assert [cell.sizes for cell in smaller.cells] == ["last-2"]
    (reason,) = reasons(plan_of(H200, (staged,), **axes, host_pattern="runs-64", memory="slots-2MiBx2"))
    assert reason == "staged copies runs of blocks, which can end in another slot: memory=slots-2MiBx2"


def test_the_first_value_of_an_axis_that_does_not_apply_runs_and_the_others_are_skipped() -> None:
    plan = plan_of(backend="per_block", direction="h2d", order="stream,any", overlap="off,on")
    assert [cell.order for cell in plan.cells] == [None]
    assert [(skip.cell.order, skip.cell.overlap, skip.reason) for skip in plan.skipped] == [
        (None, True, "per_block has no overlap flag"),
        (Order.ANY, None, "per_block has no access order"),
        (Order.ANY, True, "per_block has no access order; per_block has no overlap flag"),
    ]


def test_only_swaps_on_a_busy_stream_are_queued() -> None:
    plan = plan_of(backend="per_block", direction="h2d", stream_state="idle,busy", queued="0,4", streams="1,2")
    shapes = [(cell.stream_state, cell.queued, cell.streams) for cell in plan.cells]
    busy = StreamState.BUSY
    assert shapes == [(StreamState.IDLE, 0, 1), (busy, 0, 1), (busy, 0, 2), (busy, 4, 1), (busy, 4, 2)]
    assert set(reasons(plan)) == {"queued swaps require a busy stream (stream_state=busy)"}


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    known = "auto, per_block, batched, primed, merged, sm, triton"
    with pytest.raises(UsageError, match=rf"^unknown backend \"other\"; use one of {known}$"):
        plan_of(backend="batched,other")
    with pytest.raises(UsageError, match=r"^unknown backend \"tritn\"; did you mean triton\?$"):
        plan_of(backend="batched,tritn")


def test_all_sms_are_the_number_that_the_device_has() -> None:
    plan = plan_of(backend="triton", direction="h2d", sms="1,132,all,133")
    assert [cell.sms for cell in plan.cells] == [1, 132]
    assert reasons(plan) == ["133 SMs requested; cuda:0 has 132"]


def test_the_default_sms_follow_the_rule_for_direction_pool_and_block_size() -> None:
    rows = (SmsRow(8, Direction.D2H, GIB, 2048), SmsRow(4, Direction.D2H, GIB), SmsRow(2))
    rule = BackendFacts("sm", "a kernel", frozenset({"sms"}), default_sms=rows)
    plan = plan_of(backends=(rule,), backend="sm", blocks="16", block_size="1KiB,4KiB", pool="512MiB,1GiB")
    sms_of = {(cell.direction, cell.pool_bytes, cell.block_bytes): cell.sms for cell in plan.cells}
    assert {sms for (direction, pool, _), sms in sms_of.items() if direction is Direction.H2D or pool < GIB} == {2}
    assert (sms_of[Direction.D2H, GIB, 1024], sms_of[Direction.D2H, GIB, 4096]) == (8, 4)


@pytest.mark.parametrize(
    ("device", "limits", "size", "needed", "limit"),
    [(H200, Limits(8 * GIB), "64MiB", "8.5 GiB of pinned memory", "8.0 GiB (--host-memory)"),
     (H200, Limits(None, 8 * GIB), "64MiB", "8.5 GiB of memory on cuda:0", "8.0 GiB (--device-memory)"),
     (SMALL_CPU, Limits(), "4MiB", "1.1 GiB of host memory for both sides", "921.6 MiB (--host-memory)"),
     (ONE_MEMORY, Limits(), "32MiB", "8.5 GiB of host memory for both sides", "7.2 GiB (--host-memory)"),
     (replace(H200, host_free_bytes=4 * GIB), Limits(64 * GIB), "64MiB", "8.5 GiB of pinned memory",
      "4.0 GiB (--host-memory)")],
    ids=["host", "device", "no GPU", "one memory", "no more than is free"],
)  # fmt: skip
def test_a_cell_beyond_a_memory_limit_is_skipped_with_both_sizes(
    device: DeviceFacts, limits: Limits, size: str, needed: str, limit: str
) -> None:
    backends = CPU_BACKENDS if device.kind == "cpu" else H200_BACKENDS
    axes = {"backend": "per_block", "direction": "h2d", "blocks": "32,128", "block_size": size, **HOT}
    plan = plan_of(device, backends, limits, **axes)
    assert [cell.blocks for cell in plan.cells] == [32]
    assert reasons(plan) == [f"needs {needed}; the limit is {limit}"]


def test_several_devices_share_the_memory_of_their_host() -> None:
    axes = {"backend": "per_block", "direction": "h2d", "blocks": "96", "block_size": "64MiB", **HOT}
    spec = SweepSpec(name="x", limits=Limits(host_bytes=8 * GIB)).with_axes(axes)
    assert expand(structs.replace(spec, device="cuda:0"), H200, H200_BACKENDS).cells
    plan = expand(structs.replace(spec, device="cuda:0,cuda:1"), H200, H200_BACKENDS)
    (reason,) = reasons(plan)
    assert reason.endswith("of pinned memory; the limit is 4.0 GiB (--host-memory, shared by 2 devices)")
    limited = structs.replace(spec, device="cuda:0,cuda:1", limits=Limits(device_bytes=8 * GIB))
    assert expand(limited, H200, H200_BACKENDS).cells  # each device has its own memory
    some = expand(structs.replace(spec.with_axes({"devices": "2"}), device="cuda:0,cuda:1,cuda:2"), H200, H200_BACKENDS)
    assert reasons(some) == ["devices=2 requires --device to name 2 devices"]


def test_huge_pages_that_are_not_free_are_refused_with_those_that_are() -> None:
    device = replace(H200, free_2mib_pages=511, free_1gib_pages=1)
    axes = {"backend": "per_block", "direction": "h2d", "blocks": "64", "block_size": "1MiB", **HOT}
    plan = plan_of(device, H200_BACKENDS, **axes, memory="registered,huge-2MiB,huge-1GiB")
    (reason,) = reasons(plan)  # the pool of large copies takes 1 GiB
    assert [cell.memory for cell in plan.cells] == [Memory.REGISTERED, Memory.HUGE_1GIB]
    remedy = "as root: echo {0} > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    needed = reason.split()[1]
    assert reason == f"needs {needed} huge pages of 2MiB; 511 are free ({remedy.format(needed)})"


@pytest.mark.parametrize(("free", "fits"), [(1, False), (2, True)])
def test_a_pool_that_ends_within_a_huge_page_takes_it_whole(free: int, *, fits: bool) -> None:
    device = replace(H200, free_1gib_pages=free)
    axes = {"backend": "per_block", "direction": "h2d", "blocks": "20", "block_size": "64MiB", **HOT}
    plan = plan_of(device, H200_BACKENDS, **axes, memory="huge-1GiB")
    assert bool(plan.cells) is fits
    assert fits or reasons(plan)[0].startswith("needs 2 huge pages of 1GiB; 1 are free ")


def test_too_many_combinations_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^the sweep has 60000000 combinations; the maximum is 200000"):
        plan_of(direction="h2d", blocks="1:10000:+1", block_size="1:1000:+1")


# Which blocks a swap takes: pool, reuse and pause


@pytest.mark.parametrize(
    ("device", "limits", "pool_bytes"),
    [(H200, Limits(), 16 * GIB), (replace(H200, host_free_bytes=10 * GIB), Limits(), 8 * GIB),
     (replace(H200, device_free_bytes=5 * GIB), Limits(), 4 * GIB), (H200, Limits(host_bytes=7 * GIB), 4 * GIB),
     (H200, Limits(device_bytes=3 * GIB), 2 * GIB), (CPU, Limits(), GIB // 32),
     (replace(H200, host_free_bytes=20 * GIB, device_free_bytes=20 * GIB, integrated=True), Limits(), 8 * GIB),
     (CPU, Limits(host_bytes=GIB // 20), GIB // 64), (H200, Limits(4 * GIB), 2 * GIB),
     (H200, Limits(None, 4 * GIB), 2 * GIB), (ONE_MEMORY, Limits(), 2 * GIB)],
)  # fmt: skip
def test_the_default_pool_is_the_largest_that_leaves_room_for_lists_and_the_other_side(
    device: DeviceFacts, limits: Limits, pool_bytes: int
) -> None:
    backends = CPU_BACKENDS if device.kind == "cpu" else H200_BACKENDS
    plan = plan_of(device, backends, limits, backend="per_block")
    assert ({cell.pool_bytes for cell in plan.cells}, plan.skipped) == ({pool_bytes}, ())


def _plan_with(counts: dict[str, int]) -> Plan:
    cells = [replace(CELL, backend=name, blocks=n + 1) for name, count in counts.items() for n in range(count)]
    return Plan(tuple(cells), (), 0, 0, 0.0)


counts = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 12), min_size=1)


@given(counts, st.integers(1, 3), st.integers(0, 2**63 - 1))
def test_visits_cover_each_cell_once_a_round(counts: dict[str, int], rounds: int, seed: int) -> None:
    plan = _plan_with(counts)
    made = list(visits(plan, Sampling(rounds=rounds), seed))
    assert [visit.round for visit in made] == sorted(list(range(rounds)) * len(plan.cells))
    assert Counter((visit.round, visit.cell) for visit in made) == Counter(itertools.product(range(rounds), plan.cells))
    assert made == list(visits(plan, Sampling(rounds=rounds), seed))


@given(st.integers(0, 2**63 - 1))
def test_every_round_and_seed_has_an_order_of_its_own(seed: int) -> None:
    plan = _plan_with({"a": 20, "b": 10})
    first, second = (
        [visit.cell for visit in visits(plan, Sampling(rounds=2), seed) if visit.round == number] for number in range(2)
    )
    other = [visit.cell for visit in visits(plan, Sampling(rounds=1), seed ^ 1)]
    assert len({tuple(order) for order in (plan.cells, first, second, other)}) == 4


@pytest.mark.parametrize(
    ("gib", "integrated", "pools", "changes"), [(40, False, 2, 100), (20, False, 1, 3), (40, True, 1, 3)]
)
def test_a_pool_is_pinned_again_at_most_twice_a_round(gib: int, pools: int, changes: int, *, integrated: bool) -> None:
    plan = plan_of(
        replace(H200, host_free_bytes=gib * GIB, integrated=integrated), backend="sm", memory="allocated,registered",
        block_size="4KiB,8KiB", blocks="16,64,256,1024", pool="16GiB",
    )  # fmt: skip
    assert plan.host_pools == pools
    kinds = [visit.cell.memory for visit in visits(plan, Sampling(rounds=2), 0)]
    assert Counter(kinds) == {Memory.ALLOCATED: len(kinds) // 2, Memory.REGISTERED: len(kinds) // 2}
    made = sum(one != other for one, other in itertools.pairwise(kinds))
    assert 3 <= made <= changes
    assert pools == 1 or made > 3  # where both fit, the order stays shuffled


def test_a_plug_in_package_has_one_turn_a_round_and_the_turns_alternate() -> None:
    plan = replace(_plan_with({"a": 4, "b": 4, "c": 4, "d": 4}), plug_ins={"b": "one==1", "c": "two==1", "d": "one==1"})
    order = [(visit.round, plan.plug_ins.get(visit.cell.backend)) for visit in visits(plan, Sampling(rounds=3), 0)]
    packages = {number: [package for of, package in order if of == number] for number in range(3)}
    turns = {number: [package for package, _ in itertools.groupby(each)] for number, each in packages.items()}
    assert turns == {0: [None, "one==1", "two==1"], 1: ["two==1", "one==1", None], 2: [None, "one==1", "two==1"]}
    of_package = [visit.cell.backend for visit in visits(plan, Sampling(rounds=1), 0)][4:12]
    assert sum(one != other for one, other in itertools.pairwise(of_package)) > 1  # its backends stay shuffled
    again = by_package([replace(one, attempt=1) for one in visits(plan, Sampling(rounds=1), 0)], plan.plug_ins)
    assert again[0].cell.backend == "c"  # which was the last of the first attempt


SLOTS = {"backend": "sm", "blocks": "16", "pool": "1GiB"}
GATHER = {"backend": "sm", "list": "gpu", "sms": "2"}
BOTH_WAYS = {"opposite": "on"}
ALONE = "swaps of both directions at once (opposite=on) are whole, on an idle stream, without a neighbour and a pause"
WHOLE = "ids on the GPU (list=gpu) are for whole h2d swaps of equal blocks on an idle or busy stream"


@pytest.mark.parametrize(
    ("device", "axes", "reason"),
    [
        (CPU, {"neighbour": "prefill,decode"}, "needs a GPU; the cpu device supports idle"),
        (replace(H200, has_torch=False), {"neighbour": "prefill"}, "prefill needs torch; install kvbench[cuda]"),
        (H200, {"neighbour": "prefill", "stream_state": "busy"}, "swaps beside a neighbour require an idle stream"),
        (H200, {"neighbour": "prefill", "pause": "5ms"}, "pause is not supported beside a neighbour"),
        (CPU, {"neighbour": "decode", "ranks": "2"}, "ranks=2 requires 2 GPUs that swap at once (--device cuda:all); "
         "this sweep has none"),
        (H200, {"neighbour": "decode", "ranks": "3"}, "3 GPUs that swap at once (--device cuda:all); this sweep has 1"),
        (H200, {"neighbour": "prefill", "ranks": "2"}, "ranks=2 joins decode steps: it requires neighbour=decode"),
        (H200, {"neighbour": "decode", "ranks": "2", "sequence": "layers-8"}, "without layers that wait"),
        (H200, BOTH_WAYS, ""),
        (H200, {**BOTH_WAYS, "stream_state": "busy"}, ALONE), (H200, {**BOTH_WAYS, "neighbour": "decode"}, ALONE),
        (H200, {**BOTH_WAYS, "pause": "5ms"}, ALONE), (H200, {**BOTH_WAYS, "sequence": "layers-2"}, ALONE),
        (H200, {**BOTH_WAYS, **GATHER}, ALONE),
        (H200, GATHER, ""), (H200, {**GATHER, "stream_state": "busy"}, ""),
        (H200, {**GATHER, "stream_state": "gated,opened,sustained"}, WHOLE),
        (H200, {**GATHER, "direction": "d2h"}, WHOLE), (H200, {**GATHER, "neighbour": "idle"}, WHOLE),
        (H200, {**GATHER, "sizes": "alternate-8"}, WHOLE), (H200, {**GATHER, "sequence": "layers-2"}, WHOLE),
        (H200, {**SLOTS, "memory": "slots-1152KiBx8", "block_size": "576"}, ""),
        (H200, {**SLOTS, "memory": "slots-16KiBx128", "block_size": "4KiB"}, ""),
        (H200, {**SLOTS, "memory": "slots-64KiBx2", "block_size": "576"},
         "memory=slots-64KiBx2: a slot of 64KiB does not hold whole blocks of 576B"),
        (H200, {**SLOTS, "memory": "slots-2MiBx8", "block_size": "4MiB", "pool": "8GiB"},
         "a slot of 2MiB does not hold whole blocks of 4MiB"),
        (H200, {**SLOTS, "memory": "slots-4KiBx2", "block_size": "4KiB"},
         "262144 slots; the maximum is 131072: use a smaller pool"),
    ],
)  # fmt: skip
def test_a_cell_that_cannot_run_is_skipped_with_the_reason(
    device: DeviceFacts, axes: dict[str, str], reason: str
) -> None:
    backends = H200_BACKENDS if device.kind == "cuda" else CPU_BACKENDS
    plan = plan_of(device, backends, **{"backend": "batched", "direction": "h2d", "blocks": "64", **axes})
    assert (bool(plan.cells), bool(plan.skipped)) == (not reason, bool(reason))
    assert all(reason in text for text in reasons(plan))


def test_steps_of_ranks_are_joined_while_all_their_gpus_swap() -> None:
    axes = {"backend": "batched", "direction": "h2d", "neighbour": "decode", "ranks": "1,2", "devices": "1,2"}
    plan = expand(SweepSpec(name="x", device="cuda:0,cuda:1").with_axes(axes), H200, H200_BACKENDS)
    assert [(cell.ranks, cell.devices) for cell in plan.cells] == [(1, 1), (1, 2), (2, 2)]
    assert reasons(plan) == ["the steps of ranks=2 run while all their GPUs swap (devices=2)"]


def test_swaps_of_the_other_direction_take_memory_too() -> None:
    small = replace(H200, device_free_bytes=18 * GIB)
    axes = {"backend": "batched", "blocks": "64", "pool": "16GiB"}
    assert plan_of(small, **axes).cells
    assert not plan_of(small, **axes, opposite="on").cells


def test_the_memory_of_a_neighbour_counts_toward_the_limit() -> None:
    small = replace(H200, device_free_bytes=24 * GIB)
    assert plan_of(small, backend="batched", neighbour="prefill", pool="4GiB").cells
    for more in ("prefill-65536", "decode"):
        assert not plan_of(small, backend="batched", neighbour=more, pool="4GiB").cells


def grouped(in_turn: tuple[str, ...], **axes: str) -> list[set[str]]:
    """Return the labels of the arms of each visit of a round."""
    spec = SweepSpec(name="x", in_turn=in_turn).with_axes({"direction": "h2d", "block_size": "4KiB", **axes})
    plan = expand(spec, H200, H200_BACKENDS)
    return [{cell.label for cell in visit.cells} for visit in visits(plan, Sampling(rounds=1), 0)]


def test_cells_that_differ_in_an_axis_in_turn_share_their_visits() -> None:
    kernels = {"backend": "sm,triton,batched", "blocks": "16,64", "sms": "2,4", "stream_state": "idle,busy"}
    assert sorted(map(len, grouped((), **kernels))) == [1] * 20
    assert sorted(map(len, grouped(("sms",), **kernels))) == [1] * 4 + [2] * 8
    assert sorted(map(len, grouped(("backend", "sms"), **kernels))) == [5] * 4
    assert [len(arms) for arms in grouped(("order",), backend="batched", blocks="16", order="stream,any")] == [2]


@pytest.mark.parametrize(
    "alone",
    [{"reuse": "same", "pool": "1GiB"}, {"pool": "dense"}, {"neighbour": "idle"}, {"opposite": "on"},
     {"sequence": "layers-2"}, {"blocks": "40000", "pool": "256MiB"}],  # without room for blocks of another arm
)  # fmt: skip
def test_cells_that_need_the_pool_or_the_device_for_themselves_are_visited_alone(alone: dict[str, str]) -> None:
    kernels = {"backend": "sm", "blocks": "16", "sms": "2,4"} | alone
    assert [len(arms) for arms in grouped(("sms",), **kernels)] == [1, 1]
