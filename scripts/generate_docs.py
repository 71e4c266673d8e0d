"""Write the tables of docs/ that repeat declarations of the code: settings, metrics, reasons.

A page keeps its prose; the text between ``<!-- generated: NAME -->`` and ``<!-- end -->`` is replaced.
`make docs` runs it; tests/house/test_docs.py fails while a page is out of date.
"""

import argparse
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway import cli
from gateway.admin.app import AdminApp
from gateway.admin.http.tokens import Tokens
from gateway.base import metrics
from gateway.base.config import Settings
from gateway.base.config_catalog import AdminSettings
from gateway.model import outcomes, units
from gateway.policies.health.troubles import KINDS
from larder import grammar

DOCS = Path(__file__).resolve().parents[1] / "docs"


def pages() -> dict[Path, str]:
    """Every page with generated parts, as it should be."""
    tables: dict[str, Callable[[], str]] = {
        "settings": _settings,
        "metrics": _metrics,
        "reasons": _reasons,
        "problems": _problems,
        "operator_commands": lambda: _commands(cli.parser(*(command.name for command in cli.COMMANDS))),
        "user_commands": lambda: _commands(grammar.parser()),
        "admin_endpoints": lambda: admin_endpoints(admin_description()),
    }
    wanted = {}
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


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _settings() -> str:
    lines = []
    for section, field in Settings.model_fields.items():
        inner = field.annotation if _is_section(field.annotation) else get_args(field.annotation)[0]
        several = inner is not field.annotation
        lines += ["", f"### {'[[' if several else '['}{section}{']]' if several else ']'}", ""]
        lines += [inspect.getdoc(inner) or "", ""]
        lines += ["| setting | environment | default | meaning |", "|---|---|---|---|"]
        for name, setting in inner.model_fields.items():
            variable = f"LARDER_{section}__{'0__' if several else ''}{name}".upper()
            default = _default(setting)
            lines.append(f"| `{section}.{name}` | `{variable}` | {default} | {_cell(setting.description or '')} |")
    return "\n".join(lines[1:]) + "\n"


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


def _metrics() -> str:
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in metrics.ALL:
        kind = metric._type
        name = f"{metric._name}_total" if kind == "counter" else metric._name
        labels = ", ".join(f"`{label}`" for label in metric._labelnames) or "none"
        lines.append(f"| `{name}` | {kind} | {labels} | {_cell(metric._documentation)} |")
    return "\n".join(lines) + "\n"


def _problems() -> str:
    """The kinds of problems, with how bad they are and what to do."""
    rows = ["| kind | what to do |", "|---|---|"]
    for name, kind in KINDS.items():
        notes = [kind.severity, *(["`readyz` answers 503"] if kind.unready else [])]
        rows.append(f"| [`{name}`](#{kind.runbook}) ({', '.join(notes)}) | {_cell(kind.remedy)} |")
    return "\n".join(rows)


def _reasons() -> str:
    """The reasons and their meanings."""
    rows = [f"| `{reason}` | {_cell(reason.meaning)} |" for reason in outcomes.Reason]
    return "\n".join(["| reason | meaning |", "|---|---|", *rows]) + "\n"


SHARED = ("--help", "--json", "--endpoint", "--token", "--token-file", "--profile")
"""Options that docs/cli.md explains once."""


def _commands(parser: argparse.ArgumentParser, level: int = 3) -> str:
    """A section for each command: usage, purpose, arguments, examples."""
    sections = []
    for command in subcommands(parser):
        sections += [_described(command, level), _commands(command, level + 1)]
    return "\n".join(filter(None, sections))


def subcommands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """In the order of their declaration; of one with several names, one."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    named = [(name, command) for group in groups for name, command in group.choices.items() if name != "help"]
    return list({id(command): command for _, command in named}.values())


def _described(command: argparse.ArgumentParser, level: int) -> str:
    group = bool(subcommands(command))
    own = [action for action in command._actions if not group and not set(action.option_strings) & set(SHARED)]
    typed = [_named(action) for action in own if not action.option_strings]
    options = " [options]" if len(own) > len(typed) else ""
    lines = [f"{'#' * level} `{' '.join([command.prog + options, *typed])}`", "", command.description or "", ""]
    if own:
        lines += ["| argument | meaning |", "|---|---|"]
        lines += [f"| `{_cell(_named(action))}` | {_cell(_help(action))} |" for action in own]
        lines.append("")
    examples, _, more = (command.epilog or "").partition("\n")[2].partition("\n\n")
    if examples and not group:
        lines += ["```sh", inspect.cleandoc(examples), "```", ""]
        lines += [more, ""] if more else []
    return "\n".join(lines)


def _named(action: argparse.Action) -> str:
    if action.choices:
        value = "|".join(map(str, action.choices))
    else:
        value = "" if action.nargs == 0 else str(action.metavar or action.dest)
    if action.option_strings:
        return f"{', '.join(action.option_strings)} {value}".strip()
    return f"[{value}]" if action.nargs == "?" else value


def _help(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%")


Document = dict[str, Any]


def admin_description() -> Document:
    """The OpenAPI document of everything under /-/admin."""
    app = AdminApp(Tokens(AdminSettings()), None)
    return app.api.openapi()


def admin_endpoints(description: Document) -> str:
    """A section for each tag with its addresses, and at the end the documents that they take and give."""
    by_tag: dict[str, list[str]] = {}
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(_operation(method, path, operation))
    sections = [f"### {tag}\n\n" + "\n".join(operations) for tag, operations in by_tag.items()]
    schemas = description["components"]["schemas"]
    documents = [_document(name, schema) for name, schema in sorted(schemas.items()) if "Page_" not in name]
    return "\n".join([*sections, "### Documents", "", *documents])


def _operation(method: str, path: str, operation: Document) -> str:
    lines = [f"#### `{method.upper()} /-{path}`", "", operation.get("description", operation["summary"]), ""]
    named = [each for each in operation.get("parameters", []) if each["in"] != "path"]
    if named:
        lines += ["| parameter | meaning |", "|---|---|"]
        lines += [f"| `{each['name']}` ({each['in']}) | {_cell(each.get('description', ''))} |" for each in named]
        lines.append("")
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    takes = f"Takes {_kind(body)}. " if body else ""
    good = [(status, answer) for status, answer in operation["responses"].items() if status.startswith("2")]
    answers = [
        f"{status} with {_kind(content['schema'])}" if content.get("schema") else status
        for status, answer in good
        for content in [answer.get("content", {}).get("application/json", {})]
    ]
    return "\n".join([*lines, f"{takes}Answers {' or '.join(answers)}.", ""])


def _document(name: str, schema: Document) -> str:
    about = " ".join(schema.get("description", "").split())
    lines = [f"#### {name}", "", about, ""] if about else [f"#### {name}", ""]
    if "properties" in schema:
        needed = schema.get("required", [])
        lines += ["| field | type | meaning |", "|---|---|---|"]
        for field, each in schema["properties"].items():
            meaning = "; ".join(filter(None, [_shown(each), each.get("description", "")]))
            wanted = "" if field in needed else ", optional"
            lines.append(f"| `{field}` | {_cell(_kind(each))}{wanted} | {_cell(meaning)} |")
        lines.append("")
    return "\n".join(lines)


def _shown(schema: Document) -> str:
    """The first example; empty for an empty one, or for an object with its own section."""
    example = next(iter(schema.get("examples", [])), None)
    return "" if example in (None, "", [], {}) or isinstance(example, dict) else f"such as `{json.dumps(example)}`"


def _kind(schema: Document) -> str:
    """The type of a value, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name.startswith("Page_"):
            inner = name.removeprefix("Page_").strip("_")
            return f"a page of [{inner}](#{inner.lower()})"
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(each) for each in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}" if "items" in schema else "list"
    return str(schema.get("type", "any"))


if __name__ == "__main__":
    for page, content in pages().items():
        page.write_text(content, encoding="utf-8")
