"""Values have the nouns of the domain: a local called ``found`` says only that something was looked for."""

import ast
import re
from collections import Counter
from collections.abc import Iterator

_VAGUE = "found", "told", "one", "each"
_WORD = re.compile(rf"\b_?({'|'.join(_VAGUE)})\b(?=( in |[,)]| ?[:=]))")
_LEFT = {
    "gateway/engine/items/": 26,
    "gateway/api/s3/": 34,
    "gateway/model/errors.py": 5,
    "gateway/policies/space/probing.py": 1,
}
"""Most vague names below each path. They only ever become fewer: rename them when you change the function. Fields that are
stored keep their names: ``StepSample.each`` is in the plan that Redis has."""


def _bound(tree: ast.Module) -> Iterator[str]:
    """The names that a module binds: variables, parameters, fields and attributes of ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


def test_values_are_named_by_nouns(shipped: dict[str, ast.Module], texts: dict[str, str]):
    """Rule: no variable, parameter or field is called found, told, one or each; some old modules may keep theirs for a while."""
    counts = Counter[str]()
    for path, tree in shipped.items():
        # Walking every module takes a second: most have none of the words where a name may be bound.
        if _WORD.search(texts.get(path, "")):
            counts[path] = sum(name.lstrip("_") in _VAGUE for name in _bound(tree))
    vague = {path: count for path, count in counts.items() if count and not path.startswith(tuple(_LEFT))}
    assert vague == {}
    left = {below: sum(counts[path] for path in counts if path.startswith(below)) for below in _LEFT}
    assert {below: count for below, count in left.items() if count > _LEFT[below]} == {}
