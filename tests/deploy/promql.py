"""Metrics, labels and values in PromQL expressions; parsing by Prometheus's own tool."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from gateway.base import metrics

ROOT = Path(__file__).resolve().parents[2]
OF_PROMETHEUS = frozenset({"job", "instance", "le"})
"""Labels that Prometheus gives to every series, or to every bucket."""
_SELECTOR = re.compile(r"\b(larder_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")


def series() -> dict[str, frozenset[str]]:
    """Every series that the gateway exposes, with its labels."""
    return {name: frozenset(metric._labelnames) for metric in metrics.ALL for name in names_of(metric)}


def names_of(metric: Any) -> tuple[str, ...]:
    """The names of a metric's series."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return tuple(metric._name + suffix for suffix in suffixes.get(metric._type, ("",)))


def without_variables(expression: str) -> str:
    """An expression of a dashboard as Prometheus gets it."""
    times = {"$__rate_interval": "1m", "$__range": "6h", "$__interval": "30s", "$job": "larder", "$instance": ".*"}
    return re.sub(r"\$\w+", lambda match: times[match[0]], expression)


def unknown(expression: str) -> Iterator[str]:
    """Metrics and labels of an expression that do not exist."""
    known, used = series(), set(OF_PROMETHEUS)
    for name, matchers in _SELECTOR.findall(expression):
        if name not in known:
            yield f"metric {name}"
            continue
        used |= known[name]
        yield from (
            f"label {label} of {name}"
            for label, _, _ in _MATCHER.findall(matchers)
            if label not in known[name] | OF_PROMETHEUS
        )
    for labels in _GROUPING.findall(expression):
        yield from (f"label {each.strip()}" for each in labels.split(",") if each.strip() and each.strip() not in used)


def values(expression: str) -> set[str]:
    """The values that an expression matches against the gateway's labels."""
    found = set()
    for _, matchers in _SELECTOR.findall(expression):
        for label, _, value in _MATCHER.findall(matchers):
            if label not in OF_PROMETHEUS:
                found |= set(value.split("|"))
    return found


def spoken() -> set[str]:
    """Every string in the gateway's code, which includes all values of labels."""
    quoted = re.compile(r'"([\w.-]+)"')
    found = {text for path in (ROOT / "gateway").rglob("*.py") for text in quoted.findall(path.read_text())}
    return found | {f"{number}xx" for number in range(1, 6)}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Prometheus's tool."""
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)


def rules_of(expressions: Iterable[str]) -> str:
    """A file of rules that has these expressions, for a tool that knows only rules."""
    rules = [{"record": f"expression:{number}", "expr": each} for number, each in enumerate(expressions)]
    return yaml.safe_dump({"groups": [{"name": "expressions", "rules": rules}]})
