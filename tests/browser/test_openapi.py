"""Merging two OpenAPI descriptions into one."""

from __future__ import annotations

from typing import Any

from gateway.admin.openapi import merged


def document(path: str, tag: str, **schemas: Any) -> dict[str, Any]:
    """A description with one address, whose answer is the first schema."""
    answer = {"$ref": f"#/components/schemas/{next(iter(schemas))}"}
    operation = {"tags": [tag], "responses": {"200": {"content": {"application/json": {"schema": answer}}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": path, "version": "1"},
        "paths": {path: {"get": operation}},
        "components": {"schemas": schemas},
    }


def answer_of(described: dict[str, Any], path: str) -> str:
    """The name of the schema of an address's answer."""
    content = described["paths"][path]["get"]["responses"]["200"]["content"]
    reference: str = content["application/json"]["schema"]["$ref"]
    return reference.rpartition("/")[2]


def test_addresses_of_both_are_there() -> None:
    """Rule: paths, schemas and tags of both are in the document; the admin's tags are marked."""
    both = merged(document("/v1/jobs", "jobs", Job={"x": 1}), document("/admin/jobs", "jobs", Seen={"x": 2}))
    assert set(both["paths"]) == {"/v1/jobs", "/admin/jobs"}
    assert set(both["components"]["schemas"]) == {"Job", "Seen"}
    assert [tag["name"] for tag in both["tags"]] == ["admin: jobs", "jobs"]
    assert both["info"]["title"] == "/v1/jobs"


def test_schemas_of_one_name_stay_apart() -> None:
    """Rule: a name of two different schemas becomes two names, and references follow; equal schemas are merged."""
    problem = {"type": "object", "title": "Problem"}
    own = document("/v1/jobs", "jobs", Job={"x": 1}, Problem=problem)
    admin = document("/admin/jobs", "jobs", Job={"x": 2}, Problem=problem)
    both = merged(own, admin)
    assert both["components"]["schemas"] == {
        "Job": {"x": 1, "title": "Job"},
        "AdminJob": {"x": 2, "title": "AdminJob"},
        "Problem": problem,
    }
    assert (answer_of(both, "/v1/jobs"), answer_of(both, "/admin/jobs")) == ("Job", "AdminJob")


def test_neither_document_is_changed() -> None:
    """Rule: the input documents are unchanged, because their owners go on using them."""
    own, admin = document("/v1/x", "x", A={"x": 1}), document("/admin/x", "x", A={"x": 2})
    merged(own, admin)
    assert own == document("/v1/x", "x", A={"x": 1})
    assert admin == document("/admin/x", "x", A={"x": 2})
