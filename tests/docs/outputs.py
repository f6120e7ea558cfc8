"""What commands print, as the documents show it."""

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tests.command import kvbench
from tests.docs.figures import ROOT


@dataclass(frozen=True)
class Example:
    """A command, and the filter behind it that shortens what it prints."""

    arguments: str
    pipe: str = "cat"

    def block(self) -> str:
        done = kvbench(*self.arguments.split(), cwd=ROOT, env={"COLUMNS": "160"})
        assert done.returncode == 0, done.stderr
        kept = subprocess.run(["bash", "-c", self.pipe], input=done.stdout, capture_output=True, text=True, check=True)
        behind = "" if self.pipe == "cat" else f" | {self.pipe}"
        lines = "\n".join(line.rstrip() for line in kept.stdout.strip().splitlines())
        return f"```console\n$ kvbench {self.arguments}{behind}\n{lines}\n```"


MAKERS: Final[Mapping[str, Callable[[], str]]] = {"output-models": Example("list models").block}
