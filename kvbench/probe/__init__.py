"""What the driver really does with a batched copy: the list of probes, and how each is run in a process of its own.

Needs neither engine nor GPU.
"""

import time
from contextlib import closing
from typing import Final

import msgspec

from kvbench.ground.text import short
from kvbench.run.worker_process import Interpreter, LostError, Supervised

# Name of each probe -> its question.
PROBES: Final = {
    "count": "how many descriptors does one call take, and where does it begin to block?",
    "inline": "up to which block size does the CPU copy, inside the call?",
    "engine": "does a batched copy need SMs, with and without the prefer-overlap flag?",
    "order": "is a source ever read before or after its turn in the stream?",
    "registration": "does one call register 8 GiB, at which cost, and may a copy span two registrations?",
    "confidential": "is Confidential Computing on, and are copies synchronous with the host?",
    "stalls": "does pinning memory in another thread stall swaps?",
}
HEALTH: Final = "health"
ZERO: Final = "zero"  # a part of registration
DEADLINE_S: Final = 30.0


class Step(msgspec.Struct, frozen=True, tag=True):
    """What a probe is about to do: the last step before a crash or a hang says where it was."""

    doing: str
    number: float
    unit: str


class ProbeFinding(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The answer of a probe and its evidence: one number, what it is (`of`) and more `figures` with units in names.

    The answer holds nothing that varies from run to run. It is `expected` if it agrees with the documentation of the
    driver, or where that is silent with driver 580 on an H200.
    """

    answer: str
    number: float
    unit: str
    of: str
    expected: bool
    figures: dict[str, str | int | float | bool] = {}


class Unanswered(msgspec.Struct, frozen=True, tag=True):
    """Why there is no answer; `off`: the probe was not made because of a risk."""

    reason: str
    off: bool = False


Message = Step | ProbeFinding | Unanswered
_MESSAGES: Final = msgspec.json.Decoder(Message)


class Result(msgspec.Struct, frozen=True):
    name: str
    question: str
    found: ProbeFinding | Unanswered
    took_s: float


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Every result, and last that of a copy in a fresh process, whose figures describe the machine."""

    kvbench: str
    created: str
    device: str
    results: list[Result]
    health: Result
    took_s: float


def run_probe(name: str, device: str, fault: str = "") -> Result:
    """Run a probe on `device` ("cpu", "cuda:N") in a process of its own; a crash or a hang is a finding."""
    began_s, command = time.monotonic(), Interpreter().command("-m", "kvbench.probe", name, device, fault)
    with closing(Supervised("the process", command)) as process:
        finding = _finding(process)
    return Result(name, PROBES.get(name, ""), finding, round(time.monotonic() - began_s, 3))


def _finding(process: Supervised) -> ProbeFinding | Unanswered:
    """The last message of a probe, which ends without a crash, or else what happened at its last step."""
    last: Message | None = None
    while True:
        try:
            last = _MESSAGES.decode(process.read_line(DEADLINE_S))
        except msgspec.DecodeError:
            continue
        except LostError as lost:
            if not lost.crashed and isinstance(last, ProbeFinding | Unanswered):
                return last
            if lost.crashed and isinstance(last, Step):
                return ProbeFinding(
                    answer=f"{lost.how} ({last.doing})", number=last.number, unit=last.unit, of=lost.how, expected=False
                )
            return Unanswered(short(str(lost)))
