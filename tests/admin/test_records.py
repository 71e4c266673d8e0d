"""Documents, checks, audit lines and rows derived from the declaration of a record."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field, SecretStr, ValidationError
from sqlalchemy import Column, Double, MetaData

from gateway.admin.catalog.fields import Name
from gateway.admin.catalog.records import KEPT, KEY, SECRET, Record
from gateway.admin.catalog.vault import Vault
from gateway.edge.documents import ResponseModel
from tests.admin.admin_world import KEY as VAULT_KEY


class Bucket(Record):
    """A record with a field of each kind."""

    singular, plural, key = "bucket", "buckets", "name"

    name: Annotated[Name, KEY] = Field(examples=["images"])
    size: Annotated[float, Field(ge=0)] = Field(1.0, description="bytes", examples=[2.0])
    globs: tuple[str, ...] = Field((), examples=[["a/**"]])
    password: Annotated[SecretStr, SECRET] = Field(SecretStr(""), examples=["secret"])
    used: Annotated[int, KEPT] = Field(0, examples=[3])


class BucketState(ResponseModel):
    """A bucket."""

    etag: str = Field(examples=['"1"'])


IMAGES = Bucket(name="images", globs=("a/**",), password=SecretStr("hidden"), used=7, created_at=0.0, revision=5)


def test_a_field_is_in_the_documents_of_its_role() -> None:
    """Rule: a key cannot be changed, a secret is not shown, and fields that the gateway sets are not accepted."""
    assert set(Bucket.creation().model_fields) == {"name", "size", "globs", "password"}
    assert set(Bucket.change().model_fields) == {"size", "globs", "password"}
    assert list(Bucket.answer(BucketState).model_fields) == ["name", "size", "globs", "used", "created_at", "etag"]


def test_constraints_hold_in_requests_and_not_in_answers() -> None:
    """Rule: a change is checked like a creation; values of a configuration file are shown unchecked."""
    for document in (Bucket.creation(), Bucket.change()):
        with pytest.raises(ValidationError, match="greater than or equal to 0"):
            document.model_validate(
                {"name": "images", "size": -1.0} if document is Bucket.creation() else {"size": -1.0}
            )
    shown = Bucket.answer(BucketState)(name="a/b", size=-1.0, globs=[], used=0, created_at=None, etag="")
    assert shown.model_dump()["name"] == "a/b"


def test_nothing_secret_is_audited() -> None:
    """Rule: the audit log has the shown fields, except the name, which is its target."""
    assert IMAGES.audited() == {"size": 1.0, "globs": ["a/**"], "used": 7}


def test_a_row_is_read_as_it_was_written() -> None:
    """Rule: the columns are those of the table; secrets are sealed in one of them, and an unchanged row is read once."""
    table, vault = Bucket.table(MetaData()), Vault(VAULT_KEY)
    row = IMAGES.row(vault)
    assert row.keys() == set(table.columns.keys())
    assert "hidden" not in str(row)
    read = Bucket.from_row(row, vault, None)
    assert read.model_dump() == IMAGES.model_dump()
    assert Bucket.from_row(row, vault, read) is read
    size: Column[float] = table.c.size
    assert isinstance(size.type, Double)
    assert (table.c.name.primary_key, size.nullable) == (True, False)
