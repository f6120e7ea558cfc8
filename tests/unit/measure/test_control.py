"""Control copies: the way they go, and that only the gate makes them."""

from pathlib import Path

import pytest

from kvbench.cells.axes import Direction
from kvbench.measure.roof import ControlError, HostControl, open_control
from kvbench.results import Control, load_run
from tests.command import BRIEF, swept, tiny


def controls(run: Path) -> list[Control]:
    return [record for record in load_run(run).records if isinstance(record, Control)]


@pytest.mark.parametrize("direction", Direction)
def test_a_host_control_copies_every_byte_the_way_it_says(direction: Direction) -> None:
    control = HostControl()
    source, to = control.host, control.device
    if direction is Direction.D2H:
        source, to = to, source
    source[:] = 7
    assert control.copy_us(direction) > 0
    assert to.min() == to.max() == 7


def test_a_control_on_a_gpu_that_is_not_there_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ControlError, match="control copies: "):
        open_control("cuda:0")


CELLS = tiny(blocks="4,8", block_size="1KiB,2KiB")


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return swept(tmp_path_factory.mktemp("ordinary"), *CELLS, *BRIEF)


def test_an_ordinary_sweep_makes_no_control_copies(ordinary: Path) -> None:
    assert not controls(ordinary)


def test_cells_are_chosen_by_their_ids(ordinary: Path, tmp_path: Path) -> None:
    frame = load_run(ordinary).frame()
    chosen = sorted(frame["cell_id"][frame["status"] == "ok"])[:3]
    some = swept(tmp_path, *CELLS, *BRIEF, f"--filter=cell_id={'|'.join(chosen)}")
    assert sorted(load_run(some).frame()["cell_id"]) == chosen
