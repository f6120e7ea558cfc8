"""What commands print, as the documents show it: on committed runs, so that it is the same on every machine."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tests.command import kvbench
from tests.docs.figures import ROOT, RUNS

_RUN: Final = (RUNS / "engine").relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Example:
    """A command and which lines of its output are shown: the first ones, and those that match `also`."""

    arguments: str
    first: int
    also: str = r"(?!)"

    def block(self) -> str:
        done = kvbench(*self.arguments.split(), cwd=ROOT, env={"COLUMNS": "80"})
        assert done.returncode == 0, done.stderr
        return f"```console\n$ kvbench {self.arguments}\n{self._shown(done.stdout.splitlines())}\n```"

    def _shown(self, lines: list[str]) -> str:
        """Return the lines that are shown, with an ellipsis for each gap."""
        kept: list[str] = []
        for number, line in enumerate(lines):
            if number < self.first or re.search(self.also, line):
                kept.append(line.rstrip())
            elif kept[-1:] != ["…"]:
                kept.append("…")
        return "\n".join(kept)


EXAMPLES: Final[Mapping[str, Example]] = {
    "output-show": Example(f"show {_RUN}", first=14),
    "output-tune": Example(f"tune {_RUN} --backends batched,sm", first=8),
    "output-vllm": Example(f"tune {_RUN} --export vllm", first=1, also=r"^\w+="),
    "output-snippet": Example(f"report {_RUN} --snippet threshold", first=99),
    "output-rules": Example(f"gate rules {_RUN}", first=99),
    "output-models": Example("list models", first=99),
}
MAKERS: Final[Mapping[str, Callable[[], str]]] = {name: example.block for name, example in EXAMPLES.items()}
