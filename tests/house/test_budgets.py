"""The budgets of CONTRIBUTING.md, enforced by tests."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache

import pytest

MODULE_LINES = 500
FUNCTION_LINES = 60
CONSTRUCTOR_ARGUMENTS = 6

Sources = dict[str, ast.Module]
Function = ast.FunctionDef | ast.AsyncFunctionDef
_LOOKED_AT = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Call, ast.Attribute, ast.Import, ast.ImportFrom, ast.Try,
)  # fmt: skip


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    """Every node of a module that some rule looks at: walking all trees takes a second."""
    return [node for node in ast.walk(tree) if isinstance(node, _LOOKED_AT)]


def functions(sources: Sources) -> Iterator[tuple[str, Function]]:
    """Every function of every module, including methods and inner functions, with the path of its module."""
    for path, tree in sources.items():
        for node in nodes(tree):
            if isinstance(node, Function):
                yield path, node


def imported(node: ast.AST) -> Iterator[str]:
    """The names in an import statement: ``import a.b`` gives a.b; ``from a import b`` gives a.b, where b may be a module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_modules_are_at_most_500_lines(everything: Sources, root):
    """A module that does not fit a few screens has more than one reason to change."""
    lengths = {path: len((root / path).read_text().splitlines()) for path in everything}
    assert {path: length for path, length in lengths.items() if length > MODULE_LINES} == {}


def test_functions_are_at_most_60_lines(everything: Sources):
    """A function that does not fit one screen decides and acts at once."""
    long = [
        f"{path}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path, node in functions(everything)
        if node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    ]
    assert long == []


def test_constructors_take_at_most_six_arguments(shipped: Sources):
    """A class that needs more takes one value that groups them; options with defaults are one ``TypedDict`` (PEP 692)."""
    wide = []
    for path, node in functions(shipped):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if node.name == "__init__" and len(arguments) - 1 > CONSTRUCTOR_ARGUMENTS:
            wide.append(f"{path}:{node.lineno}: {len(arguments) - 1} arguments")
    assert wide == []


@pytest.mark.parametrize("distribution", ["gateway/", "clients/"])
def test_a_class_name_stands_in_one_module(shipped: Sources, distribution: str):
    """Rule: a reader of a name knows which class it is."""
    modules: dict[str, list[str]] = {}
    for path, tree in shipped.items():
        for node in nodes(tree):
            if isinstance(node, ast.ClassDef) and path.startswith(distribution):
                modules.setdefault(node.name, []).append(path)
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}


def test_imports_are_at_the_top(shipped: Sources):
    """An import inside a function hides a dependency, and usually a cycle; what may be missing is imported where it is used."""
    optional = {id(node) for tree in shipped.values() for attempt in nodes(tree) for node in _may_fail(attempt)}
    hidden = []
    for path, function in functions(shipped):
        for node in ast.walk(function):
            if id(node) not in optional:
                hidden += [f"{path}:{node.lineno}: {name}" for name in imported(node)]
    assert hidden == []


def test_the_client_imports_nothing_by_its_text(shipped: Sources):
    """A module that is named in a text is a dependency that neither a reader nor ``lint-imports`` sees."""
    hidden = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in shipped.items()
        for node in nodes(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")
        if path.startswith("clients/") and isinstance(node.args[0], ast.Constant)
    ]
    assert hidden == []


def _may_fail(node: ast.AST) -> list[ast.stmt]:
    """The statements of a ``try`` whose handlers include one for ImportError alone."""
    if not isinstance(node, ast.Try):
        return []
    caught = [handler.type.id for handler in node.handlers if isinstance(handler.type, ast.Name)]
    return node.body if "ImportError" in caught else []


def test_no_import_cycles(shipped: Sources):
    """Every module can be understood, and imported, before those that use it."""
    names = {path: _module_name(path) for path in shipped}
    graph = {
        names[path]: {
            known for node in nodes(tree) for name in imported(node) if (known := _known(name, names.values()))
        }
        for path, tree in shipped.items()
    }
    assert _cycle(graph) is None


def _module_name(path: str) -> str:
    return path.removeprefix("clients/python/src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _known(name: str, modules: Iterable[str]) -> str | None:
    return next((candidate for candidate in (name, name.rpartition(".")[0]) if candidate in modules), None)


def _cycle(graph: dict[str, set[str]]) -> list[str] | None:
    """One cycle of the graph, or ``None``: modules that no other module imports are removed until none is left."""
    left = {name: {other for other in others if other != name} for name, others in graph.items()}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    return sorted(left) or None


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": set()}, None),
        ({"a": {"b"}, "b": {"a"}}, ["a", "b"]),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["a", "b", "c"]),
    ],
)
def test_the_cycle_finder_finds_cycles(graph, found):
    """The test above proves something only if its tool sees a cycle where there is one."""
    assert _cycle(graph) == found


def test_nothing_is_left_for_later(texts: dict[str, str]):
    """The repository has no unfinished code and no notes about it."""
    words = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|NotImplemented" r"Error)\b")
    left = {path: found for path, text in texts.items() if path.endswith(".py") and (found := words.findall(text))}
    assert left == {}


def test_no_test_is_skipped(everything: Sources):
    """A skipped test is an unchecked claim."""
    skipped = [
        f"{path}:{node.lineno}"
        for path, tree in everything.items()
        for node in nodes(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in {"skip", "skipif", "xfail", "importorskip"}
        and ast.unparse(node).startswith("pytest.")
    ]
    assert skipped == []


def test_no_path_of_somebodys_machine(texts: dict[str, str]):
    """No file names a path that exists on one machine only."""
    personal = re.compile(r"(?<![\w.}])/(?:work|root|Users)/[a-z.][\w.-]*/")
    found = {path: hits for path, text in texts.items() if (hits := personal.findall(text))}
    assert found == {}


def test_every_test_module_has_a_name_of_its_own(everything: Sources):
    """Rule: pytest imports a test module by its file's name alone; of two that share one it refuses the second, unrun."""
    paths: dict[str, list[str]] = {}
    for path in everything:
        folder, _, name = path.rpartition("/")
        if folder.partition("/")[0] == "tests" and name.startswith("test_"):
            paths.setdefault(name, []).append(path)
    assert len(paths) > 100
    assert [shared for shared in paths.values() if len(shared) > 1] == []


def test_every_test_states_its_rule(everything: Sources):
    """A test says in its docstring which behaviour it holds."""
    silent = [
        f"{path}:{node.lineno} {node.name}"
        for path, node in functions({path: tree for path, tree in everything.items() if "tests/" in path})
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert silent == []


def test_every_module_says_what_it_is_for(everything: Sources):
    """A reader learns from the first line whether this is the module."""
    silent = [path for path, tree in everything.items() if tree.body and not ast.get_docstring(tree)]
    assert silent == []
