"""Run directories: what is written can be read, and nothing that was damaged is read as if it were whole."""

import errno
import gzip
import io
import os
import resource
import shutil
import zlib
from pathlib import Path

import msgspec
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.cells.axes import Direction, Order, StreamState
from kvbench.cells.cell import Cell
from kvbench.ground.errors import RunDirectoryError, StorageError, UsageError
from kvbench.ground.text import printable
from kvbench.results import Note, Record, RunWriter, Samples, Visit, load_run
from kvbench.results.frame import as_csv
from kvbench.results.journal import Position, read_lines, seal
from kvbench.results.rundir import runs_in
from kvbench.results.schema import EffectivePath
from tests import synthetic
from tests.reports import made_run

CELL = Cell("batched", Direction.H2D, 256, 4096, order=Order.ANY)
BUSY = Cell("batched", Direction.H2D, 256, 4096, StreamState.BUSY, order=Order.ANY)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    records: list[Record] = [*synthetic.ceilings(), *synthetic.visits([CELL, BUSY]), Note(text="worker replaced")]
    return synthetic.write_run(tmp_path / "run", records)


def test_a_packed_journal_reads_the_same(run: Path) -> None:
    plain = [*load_run(run).records]
    (run / "journal.jsonl.gz").write_bytes(gzip.compress((run / "journal.jsonl").read_bytes()))
    with pytest.raises(RunDirectoryError, match="both"):
        load_run(run)
    (run / "journal.jsonl").unlink()
    assert [*load_run(run).records] == plain
    with pytest.raises(UsageError, match="decompress a compressed journal first"):
        RunWriter.reopen(run)


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_torn_last_line_is_dropped_with_a_warning(run: Path, kept: float) -> None:
    data = (journal := run / "journal.jsonl").read_bytes()
    last = data.splitlines(keepends=True)[-1]
    journal.write_bytes(data[: len(data) - len(last) + max(1, int(len(last) * kept))])
    read = load_run(run)
    assert len([*read.records]) == 4
    assert "incomplete" in read.warnings[0]
    with RunWriter.reopen(run) as writer:
        writer.append(Note(text="went on"))
    again = load_run(run)
    assert ([*again.records][-1], again.warnings) == (Note(text="went on"), [])
    assert len(again.outcomes) == 2
    assert (len([*again.records]), len([*read.records])) == (5, 4)
    journal.write_bytes(data.splitlines(keepends=True)[0])
    with pytest.raises(RunDirectoryError, match="was changed since it was first read"):
        _ = [*again.records]
    assert again.ceiling_rates, "known since its outcomes are"


def test_a_journal_that_was_cut_at_a_line_is_said_until_its_run_has_ended_again(run: Path) -> None:
    journal = run / "journal.jsonl"
    with RunWriter.reopen(run) as writer:
        writer.set_status("complete")
    assert not load_run(run).warnings
    for left in (4, 3):
        journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:left]))
        assert load_run(run).warnings == [f"journal.jsonl was cut: {left} lines are left of the 5 of the ended run"]
    with RunWriter.reopen(run) as writer:
        writer.append(Note(text="went on"))
        writer.set_status("interrupted")
    assert not load_run(run).warnings


@pytest.mark.parametrize(("edit", "line"), [("edit", 3), ("remove", 2), ("swap", 1), ("repeat", 2), ("blank", 2)])
def test_a_line_that_was_edited_moved_or_removed_is_named(run: Path, edit: str, line: int) -> None:
    journal = run / "journal.jsonl"
    a, b, c, *rest = journal.read_text().splitlines(keepends=True)
    edited = {
        "edit": [a, b, c.replace('"round":0', '"round":1'), *rest], "remove": [a, c, *rest], "swap": [b, a, c, *rest],
        "repeat": [a, a, b, c, *rest], "blank": [a, "\n", b, c, *rest],
    }  # fmt: skip
    journal.write_text("".join(edited[edit]))
    for read in (load_run, RunWriter.reopen):
        with pytest.raises(RunDirectoryError, match=f"journal line {line} was changed after it was written"):
            read(run)


def _write_raw(run: Path, *bodies: bytes) -> None:
    """Write lines with right seals whatever they hold, as someone who knows the format would."""
    crc, lines = 0, []
    for body in bodies:
        crc = zlib.crc32(body, crc)
        lines.append(body[:-1] + b',"crc":"%08x"}\n' % crc)
    (run / "journal.jsonl").write_bytes(b"".join(lines))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"type":"note","text":"x","extra":1}', "unknown field"),
        (b'{"type":"pickle","text":"x"}', "Invalid value 'pickle'"),
        (b'{"type":"note"}', "missing required field"),
        (b'{"type":"note","text":7}', "Expected `str`"),
        (b'{"type":"skip","cell":{"backend":"x"},"reason":"r"}', "missing: ['block_size', 'blocks', "),
        (b'{"type":"ceiling","direction":"h2d","round":0,"swap_bytes":1,"event_us":[-1]}', ">= 0"),
        (b"[" * 50_000 + b"}", "not a record"),
        (b'{"type":"note","text":"x","\\u001b[2J\\n":1}', "unknown field"),
    ],
)
def test_records_are_parsed_strictly(run: Path, body: bytes, said: str) -> None:
    _write_raw(run, body)
    with pytest.raises(RunDirectoryError, match="line 1") as caught:
        load_run(run)
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


def test_the_text_of_a_record_is_printable(run: Path) -> None:
    _write_raw(run, '{"type":"note","text":"a\u202eb"}'.encode())
    assert [record.text.isprintable() for record in load_run(run).records if isinstance(record, Note)] == [True]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 50_000, '{"a":' * 50_000])
def test_a_run_json_that_is_not_an_object_is_refused(run: Path, text: str) -> None:
    (run / "run.json").write_text(text)
    with pytest.raises(RunDirectoryError, match=r"run\.json cannot be read"):
        load_run(run)


def test_other_folders_are_refused_as_run_directories(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(RunDirectoryError, match=r"is not a run directory: it has no run\.json"):
        load_run(tmp_path)
    for path, why in ((file, "it is a file"), (tmp_path / "absent", "folder not found")):
        with pytest.raises(RunDirectoryError, match=why):
            load_run(path)
    synthetic.write_run(tmp_path / "runs" / "mine", [])
    with pytest.raises(RunDirectoryError, match=r"it has no run\.json; runs below it: .*/runs/mine$"):
        load_run(tmp_path)
    for number in range(9):
        synthetic.write_run(tmp_path / "runs" / f"{number}", [])
    with pytest.raises(RunDirectoryError, match=r"it has no run\.json; runs below it: \S+/runs/\*$"):
        load_run(tmp_path)


def test_an_emptied_journal_of_a_complete_run_is_refused(run: Path) -> None:
    (run / "journal.jsonl").write_bytes(b"")
    with pytest.raises(RunDirectoryError, match=r"journal\.jsonl is empty, but the run was complete"):
        load_run(run)


@pytest.mark.parametrize("name", ["run.json", "journal.jsonl"])
def test_links_pipes_and_folders_are_not_followed(run: Path, tmp_path: Path, name: str) -> None:
    file = run / name
    moved = tmp_path / "elsewhere"
    file.rename(moved)
    file.symlink_to(moved)
    with pytest.raises(RunDirectoryError, match="is a symbolic link, which kvbench does not follow"):
        load_run(run)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(RunDirectoryError, match="not a regular file"):
        load_run(run)
    file.unlink()
    file.mkdir()
    with pytest.raises(RunDirectoryError, match="not a regular file"):
        load_run(run)


def test_a_journal_too_large_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cap in ("_INFO_CAP_BYTES", "MAX_LINE_BYTES", "MAX_JOURNAL_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(f"kvbench.results.rundir.{cap}", 100)
            with pytest.raises(RunDirectoryError, match=r"larger than|more than"):
                load_run(run)


@pytest.mark.parametrize("cap", ["MAX_LINE_BYTES", "MAX_JOURNAL_BYTES"])
def test_records_too_large_to_read_are_not_written(run: Path, monkeypatch: pytest.MonkeyPatch, cap: str) -> None:
    before = (run / "journal.jsonl").read_bytes()
    with RunWriter.reopen(run) as writer:
        monkeypatch.setattr(f"kvbench.results.journal.{cap}", 100)
        with pytest.raises(StorageError, match="would exceed the size that kvbench can read"):
            writer.append(Note(text="x" * 100))
    assert (run / "journal.jsonl").read_bytes() == before


def test_only_one_of_two_processes_creates_a_run_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunWriter.create(tmp_path / "run", synthetic.info()):
        before = (tmp_path / "run" / "run.json").read_bytes()
        monkeypatch.setattr(Path, "iterdir", lambda _: iter(()))  # both looked before either wrote
        with pytest.raises(UsageError, match="another kvbench process is writing to it"):
            RunWriter.create(tmp_path / "run", msgspec.structs.replace(synthetic.info(), created="later"))
        assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_the_runs_of_many_devices_are_all_found(tmp_path: Path) -> None:
    names = ["cuda-0", "cuda-15", "rank-127", "cpu-1"]
    for name in (*names, "cuda-x", "other"):
        synthetic.write_run(tmp_path / "runs" / name, synthetic.ceilings())
    assert runs_in(tmp_path / "runs") == sorted(tmp_path / "runs" / name for name in names)
    assert runs_in(tmp_path / "runs" / "other") == [tmp_path / "runs" / "other"]


def test_no_text_is_a_formula_in_csv() -> None:
    texts = ["=cmd|' /c calc'!A1", "@sum(1)", "+cmd", "-cmd", "\t=1", "-", "+5%", "-0.3", "plain", "1-2"]
    text = as_csv(pd.DataFrame({"texts": texts, "numbers": [-1.5] * len(texts)})).decode()
    read = pd.read_csv(io.StringIO(text), keep_default_na=False)
    assert read["texts"].tolist() == [f"'{text}" for text in texts[:5]] + texts[5:]
    assert (read["numbers"] == -1.5).all()


def test_create_refuses_folders_that_are_not_empty(run: Path, tmp_path: Path) -> None:
    (file := tmp_path / "file").write_text("x")
    for path, why in (
        (run, "choose another folder, or continue its run with --resume"),
        (run.parent, r"is not empty; choose another folder$"),
        (file, "is not a folder"),
        (file / "under", "cannot be written"),
        (Path("/proc/kvbench"), "cannot be written"),
    ):
        with pytest.raises(UsageError, match=why):
            RunWriter.create(path, synthetic.info())


def test_a_removed_run_directory_cannot_be_written(run: Path) -> None:
    read = load_run(run)
    with RunWriter.reopen(run) as writer:
        shutil.rmtree(run)
        with pytest.raises(StorageError, match=r"run cannot be written: No such file or directory$"):
            writer.set_status("complete")
    with pytest.raises(StorageError, match=r"run cannot be written: No such file or directory$"):
        read.write_summary()


def test_a_run_directory_has_one_writer_at_a_time(run: Path) -> None:
    with RunWriter.reopen(run), pytest.raises(UsageError, match="another kvbench process is writing"):
        RunWriter.reopen(run)
    RunWriter.reopen(run).close()


@pytest.mark.parametrize("option", [["--policy", "mine.toml"], ["--policy=mine.toml"], []])
def test_the_command_of_a_run_names_the_policy_that_the_run_recorded(tmp_path: Path, option: list[str]) -> None:
    """The file may have changed since, and the environment may have named it."""
    command = ["kvbench", "sweep", "engine", *option, "--out", "engine"]
    for name, spec in (("with", {"policy": {"format": 1}}), ("without", {})):
        info = synthetic.info(command=command, spec=spec, status="running")
        run = synthetic.loaded(tmp_path / name, [], info)
        recorded = ["kvbench", "sweep", "engine", "--policy", str(run.path)]
        assert run.reproducing() == (recorded if name == "with" else command[:-2])


def test_a_line_that_a_full_disk_cuts_is_taken_back(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (run / "journal.jsonl").read_bytes()
    left = [10]  # bytes on the disk

    def write(descriptor: int, data: memoryview) -> int:
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(descriptor, data[: left.pop()], 0)  # it appends

    with RunWriter.reopen(run) as writer:
        with monkeypatch.context() as patch:
            patch.setattr("kvbench.results.journal.os.write", write)
            with pytest.raises(StorageError, match="No space left"):
                writer.append(Note(text="lost"))
        assert (run / "journal.jsonl").read_bytes() == before
        writer.append(Note(text="next"))
    read = load_run(run)
    assert ([*read.records][-1], read.warnings) == (Note(text="next"), [])


def test_a_full_disk_keeps_the_old_run_json(run: Path) -> None:
    before = (run / "run.json").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with RunWriter.reopen(run) as writer:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        try:
            with pytest.raises(StorageError):
                writer.set_status("complete")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (run / "run.json").read_bytes() == before
    assert len(list(run.iterdir())) == 2


_TIMES = st.floats(min_value=0, max_value=1e9, allow_nan=False)


_LINES = st.text().map(printable)


@st.composite
def _visits(draw: st.DrawFn) -> Visit:
    count = draw(st.integers(0, 5))
    times = {
        name: draw(st.lists(_TIMES, min_size=count, max_size=count))
        for name in Samples.__struct_fields__
        if name.endswith("_us")
    }
    flags = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    taken = Samples(**times, pending_before=flags, pending_after=flags)
    return msgspec.structs.replace(
        synthetic.visit(CELL, 1.0),
        samples=taken,
        path=draw(st.sampled_from([path.value for path in EffectivePath])),
        warnings=draw(st.lists(_LINES, max_size=2)),
    )


@settings(deadline=None)
@given(st.lists(st.one_of(_visits(), st.builds(Note, text=_LINES))), st.integers(0, 10_000))
def test_a_journal_that_is_cut_anywhere_can_be_read(records: list[Record], cut: int) -> None:
    crc, lines = 0, []
    for record in records:
        line, crc = seal(record, crc)
        lines.append(line)
    whole = b"".join(lines)
    where = Path("journal")
    assert [record for record, _ in read_lines(whole.splitlines(keepends=True), where)] == records
    start = whole[: cut % (len(whole) + 1)]
    read = list(read_lines(start.splitlines(keepends=True), where))
    assert [record for record, _ in read if record is not None] == records[: start.count(b"\n")]
    assert all(at.torn_bytes for record, at in read if record is None)
    assert (read[-1][1].size_bytes if read else Position().size_bytes) <= len(start)


@pytest.mark.parametrize("records", [[], [synthetic.failure(CELL)], [synthetic.skip(CELL)], synthetic.visits([CELL])])
def test_the_columns_and_their_types_are_always_the_same(tmp_path: Path, records: list[Record]) -> None:
    read = made_run(tmp_path, records)
    full = made_run(tmp_path, synthetic.visits([CELL, BUSY]), name="full")
    pd.testing.assert_series_equal(read.table.dtypes, full.table.dtypes)
    assert len(read.samples()) == 30 * sum(isinstance(record, Visit) for record in records)


def test_a_damaged_packed_journal_is_refused(run: Path) -> None:
    packed = gzip.compress((run / "journal.jsonl").read_bytes())
    (run / "journal.jsonl").unlink()
    for damaged in (packed[:-20], packed[:20] + b"\xff\xff\xff" + packed[23:], b"no gzip"):
        (run / "journal.jsonl.gz").write_bytes(damaged)
        with pytest.raises(RunDirectoryError):
            load_run(run)
