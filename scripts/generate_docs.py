"""Write the tables of docs/ that repeat declarations of the code, and the runbook that gateways serve.

A page keeps its prose; the text between ``<!-- generated: NAME -->`` and ``<!-- end -->`` is replaced. docs/runbook.md becomes a
page of HTML. `make docs` runs it; tests/house/test_docs.py fails while a page is out of date.
"""

import argparse
import inspect
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway import cli
from gateway.admin.app import AdminApp
from gateway.admin.http.tokens import Tokens
from gateway.base import metrics
from gateway.base.config import Settings
from gateway.base.config_catalog import AdminSettings
from gateway.model import outcomes, units
from gateway.operate.features import FEATURES
from larder import grammar

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
RUNBOOK = ROOT / "gateway/admin/static/runbook/index.html"
_HTML = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Larder: when it breaks</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">
<link rel="icon" href="/-/static/dashboard/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/-/static/dashboard/base.css">
<link rel="stylesheet" href="/-/static/runbook/runbook.css">
</head>
<body>
<header class="top"><a href="/-/">Dashboard</a><a href="/-/docs">API</a></header>
<main>
{}</main>
</body>
</html>
"""


def pages() -> dict[Path, str]:
    """Every page that is generated, or has generated parts, as it should be."""
    tables: dict[str, Callable[[], str]] = {
        "settings": _settings,
        "metrics": _metrics,
        "reasons": _reasons,
        "operator_commands": lambda: _commands(cli.parser(*(command.name for command in cli.COMMANDS))),
        "user_commands": lambda: _commands(grammar.parser()),
        "admin_endpoints": lambda: admin_endpoints(admin_description()),
    }
    wanted = {RUNBOOK: runbook((DOCS / "runbook.md").read_text(encoding="utf-8"))}
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        new = re.sub(
            r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)",
            lambda match: f"{match[1]}\n{tables[match[2]]()}\n{match[3]}",
            text,
            flags=re.DOTALL,
        )
        if "<!-- generated:" in text:
            wanted[path] = new
    return wanted


def runbook(text: str) -> str:
    """The runbook as HTML, with the anchors that GitHub gives its headings; a link to another page becomes the page's name."""
    parser = MarkdownIt("commonmark").enable("table")
    tokens = parser.parse(re.sub(r"\[([^\]]+)\]\(([\w./-]+)(?:#[\w-]+)?\)", r"\1 (docs/\2)", text))
    for heading, words in pairwise(tokens):
        if heading.type == "heading_open":
            heading.attrSet("id", _anchor(words))
    return _HTML.format(parser.renderer.render(tokens, parser.options, {}))


def _anchor(heading: Token) -> str:
    return re.sub(r"[^\w\- ]", "", heading.content.lower()).replace(" ", "-")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _settings() -> str:
    """One table, with a row for each section before its settings."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for section, field in Settings.model_fields.items():
        inner = field.annotation if _is_section(field.annotation) else get_args(field.annotation)[0]
        several = inner is not field.annotation
        meaning = " ".join((inspect.getdoc(inner) or "").split())
        lines.append(f"| **{'[[' if several else '['}{section}{']]' if several else ']'}** | | {_cell(meaning)} |")
        for name, setting in inner.model_fields.items():
            lines.append(f"| `{section}.{name}` | {_default(setting)} | {_cell(setting.description or '')} |")
    return "\n".join(lines) + "\n"


def _is_section(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _default(setting: FieldInfo) -> str:
    value = setting.default
    if setting.is_required():
        return "required"
    parsers = [getattr(item, "func", None) for item in setting.metadata]
    if units.parse_size in parsers:
        value = _size(value)
    elif isinstance(value, float):
        value = _duration(value)
    elif isinstance(value, bool):
        value = str(value).lower()
    elif value == ():
        value = "[]"
    return f"`{value}`" if value != "" else "empty"


def _size(value: int) -> str:
    units_of = {"GiB": 1024**3, "MiB": 1024**2, "KiB": 1024, "GB": 1000**3, "MB": 1000**2, "kB": 1000}
    exact = [f"{value // size}{name}" for name, size in units_of.items() if value and value % size == 0]
    return min([*exact, str(value)], key=len)


def _duration(value: float) -> str:
    for seconds, letter in ((3600, "h"), (60, "m")):
        if value and value % seconds == 0:
            return f"{value / seconds:g}{letter}"
    return f"{value:g}s"


AREAS = {
    "clients": "requests sent repeated bucket request rate shed connections tenant unauthenticated auth",
    "origin": "origin revalidations fills small invalidations invalidation",
    "datasets": "batches batch prefetched dataset results result replaced importance",
    "fleet": "peer moved relayed fleet ring",
    "cache": "cache object evicted corrupt verified open memory disk stream streams",
    "plan": "job jobs planned plan manager zone pipelines pipeline",
    "gateway": "build ready event config admin catalog warmups",
}
"""Areas of docs/metrics.md, with the first words of their metrics after ``larder_``."""


def _metrics() -> str:
    """The names of metrics by area, with labels; kind and meaning are in the answer of ``/-/metrics``."""
    area_of = {subject: area for area, subjects in AREAS.items() for subject in subjects.split()}
    by_area: dict[str, list[str]] = {area: [] for area in AREAS}
    for metric in metrics.ALL:
        name = f"{metric._name}_total" if metric._type == "counter" else metric._name
        labels = f"{{{','.join(metric._labelnames)}}}" if metric._labelnames else ""
        by_area[area_of[name.split("_")[1]]].append(f"`{name}{labels}`")
    return "\n".join(f"- **{area}**: {', '.join(names)}" for area, names in by_area.items())


def _reasons() -> str:
    """The reasons and their meanings."""
    rows = [f"| `{reason}` | {_cell(reason.meaning)} |" for reason in outcomes.Reason]
    return "\n".join(["| reason | meaning |", "|---|---|", *rows]) + "\n"


def _commands(parser: argparse.ArgumentParser) -> str:
    """A row for each command: one example, with the command's name, and its purpose in the words of the list of commands."""
    rows = ["| command, with an example | what it does |", "|---|---|"]
    rows += [f"| `{_cell(_example(command))}` | {_cell(purpose)} |" for command, purpose in _every(parser)]
    return "\n".join(rows)


def _every(parser: argparse.ArgumentParser) -> list[tuple[argparse.ArgumentParser, str]]:
    """The commands of every level with their purposes, without the groups, which only hold others."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    purposes = {choice.dest: choice.help or "" for group in groups for choice in group._choices_actions}
    leaves = []
    for command in subcommands(parser):
        leaves += _every(command) or [(command, purposes[command.prog.rpartition(" ")[2]])]
    return leaves


def subcommands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """In the order of their declaration; of one with several names, one."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    named = [(name, command) for group in groups for name, command in group.choices.items() if name != "help"]
    return list({id(command): command for _, command in named}.values())


def _example(command: argparse.ArgumentParser) -> str:
    """The first example of the help; without one, the command with its positional arguments."""
    lines = inspect.cleandoc((command.epilog or "").partition("\n")[2]).splitlines()
    positional = [str(action.metavar or action.dest) for action in command._actions if not action.option_strings]
    example = next((line for line in lines if line and not line.startswith("#")), " ".join([command.prog, *positional]))
    return example.partition("  #")[0].rstrip()


Document = dict[str, Any]


def admin_description() -> Document:
    """The OpenAPI document of everything under /-/admin."""
    app = AdminApp(Tokens(AdminSettings()), None, FEATURES)
    return app.api.openapi()


def admin_endpoints(description: Document) -> str:
    """A row for each address, and what each method is for; those of a tag follow each other."""
    by_tag: dict[str, list[str]] = {}
    for path, methods in description["paths"].items():
        purposes = [f"{method.upper()}: {operation['summary'].lower()}" for method, operation in methods.items()]
        tag = next(iter(methods.values()))["tags"][0]
        row = f"| `/-{path}` | {_cell('; '.join(purposes))} |"
        by_tag.setdefault(tag, []).append(row)
    return "\n".join(["| address | what it is for |", "|---|---|", *(row for rows in by_tag.values() for row in rows)])


if __name__ == "__main__":
    for page, content in pages().items():
        page.write_text(content, encoding="utf-8")
