"""The package of backends that are slower on purpose, as the measured rates of the gate use it."""

from pathlib import Path

from kvbench.results import load_run
from tests.command import BRIEF, kvbench_here, tiny
from tests.slow_backend import laid_out


def test_all_slow_backends_are_measured_and_verified_on_the_host(tmp_path: Path) -> None:
    names, environment = ["sm_same", "sm_slow5"], {"PYTHONPATH": str(laid_out(tmp_path / "site"))}
    cells = tiny(backend=",".join(names), direction="h2d,d2h", stream_state="idle,busy")
    done = kvbench_here("sweep", *cells, *BRIEF, "--out=run", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    frame = load_run(tmp_path / "run").frame()
    assert frame.groupby("backend").size().to_dict() == dict.fromkeys(names, 4)
    assert set(frame.loc[frame["stream_state"] == "idle", "status"]) == {"ok"}
    assert set(frame["status"]) <= {"ok", "no figure"}  # a busy machine may outlast a delay
