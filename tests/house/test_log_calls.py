"""Facts in log lines have names, which are fields of the JSON log."""

import ast
import json
import logging
import re

import pytest

from gateway.base.logs import FIELDS, JsonFormatter

_LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
_PLACE = re.compile(r"%(?:\((?P<name>\w+)\))?[-#0 +]*\d*(?:\.\d+)?[diouxXeEfFgGcrsa]")


def _calls(sources: dict[str, ast.Module]) -> list[tuple[str, ast.Call]]:
    """Calls of loggers: names and attributes that end in "log" or "logger"."""
    return [
        (path, node)
        for path, tree in sources.items()
        if path.startswith("gateway/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _LEVELS
        and _called(node.func.value).lower().endswith(("log", "logger"))
    ]


def _called(value: ast.expr) -> str:
    if isinstance(value, ast.Call):  # logging.getLogger(...).warning(...)
        return _called(value.func)
    return value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""


def test_loggers_are_called_log(shipped):
    """A module's logger has a name by which its calls are found."""
    made = [
        (path, target.id)
        for path, tree in shipped.items()
        if path.startswith("gateway/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _called(node.value) == "getLogger"
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    assert len(made) > 20
    assert [(path, name) for path, name in made if not name.lower().endswith(("log", "logger", "root"))] == []


def test_log_calls_name_their_facts(shipped):
    """Each message is a constant whose facts have names of gateway.base.logs.FIELDS, so that programs need not parse it."""
    calls = _calls(shipped)
    assert len(calls) > 40
    wrong = []
    for path, call in calls:
        message = call.args[0]
        places = _PLACE.finditer(message.value) if isinstance(message, ast.Constant) else [None]
        if any(place is None or place["name"] not in FIELDS for place in places):
            wrong.append(f"{path}:{call.lineno}")
        given = [key for each in call.args[1:] if isinstance(each, ast.Dict) for key in each.keys if key is not None]
        if any(key.value not in FIELDS for key in given if isinstance(key, ast.Constant)):
            wrong.append(f"{path}:{call.lineno}")
    assert wrong == []


def test_fields_are_no_attributes_of_every_record():
    """A fact never replaces what each line has."""
    line = json.loads(JsonFormatter().format(logging.makeLogRecord({"msg": "x"})))
    assert not set(line) & set(FIELDS)


@pytest.mark.parametrize("left", [None, ""])
def test_facts_are_fields(left):
    """A fact is in the message and in its field; an unknown one has no field."""
    facts = {"node": "gw-1", "error": OSError("no route"), "state": left}
    record = logging.LogRecord("larder", logging.INFO, "", 1, "node %(node)s: %(error)s", (facts,), None)
    line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["node"], line["error"]) == ("node gw-1: no route", "gw-1", "no route")
    assert "state" not in line


def test_a_message_is_not_repeated():
    """A fact that is the whole message stands in the message only."""
    record = logging.LogRecord("larder", logging.WARNING, "", 1, "%(error)s", ({"error": OSError("no route")},), None)
    line = json.loads(JsonFormatter().format(record))
    assert line["message"] == "no route"
    assert "error" not in line
