"""`kvbench sweep --trace`: swaps of a trace through the worker, the journal and the report."""

import json
from pathlib import Path

import pytest

from kvbench.results import Visit, load_run
from kvbench.sweep.swap_file import Header, Swap, write_trace
from tests.command import kvbench_here, refused, succeeds

ON_CPU = ("--device=cpu", "-a", "pool=8MiB", "--rounds=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace of ten loads and twenty stores, one of them too large for the pool."""
    path = tmp_path_factory.mktemp("traced")
    loads = [Swap(number, "h2d", number, [*range(number, number + 8)], [*range(8)]) for number in range(10)]
    stores = [Swap(20 + number, "d2h", number, [number], [99 - number]) for number in range(19)]
    large = Swap(50, "d2h", 99, [*range(9000)], [*range(9000)])
    write_trace(path / "trace.gz", Header(block_bytes=2 * 4096, descriptors=2), [*loads, *stores, large], {})
    return path


def visits(run: Path) -> list[Visit]:
    return [*load_run(run).visits]  # a disturbed visit is repeated


def test_the_swaps_of_a_trace_are_measured_and_reported(folder: Path) -> None:
    done = succeeds("sweep", "--trace", "trace.gz", "-a", "backend=batched,merged", *ON_CPU, "-o", "run", cwd=folder)
    assert "trace, d2h: 1 of 20 selected swaps do not fit into a pool of" in done.stdout
    measured = visits(folder / "run")
    swaps = {(visit.cell.backend, visit.cell.direction.value): 0 for visit in measured}
    for visit in measured:
        swaps[visit.cell.backend, visit.cell.direction.value] += len(visit.samples)
    assert swaps == {(name, way): count for name in ("batched", "merged") for way, count in (("h2d", 10), ("d2h", 19))}
    spec = load_run(folder / "run").info.spec
    assert isinstance(spec["trace"], dict)
    assert (spec["trace"]["h2d"]["total"], spec["trace"]["d2h"]["total"]) == (10, 20)
    succeeds("report", "run", cwd=folder)
    page = (folder / "run" / "report" / "details.md").read_text()
    assert "the swaps of a trace" in page
    assert "Loads (h2d): 10 of 10 swaps of run run" in page

    failed = kvbench_here("sweep", "--trace", "trace.gz", "-a", "backend=batched", *ON_CPU, "-o", "faulty",
                          "--fault=corrupt@descriptor=3 when direction=h2d", cwd=folder)  # fmt: skip
    assert failed.returncode == 5
    whole = failed.stdout.replace(" \\\n    ", " ").splitlines()
    (line,) = [line for line in whole if "to measure it again" in line]
    assert f"--trace {folder / 'trace.gz'} --trace-swaps 120 --device" in line
    assert "blocks=" not in line


def test_swaps_that_fit_are_replayed_where_typical_ones_do_not(tmp_path: Path) -> None:
    sizes = (20, 300, 300, 300, 40)
    swaps = [Swap(number, "h2d", number, [*range(size)], [*range(size)]) for number, size in enumerate(sizes)]
    write_trace(tmp_path / "trace.gz", Header(block_bytes=1 << 20), swaps, {})
    options = ("--trace", "trace.gz", "-a", "backend=batched", "--device=cpu", "--rounds=2")
    done = succeeds("sweep", *options, "-a", "pool=64MiB", "-o", "run", cwd=tmp_path)
    assert "trace, h2d: 3 of 5 selected swaps do not fit into a pool of" in done.stdout
    assert sorted(number for visit in visits(tmp_path / "run") for number in visit.samples.swap_numbers or ()) == [0, 4]
    none = kvbench_here("sweep", *options, "-a", "pool=16MiB", "-o", "none", cwd=tmp_path)
    assert none.returncode == 2
    assert "of 20 blocks, does not fit a pool of 16MiB; -a pool=64MiB does" in none.stderr


def test_orders_of_allocation_stand_side_by_side(folder: Path) -> None:
    """Each order of the same requests is a trace; `trace show` has a column for each."""
    lengths = {"input_length": 4096, "output_length": 1}
    prompts = ([*range(number % 6 * 8, number % 6 * 8 + 8)] for number in range(24))
    lines = [{"timestamp": 9000 * at, "hash_ids": prompt} | lengths for at, prompt in enumerate(prompts)]
    (folder / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    cache = ("requests.jsonl", "--gpu-pool=200MiB", "--host-pool=2GiB", "--model=deepseek-v2-lite")
    orders = ("vllm", "vllm-sorted")
    for order in orders:
        made = succeeds("trace", "make", *cache, "--allocator", order, "-o", f"{order}.gz", cwd=folder)
        assert made.stdout.startswith("24 requests within 207 s\n")
    files = [f"{order}.gz" for order in orders]
    shown = json.loads(succeeds("trace", "show", *files, "--json", cwd=folder).stdout)
    left = [f"{shown[file]['h2d']['share_left_by_merging']:.1%}" for file in files]
    assert left[0] != left[1]
    assert json.loads(succeeds("trace", "show", files[1], "--json", cwd=folder).stdout) == shown[files[1]]
    text = kvbench_here("trace", "show", *files, cwd=folder).stdout
    (loads, _) = (line.split() for line in text.splitlines() if line.startswith("Descriptors that merging leaves"))
    assert loads[-2:] == left
    lines = [line | {"hash_ids": [8 * at, *range(8 * at + 1, 8 * at + 8)]} for at, line in enumerate(lines)]
    (folder / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    alone = succeeds("trace", "make", *cache, "-o", "alone.gz", cwd=folder)
    assert "no request shares a prefix with another" in alone.stdout.splitlines()[0]


def test_a_replay_is_answered_for_and_gives_a_policy(folder: Path) -> None:
    backends = ("-a", "backend=batched,merged,per_block")
    succeeds("sweep", "--trace", "trace.gz", *backends, "--rounds=6", *ON_CPU, "-o", "replay", cwd=folder)
    done = succeeds("show", "replay", "-p", "policy.toml", "--json", cwd=folder)
    answers = json.loads(done.stdout)["answers"]
    assert {(answer["direction"], answer["stream_state"]) for answer in answers} == {("h2d", "idle"), ("d2h", "idle")}
    assert ": 10 loads and 20 stores" in " ".join(succeeds("show", "replay", cwd=folder).stdout.split())
    assert (folder / "policy.toml").read_text().count("[[tables]]") == 2


def test_a_replay_is_resumed_only_with_its_own_file(folder: Path) -> None:
    copy = folder / "copy.gz"
    copy.write_bytes((folder / "trace.gz").read_bytes())
    succeeds("sweep", "--trace", "copy.gz", "-a", "backend=batched", *ON_CPU, "-o", "early", cwd=folder)
    journal = folder / "early" / "journal.jsonl"
    lines = [line for line in journal.read_text().splitlines() if '"round":1' not in line or '"visit"' not in line]
    journal.write_text("\n".join(lines) + "\n")
    write_trace(copy, Header(block_bytes=4096), [Swap(0, "h2d", 1, [1], [1])], {})
    assert (
        refused("sweep", "--resume", "early", cwd=folder)
        == f"--trace {copy}: the file is not the one that the run began with"
    )
    copy.write_bytes((folder / "trace.gz").read_bytes())
    succeeds("sweep", "--resume", "early", cwd=folder)
    assert {visit.round for visit in visits(folder / "early")} == {0, 1}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--trace", "none.gz"], "none.gz: cannot be read: no such file"),
        (["--trace", "bad.gz"], "bad.gz: not a trace of kvbench"),
        (["quick", "--trace", "trace.gz"], "--trace trace.gz: a trace has its own geometry; leave out the config"),
        (["--trace", "trace.gz", "-a", "blocks=4"], "-a blocks: the trace sets it; leave it out"),
        (["--trace", "trace.gz", "-a", "stream_state=busy"], "-a stream_state: the trace sets it; leave it out"),
        (["--trace-swaps", "4"], "--trace-swaps 4: requires --trace FILE"),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_refused_in_one_line(folder: Path, options: list[str], said: str) -> None:
    (folder / "bad.gz").write_text(json.dumps({"requests": 3}))
    assert said in refused("sweep", *options, "--device=cpu", cwd=folder)
