"""The modules of the dashboard as one file, in the order in which a browser runs them.

A browser requests each of the 43 modules, and Playwright handles several events for each request, which takes half of the
processor time of opening the dashboard. test_linked.py compares both ways of loading it.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from playwright.sync_api import Route

from gateway.admin.pages import STATIC

MODULES = STATIC / "dashboard"
FIRST = "main.js"
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b.*|\bimport\.meta\b", re.MULTILINE)
"""What has no meaning in the middle of a file."""


def imports(module: str) -> list[str]:
    """Names of the files that a module imports, in its order."""
    return [name for _, name in _IMPORT.findall((MODULES / module).read_text(encoding="utf-8"))]


@cache
def linked() -> str:
    """Each module as a function that runs once and returns what the module exports; imported ones come before."""
    order: list[str] = []
    _add(FIRST, order)
    return "\n".join(map(_function, order))


def _add(module: str, order: list[str]) -> None:
    for imported in imports(module):
        if imported not in order:
            _add(imported, order)
    order.append(module)


def _function(module: str) -> str:
    text = (MODULES / module).read_text(encoding="utf-8")
    exports = _EXPORT.findall(text)
    text = _IMPORT.sub(lambda match: f"const {{{match[1].replace(' as ', ': ')}}} = {_name(match[2])};", text)
    text = _EXPORT.sub("", text)
    assert (left := _LEFT.search(text)) is None, f"{module}: {left and left[0]}"
    return f"const {_name(module)} = (() => {{\n{text}\nreturn {{ {', '.join(exports)} }};\n}})();\n"


def _name(module: str) -> str:
    return f"module_{Path(module).stem}"


def answer(route: Route) -> None:
    """Answer a request for the first module with all of them."""
    route.fulfill(body=linked(), content_type="text/javascript; charset=utf-8")
