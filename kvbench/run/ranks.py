"""A sweep started as several ranks by torchrun or srun: each rank takes its own GPU, and all begin together."""

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kvbench.cells.cell import Cell
from kvbench.cells.installed import Installed
from kvbench.ground.errors import UsageError, brief
from kvbench.run.worker_process import WorkerSlot
from kvbench.sweep.spec import SweepSpec

# Environment variables of torchrun and srun: the rank, the rank on this host, the number of ranks.
_VARIABLES = (("RANK", "LOCAL_RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"))

# A signal is heard between two steps of a wait.
_STEP_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Rank:
    """One of `count` ranks; `local` is its number on this host."""

    number: int
    local: int
    count: int

    def device(self, asked: str, visible: str | None) -> str:
        """Return the device that this rank takes; `visible` is CUDA_VISIBLE_DEVICES. Raises UsageError."""
        if asked == "cpu":
            return asked
        if asked not in ("auto", "cuda"):
            raise UsageError(f"--device {asked}: each of {self.count} ranks takes its own GPU; leave it out")
        return f"cuda:{self.local % len(visible.split(','))}" if visible else f"cuda:{self.local}"


def rank_of(environment: Mapping[str, str]) -> Rank | None:
    for names in _VARIABLES:
        texts = [environment.get(name, "") for name in names]
        if all(text.isdecimal() for text in texts) and int(texts[2]) > 1:
            return Rank(*map(int, texts))
    return None


class RankSlot(WorkerSlot):
    """The slot of one rank: after allocating its memory, it waits until every rank has done so."""

    def __init__(self, spec: SweepSpec, backends: Iterable[Installed], rank: Rank) -> None:
        device = rank.device(spec.device, os.environ.get("CUDA_VISIBLE_DEVICES"))
        super().__init__(spec.with_options(device=device), backends)
        self._rank = rank

    def reserve(self, pool_bytes: int, host_pools: int = 1, cells: Collection[Cell] = ()) -> list[str]:
        notes = super().reserve(pool_bytes, host_pools, cells)
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise UsageError(f"{' and '.join(missing)} not set: the ranks need it to begin together; torchrun sets it")
        try:
            from torch import distributed
        except ImportError:
            raise UsageError("several ranks require torch; install kvbench[cuda]") from None

        def meet() -> None:
            distributed.init_process_group("gloo", rank=self._rank.number, world_size=self._rank.count)
            distributed.barrier()
            distributed.destroy_process_group()

        _interruptible(meet)
        return notes


def _interruptible(meet: Callable[[], None]) -> None:
    """Call `meet` in a thread, so that Ctrl-C ends the wait for ranks that do not come; raises UsageError."""
    failed: list[Exception] = []

    def run() -> None:
        try:
            meet()
        except Exception as error:  # torch raises several kinds
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_STEP_S)
    if failed:
        why = str(failed[0]).partition("\n")[0]
        raise UsageError(f"MASTER_ADDR, MASTER_PORT: the ranks cannot meet: {brief(why)}")
