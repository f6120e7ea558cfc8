"""Parse and format byte sizes and durations."""

import re
from fractions import Fraction
from typing import Final

from kvbench.ground.text import quoted

KIB: Final = 1024
MIB: Final = 1024**2
_FACTORS: Final = {"": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": KIB**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_size(text: str) -> int:
    """The bytes of a size: "4KiB", "1.5MiB", "576", "64KB" (10^3).

    Raises ValueError if `text` is not a size, or not a whole number of bytes.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _FACTORS.get(match[2]) if match else None
    if match is None or factor is None:
        raise ValueError(
            f"{quoted(text)} is not a size; write a number of bytes, or a number with B, KiB, MiB, GiB, KB, MB or GB"
        )
    size_bytes = Fraction(match[1]) * factor
    if size_bytes.denominator != 1:
        raise ValueError(f"{quoted(text)} is not a whole number of bytes")
    return int(size_bytes)


def parse_binary_size(text: str) -> int:
    """The bytes of a size, as `parse_size`; raises ValueError also for KB, MB and GB, where KiB is meant."""
    size_bytes = parse_size(text)
    number, unit = text.strip().rstrip("KMGB"), text.strip().lstrip("0123456789. ")
    if unit in ("KB", "MB", "GB"):
        raise ValueError(f"{quoted(text)} is {size_bytes} bytes; write {number.strip()}{unit[0]}iB or {size_bytes}B")
    return size_bytes


def format_size(size_bytes: int) -> str:
    """The shortest exact form that `parse_size` reads back: 4096 -> "4KiB", 576 -> "576B"."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes >= _FACTORS[unit] and size_bytes % _FACTORS[unit] == 0:
            return f"{size_bytes // _FACTORS[unit]}{unit}"
    return f"{size_bytes}B"


def size_text(size_bytes: int) -> str:
    """A size as people read it: 4096 -> "4 KiB", 25088 -> "24.5 KiB", 576 -> "576 B"."""
    exact = format_size(size_bytes)
    if exact == f"{size_bytes}B" and size_bytes >= KIB:
        exact = f"{size_bytes / KIB:.4g}KiB"
    return re.sub(r"(?<=\d)(?=[A-Z])", " ", exact)


def two_digits(value: float) -> str:
    """A number with two significant digits and no exponent: 0.83, 4.2, 50, 120."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:.0f}" if rounded >= 10 else f"{rounded:.2g}"


def rough_size(size_bytes: int) -> str:
    """A readable, rounded size: "12.2 GiB", "576 B"."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes >= _FACTORS[unit]:
            return f"{size_bytes / _FACTORS[unit]:.1f} {unit}"
    return f"{size_bytes} B"


def gigabytes_per_second(size_bytes: float, time_us: float) -> float:
    """GB/s (10^9 bytes per second) for `size_bytes` moved in `time_us`; NaN for a time of zero."""
    return size_bytes / time_us / 1e3 if time_us > 0 else float("nan")


def format_duration(seconds: float) -> str:
    """A readable duration: "0.4 s", "48 s", "3 min 20 s", "1 h 05 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
