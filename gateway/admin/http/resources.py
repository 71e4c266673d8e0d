"""The endpoints of a kind of record: list, create, show, change, remove.

A ``Resource`` derives them from the declaration of the record (``gateway/admin/catalog/records.py``). A subclass adds the state
shown beside a record, the checks, and the rights that a change withdraws.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Generic, TypeVar

from fastapi import APIRouter, Path, Response
from pydantic import ValidationError
from sqlalchemy import delete, insert, update

from gateway.admin.catalog.changes import Actor, CatalogChange
from gateway.admin.catalog.fields import RequestModel
from gateway.admin.catalog.merging import View
from gateway.admin.catalog.records import Record
from gateway.admin.catalog.schema import metadata
from gateway.admin.http.parts import AdminParts, check_if_match
from gateway.admin.http.requests import (
    Changer,
    Cursor,
    IdempotencyKey,
    Idempotent,
    IfMatch,
    Limit,
    Page,
    Parts,
    Reader,
    change_once,
    located,
    paged,
)
from gateway.edge.documents import ResponseModel
from gateway.edge.problems import invalid_request, refused_field
from gateway.model.datasets import ApiError

R = TypeVar("R", bound=Record)
_METHODS = {"list": "GET", "create": "POST", "show": "GET", "change": "PATCH"}


class Resource(ABC, Generic[R]):
    """One kind of record.

    ``kind`` is its declaration, ``state`` the further fields of an answer. ``about`` describes the endpoints, by verb.
    ``taken`` is the advice for a name in use, ``filed`` the advice for a record of the configuration file. ``removal`` is the
    verb of DELETE.
    """

    kind: type[R]
    state: type[ResponseModel]
    about: Mapping[str, str]
    taken: str
    filed: str
    removal: str = "remove"
    file_counts: bool = True
    """Whether the file's record hides the catalog's record of the same name."""

    def __init__(self) -> None:
        self.answer = self.kind.answer(self.state)
        self.created = self.created_answer()
        self.table = metadata.tables[self.kind.plural]
        self.router = APIRouter(tags=[self.kind.plural])
        self._add_reads()
        self._add_changes()

    @abstractmethod
    def describe(self, record: R, view: View) -> ResponseModel:
        """The document of a record of the catalog; ``view`` may be older than ``record``."""

    @abstractmethod
    def describe_filed(self, name: str, view: View) -> ResponseModel:
        """A record of the configuration file."""

    def check(self, record: R, view: View) -> None:
        """Check a record before it is created or changed. Raises ApiError."""

    def check_new(self, record: R, view: View, now: float) -> None:
        """Check a new record, in addition to ``check``. Raises ApiError."""

    def check_removal(self, record: R, view: View) -> None:
        """Check a removal. Raises ApiError."""

    async def withdraw(self, before: R, after: R | None, change: CatalogChange, parts: AdminParts, view: View) -> None:
        """Withdraw the rights that a change takes away; ``after`` is ``None`` for a removal."""

    def created_answer(self) -> type[ResponseModel]:
        """The type of the answer to a creation."""
        return self.answer

    def answer_created(self, record: R, view: View) -> ResponseModel:
        """The answer to a creation."""
        return self.describe(record, view)

    def records(self, view: View) -> Mapping[str, R]:
        """The records of the catalog."""
        records: Mapping[str, R] = getattr(view.catalog, self.kind.plural)
        return records

    def page(self, view: View, limit: int, cursor: str) -> Page[Any]:
        """Some records, by name. Only the page's records are described: with thousands of records, a page must not block the
        event loop.

        Raises:
            ApiError: InvalidRequest, the cursor is invalid.
        """
        names = paged(self.records(view).keys() | view.filed[self.kind.plural].keys(), str, limit, cursor)
        return Page(items=[self.document(name, view) for name in names.items], next=names.next)

    def document(self, name: str, view: View) -> ResponseModel | None:
        """One record."""
        record = self.records(view).get(name)
        if name in view.filed[self.kind.plural] and (record is None or self.file_counts):
            return self.describe_filed(name, view)
        return None if record is None else self.describe(record, view)

    def unknown(self, name: str) -> ApiError:
        """The error for an unknown name."""
        return ApiError(
            "NotFound", f"Unknown {self.kind.singular} {name[:140]!r}; larder-gateway {self.kind.plural} lists them."
        )

    async def editable(
        self, name: str, parts: AdminParts, change: CatalogChange, if_match: str | None
    ) -> tuple[R, View]:
        """A record of the catalog, unchanged since the caller read it.

        Raises:
            ApiError: NotFound; Conflict if the record is in the configuration file; PreconditionFailed.
        """
        view = await view_in(parts, change)
        record = self.records(view).get(name)
        if record is None and name in view.filed[self.kind.plural]:
            raise ApiError("Conflict", f"The {self.kind.singular} {name!r} is in the configuration file: {self.filed}")
        if record is None:
            raise self.unknown(name)
        check_if_match(if_match, _etag(self.describe(record, view)))
        return record, view

    def create(
        self, values: Mapping[str, Any], actor: Actor, parts: AdminParts, once: IdempotencyKey
    ) -> Awaitable[ResponseModel]:
        """Create a record with these values, once."""

        async def work(change: CatalogChange) -> ResponseModel:
            try:
                record = self.kind(**values, created_at=parts.catalog.now(), revision=change.revision)
                record.verify()
            except ValidationError as error:
                raise invalid_request(error.errors()) from None
            change.target = record.id
            view = await view_in(parts, change)
            self.check_new(record, view, parts.catalog.now())
            if self.document(record.id, view) is not None:
                there = f"The {self.kind.singular} {record.id!r} already exists"
                raise refused_field(self.kind.key, f"{there}; {self.taken}", "Conflict")
            self.check(record, view)
            await change.connection.execute(insert(self.table).values(**record.row(parts.catalog.vault)))
            change.after = record.audited()
            return self.answer_created(record, view)

        return change_once(parts.catalog, actor, f"{self.kind.plural}.create", once, self.created, work)

    async def replace(
        self, before: R, values: Mapping[str, Any], change: CatalogChange, parts: AdminParts, view: View
    ) -> R:
        """Change a record to these values."""
        after = before.changed(**before.with_origin_keys(values), revision=change.revision)
        try:
            after.verify()
        except ValidationError as error:
            raise invalid_request(error.errors()) from None
        self.check(after, view)
        where = self.table.c[self.kind.key] == after.id
        await change.connection.execute(update(self.table).where(where).values(**after.row(parts.catalog.vault)))
        change.before, change.after = before.audited(), after.audited()
        if sealed := self.kind.fields(show=False):
            change.after["secrets_changed"] = any(getattr(before, name) != getattr(after, name) for name in sealed)
        await self.withdraw(before, after, change, parts, view)
        return after

    def locate(self, document: ResponseModel, response: Response) -> None:
        """Add the headers that name a document."""
        located(response, f"{self.kind.plural}/{getattr(document, self.kind.key)}", _etag(document))

    def _add_reads(self) -> None:
        async def show_all(_caller: Reader, parts: Parts, limit: Limit = 100, cursor: Cursor = "") -> Page[Any]:
            return self.page(View(parts.file(), await parts.catalog.latest()), limit, cursor)

        async def show(name: str, _caller: Reader, parts: Parts, response: Response) -> Any:
            document = self.document(name, View(parts.file(), await parts.catalog.latest()))
            if document is None:
                raise self.unknown(name)
            response.headers["ETag"] = _etag(document)
            return document

        self._add("list", show_all, response_model=Page.__class_getitem__(self.answer))
        self._add("show", show, response_model=self.answer)

    def _add_changes(self) -> None:
        kind = self.kind

        async def create(
            caller: Changer,
            parts: Parts,
            asked: RequestModel,
            once: Idempotent,
            response: Response,
        ) -> Any:
            document = await self.create(asked.model_dump(exclude_none=True), caller, parts, once)
            self.locate(document, response)
            return document

        async def change(
            name: str, caller: Changer, parts: Parts, asked: RequestModel, response: Response, if_match: IfMatch = None
        ) -> Any:
            async with parts.catalog.changes.change(caller, f"{kind.plural}.change", name) as change:
                before, view = await self.editable(name, parts, change, if_match)
                after = await self.replace(before, asked.model_dump(exclude_none=True), change, parts, view)
            document = self.describe(after, view)
            response.headers["ETag"] = _etag(document)
            return document

        async def remove(name: str, caller: Changer, parts: Parts, if_match: IfMatch = None) -> None:
            async with parts.catalog.changes.change(caller, f"{kind.plural}.{self.removal}", name) as change:
                record, view = await self.editable(name, parts, change, if_match)
                self.check_removal(record, view)
                change.before = record.audited()
                await self.withdraw(record, None, change, parts, view)
                await change.connection.execute(delete(self.table).where(self.table.c[kind.key] == name))

        self._add("create", create, kind.creation(), status_code=201, response_model=self.created)
        self._add("change", change, kind.change(), response_model=self.answer)
        self._add(self.removal, remove, status_code=204)

    def _add(
        self, verb: str, endpoint: Callable[..., Any], body: type[RequestModel] | None = None, **options: Any
    ) -> None:
        # FastAPI derives the request from the annotations, and these types are created here.
        types = {"name": Annotated[str, Path(alias=self.kind.key)], "asked": body}
        endpoint.__annotations__ |= {part: kind for part, kind in types.items() if part in endpoint.__annotations__}
        noun = self.kind.plural if verb == "list" else self.kind.singular
        article = "" if verb == "list" else "an " if noun[0] in "aeiou" else "a "
        # Names of the file may contain slashes; those of the catalog cannot.
        key = f"/{{{self.kind.key}{':name' if verb == 'show' else ''}}}"
        self.router.add_api_route(
            f"/{self.kind.plural}{'' if verb in ('list', 'create') else key}",
            endpoint,
            methods=[_METHODS.get(verb, "DELETE")],
            name=f"{verb}_{noun}",
            summary=f"{verb.title()} {article}{noun}",
            description=self.about[verb],
            **options,
        )


async def view_in(parts: AdminParts, change: CatalogChange) -> View:
    """The file and the catalog as of the beginning of a change."""
    return View(parts.file(), await parts.catalog.before(change))


def _etag(document: ResponseModel) -> str:
    etag: str = getattr(document, "etag", "")
    return etag
