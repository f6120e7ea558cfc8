"""Freezes part of a committed run, so that no unit test depends on reports that are measured again.

`python -m tests.data.freeze RUN NAME` keeps the cells of RUN with these numbers of blocks and block sizes, and the
first samples of each visit, as tests/data/NAME.
"""

import gzip
import shutil
import sys
from pathlib import Path
from typing import Final

import msgspec

from kvbench.cells.units import KIB
from kvbench.results import Record, RunWriter, Visit, load_run

FOLDER: Final = Path(__file__).parent
BLOCKS: Final = (64, 1024, 10_000)
SIZES: Final = (4 * KIB, 16 * KIB, 64 * KIB)
SAMPLES: Final = 5


def freeze(source: Path, target: Path) -> None:
    run = load_run(source)
    with RunWriter.create(target, run.info) as writer:
        for record in run.records:
            if kept := _kept(record):
                writer.append(kept)
    (target / "run.json").write_bytes((source / "run.json").read_bytes())
    journal = target / "journal.jsonl"
    with journal.open("rb") as lines, gzip.GzipFile(f"{journal}.gz", "wb", mtime=0) as packed:
        shutil.copyfileobj(lines, packed)
    journal.unlink()


def _kept(record: Record) -> Record | None:
    """Return the record with its cell as this kvbench writes it, or None if it is not kept."""
    if cell := getattr(record, "cell", None):
        if cell.blocks not in BLOCKS or cell.block_bytes not in SIZES:
            return None
        record = msgspec.structs.replace(record, cell_text=cell.as_strings())  # type: ignore[type-var]  # of a cell
    if not isinstance(record, Visit):
        return record
    lists = {name: value[:SAMPLES] for name, value in msgspec.structs.asdict(record.samples).items() if value}
    return msgspec.structs.replace(record, samples=msgspec.structs.replace(record.samples, **lists))


if __name__ == "__main__":
    freeze(Path(sys.argv[1]), FOLDER / sys.argv[2])
