"""`kvbench list`: list the available axes, backends, configs, devices and models."""

import json
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from kvbench.ground.text import printable

What = StrEnum("What", ["AXES", "BACKENDS", "CONFIGS", "DEVICES", "MODELS"])  # values are the names in lower case


def listing(
    what: Annotated[What, typer.Argument(help="What to list.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the available axes, backends, configs, devices or models."""
    rows = _LISTINGS[what]()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from kvbench.cli.options import print_rows

    columns = 2 if what is What.MODELS else None  # further keys are for planners
    print_rows([tuple(row.values())[:columns] for row in rows])


def _axes() -> list[dict[str, str]]:
    from kvbench.cells.cell import AXES

    return [
        {
            "axis": axis.name,
            "help": axis.help,
            "example": f"-a {axis.name}={axis.example}",
            "for": "experts" if axis.expert else "",
        }
        for axis in sorted(AXES.values(), key=lambda axis: axis.expert)
    ]


def _configs() -> list[dict[str, str]]:
    from kvbench.ground.files import read_toml
    from kvbench.sweep.spec import shipped_configs

    tables = {name: read_toml(path) for name, path in shipped_configs().items()}
    return [
        {"config": name, "question": table["question"], "for": "diagnosis" if table.get("diagnostic") else ""}
        for name, table in sorted(tables.items(), key=lambda item: "diagnostic" in item[1])
    ]


def _backends() -> list[dict[str, str]]:
    from kvbench.run.runner import survey

    opened = survey("auto", backends=True)
    for note in opened.notes:
        typer.echo(f"note: {printable(note)}", err=True)
    return [
        {
            "backend": facts.name,
            "summary": facts.summary,
            "here": f"not on {opened.device.name}: {facts.unavailable}" if facts.unavailable else "available",
            "for": "only if named" if facts.on_request else "",
        }
        for facts in opened.backends
    ]


def _devices() -> list[dict[str, str]]:
    from kvbench.ground.errors import UsageError
    from kvbench.run.runner import survey

    devices = []
    for ordinal in range(64):
        try:
            device = survey(f"cuda:{ordinal}").device
        except UsageError:
            break
        devices.append({"device": device.name, "title": device.title})
    return [*devices, {"device": "cpu", "title": survey("cpu").device.title + " (host copies, no GPU)"}]


def _models() -> list[dict[str, Any]]:
    import msgspec

    from kvbench.models.presets import model_facts, presets

    return [msgspec.to_builtins(model_facts(model)) for model in presets().values()]


_LISTINGS: Final = {"axes": _axes, "backends": _backends, "configs": _configs, "devices": _devices, "models": _models}
