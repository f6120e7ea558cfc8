"""Which backends are installed, by their entry points alone: to look loads nothing of any package."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from kvbench.errors import UsageError
from kvbench.sweep.spec import SweepSpec
from kvbench.text import hint, printable

GROUP: Final = "kvbench.backends"


@dataclass(frozen=True, slots=True)
class Installed:
    """A backend's name, the package that brings it ("name==version"), and what loads it.

    `entry` is None where several packages bring one of that name, `package` then names all of them.
    """

    name: str
    package: str
    entry: EntryPoint | None

    @property
    def own(self) -> bool:
        """Whether it comes with kvbench."""
        return self.entry is not None and _is_own(self.entry)


def installed() -> tuple[Mapping[str, Installed], Sequence[str]]:
    """Return every backend by its name, and a line for each that a package brings under a name of kvbench's own."""
    by_name: dict[str, list[EntryPoint]] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, not _is_own(entry))):
        by_name.setdefault(entry.name, []).append(entry)
    found, clashes = {}, []
    for name, entries in by_name.items():
        packages = [_package(entry) for entry in entries]
        if _is_own(entries[0]):
            clashes += [
                f"package {package} brings a backend {name} too, which is not loaded: kvbench's own has that name"
                for package, entry in zip(packages, entries, strict=True)
                if not _is_own(entry)
            ]
            del packages[1:]
        found[name] = Installed(name, " and ".join(packages), entries[0] if len(packages) == 1 else None)
    return found, clashes


def asked_for(spec: SweepSpec, known: Mapping[str, Installed]) -> list[Installed]:
    """Return kvbench's own backends and those that `spec` asks for, by name; raises UsageError for one that is none."""
    names = {name for name, backend in known.items() if backend.own}
    for group in spec.groups:
        names.update(map(str, group.get("backend", tuple(known))))
    for name in sorted(names - known.keys()):
        raise unknown_backend(name, known)
    return [known[name] for name in sorted(names)]


def unknown_backend(name: str, known: Iterable[str]) -> UsageError:
    """Return the refusal of a backend that is not there."""
    names = list(known)
    return UsageError(f"unknown backend {name}; {hint(name, names, 'there are ' + ', '.join(names))}")


def _is_own(entry: EntryPoint) -> bool:
    return entry.value.startswith("kvbench.backends.") and (entry.dist is None or entry.dist.name == "kvbench")


def _package(entry: EntryPoint) -> str:
    return printable(f"{entry.dist.name}=={entry.dist.version}" if entry.dist else "without a name")
