"""The identity of a machine as stored in a run: its hash, and the differences between two identities."""

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from kvbench.results import Scalar

# The packages of the requested backends that kvbench does not provide; missing if there is none.
PLUG_INS: Final = "plug_ins"
# What is under test when two builds or backends are compared; all other fields describe the machine.
_UNDER_TEST: Final = ("engine_hash", PLUG_INS)


def identity_hash(fields: Mapping[str, Scalar]) -> str:
    """Return 16 hex digits that depend on the fields but not on their order."""
    text = json.dumps(dict(fields), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()


def differences(a: Mapping[str, Scalar], b: Mapping[str, Scalar]) -> list[str]:
    """Return one line for each field that differs ('triton: "3.6.0" against "3.7.1"'), sorted by name.

    Empty if and only if the hashes agree; a missing field differs from a field that is None.
    """
    return [f"{name}: {in_a} against {in_b}" for name, in_a, in_b in differing(a, b)]


def differing(a: Mapping[str, Scalar], b: Mapping[str, Scalar]) -> list[tuple[str, str, str]]:
    """Return the fields that differ, sorted by name: (name, value in `a`, value in `b`) as text."""
    pairs = ((name, _show(name, a), _show(name, b)) for name in sorted(a.keys() | b.keys()))
    return [(name, in_a, in_b) for name, in_a, in_b in pairs if in_a != in_b]


def machine_differences(a: Mapping[str, Scalar], b: Mapping[str, Scalar]) -> list[str]:
    """Return the `differences` of two machines: of all fields but those that are under test in a comparison."""
    without = dict.fromkeys(_UNDER_TEST)
    return differences({**a, **without}, {**b, **without})


def _show(name: str, fields: Mapping[str, Scalar]) -> str:
    if name not in fields:
        return "not recorded"
    value = fields[name]
    return "unknown" if value is None else json.dumps(value, ensure_ascii=False, allow_nan=False)
