"""The code of an engine as it is installed: version, files, settings, whether it loads; and calls through torch."""

import ast
import hashlib
import operator
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from kvbench.backends.through_torch import TorchStream
from kvbench.cells.facts import DeviceFacts, EngineSetting
from kvbench.ground.errors import KvbenchError
from kvbench.ground.text import printable, short

_DEADLINE_S: Final = 150.0  # below the deadline of a worker that describes its backends
_TRIAL: Final = """
import importlib, sys, torch
kind, name = sys.argv[1:]
module, _, function = name.partition(":")
try:
    torch.ops.load_library(name) if kind == "library" else getattr(importlib.import_module(module), function)()
except Exception as error:
    sys.exit(str(error.__cause__ or error))
"""
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Mult: operator.mul, ast.LShift: operator.lshift, ast.Add: operator.add, ast.Sub: operator.sub,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineCode:
    """The files of an engine's package that a backend runs, and the names in each that it or an export uses.

    Paths are relative to the folder of the installation.
    """

    package: str
    files: Mapping[str, tuple[str, ...]]

    @property
    def version(self) -> str | None:
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None

    @property
    def title(self) -> str:
        """The package with a hash of the files, as a run records it: "vllm==0.33.0 (0123456789abcdef)", or ""."""
        if self.missing() is not None:
            return ""
        digest = hashlib.blake2s(digest_size=8)
        for file in self.files:
            digest.update(self.path(file).read_bytes())
        return f"{self.package}=={self.version} ({digest.hexdigest()})"

    def path(self, file: str) -> Path:
        return Path(str(metadata.distribution(self.package).locate_file(file)))

    def missing(self) -> str | None:
        """The missing part of the package, or None."""
        if self.version is None:
            return f"{self.package} is not installed"
        absent = [file for file in self.files if not self.path(file).is_file()]
        return f"{self.package} {self.version} has no file {absent[0]}" if absent else None

    def unavailable(self, device: DeviceFacts, modules: Sequence[str]) -> str | None:
        """Why the code cannot run on `device`, apart from its libraries, or None."""
        if device.kind != "cuda":
            return f"the code of {self.package} needs a GPU"
        if reason := self.missing():
            return reason
        absent = [name for name in modules if util.find_spec(name) is None]
        return f"{self.package} {self.version} needs {' and '.join(absent)}, not installed" if absent else None

    def load_error(self, loader: str = "") -> str | None:
        """Why torch, or `loader` ("module:function"), cannot load the first file, or None.

        It is tried in a process of its own.
        """
        file = next(iter(self.files))
        error = _error_of("call", loader) if loader else _error_of("library", str(self.path(file)))
        if error is None:
            return None
        needed = next((text for text in metadata.requires(self.package) or () if _is_torch(text)), "torch")
        present = f"this is torch {metadata.version('torch')}"
        name, folder = file.rpartition("/")[2], f"{self.path(file).parent}/"  # a run's reasons name no folder
        return f"{self.package} {self.version} needs {needed}, {present}: {name} {error.replace(folder, '')}"

    def settings(self, file: str) -> tuple[EngineSetting, ...]:
        """The settings, names in capitals, of a Python file; raises KvbenchError for one that it lacks."""
        text = self.path(file).read_text()
        constants, lines = _constants(text), text.splitlines()
        names = [name for name in self.files[file] if name.isupper()]
        if absent := [name for name in names if name not in constants]:
            raise KvbenchError(f"{self.package} {self.version}: {file} has no whole number {' and no '.join(absent)}")
        settings = []
        for name in names:
            value, line_number = constants[name]
            settings.append(EngineSetting(name, value, f"{file}:{line_number}", lines[line_number - 1]))
        return tuple(settings)


class EngineBackend:
    """What the backends of engines share; `codes` are forms of the code, of which the first that is there counts.

    The code needs `modules`. `loader` is the function of the backend's module that loads it; without one, torch loads
    its first file. `settings_in` is the file that has its settings, if it has any. `supports` names its optional axes.
    """

    codes: ClassVar[tuple[EngineCode, ...]]
    modules: ClassVar[tuple[str, ...]] = ("torch",)
    loader: ClassVar[str] = ""
    settings_in: ClassVar[str] = ""
    supports: ClassVar[str] = "memory sms"
    default_sms = ()

    @property
    def code(self) -> EngineCode:
        return next((code for code in self.codes if code.missing() is None), self.codes[-1])

    @property
    def package(self) -> str:
        return self.code.title

    @property
    def settings(self) -> tuple[EngineSetting, ...]:
        return self.code.settings(self.settings_in) if self.settings_in and self.code.missing() is None else ()

    def axes(self, _device: DeviceFacts) -> frozenset[str]:
        return frozenset(self.supports.split())

    def unavailable(self, device: DeviceFacts) -> str | None:
        loader = f"{type(self).__module__}:{self.loader}" if self.loader else ""
        return self.code.unavailable(device, self.modules) or self.code.load_error(loader)


def _is_torch(requirement: str) -> bool:
    return requirement.startswith("torch") and not requirement[5:6].isalnum() and "extra" not in requirement


@cache
def _error_of(kind: str, name: str) -> str | None:
    """How a separate process fails to load a library or to call a function, or None."""
    try:
        # -P: no file in the current folder is taken for a module of the package.
        done = subprocess.run(
            (sys.executable, "-P", "-c", _TRIAL, kind, name), capture_output=True, timeout=_DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"does not load within {_DEADLINE_S:g} s"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"ends the process that loads it with signal {-done.returncode}"
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return short(printable(f"does not load: {' '.join(''.join(last).split())}"))


@contextmanager
def stand_ins(modules: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Put modules with these contents, parents first, into sys.modules, and restore it at the end.

    A package whose contents are a `__path__` finds its files, and its own `__init__` does not run.
    """
    before = {name: sys.modules[name] for name in modules if name in sys.modules}
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        sys.modules.update(before)


class _Finder:
    """Finds modules of a package: those below `real` in their files in `root`, others as stand-ins.

    A stand-in has what is `given` for it; every other name in it is an empty class.
    """

    def __init__(self, root: Path, real: tuple[str, ...], given: Mapping[str, Mapping[str, Any]]) -> None:
        self._root, self._real, self._given, self._package = root, real, given, real[0].partition(".")[0]

    def owns(self, name: str) -> bool:
        return name.partition(".")[0] == self._package

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if not self.owns(name):
            return None
        if not name.startswith(self._real):
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]  # a loader by its methods
        path = self._root / name.replace(".", "/")
        if not path.is_dir():
            return util.spec_from_file_location(name, path.with_suffix(".py"))
        spec = ModuleSpec(name, None, is_package=True)  # its __init__ does not run
        spec.submodule_search_locations = [str(path)]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module: Any = ModuleType(spec.name)
        vars(module).update(self._given.get(spec.name, {}))

        def other(name: str) -> Any:
            if f"{spec.name}.{name}" in self._given or name.startswith("__"):
                raise AttributeError(name)  # a module, which is to be imported
            return type(name, (), {})

        module.__getattr__ = other
        return module  # type: ignore[no-any-return]  # Any: mypy lets no module be given a __getattr__

    def exec_module(self, _module: ModuleType) -> None:
        """Leave the stand-in as it was created."""


@contextmanager
def by_path(root: Path, real: tuple[str, ...], given: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Let a package be imported from its files in `root` where its own __init__ and dependencies cannot be.

    Modules whose names begin with one of `real` come from their files. All others are stand-ins with what is `given`
    for each by name. At the end none of them stays in sys.modules.
    """
    finder: Any = _Finder(root, real, given)
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if finder.owns(name)}
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if finder.owns(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def _constants(text: str) -> dict[str, tuple[int, int]]:
    """The whole-number constants of a module: name -> (value, line)."""
    constants = {}
    for statement in ast.parse(text).body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if (number := _number(value)) is not None:
                constants[name] = number, statement.lineno
    return constants


def _number(node: ast.expr) -> int | None:
    match node:
        case ast.Constant(value=int(value)):
            return int(value)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            first, second = _number(left), _number(right)
            return None if first is None or second is None else _OPERATORS[type(op)](first, second)
    return None


# Engines keep a pinned set of lists for each transfer in flight; more than this many are never in flight here.
_SETS: Final = 4


@cache
def load_op(library: Path, namespace: str, name: str) -> Any:
    from torch import ops

    loaded: Any = ops  # its functions have no types
    loaded.load_library(str(library))
    return getattr(getattr(loaded, namespace), name)


class PinnedLists:
    """Sets of pinned int64 tensors, as engines keep them; a set is reused after the launch that read it completed."""

    def __init__(self, stream: TorchStream, lists: int, length: int) -> None:
        torch = stream.torch
        with torch.cuda.device(stream.device):
            self._sets = [
                ([torch.empty(length, dtype=torch.int64, pin_memory=True) for _ in range(lists)], torch.cuda.Event())
                for _ in range(_SETS)
            ]

    def submit(self, values: Sequence[NDArray[np.uint64]], launch: Callable[..., None]) -> None:
        """Copy `values` into the oldest set and call `launch` with its tensors, on torch's current stream."""
        tensors, done = self._sets[0]
        self._sets.append(self._sets.pop(0))
        done.synchronize()
        for tensor, array in zip(tensors, values, strict=True):
            tensor.numpy()[:] = array.view(np.int64)
        launch(*tensors)
        done.record()
