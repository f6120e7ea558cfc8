"""Which backends are installed, according to their entry points, and what kvbench knows of the engines among them.

Loads no package of others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import Distribution, EntryPoint, entry_points
from pkgutil import iter_modules
from typing import Final

from kvbench.cells.axes import Direction, StreamState
from kvbench.cells.facts import HostMemory
from kvbench.cells.policy import Choice
from kvbench.ground.errors import UsageError
from kvbench.ground.text import hint, printable, quoted

GROUP: Final = "kvbench.backends"
_ENGINES: Final = "kvbench.engines"
# The function of their section of a report. Its module is no engine, and is slow to load.
ENGINES_SECTION: Final = f"{_ENGINES}.section:make"

Values = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What a module of `kvbench.engines` knows of its engine, in its constant `ENGINE`.

    `same_as` is the backend that calls the same function of the driver as kvbench's `batched`. With `pages`, the engine
    copies only blocks that lie in pages on the host.

    `kernel` is the backend that takes an SM count, by the first of `settings`. `takes(direction, block_bytes, blocks,
    values)` is the engine's choice for a swap with these values of its settings. `tries(sizes, counts, defaults)` are
    the values to try for the settings after the first: the sizes and counts are those measured. `remark` says what a
    diff of the settings does not. Where other code of the engine is measured more often than what it does by default in
    a direction, `by_default` names the backend of the default and `measured` the other code. `states` are those in
    which its swaps begin, the one that decides first. `pool` says how large its rule lets its pool be on a host.
    """

    name: str
    title: str
    same_as: str = ""
    pages: bool = False
    kernel: str = ""
    settings: tuple[str, ...] = ()
    takes: Callable[[Direction, int, int, Values], Choice] | None = None
    tries: Callable[[Sequence[int], Sequence[int], Values], tuple[Sequence[int], ...]] = lambda *_: ()
    remark: str = ""
    by_default: Mapping[Direction, str] = field(default_factory=dict)
    measured: Mapping[Direction, str] = field(default_factory=dict)
    directions: tuple[Direction, ...] = tuple(Direction)
    states: tuple[StreamState, ...] = (StreamState.IDLE,)
    pool: Callable[[HostMemory], str] | None = None

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple(name for name, backend in installed()[0].items() if backend.engine == self.name)

    def default_choice(self, direction: Direction) -> Choice:
        """What it does by default in a direction; a choice that no run has where `by_default` names no backend."""
        return Choice(self.by_default.get(direction, ""))


@dataclass(frozen=True, slots=True)
class Installed:
    """A backend's name, the package that provides it ("name==version"), and the entry point that loads it.

    If several packages provide a backend of that name, `entry` is None and `package` names all of them.
    """

    name: str
    package: str
    entry: EntryPoint | None

    @property
    def own(self) -> bool:
        return self.entry is not None and _is_built_in(self.entry)

    @property
    def plug_in(self) -> bool:
        """Whether the code is of a package that kvbench does not know: it may leave anything behind in its process."""
        return not (self.own or self.engine)

    @property
    def engine(self) -> str:
        """The engine whose installed code kvbench runs in this backend, on request only; "" for other backends."""
        module = "" if self.entry is None else self.entry.module
        package, _, name = module.rpartition(".")
        return name if package == _ENGINES else ""


@cache  # the metadata of packages take 10 ms to read
def installed() -> tuple[Mapping[str, Installed], Sequence[str]]:
    """Every backend by name, and a note for each package whose backend has the name of a built-in one."""
    by_name: dict[str, list[EntryPoint]] = {}
    # Built-in ones first: what another package calls by such a name is a clash.
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, not _is_built_in(entry))):
        by_name.setdefault(entry.name, []).append(entry)
    backends, clashes = {}, []
    for name, entries in by_name.items():
        versions = [entry.dist and "{}=={}".format(*_name_and_version(entry.dist)) for entry in entries]
        packages = [printable(version or "without a name") for version in versions]
        if _is_built_in(entries[0]):
            clashes += [
                f"package {package} also provides a backend {name}, which is not loaded: kvbench's own has that name"
                for package, entry in zip(packages, entries, strict=True)
                if not _is_built_in(entry)
            ]
            del packages[1:]
        backends[name] = Installed(name, " and ".join(packages), entries[0] if len(packages) == 1 else None)
    return backends, clashes


@cache
def engines() -> Mapping[str, Engine]:
    modules = {module.name for module in iter_modules(import_module(_ENGINES).__path__, f"{_ENGINES}.")}
    modules.discard(ENGINES_SECTION.partition(":")[0])
    # `code`, what engines share, has no ENGINE.
    candidates = [getattr(import_module(name), "ENGINE", None) for name in sorted(modules)]
    return {engine.name: engine for engine in candidates if engine}


def of_engine(backend: str) -> str:
    """The engine whose code a backend runs; "" for other backends."""
    registration = installed()[0].get(backend)
    return registration.engine if registration else ""


def serves_all(choice: Choice) -> bool:
    """Whether a choice is not the code of one engine, which serves only that engine."""
    return not of_engine(choice.backend)


def unknown_backend(name: str, backends: Iterable[str]) -> UsageError:
    return UsageError(f"unknown backend {quoted(name)}; {hint(name, backends)}")


def _is_built_in(entry: EntryPoint) -> bool:
    from_backends = entry.value.startswith("kvbench.backends.")
    return from_backends and (entry.dist is None or _name_and_version(entry.dist)[0] == "kvbench")


@cache  # either reads the metadata of the package, and a worker needs them at every visit
def _name_and_version(package: Distribution) -> tuple[str, str]:
    return package.name, package.version
