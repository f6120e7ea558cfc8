"""What a shell may complete: values on axes, devices, run directories. Nothing is opened or loaded for it."""

from pathlib import Path

from kvbench.cells.cell import AXES
from kvbench.results.rundir import RUN_FILE
from kvbench.sweep.installed import installed


def complete_axis(incomplete: str) -> list[str]:
    """Return `name=` for several axes, else `name=value` with the words of the one that fits.

    There is always more than one answer where more is to be typed, so that no shell puts a space behind the `=`.
    """
    name, equals, value = incomplete.partition("=")
    fitting = [axis for axis in AXES if axis == name or (not equals and axis.startswith(name))]
    if len(fitting) > 1:
        return [f"{axis}=" for axis in fitting]
    done, comma, _ = value.rpartition(",")
    return [f"{axis}={done}{comma}{word}" for axis in fitting for word in ("", *_words(axis))]


def _words(axis: str) -> list[str]:
    return list(installed()[0]) if axis == "backend" else AXES[axis].example.split(",")


def complete_device() -> list[str]:
    """Return the devices that the kernel's files tell of; CUDA is not asked."""
    count = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    return ["auto", "cpu", *(f"cuda:{ordinal}" for ordinal in range(count))]


def complete_run(incomplete: str) -> list[str]:
    """Return the run directories here and in runs/."""
    found = sorted({*Path().glob(f"*/{RUN_FILE}"), *Path("runs").glob(f"*/{RUN_FILE}")})
    return [str(file.parent) for file in found if str(file.parent).startswith(incomplete)]
