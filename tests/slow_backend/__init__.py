"""Where the package of backends that are slower on purpose lies, and how it is put on a path."""

from pathlib import Path
from typing import Final

SLOW: Final = Path(__file__).parent


def laid_out(folder: Path) -> Path:
    """Lay the package out in `folder` as an installer does, for PYTHONPATH."""
    info = folder / "kvbench_slow-0.1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "kvbench_slow").symlink_to(SLOW / "kvbench_slow")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvbench-slow\nVersion: 0.1.0\n")
    text = (SLOW / "pyproject.toml").read_text()
    entries = text.partition('[project.entry-points."kvbench.backends"]\n')[2].partition("\n\n")[0]
    (info / "entry_points.txt").write_text(f"[kvbench.backends]\n{entries.replace(chr(34), '')}\n")
    return folder
