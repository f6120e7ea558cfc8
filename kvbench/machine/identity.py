"""The identity of a machine, as a run keeps it: its hash, and where two of them differ."""

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from kvbench.results import Scalar

# The field that says which build of the engine ran; the others are the machine's.
OF_THE_BUILD: Final = "engine_hash"


def identity_hash(fields: Mapping[str, Scalar]) -> str:
    """Return 16 hex digits that depend on the fields and not on their order."""
    text = json.dumps(dict(fields), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()


def differences(a: Mapping[str, Scalar], b: Mapping[str, Scalar]) -> list[str]:
    """Return one line a field that differs ('triton: "3.6.0" against "3.7.1"'), by name.

    Empty just when the hashes agree; a field that one side lacks differs from one that is None.
    """
    return [f"{name}: {in_a} against {in_b}" for name, in_a, in_b in differing(a, b)]


def differing(a: Mapping[str, Scalar], b: Mapping[str, Scalar]) -> list[tuple[str, str, str]]:
    """Return the fields that differ, by name: (name, the one's value, the other's) in words."""
    pairs = ((name, _show(name, a), _show(name, b)) for name in sorted(a.keys() | b.keys()))
    return [(name, in_a, in_b) for name, in_a, in_b in pairs if in_a != in_b]


def machine_differences(a: Mapping[str, Scalar], b: Mapping[str, Scalar]) -> list[str]:
    """Return the `differences` of two machines, whichever builds of the engine ran on them."""
    return differences({**a, OF_THE_BUILD: None}, {**b, OF_THE_BUILD: None})


def _show(name: str, fields: Mapping[str, Scalar]) -> str:
    if name not in fields:
        return "not recorded"
    value = fields[name]
    return "unknown" if value is None else json.dumps(value, ensure_ascii=False, allow_nan=False)
