"""A backend of another project is measured by installing its package, and one that misbehaves costs only its cells."""

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest

from kvbench.results import CellRecord, Visit, load_run
from tests.command import BRIEF, Done, error_line, failures, kvbench_here, records, skips, tiny
from tests.slow_backend import laid_out

EXAMPLE = Path(__file__).parents[2] / "example_backend"

# A backend that copies as it should, for the misbehaving ones to start from.
SOUND = """
    import ctypes
    from kvbench.backends.base import Mechanism, PreparedSwap

    class Plugin:
        name = "plugin"
        summary = "a backend for tests"
        calls = 1

        def axes(self, device):
            return frozenset()

        def unavailable(self, device):
            return None

        def create(self, request):
            swap = Plugin()
            swap.request = request
            return PreparedSwap(swap, Mechanism.HOST_THREAD)

        def submit(self, stream):
            self.request.device.driver.synchronize(stream)
            memory = self.request.memory
            for to, source, size in zip(memory.destinations, memory.sources, memory.sizes):
                ctypes.memmove(int(to), int(source), int(size))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip has put the example package."""
    folder = tmp_path_factory.mktemp("example")
    source = shutil.copytree(EXAMPLE, folder / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", folder / "site", source], check=True)
    return folder / "site"


def install(folder: Path, code: str, name: str = "plugin", version: str = "1.0") -> Path:
    """Put a package with the entry point `name` into `folder`, as an installer lays it out."""
    source = textwrap.dedent(code).replace('name = "plugin"', f'name = "{name}"')
    (folder / f"kvbench_{name}.py").write_text(source)
    info = folder / f"kvbench_{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kvbench-{name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[kvbench.backends]\n{name} = kvbench_{name}:Plugin\n")
    return folder


def changed(old: str, new: str) -> str:
    assert SOUND.count(old) == 1
    return SOUND.replace(old, new)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


def kvbench_with(site: Path, *arguments: str | Path) -> Done:
    return kvbench_here(*arguments, cwd=site.parent, env={"PYTHONPATH": str(site)})


def sweep_with(site: Path, backends: str, *options: str, **axes: str) -> Done:
    """Sweep a cell on each of `backends` into `run`."""
    return kvbench_with(site, "sweep", *tiny(backend=backends, **axes), *BRIEF, *options, "--out=run")


def test_an_installed_package_is_measured_beside_the_others(installed: Path) -> None:
    axes = {"direction": "h2d,d2h", "stream_state": "idle,busy", "blocks": "9", "block_size": "1000"}
    done = sweep_with(installed, "memmove,batched", **axes)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(installed.parent / "run" / "summary.csv")
    assert table.groupby("backend").size().to_dict() == {"batched": 4, "memmove": 4}
    busy = table["stream_state"] == "busy"
    assert set(table.loc[~busy, "status"]) == {"ok"}
    # it waits for the stream when it submits, so that no delay outlasts its submission
    assert set(table.loc[busy & (table["backend"] == "memmove"), "status"]) == {"no figure"}
    # every block of the first swap, of two samples and of the audit's swap, and what lies beside them
    assert (table["verified_bytes"] > 4 * 9 * 1000).all()


def swept_beside_batched(site: Path, codes: dict[str, str], *options: str, **axes: str) -> tuple[Done, Path]:
    """Install a package for each of `codes` and sweep them all beside `batched`, which has to be measured."""
    for name, code in codes.items():
        install(site, code, name)
    done = sweep_with(site, ",".join((*codes, "batched")), *options, **axes)
    run = site.parent / "run"
    assert {r.cell.backend for r in records(run) if isinstance(r, Visit)} == {"batched"}
    return done, run


UNUSABLE = {
    "imports": ("import nothing_that_exists", "of kvbench-imports==1.0 does not load: ModuleNotFoundError: No module"),
    "hollow": ("class Plugin: pass", "kvbench_hollow:Plugin of kvbench-hollow==1.0 does not load: AttributeError"),
    "raises": ("print('hello')\nraise RuntimeError('two\\nlines')", "does not load: RuntimeError: two lines"),
    "named": (changed('name = "plugin"', 'name = "other"'), "kvbench_named:Plugin of kvbench-named==1.0 calls itself"),
    "axes": (changed("return frozenset()", "raise OSError('no axes')"), "OSError: no axes"),
    "dies": ("import os; os._exit(7)", "kvbench-dies==1.0 does not load: "),
    "sunday": (changed("return None", "return 'it is Sunday'"), "it is Sunday"),
}


def test_the_cells_of_packages_that_cannot_be_used_are_skipped(site: Path) -> None:
    """Beside them a package with the name of a backend of kvbench, which is named but not loaded."""
    install(site, "raise SystemExit('it was loaded')")
    entries = site / "kvbench_plugin-1.0.dist-info" / "entry_points.txt"
    entries.write_text(entries.read_text().replace("plugin = ", "batched = "))
    done, run = swept_beside_batched(site, {name: code for name, (code, _) in UNUSABLE.items()})
    assert done.returncode == 0, done.stderr
    reasons = {skip.cell.backend: skip.reason for skip in skips(run)}
    assert set(reasons) == set(UNUSABLE)
    for name, (_, reason) in UNUSABLE.items():
        assert reason in reasons[name]
    assert len(skips(run)) == len(UNUSABLE)
    line = "note: package kvbench-plugin==1.0 also provides a backend batched, which is not loaded: "
    assert line in done.stdout
    shown = kvbench_with(site, "list", "backends")
    assert line in shown.stderr
    assert "cuMemcpyBatchAsync" in shown.stdout


MISBEHAVING = {
    "short": (changed("int(size))", "int(size) - 1)"), "mismatch", "bytes are wrong"),
    "backwards": (changed("for to, source", "for source, to"), "mismatch", "bytes are wrong"),
    "raises": (changed("self.request.device.driver.synchronize(stream)", "1 / 0"), "error", "ZeroDivisionError"),
    "refuses": (changed("swap.request = request", "raise LookupError('no')"), "error", "LookupError: no"),
    "exits": (changed("swap.request = request", "import os; os._exit(3)"), "crash", "ended with exit code 3"),
    "hangs": (changed("memory = self", "import time; time.sleep(60); memory = self"), "timeout", "no answer within"),
}


def test_packages_that_misbehave_fail_only_in_their_cells(site: Path) -> None:
    done, run = swept_beside_batched(site, {name: code for name, (code, *_) in MISBEHAVING.items()}, "--deadline-s=12")
    assert done.returncode == 5, done.stderr
    failed = {failure.cell.backend: failure for failure in failures(run)}
    assert set(failed) == set(MISBEHAVING)
    for name, (_, kind, message) in MISBEHAVING.items():
        assert failed[name].kind == kind
        assert message in failed[name].message
    assert len(failures(run)) == len(MISBEHAVING)


def test_a_package_that_answers_nonsense_is_named_and_the_others_are_listed(site: Path) -> None:
    install(site, changed("return frozenset()", "return 7").replace("a backend for tests", "\\x1b[31mred"))
    rows = {row["backend"]: row for row in json.loads(kvbench_with(site, "list", "backends", "--json").stdout)}
    assert rows["plugin"]["here"].startswith("not on cpu: kvbench-plugin==1.0 fails to describe it: ValidationError")
    assert rows["batched"]["here"] == "available"
    (site / "kvbench_plugin.py").write_text(textwrap.dedent(changed("a backend for tests", "\\x1b[31mred")))
    assert "\x1b" not in kvbench_with(site, "list", "backends").stdout


def test_packages_that_do_not_load_are_measured_only_if_they_are_named(site: Path) -> None:
    broken = {"raises": "import nothing_that_exists", "dies": "import os; os._exit(7)"}
    for name, code in ({"sound": SOUND} | broken).items():
        install(site, code, name)
    usual = [option for option in tiny() if not option.startswith("-abackend")]
    done = kvbench_with(site, "sweep", *usual, *BRIEF, "--out=run")
    assert done.returncode == 0, done.stderr
    cells = {record.cell.backend for record in records(site.parent / "run") if isinstance(record, CellRecord)}
    assert "sound" in cells
    assert not cells & {*broken}


def test_a_run_goes_on_with_the_backends_that_it_began_with(site: Path) -> None:
    install(site, SOUND)
    assert sweep_with(site, "plugin,batched").returncode == 0
    run = site.parent / "run"
    begun = {facts.name: facts.package for facts in load_run(run).info.backends}
    assert begun["plugin"] == "kvbench-plugin==1.0"
    shutil.move(site / "kvbench_plugin-1.0.dist-info", site / "away")
    lost = kvbench_with(site, "sweep", "--resume", "run")
    assert lost.returncode == 4
    assert error_line(lost).endswith("backends of the run are not installed: plugin of kvbench-plugin==1.0")
    shutil.move(site / "away", site / "kvbench_plugin-1.0.dist-info")
    metadata = site / "kvbench_plugin-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.0", "2.0"))
    assert kvbench_with(site, "sweep", "--resume", "run").returncode == 4


def test_the_backends_that_are_slower_on_purpose_are_measured_and_verified_on_the_host(tmp_path: Path) -> None:
    """As the measured rates of the gate use them."""
    names, environment = ["sm_same", "sm_slow5"], {"PYTHONPATH": str(laid_out(tmp_path / "site"))}
    cells = tiny(backend=",".join(names), direction="h2d,d2h", stream_state="idle,busy")
    done = kvbench_here("sweep", *cells, *BRIEF, "--out=run", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    frame = load_run(tmp_path / "run").frame()
    assert frame.groupby("backend").size().to_dict() == dict.fromkeys(names, 4)
    assert set(frame.loc[frame["stream_state"] == "idle", "status"]) == {"ok"}
    assert set(frame["status"]) <= {"ok", "no figure"}  # a busy machine may outlast a delay
