"""The command line: whatever is wrong with the input is one line that names it and says what would be right."""

import json
import re
import shlex
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import pytest

from kvbench.cells.cell import AXES
from kvbench.cli import main
from kvbench.cli.main import run
from kvbench.cli.options import fraction_of
from kvbench.ground.errors import UsageError
from kvbench.sweep.spec import shipped_configs
from tests.command import KVBENCH, error_line, events, kvbench, kvbench_here, succeeds, tiny

SIDES = ("--base=here", "--cand=here")
ON_CPU = ("gate", "compare", "--device=cpu")
SEVERAL_DEVICES = "only a new kvbench sweep supports several devices; name one device"
AS_IT_BEGAN = "--resume nowhere: a run goes on as it began: leave out all other options"
# Arguments, then words that the error has to hold: the option or key, the value, and what would be right.
BAD_INPUT: list[tuple[list[str], list[str]]] = [
    # options and commands
    (["--nope"], ["No such option", "--nope"]),
    (["help"], ['No such command "help"; write kvbench --help, or kvbench COMMAND --help']),
    (["compare", "a", "b"], ['No such command "compare"; to compare runs: kvbench report RUN RUN']),
    (["tune", "engine", "vlm"], ["engine vlm: not an engine with settings; write sglang or vllm"]),
    (["tune", "engine", "vllm", "run", "--device=cpu"], ["RUN: nothing is measured; leave out --out, "]),
    (["tune", "engine", "vllm", "run", "--out=new"], ["RUN: nothing is measured; leave out --out, "]),
    (["tune", "run"], ["unexpected extra argument(s) (run); for the answer of runs: kvbench show RUN"]),
    (["show", "run", "--csv", "file"], ["No such option: --csv; ", "summary.csv"]),
    (["sweep", "--rounds", "x"], ["--rounds: not a valid integer"]),
    (["list"], ["Missing argument", "axes", "backends", "configs", "devices"]),
    (["doctor", "--device=gpu"], ["--device gpu", "auto, cpu", "cuda:N"]),
    # configs
    (["sweep", "bad.toml"], ["bad.toml: ", "did you mean blocks?"]),
    # probe
    (["probe", "ordr"], ["ordr", "did you mean order?"]),
    (["run"], ['No such command "run"; to measure: kvbench sweep']),
    (["probe", "--device=cpu", "--fault=hungry=1"], ['--fault "hungry=1"']),
    # models
    (["sweep", "--model", "meta-llama/Llama-3-8B"], ["download its config.json and give the path, or "]),
    (["sweep", "--model=config.json"], ["config.json: file not found"]),
    # axes
    (["sweep", "--direction", "h2d"], ["direction is an axis: write -a direction="]),
    (["sweep", "-a", "blocks=4\n5"], [r"argument 'blocks=4\n5'", "one line of printable text"]),
    # filters, devices, sampling, limits
    (["sweep", "--device=gpu"], ['"gpu"', "auto, cpu, cuda or cuda:N"]),
    (["sweep", *tiny()[1:], "--device=cpu", "-adevices=2"], ["devices=2 requires --device to name 2 devices"]),
    (["sweep", "--device=cuda:99"], ["--device cuda:99: not found", "cpu"]),
    (["sweep", "--rounds=0"], ["--rounds: 0", "from 1 to 1000"]),
    (["sweep", "--busy-delay-us=-1"], ["--busy-delay-us: -1 is not a whole number"]),
    (["sweep", "--max-samples=2"], ["--max-samples: 2 is less than --min-samples, "]),
    (["sweep", "--host-memory=8"], ["--host-memory: 8 bytes are too few for any cell; did you mean 8GiB?"]),
    (["sweep", "-ablock_size=16KB"], ['"16KB" is 16000 bytes; write 16KiB or 16000B']),
    (["sweep", "-apool=16GB"], ['"16GB" is 16000000000 bytes; write 16GiB or 16000000000B']),
    (["sweep", "--device=cpu", "--out=."], [". is not empty; choose another folder"]),
    (
        ["trace", "make", "none", "--model=llama-3-8b", "--gpu-pool=1GiB", "--host-pool=4GiB", "--out=o"],
        ["none: cannot be read"],
    ),
    # faults
    (["sweep", "--fault=boom=1"], ['--fault "boom=1"', "KIND=NUMBER [when FILTER]", "error@call", "slow"]),
    (["sweep", "--fault=slow=1;"], ['--fault ""', "KIND=NUMBER [when FILTER]"]),
    # run directories
    (["sweep", "--resume=nowhere"], ["nowhere is not a run directory: folder not found"]),
    (["sweep", "--retry-failed", "--device=cpu"], ["--retry-failed: requires --resume RUN"]),
    (["sweep", "--resume=nowhere", "--out=there"], [AS_IT_BEGAN]),
    (["sweep", "--resume=nowhere", "--rounds=3"], [AS_IT_BEGAN]),
    (["sweep", "--resume=nowhere", "-ablocks=5"], [AS_IT_BEGAN]),
    (["sweep", "cliff", "--resume=nowhere"], [AS_IT_BEGAN]),
    (["sweep", "--out=a\nb"], [r"'--out=a\nb'", "one line of printable text"]),
    (["sweep", "--out="], ["--out=: the value is empty"]),
    (["probe", "--out", "a\x7fb"], [r"'a\x7fb'", "one line of printable text"]),
    (["sweep", "--trace-swaps=0"], ["--trace-swaps", "greater than or equal to 1"]),
    (["trace", "make", "--prefill-s=1e9"], ["--prefill-s", "less than or equal to 3600"]),
    (["report", "nowhere", "-o", "there"], ["nowhere is not a run directory: folder not found"]),
    # gate
    (["gate", "compare"], ["--base and --cand: give both: env:PATH, backend:NAME or here"]),
    (["gate", "compare", "a b", "--", "c"], ["to compare runs: kvbench report 'a b' c"]),
    (["gate", "compare", "--base=here", "--cand=here", "a"], ["to compare runs: kvbench report a"]),
    (["gate", "compare", *SIDES, "--margin=-1"], ["--margin -1: write a percentage (5%) or a fraction below 1"]),
    (["gate", "compare", *SIDES, "--margin=3"], ["--margin 3: write a percentage (5%) or a fraction below 1"]),
    (["gate", "compare", *SIDES, "--github"], ["--github: GITHUB_STEP_SUMMARY is not set"]),
    ([*ON_CPU, "--base=nowhere", "--cand=here"], ["--base nowhere: write env:PATH"]),
    ([*ON_CPU, "--base=here", "--cand=backend:batched"], ["a backend can only be compared with a backend"]),
    ([*ON_CPU, *SIDES, "--out=."], ["--out . is not empty; choose another folder"]),
    ([*ON_CPU, *SIDES, "--filter=blocks=5"], ["nothing to measure: no cell meets the filter blocks=5"]),
    ([*ON_CPU, "--base=backend:batched", "--cand=backend:no-such"], ['backend:no-such: unknown backend "no-such"']),
    ([*ON_CPU, "--base=backend:batched", "--cand=backend:sm", "-abackend=sm"], ["the sides set the backends"]),
    (["sweep", "--out=bad.toml/a"], ["bad.toml/a cannot be written: not a directory"]),
    (["sweep", "--model=llama-3-8b", "-ablocks=4", "--dry-run"], ["-a blocks: the model sets blocks, "]),
    (["sweep", "-asequence=layers", "--device=cpu"], ["axis sequence=layers: ", "with --model, or write layers-L"]),
    (["sweep", "--device=cuda:0,cuda:0"], ["--device cuda:0,cuda:0: cuda:0 is named 2 times; name each GPU once"]),
    (["tune", "--device=cpu,cpu"], [f"--device cpu,cpu: {SEVERAL_DEVICES}"]),
    (["tune", *tiny()[2:], "--device=cpu", "--backends=sm"], ["nothing to measure: kernels need a GPU"]),
    (["tune", "--device=cpu", "--backends=batched,bogus"], ["--backends batched,bogus: ", "only batched, primed, "]),
    (["tune", "--device=cpu", "-ablocks=4", "-apattern=runs-2,runs-4"], ["-a pattern=runs-2,runs-4: ", "name one"]),
    (["gate", "rules", "a", "--rules=none.toml"], ["none.toml"]),
]


@pytest.mark.parametrize(("arguments", "terms"), BAD_INPUT, ids=[" ".join(arguments) for arguments, _ in BAD_INPUT])
def test_bad_input_is_refused_in_one_line_with_the_right_form(
    tmp_path: Path, arguments: list[str], terms: list[str]
) -> None:
    (tmp_path / "bad.toml").write_text("[axes]\nblokcs = 4\n")
    done = kvbench_here(*arguments, cwd=tmp_path, env={"GITHUB_STEP_SUMMARY": ""})
    assert (done.returncode, done.stdout) == (2, "")
    assert all(term in error_line(done) for term in terms), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bad.toml"]


def test_the_command_refuses_bad_input_in_the_same_way(tmp_path: Path) -> None:
    done = kvbench("swep", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "swep" in error_line(done)


def test_options_override_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('device = "cpu"\n[axes]\nbackend = "per_block"\nblocks = [4, 8]\n')
    done = succeeds("sweep", "mine.toml", "-adirection=h2d", "-ablocks=16", "--dry-run", "--json", cwd=tmp_path)
    (event,) = events(done)
    assert [(cell["direction"], cell["blocks"]) for cell in event["cells"]] == [("h2d", "16")]


# What there is


def test_version_prints_the_version_of_the_package(tmp_path: Path) -> None:
    said = kvbench("--version", cwd=tmp_path).stdout
    assert re.fullmatch(rf"kvbench {re.escape(version('kvbench'))}( \([0-9a-f]{{12}}(-dirty)?\))?\n", said)


def listed(folder: Path, what: str) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads(succeeds("list", what, "--json", cwd=folder).stdout)
    return rows


@pytest.mark.parametrize(("what", "words"), [("axes", None), ("configs", None), ("models", 2)])
def test_plain_lines_hold_the_words_of_what_is_listed(tmp_path: Path, what: str, words: int | None) -> None:
    lines = succeeds("list", what, cwd=tmp_path).stdout.splitlines()
    for row, line in zip(listed(tmp_path, what), lines, strict=True):
        assert all(word in line for word in [*row.values()][:words])


@pytest.mark.parametrize(("text", "fraction"), [("5%", 0.05), ("0.05", 0.05), ("2.5%", 0.025), ("1000%", 10), ("0", 0)])
def test_a_percentage_and_a_fraction_are_read(text: str, fraction: float) -> None:
    assert fraction_of("--margin", text) == pytest.approx(fraction)


def test_a_long_message_keeps_its_end_which_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.object(main, "app", side_effect=UsageError(f"begin {'x' * 5000} end")):
        assert run(["list"]) == 2
    line = capsys.readouterr().err
    assert (len(line) < 2200, line.startswith("kvbench: begin x"), line.endswith("x end\n")) == (True, True, True)


def test_the_listed_axes_have_working_examples(tmp_path: Path) -> None:
    rows = listed(tmp_path, "axes")
    assert sorted(row["axis"] for row in rows) == sorted(AXES)
    assert [row["for"] for row in rows] == sorted(row["for"] for row in rows)
    for row in rows:
        option, _, assignment = row["example"].partition(" ")
        name, _, values = assignment.partition("=")
        assert (option, name) == ("-a", row["axis"])
        assert AXES[name].parse(values)


def test_the_listed_configs_have_their_questions(tmp_path: Path) -> None:
    rows = listed(tmp_path, "configs")
    assert sorted(row["config"] for row in rows) == list(shipped_configs())
    assert [row["config"] for row in rows if row["for"] == "diagnosis"] == ["auto", "full", "spread"]
    assert all(row["question"].endswith("?") for row in rows)


def test_the_listed_models_have_their_geometry(tmp_path: Path) -> None:
    rows = {row["model"]: row["geometry"] for row in listed(tmp_path, "models")}
    assert rows["llama-3-8b"] == "32 layers x 8 KV heads x 128, bf16: 131072 B a token"
    assert rows["deepseek-v3"].startswith("61 layers x MLA of 576 elements, bf16")
    assert "18 of them with a window of 128 tokens" in rows["gpt-oss-120b"]


def test_the_cpu_device_is_listed_as_host_copies(tmp_path: Path) -> None:
    last = listed(tmp_path, "devices")[-1]
    assert last["device"] == "cpu"
    assert "host copies, no GPU" in last["title"]


# Shell completion


def test_the_completion_works_in_bash(tmp_path: Path) -> None:
    """The script that `--show-completion` prints defines what completes `kvbench`."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    command = f'eval "$({shlex.quote(str(KVBENCH))} --show-completion bash)" && complete -p kvbench'
    done = subprocess.run([bash, "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "kvbench" in done.stdout


@pytest.mark.parametrize("command", ["sweep", "gate compare", "probe"])
def test_the_help_describes_what_the_documents_name(command: str) -> None:
    options = {"sweep": {"--warmups", "--busy-delay-us", "--deadline-s", "--fault"},
               "gate compare": {"--base-fault", "--cand-fault"}, "probe": {"--fault"}}  # fmt: skip
    assert options[command] <= set(succeeds(*command.split(), "--help", cwd=Path.cwd()).stdout.split())


@pytest.mark.parametrize("command", [[], ["sweep"], ["gate", "compare"], ["probe"]])
def test_short_names_of_help_and_version_are_known(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert run([*command, "-h"]) == 0
    assert "Usage" in capsys.readouterr().out
    assert run(["-V"]) == 0
    assert capsys.readouterr().out.startswith("kvbench ")
