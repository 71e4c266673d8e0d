"""Types generated from the gateway's OpenAPI description, and small programs type-checked with them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rig.gateways import Running
from rig.v1 import ask

GOOD = """
from larder_types import History, Overview, ProblemDocument


def spared(overview: Overview, history: History) -> int:
    ready = [node["id"] for node in overview["nodes"] if node["state"] == "READY"]
    ratio: float | None = overview["now"]["hit_ratio"]
    saved: int = sum(point["saved_bytes"] for point in history["points"])
    return saved if ready and ratio else overview["total"]["saved_bytes"]


def advice(problem: ProblemDocument) -> str:
    return problem["code"] + problem["detail"]
"""
MISTAKEN = """
from larder_types import Overview


def ratio(overview: Overview) -> str:
    return overview["now"]["hit_rate"]
"""


@pytest.fixture(scope="module")
def document(running: Running) -> dict[str, Any]:
    """The OpenAPI document of this gateway."""
    found: dict[str, Any] = ask(running, "GET", "/openapi.json", key=None).json
    return found


@pytest.fixture(scope="module")
def folder(document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the types of this gateway."""
    folder = tmp_path_factory.mktemp("types")
    (folder / "openapi.json").write_text(json.dumps(document), encoding="utf-8")
    options = (
        "--input openapi.json --input-file-type openapi --output larder_types.py "
        "--output-model-type typing.TypedDict --target-python-version 3.11"
    )
    command = [sys.executable, "-m", "datamodel_code_generator", *options.split()]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return folder


@pytest.fixture(scope="module")
def errors(folder: Path) -> list[str]:
    """Errors of mypy --strict for the types and both programs: a line for each, with its file first."""
    (folder / "good.py").write_text(GOOD, encoding="utf-8")
    (folder / "mistaken.py").write_text(MISTAKEN, encoding="utf-8")
    options = ["--strict", "--config-file=", "--cache-dir", "cache"]
    command = [sys.executable, "-m", "mypy", *options, "good.py", "mistaken.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if ": error: " in line]


def test_a_program_with_the_generated_types_is_sound(errors: list[str]) -> None:
    """Rule: the types can be imported, and a program that uses the documents as described passes mypy --strict."""
    assert [line for line in errors if not line.startswith("mistaken.py:")] == []


def test_a_mistake_is_found_by_the_generated_types(errors: list[str]) -> None:
    """Rule: a field that the documents do not have is an error before the program is run."""
    assert [line for line in errors if 'no key "hit_rate"' in line] != []


def test_nothing_is_left_out(folder: Path) -> None:
    """Rule: every schema of the description has become a type."""
    text = (folder / "larder_types.py").read_text(encoding="utf-8")
    document = json.loads((folder / "openapi.json").read_text(encoding="utf-8"))
    types = {name.replace("_", "") for name in re.findall(r"^(?:class )?(\w+)\b", text, re.MULTILINE)}
    assert [name for name in document["components"]["schemas"] if name.replace("_", "") not in types] == []


def test_names_suit_generators_of_clients(document: dict[str, Any]) -> None:
    """Rule: operation ids are short and unique, titles are the schemas' names, and no status is described that never comes."""
    operations = [each for path in document["paths"].values() for each in path.values()]
    names = [each["operationId"] for each in operations]
    assert len(set(names)) == len(names) > 80
    assert [name for name in names if not re.fullmatch("[a-z]+(_[a-z]+){1,4}", name)] == []
    schemas = document["components"]["schemas"]
    assert [name for name, schema in schemas.items() if schema["title"] != name] == []
    assert [name for name in schemas if not name.isalnum()] == []
    assert [name for name, each in zip(names, operations, strict=True) if "422" in each["responses"]] == []


def test_an_operation_has_the_statuses_that_it_answers(document: dict[str, Any]) -> None:
    """Rule: a condition may fail only where there is one, a body be too large where one is taken, and a list lacks nothing."""
    operations = {f"{method} {path}": each for path, item in document["paths"].items() for method, each in item.items()}
    named = {name: {parameter["name"] for parameter in each.get("parameters", ())} for name, each in operations.items()}
    answered = {name: set(each["responses"]) for name, each in operations.items()}
    assert [name for name in operations if ("412" in answered[name]) != ("If-Match" in named[name])] == []
    assert [name for name, each in operations.items() if "413" in answered[name] and "requestBody" not in each] == []
    lists = [name for name in operations if name.startswith("get ") and {"limit", "cursor"} == named[name]]
    assert len(lists) > 10
    assert [name for name in lists if answered[name] & {"404", "409", "412", "413"}] == []
    assert {"404", "409"} <= answered["get /admin/datasets/{dataset}"]
    assert "501" in answered["put /v1/datasets/{name}"]


def test_bodies_that_clients_send_are_of_types_that_generators_know(document: dict[str, Any]) -> None:
    """Rule: openapi-python-client leaves out an operation that takes another type, with a warning."""
    operations = [each for path in document["paths"].values() for each in path.values()]
    types = {kind for each in operations for kind in each.get("requestBody", {}).get("content", ())}
    assert types <= {"application/json", "application/octet-stream"}
