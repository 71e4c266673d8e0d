"""``/-/admin/origins``: the object stores behind the gateway. Secrets are never shown."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from gateway.admin.catalog.fields import Source
from gateway.admin.catalog.merging import View
from gateway.admin.catalog.records import OriginRecord
from gateway.admin.http.parts import etag_of
from gateway.admin.http.resources import Resource
from gateway.edge.documents import ResponseModel
from gateway.edge.problems import refused_field
from gateway.model.datasets import ApiError


class OriginState(ResponseModel):
    """An origin, without its secrets."""

    credentials: int = Field(description="how many use it", examples=[3])
    source: Source = Field(examples=["catalog"])
    problem: str = Field(description="why it is not in force; empty if it is", examples=[""])
    etag: str = Field(description="for If-Match", examples=['"17"'])


class Origins(Resource[OriginRecord]):
    """Origins of the catalog and of the configuration file."""

    kind, state = OriginRecord, OriginState
    taken = "larder-gateway origins lists them."
    filed = "edit it there."
    about: Mapping[str, str] = {
        "list": "Origins by name, without secrets.",
        "create": "Create an origin, for credentials to read and write.",
        "show": "One origin, without its secrets.",
        "change": "Change the given fields. With a new endpoint, caches drop the objects of the origin. Another access key ends "
        "the session token of the one before, and an empty one its secret. Requests in progress are not affected.",
        "remove": "Remove an origin that no credential uses. The store itself is not changed.",
    }

    def describe(self, record: OriginRecord, view: View) -> ResponseModel:
        """An origin of the catalog."""
        state = {"credentials": view.by_origin[record.name], "source": "catalog", "problem": ""}
        return self.answer(**record.shown(), **state, etag=etag_of(record.revision))

    def describe_filed(self, name: str, view: View) -> ResponseModel:
        """An origin of the file."""
        origin = view.filed["origins"][name]
        shown = {field: getattr(origin, field) for field in self.kind.fields(show=True) if field != "created_at"}
        hides = "hides one of the catalog by the same name" if name in view.catalog.origins else ""
        state = {"credentials": view.by_origin[name], "source": "file", "problem": hides, "etag": etag_of(0)}
        return self.answer(**shown, **state, created_at=None)

    def check(self, record: OriginRecord, view: View) -> None:
        """Require both keys or neither."""
        if bool(record.access_key_id) != bool(record.secret_access_key.get_secret_value()):
            raise refused_field(
                "access_key_id",
                "The fields access_key_id and secret_access_key go together; omit both for the AWS credential chain.",
            )

    def check_removal(self, record: OriginRecord, view: View) -> None:
        """Refuse to remove an origin in use."""
        if count := view.by_origin[record.name]:
            raise ApiError(
                "Conflict", f"The origin {record.name!r} is used by {count} credentials; change or delete them first."
            )


ORIGINS = Origins()
