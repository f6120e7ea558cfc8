"""Put each fault of mutants.toml into a copy of this checkout and say which the tests find."""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
BUILD = "build/mutants"
PYTHON = ".venv/bin/python"
DEADLINE_S = 600
LOG = "last.log"


@dataclass(frozen=True)
class Mutant:
    """A fault: `new` in place of `old`, which stands in `file` once, and the test that has to find it."""

    name: str
    file: str
    old: str
    new: str
    test: str

    @property
    def is_cxx(self) -> bool:
        return "/" not in self.test

    def commands(self) -> list[list[str]]:
        if self.is_cxx:
            return [
                ["ninja", "-C", BUILD, f"tests/{self.test}"],
                # ASan of GCC 12.2 can deadlock with its own search for leaks, once it has found the fault.
                ["ctest", "--test-dir", BUILD, "--timeout", "60", "-R", f"^{self.test}$"],
            ]
        return [[PYTHON, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", self.test]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="?", default="", help="mutants whose name, file or test contains this")
    parser.add_argument("--most", type=int, metavar="COUNT", help="no more than so many")
    parser.add_argument("--turn", type=int, default=0, metavar="NUMBER", help="which of them: the next ones every turn")
    options = parser.parse_args()
    every = [Mutant(**each) for each in tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["mutant"]]
    chosen = [mutant for mutant in every if options.only in f"{mutant.name}\n{mutant.file}\n{mutant.test}"]
    chosen = in_turn(chosen, options.most or len(chosen), options.turn)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "kvbench"
        _copy(copy)
        _check_without_mutants(copy, chosen)
        survivors = [mutant for mutant in chosen if not _killed(copy, mutant)]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    return 1 if survivors or not chosen else 0


def in_turn(mutants: Sequence[Mutant], most: int, turn: int) -> list[Mutant]:
    """Return `most` mutants, or all if there are fewer.

    Turn 0 begins with the first mutant, each later turn where the one before it ended. The first follows the last.
    """
    first = turn * most % max(1, len(mutants))
    return [*mutants[first:], *mutants[:first]][:most]


def _copy(copy: Path) -> None:
    files = subprocess.check_output(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(None, files.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    for module in (Path(sysconfig.get_path("platlib")) / "kvbench").glob("_engine*"):
        shutil.copy2(module, copy / "kvbench")
    # Its environment finds the copy first. The hook of an editable installation does not run there: only a folder of
    # site-packages that Python starts with has its .pth files read.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", copy / ".venv"], check=True)
    (folder,) = (copy / ".venv" / "lib").glob("python*/site-packages")
    (folder / "copy.pth").write_text("\n".join([str(copy), *(path for path in sys.path if "site-packages" in path)]))
    script = (BIN / "kvbench").read_text().splitlines(keepends=True)
    (copy / ".venv" / "bin" / "kvbench").write_text("".join([f"#!{copy / PYTHON}\n", *script[1:]]))
    (copy / ".venv" / "bin" / "kvbench").chmod(0o755)


def _check_without_mutants(copy: Path, chosen: Sequence[Mutant]) -> None:
    if any(mutant.is_cxx for mutant in chosen):
        options = ["-DCMAKE_BUILD_TYPE=Debug", "-DKVBENCH_SANITIZE=address,undefined"]
        _run(copy, ["cmake", "-S", "csrc", "-B", BUILD, "-G", "Ninja", *options])
    for mutant in {mutant.test: mutant for mutant in chosen}.values():
        if not all(_run(copy, command) for command in mutant.commands()):
            raise SystemExit(f"{(copy / LOG).read_text()}\n{mutant.test} fails without a mutant")


def _killed(copy: Path, mutant: Mutant) -> bool:
    file = copy / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name}: its text stands {text.count(mutant.old)} times in {mutant.file}")
    file.write_text(text.replace(mutant.old, mutant.new))
    *build, test = mutant.commands()
    try:
        outcome = "NO BUILD" if not all(_run(copy, command) for command in build) else "SURVIVED"
        if outcome == "SURVIVED" and not _run(copy, test):
            outcome = "killed"
    finally:
        file.write_text(text)
    print(f"{outcome:8}  {mutant.name}  ({mutant.file}, {mutant.test})", flush=True)
    return outcome == "killed"


def _run(copy: Path, command: Sequence[str]) -> bool:
    """Whether a command succeeds in the copy; one that hangs does not."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
        (copy / LOG).write_text(done.stdout + done.stderr)
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return False


if __name__ == "__main__":
    sys.exit(main())
