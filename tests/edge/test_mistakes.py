"""Refusals of requests are whole sentences that name the field and the remedy."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError

from gateway.admin.catalog.fields import Bucket, Name, RequestModel, Text
from gateway.admin.endpoints import routers
from gateway.api.v1.documents import SourceRequest
from gateway.api.v1.job_documents import EpochRequest, Heartbeat, JobRequest
from gateway.api.v1.many.entries import ManyBody
from gateway.edge.problems import invalid_request, problem_of
from gateway.operate.features import FEATURES

_SENTENCE = re.compile(r"[A-Z].*[^.\s]\.", re.DOTALL)
_FOREIGN = re.compile(r"Input|Value error|valid (string|integer|tuple|dictionary)|is invalid: |\^|\[0-9", re.IGNORECASE)
_TEXTS = ("", "\x00", "é" * 20_000, "a" * 20_000, ".a", "1h", "-3d", "x", "[", "nan", "9" * 5000)
_WRONG = (
    *_TEXTS, None, -1, 0, 2**70, 0.5, math.inf, -math.inf, math.nan, True, [], [None], [[]], [{}], [None] * 20_000, {}, {"a": 1},
    {"a": {}}, [{"a": 1}], ["", "["],
)  # fmt: skip
_ROUTES = [route for router in routers(FEATURES) for route in router.routes if isinstance(route, APIRoute)]


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a type contains."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models_in(field.annotation)
    for part in get_args(annotation):
        yield from models_in(part)


_BODIES = {
    model
    for kind in (
        *(route.body_field.field_info.annotation for route in _ROUTES if route.body_field is not None),
        *(JobRequest, Heartbeat, EpochRequest, SourceRequest, ManyBody),
    )
    for model in models_in(kind)
}
_PARAMETERS = {
    (parameter.alias, str(parameter.field_info.annotation), str(parameter.field_info)): parameter
    for route in _ROUTES
    for parameter in get_flat_params(route.dependant)
}


def refusals_of(adapter: TypeAdapter[Any], value: Any, *place: str) -> Iterator[dict[str, str]]:
    """What the problem document of a value says, by field."""
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        mistakes = [{**mistake, "loc": (*place, *mistake["loc"])} for mistake in error.errors()]
        problem = problem_of(invalid_request(mistakes))
        assert problem.detail == " ".join(part["detail"] for part in problem.extra["errors"])
        yield from problem.extra["errors"]


def check(refusal: dict[str, str]) -> None:
    """Check the form of a sentence."""
    assert _SENTENCE.fullmatch(refusal["detail"]), refusal
    assert re.fullmatch(r"[\w.-]*", refusal["field"]), refusal
    assert refusal["field"] in refusal["detail"], refusal
    assert _FOREIGN.search(refusal["detail"]) is None, refusal


@pytest.mark.parametrize("model", sorted(_BODIES, key=lambda model: model.__name__))
def test_a_refused_body_is_described_in_sentences(model: type[BaseModel]) -> None:
    """Rule: whatever is wrong with a field of a request, the answer is a sentence in plain words that names it."""
    adapter = TypeAdapter(model)
    bodies = [{}, [], "x", {"colour": "red"}, *({name: value} for name in model.model_fields for value in _WRONG)]
    seen = [refusal for body in bodies for refusal in refusals_of(adapter, body, "body")]
    assert seen
    for refusal in seen:
        check(refusal)


@pytest.mark.parametrize("parameter", _PARAMETERS.values(), ids=lambda parameter: parameter.alias)
def test_a_refused_parameter_is_described_in_sentences(parameter: Any) -> None:
    """Rule: the same for parameters of the address and headers."""
    adapter = TypeAdapter(Annotated[parameter.field_info.annotation, parameter.field_info])
    for value in _TEXTS:
        for refusal in refusals_of(adapter, value, parameter.field_info.in_.value, parameter.alias):
            check(refusal)


class _Asked(RequestModel):
    name: Name
    description: Text = ""
    bucket: Bucket = "b"


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        ({}, "The field name is required."),
        ({"name": ""}, "The field name must not be empty."),
        ({"name": 3}, "The field name must be text."),
        ({"name": "a" * 129}, "The field name must have at most 128 characters."),
        ({"name": "a", "description": "a" * 1001}, "The field description must have at most 1000 characters."),
        (
            {"name": "<b>"},
            'The field name may have only letters, digits and . _ @ + = -, and must begin with neither "." nor "-".',
        ),
        ({"name": "a", "colour": "red"}, "The field colour is unknown; leave it out, or correct its name."),
    ],
)
def test_a_refused_field_is_described_in_words(sent: dict[str, Any], sentence: str) -> None:
    """Rule: a message has neither regular expressions nor a library's internal terms."""
    with pytest.raises(ValidationError) as raised:
        _Asked.model_validate(sent)
    assert problem_of(invalid_request(raised.value.errors())).detail == sentence


def test_several_mistakes_are_several_sentences() -> None:
    """Rule: a refusal names all fields that are wrong, and the document has the sentences by field too."""
    with pytest.raises(ValidationError) as raised:
        _Asked.model_validate({"bucket": ".."})
    problem = problem_of(invalid_request(raised.value.errors()))
    assert [part["field"] for part in problem.extra["errors"]] == ["name", "bucket"]
    assert problem.detail.startswith("The field name is required. The field bucket must be the name of a bucket")


_CODE = sorted(path for package in ("admin", "edge", "operate") for path in Path("gateway", package).rglob("*.py"))


def test_refusals_in_the_code_are_sentences() -> None:
    """Rule: a refusal by an endpoint of operators begins with a capital and ends with a full stop."""
    wrong = [
        f"{path}:{call.lineno}: {ast.unparse(words)}"
        for path in _CODE
        if path.name != "peer.py"
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("ApiError", "refused_field")
        for words in call.args[1:2]
        if not _is_sentence(words)
    ]
    assert wrong == []


def _is_sentence(words: ast.expr) -> bool:
    """Whether a text in the code is a sentence; parts that are not written there count as right."""
    parts = words.values if isinstance(words, ast.JoinedStr) else [words]
    begin, end = parts[0], parts[-1]
    return (not isinstance(begin, ast.Constant) or str(begin.value)[:1].isupper()) and (
        not isinstance(end, ast.Constant) or str(end.value).endswith(".")
    )
