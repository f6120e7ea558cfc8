"""The commands that the documents show for a shell, page by page, and the short form in which tests run them.

A sweep whose run no later command can name is only planned, and a tuning only parsed: tests/cli measures both.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.command import BRIEF

# The comment behind a command that a CPU alone cannot run, such as "# needs a GPU and vLLM".
_NEEDS: Final = re.compile(r"# needs (?P<what>.+)$")
_FENCE: Final = re.compile(r"^```sh\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
_INDENTED: Final = re.compile(r"^    (?P<line>kvbench .*)$", re.MULTILINE)
_TOKENS: Final = re.compile(r"@tokens\d+")
_FEW: Final = ("blocks=4", "block_size=1KiB", "pool=64MiB")


@dataclass(frozen=True)
class Shown:
    """A command of a page."""

    line: str

    @property
    def needs(self) -> str | None:
        """What the page says it needs besides a CPU."""
        found = _NEEDS.search(self.line)
        return found["what"] if found else None

    @property
    def argv(self) -> list[str]:
        """The arguments of `kvbench`, up to a pipe or a file."""
        words = shlex.split(self.line, comments=True)
        return words[1 : next((index for index, word in enumerate(words) if word in "|>"), None)]


def commands_of(page: Path) -> list[Shown]:
    """Return the `kvbench` commands of a page in order."""
    text = page.read_text()
    fenced = [line for block in _FENCE.finditer(text) for line in block["text"].replace("\\\n", " ").splitlines()]
    outside = [match["line"] for match in _INDENTED.finditer(_FENCE.sub("", text))]
    return [Shown(line) for line in (*fenced, *outside) if line.startswith("kvbench ")]


def shortened(shown: Shown) -> list[str]:
    """Return the arguments of a command with what makes it short: few samples, few swaps, and the device cpu."""
    argv = [_TOKENS.sub("@tokens16", word) for word in shown.argv]
    device = [] if "--device" in argv or shown.needs else ["--device=cpu"]
    tokens = ["--tokens=16"] if {"--model", "models"} & {*argv} else []
    if "layers" in argv:
        tokens = ["--model=llama-3-8b@tokens16"]
    match argv:
        case ["sweep", *rest] if not {"--resume", "--dry-run", "--out"} & {*rest}:
            return [*argv, *device, *tokens, *_few(rest), "--dry-run"]
        case ["sweep", *rest] if not {"--resume", "--dry-run"} & {*rest}:
            return [*argv, *device, *tokens, *BRIEF, *_few(rest)]
        case ["gate", "compare", *rest]:
            return [*argv, *device, *_few(rest), "--minutes=0.15"]
        case ["tune", *rest] if not any(word.startswith(("runs/", "reports/")) for word in rest):
            return []
        case ["probe", *rest] if not rest or rest[0].startswith("-"):
            return ["probe", "order", *rest, *device]
        case ["sweep" | "probe" | "doctor", *rest] if "--resume" not in rest:
            return [*argv, *device]
    return argv


def _few(words: list[str]) -> list[str]:
    """Return small values for the axes that a command leaves open; those of a model or trace are its own."""
    if {"--model", "--trace", "trace", "models", "layers"} & {*words}:
        return []
    named = " ".join(words)
    return [f"-a{axis}" for axis in _FEW if f" {axis.partition('=')[0]}=" not in named]
