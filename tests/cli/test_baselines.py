"""The store of baselines: what is admitted, how it is found again, and what another one's store may hold."""

import gzip
import json
import re
from pathlib import Path

import pytest

from kvbench.cells.axes import Direction
from kvbench.cells.cell import Cell
from kvbench.errors import MismatchError, RunDirectoryError, UsageError
from kvbench.gate.baselines import add, baselines, find, newest_for
from kvbench.results import Record, Run, load_run
from tests import synthetic

CELL = Cell("batched", Direction.H2D, 64, 4096)
HASH = "0123456789abcdef"


def a_run(path: Path, records: list[Record] | None = None, **changes: object) -> Run:
    records = records if records is not None else [synthetic.visit(CELL, 100.0)]
    info = synthetic.info(**({"identity_hash": HASH} | changes))  # type: ignore[arg-type]
    return load_run(synthetic.write_run(path, records, info))


def test_what_is_added_is_found_with_who_when_and_which_commit(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / name) for name in ("one", "two")]
    runs[0].write_summary()
    entry = add(tmp_path / "store", runs, "nightly", "Ada", "abc123")
    assert re.fullmatch(HASH + r"/\d{8}T\d{6}Z-nightly", entry.key)
    (found,) = baselines(tmp_path / "store")
    assert found == entry
    assert (found.origin.who, found.origin.commit, found.origin.runs) == ("Ada", "abc123", 2)
    assert [run.records for run in found.runs()] == [run.records for run in runs]
    assert sorted(path.name for path in (found.path / "00").iterdir()) == [
        "journal.jsonl.gz", "run.json", "summary.csv",
    ]  # fmt: skip
    # The copy stands alone: what was added may go.
    assert (
        gzip.decompress((found.path / "01" / "journal.jsonl.gz").read_bytes())
        == (tmp_path / "two" / "journal.jsonl").read_bytes()
    )


def test_nothing_is_left_behind_by_what_is_refused(tmp_path: Path) -> None:
    good, bad = a_run(tmp_path / "good"), a_run(tmp_path / "bad", status="interrupted")
    with pytest.raises(UsageError, match="bad cannot be a baseline: it is interrupted, not complete"):
        add(tmp_path / "store", [good, bad], "x", "Ada", "")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([synthetic.visit(CELL, 100.0), synthetic.failure(Cell("sm", Direction.H2D, 1, 1))], "1 of its cells failed"),
        ([], "it has no measured cell"),
        ([synthetic.skip(CELL)], "it has no measured cell"),
    ],
)
def test_a_run_with_failed_cells_or_none_is_refused(tmp_path: Path, records: list[Record], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        add(tmp_path / "store", [a_run(tmp_path / "run", records)], "x", "Ada", "")


def test_a_run_whose_bytes_nobody_compared_is_refused(tmp_path: Path) -> None:
    import msgspec

    unverified = msgspec.structs.replace(synthetic.visit(CELL, 100.0), verified_bytes=0)
    with pytest.raises(UsageError, match="1 of its 1 visits were not verified"):
        add(tmp_path / "store", [a_run(tmp_path / "run", [unverified])], "x", "Ada", "")


def test_runs_of_two_machines_are_no_baseline(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "a"), a_run(tmp_path / "b", identity_hash="f" * 16)]
    with pytest.raises(UsageError, match="machines or builds differ"):
        add(tmp_path / "store", runs, "x", "Ada", "")


@pytest.mark.parametrize("name", ["", "../up", "a/b", "-x", "x" * 65, "a b"])
def test_a_name_is_no_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="--name"):
        add(tmp_path / "store", [a_run(tmp_path / "run")], name, "Ada", "")


def test_the_newest_of_a_machine_is_taken_whichever_build_it_was(tmp_path: Path) -> None:
    store = tmp_path / "store"
    here = {"gpu_name": "H200", "engine_hash": "new"}
    old = a_run(tmp_path / "old", identity=here | {"engine_hash": "old"}, identity_hash="a" * 16)
    other = a_run(tmp_path / "other", identity=here | {"gpu_name": "A30"}, identity_hash="b" * 16)
    first = add(store, [old], "first", "Ada", "")
    second = add(store, [old], "second", "Ada", "")
    add(store, [other], "third", "Ada", "")
    # In one second the names decide.
    newest = max(first, second, key=lambda entry: entry.path.name)
    assert newest_for(store, a_run(tmp_path / "new", identity=here).info) == newest


def test_without_one_of_this_machine_the_nearest_is_named(tmp_path: Path) -> None:
    add(tmp_path / "store", [a_run(tmp_path / "a", identity={"gpu_name": "A30", "driver": "1"})], "x", "Ada", "")
    with pytest.raises(MismatchError, match=r'no baseline of this machine; the nearest one differs: gpu_name: "A30"'):
        newest_for(tmp_path / "store", a_run(tmp_path / "b", identity={"gpu_name": "H200", "driver": "1"}).info)


def test_a_key_may_be_shortened_while_it_is_clear(tmp_path: Path) -> None:
    store = tmp_path / "store"
    run = a_run(tmp_path / "run")
    entry = add(store, [run], "first", "Ada", "")
    assert find(store, entry.key[:10]) == entry
    assert find(store, entry.path.name) == entry
    add(store, [run], "second", "Ada", "")
    with pytest.raises(UsageError, match="2 baselines"):
        find(store, HASH)
    with pytest.raises(UsageError, match="0 baselines"):
        find(store, "nothing")


def test_a_store_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="kvbench gate baseline add makes one"):
        baselines(tmp_path / "store")


def test_what_a_stranger_put_into_a_store_is_read_strictly(tmp_path: Path) -> None:
    store = tmp_path / "store"
    entry = add(store, [a_run(tmp_path / "run")], "x", "Ada", "")
    (store / "notes").mkdir()
    (store / HASH / "anything").mkdir()
    (store / HASH / "20260101T000000Z-link").symlink_to(tmp_path)
    assert baselines(store) == [entry]
    origin = json.loads((entry.path / "baseline.json").read_text())
    (entry.path / "baseline.json").write_text(json.dumps(origin | {"who": "Eve\x1b[2J"}))
    assert baselines(store)[0].origin.who.isprintable()
    (entry.path / "baseline.json").write_text(json.dumps(origin | {"runs": 10**9}))
    with pytest.raises(RunDirectoryError, match=r"baseline\.json cannot be read"):
        baselines(store)
