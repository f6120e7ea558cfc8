"""The hand-written kvbench/_engine.pyi against the compiled module.

mypy's stubtest takes nanobind's functions for no functions; nanobind's own generator knows them. What it writes is
compared with the stub: names, bases, parameters with their kinds, and types without what stands in brackets.
"""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from nanobind.stubgen import StubGen  # type: ignore[import-untyped]  # it ships no types

STUB = Path(__file__).parents[3] / "kvbench" / "_engine.pyi"


def outline(source: str) -> set[str]:
    return set(_members(ast.parse(source).body, ""))


def _members(body: list[ast.stmt], owner: str) -> Iterator[str]:
    for node in body:
        match node:
            case ast.ClassDef():
                yield f"class {node.name}({', '.join(_head(base) for base in node.bases)})"
                yield from _members(node.body, f"{node.name}.")
            case ast.FunctionDef():
                decorators = "".join(f"@{ast.unparse(decorator)} " for decorator in node.decorator_list)
                yield f"{decorators}{owner}{node.name}({_parameters(node.args)}) -> {_head(node.returns)}"
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield f"{owner}{name} = {ast.unparse(node.value)}"
            case ast.AnnAssign(target=ast.Name(id=name)) if not owner:
                yield f"{name}: {_head(node.annotation)}"


def _parameters(arguments: ast.arguments) -> str:
    plain = ast.arguments(
        posonlyargs=[_plain(argument) for argument in arguments.posonlyargs],
        args=[_plain(argument) for argument in arguments.args],
        vararg=arguments.vararg and _plain(arguments.vararg),
        kwonlyargs=[_plain(argument) for argument in arguments.kwonlyargs],
        kw_defaults=[default and ast.Constant(...) for default in arguments.kw_defaults],
        kwarg=arguments.kwarg and _plain(arguments.kwarg),
        defaults=[ast.Constant(...) for _ in arguments.defaults],
    )
    return ast.unparse(plain)


def _plain(argument: ast.arg) -> ast.arg:
    annotation = None if argument.annotation is None else ast.Name(_head(argument.annotation))
    return ast.arg(argument.arg, annotation)


def _head(node: ast.expr | None) -> str:
    """Return a type without its parameters and its module: `Annotated[np.X[int], ...]` -> "X"."""
    match node:
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[first, *_])):
            return _head(first)
        case ast.Subscript():
            return _head(node.value)
        case ast.BinOp(op=ast.BitOr()):
            return f"{_head(node.left)} | {_head(node.right)}"
        case ast.Attribute():
            return node.attr
        case None:
            return ""
    return ast.unparse(node)


def test_the_stub_describes_the_compiled_module() -> None:
    module = importlib.import_module("kvbench._engine")
    generator = StubGen(module)
    generator.put(module)
    assert outline(STUB.read_text()) == outline(generator.get())


@pytest.mark.parametrize(
    "changed",
    [
        "def f(a: int) -> str: ...",
        "def f(a: int, *, b: int) -> str: ...",
        "def f(a: int, b: str = ...) -> str: ...",
        "def f(a: int, b: int = ...) -> int: ...",
        "def f(a: int, b: int = ...) -> str: ...\nx: int",
        "class C(A): ...",
    ],
)
def test_a_difference_is_seen(changed: str) -> None:
    assert outline(changed) != outline("def f(a: int, b: int = 3) -> str: ...")
    assert outline("def f(a: int, b: int = 3) -> str: ...") == outline("def f(a: int, b: int = ...) -> str: ...")
