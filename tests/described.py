"""Cases that schemathesis generates from a description, operation by operation.

Importing schemathesis takes three seconds of CPU. Its plug-in imports it in each process of pytest and generates all cases at
collection, so the plug-in is off (pyproject.toml), and tests that need cases import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from unittest import SkipTest

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from tests.effort import same_each_time

METHODS = ("get", "put", "post", "delete", "patch", "head")


def operations_of(routes: Iterable[BaseRoute], prefix: str = "") -> list[tuple[str, str]]:
    """Method and address of each operation that a description has, which takes longer to make."""
    return [
        (method, prefix + route.path_format)
        for route in routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in sorted(route.methods)
    ]


def described_in(paths: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Method and address of each operation in the paths of a description."""
    return [(method.upper(), path) for path, item in paths.items() for method in METHODS if method in item]


def schema_of(document: dict[str, Any]) -> Any:
    """A description as schemathesis has it."""
    import schemathesis
    from schemathesis.checks import load_all_checks

    load_all_checks()
    return schemathesis.openapi.from_dict(document)


def try_operation(schema: Any, method: str, path: str, count: int, holds: Callable[[Any], None]) -> None:
    """Call ``holds`` with ``count`` random cases of an operation, its examples, and those at its limits, as the plug-in would."""
    from schemathesis.generation.feedback import FeedbackSources
    from schemathesis.pytest._test_builder import build_operation_test

    def tried(case: Any) -> None:
        holds(case)

    (found,) = schema.include(method=method, path=path).get_all_operations()
    attempt = build_operation_test(
        config=schema.config,
        operation=found.ok(),
        test_func=same_each_time(count)(tried),
        given_kwargs={},
        feedback=FeedbackSources(),
    )
    try:
        attempt()
    except SkipTest as nothing:
        raise AssertionError(f"{method} {path} was not tried: {nothing}") from None
