"""Data for the page, small: numbers as four significant digits, text as JSON, both deflated and in base64."""

import base64
import json
import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt

DIGITS: Final = 4
_LARGEST_EXPONENT: Final = 120
_NO_NUMBER: Final = 127
_LOWEST: Final = -_LARGEST_EXPONENT - DIGITS
_POWERS: Final = 10.0 ** np.arange(_LOWEST, _LARGEST_EXPONENT + 1, dtype=np.int16)
_HARMLESS: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def pack(columns: npt.ArrayLike) -> str:
    """Return a table of numbers, a row for each column of the page's table, as base64 text that packed.js reads.

    Every number becomes its first four significant digits (int16) and a power of ten (int8), byte planes one after
    another, deflated. What is no finite number comes back as none.
    """
    values = np.asarray(columns, dtype=np.float64).ravel()
    size = np.abs(values)
    known = np.isfinite(size) & (size < 10.0**_LARGEST_EXPONENT)
    shown = known & (size > 10.0**-_LARGEST_EXPONENT)
    power = np.zeros(values.shape, dtype=np.int16)
    power[shown] = np.floor(np.log10(size[shown])).astype(np.int16) - (DIGITS - 1)
    digits = np.zeros(values.shape)
    digits[shown] = np.rint(values[shown] / _POWERS[power[shown] - _LOWEST])
    power[~known] = _NO_NUMBER
    planes = digits.astype("<i2").view(np.uint8).reshape(-1, 2).T.tobytes() + power.astype(np.int8).tobytes()
    return _deflated(planes)


def pack_json(data: Any) -> str:
    """Return `data` as base64 text of deflated JSON."""
    return _deflated(_json(data).encode())


def plain_json(data: Any) -> str:
    """Return JSON that may stand inside a script element, whatever strings it holds: nothing in it ends the element."""
    return _json(data).translate(_HARMLESS)


def _json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def _deflated(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 4)).decode()
