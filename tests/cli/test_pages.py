"""What README and docs print for a shell works: each page's commands run in order, on the device cpu or committed runs.

A measurement is made short, and a sweep whose run no later command can name is only planned. A command that needs a
GPU, or two, says so in a comment and runs where there are as many. Elsewhere, like one that needs more, it is only
parsed, and so is a tuning, which tests/cli/test_tune.py measures.
"""

import json
import re
import shlex
import shutil
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final
from unittest import mock

import pytest

from kvbench.cells.axes import Direction, Neighbour
from kvbench.cells.cell import Cell
from kvbench.engine.device import count_cuda_devices
from kvbench.ground.errors import ExitCode
from kvbench.run import runner
from tests import synthetic
from tests.command import BRIEF, kvbench_here, succeeds, tiny
from tests.data.freeze import FOLDER as FROZEN
from tests.docs.blocks import DOCUMENTS, ROOT
from tests.fuzz import BLANK, FakeSlot
from tests.unit.backends.test_plugin import SOUND, install

# The comment behind a command that a CPU alone cannot run, such as "# needs a GPU and vLLM".
_NEEDS: Final = re.compile(r"# needs (?P<what>.+)$")
_FENCE: Final = re.compile(r"^```sh\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
_INDENTED: Final = re.compile(r"^    (?P<line>kvbench .*)$", re.MULTILINE)
_TOKENS: Final = re.compile(r"@tokens\d+")
INSPECT: Final = cache(runner.inspect)  # loads torch and Triton in a process
_FEW: Final = ("blocks=4", "block_size=1KiB", "direction=h2d", "pool=64MiB")


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
            one = ["-abackend=batched"] if "neighbour" in rest else []
            return [*argv, *device, *tokens, *BRIEF, *one, *_few(rest)]
        case ["gate", "compare", *rest]:
            return [*argv, *device, *_few(rest), "--minutes=0.05"]
        case ["tune", *rest] if not any(word.startswith(("runs/", "reports/")) for word in rest):
            return [*argv, "--help"]
        case ["probe", *rest] if not rest or rest[0].startswith("-"):
            return ["probe", "order", *rest, *device]
        case ["sweep" | "probe" | "doctor", *rest] if "--resume" not in rest:
            return [*argv, *device]
    return argv


def _few(words: list[str]) -> list[str]:
    """Return small values for the axes that a command leaves open; the blocks of a model, and a trace, are its own."""
    if "--trace" in words:
        return ["-apool=64MiB", "--trace-swaps=4"]
    if "trace" in words:
        return []
    few = _FEW[-2:] if {"--model", "models", "layers"} & {*words} else _FEW
    named = " ".join(words)
    return [f"-a{axis}" for axis in few if f" {axis.partition('=')[0]}=" not in named]


PAGES = [page for page in DOCUMENTS if commands_of(page)]
TOKENS_AN_ID = 16


def write_requests(path: Path) -> None:
    """Write an hour of requests in the form of Mooncake's trace; half of them continue an earlier one."""
    with path.open("w") as file:
        file.write(json.dumps({"hash_tokens": TOKENS_AN_ID, "time_unit": "ms"}) + "\n")
        for number in range(60):
            ids = [*range(number // 2 * 10, number // 2 * 10 + 4), *range(10_000 + 4 * number, 10_004 + 4 * number)]
            tokens = {"input_length": len(ids) * TOKENS_AN_ID, "output_length": 10}
            file.write(json.dumps({"timestamp": 60_000 * number, **tokens, "hash_ids": ids}) + "\n")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the pages take for granted: a clone, two runs, a policy, requests, environments."""
    folder = tmp_path_factory.mktemp("prepared")
    succeeds("sweep", *tiny(block_size="1KiB,2KiB"), *BRIEF, "--out=runs/mine", cwd=folder)
    shutil.copytree(folder / "runs/mine", folder / "runs/other")
    write_requests(folder / "conversation_trace.jsonl")
    shutil.copytree(FROZEN / "h100", folder / "runs/engine")
    beside = Cell("batched", Direction.D2H, 4096, 16384, neighbour=Neighbour.DECODE)
    synthetic.write_run(folder / "runs/beside", synthetic.beside(beside, slowdown=1.01, gbps=10.0))
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "page"
    shutil.copytree(prepared, folder)
    for name in ("configs", "tests"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "reports").mkdir()  # a page writes a report of its own there
    for committed in (ROOT / "reports").iterdir():
        (folder / "reports" / committed.name).symlink_to(committed)
    for side in ("base", "cand"):
        (folder / side).mkdir()
        (folder / side / ".venv").symlink_to(sys.prefix)
    return folder


def run(shown: Shown, folder: Path, met: frozenset[str] = frozenset()) -> str | None:
    """Run a command as its page shows it, or parse it if it needs more than is `met`; return what is wrong."""
    argv = shown.argv
    if shown.needs and shown.needs not in met:
        parsed = kvbench_here(*argv, "--help", cwd=folder)
        return parsed.stderr if parsed.returncode else None
    if "--out" in argv and argv[0] == "sweep":  # the page makes what another page takes for granted
        shutil.rmtree(folder / argv[argv.index("--out") + 1], ignore_errors=True)
    site = folder / "site"
    expanded = [
        name for word in shortened(shown) for name in (sorted(map(str, folder.glob(word))) if "/*" in word else [word])
    ]
    fakes = "--dry-run" in expanded and not shown.needs and not site.is_dir()
    with (
        mock.patch.object(runner, "WorkerSlot", FakeSlot) if fakes else nullcontext(),
        mock.patch.object(runner, "inspect", INSPECT),
        mock.patch("kvbench.report.drawing.draw", return_value=BLANK),
    ):
        done = kvbench_here(*expanded, cwd=folder, env={"COLUMNS": "160", "PYTHONPATH": str(site)})
    allowed = {ExitCode.DONE}
    if "--fault" in argv:
        allowed = {ExitCode.DONE, ExitCode.FAILED_CELLS}
    elif argv[:2] == ["gate", "compare"]:  # whether two builds differ is the noise of this machine
        allowed = {ExitCode.DONE, ExitCode.REGRESSION, ExitCode.INCONCLUSIVE}
    elif "--max-slowdown" in argv:  # whether any method is that gentle, too
        allowed = {ExitCode.DONE, ExitCode.USAGE}
    if done.returncode not in allowed and "start-up alone took" not in done.stderr:  # on a busy machine
        return f"{shown.line}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_commands_of_a_page_run_in_order(page: Path, folder: Path) -> None:
    if page.name == "backend.md":
        (folder / "site").mkdir()
        install(folder / "site", SOUND, "my_kernel")
    for block in re.findall(r"^```toml\n(config = .*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        (folder / "rules.toml").write_text(block)
    wrong = [text for shown in commands_of(page) if (text := run(shown, folder))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.gpu
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_commands_that_need_a_gpu_run_on_one(page: Path, folder: Path) -> None:
    met = frozenset({"a GPU", "two GPUs"} if count_cuda_devices() > 1 else {"a GPU"})
    commands = [shown for shown in commands_of(page) if shown.needs in met]
    if any("runs/mine" in shown.argv for shown in commands):  # of this GPU, as the runs beside it
        shutil.rmtree(folder / "runs/mine")
        succeeds("sweep", *tiny()[1:], *BRIEF, "--out=runs/mine", cwd=folder)
    wrong = [text for shown in commands if (text := run(shown, folder, met))]
    assert not wrong, "\n".join(wrong)
