"""The largest single registration of host memory, up to what the host can spare."""

from typing import Final

from kvbench.probe.common import ProbeFinding, Unanswered
from kvbench.probe.pages import spare_bytes
from kvbench.probe.probe_bench import ProbeBench
from kvbench.probe.registration import register
from kvbench.units import MIB, size_text

_SHARE: Final = 0.75
# Of the device cpu, which pins nothing.
_CPU_BYTES: Final = 256 * MIB


def probe(bench: ProbeBench) -> ProbeFinding | Unanswered:
    """Register powers of two, from three quarters of the available memory down, until one is not refused."""
    spare = spare_bytes(_SHARE) if bench.device.kind == "cuda" else _CPU_BYTES
    refusal = ""
    for exponent in range(spare.bit_length() - 1, MIB.bit_length() - 2, -1):
        bench.step(f"registering {size_text(1 << exponent)}", 2.0**exponent / MIB, "MiB")
        took_s, error = register(bench, 1 << exponent, 1)
        if not error:
            return ProbeFinding(
                answer=f"{size_text(1 << exponent)} in one call; twice as much: {refusal or 'more than is available'}",
                number=round(took_s / 2 ** (exponent - 30), 4),
                unit="s a GiB",
                of="registration by one thread",
                expected=not refusal,
                figures={"whole_s": round(took_s, 3), "spare_mib": spare // MIB},
            )
        refusal = f"refused ({error})"
    return Unanswered(f"even 1 MiB is {refusal}")
