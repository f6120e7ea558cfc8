"""Shell completion of axis values, devices and run directories. It opens no device and loads no backend."""

from pathlib import Path

from kvbench.cells.cell import AXES
from kvbench.results.rundir import RUN_FILE
from kvbench.sweep.installed import installed


def complete_axis(incomplete: str) -> list[str]:
    """Return `name=` for each matching axis, or `name=value` completions if exactly one axis matches.

    An incomplete word always gets more than one completion, so that the shell does not add a space after the `=`.
    """
    name, equals, value = incomplete.partition("=")
    fitting = [axis for axis in AXES if axis == name or (not equals and axis.startswith(name))]
    if len(fitting) > 1:
        return [f"{axis}=" for axis in fitting]
    done, comma, _ = value.rpartition(",")
    return [f"{axis}={done}{comma}{word}" for axis in fitting for word in ("", *_values_of(axis))]


def _values_of(axis: str) -> list[str]:
    return list(installed()[0]) if axis == "backend" else AXES[axis].example.split(",")


def complete_device() -> list[str]:
    """Return the devices listed under /proc, without initializing CUDA."""
    count = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    return ["auto", "cpu", *(f"cuda:{ordinal}" for ordinal in range(count))]


def complete_run(incomplete: str) -> list[str]:
    """Return the run directories in the current directory and in runs/."""
    run_files = sorted({*Path().glob(f"*/{RUN_FILE}"), *Path("runs").glob(f"*/{RUN_FILE}")})
    return [str(file.parent) for file in run_files if str(file.parent).startswith(incomplete)]
