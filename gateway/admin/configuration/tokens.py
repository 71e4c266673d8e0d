"""``/-/admin/tokens``: named admin tokens, each with a role. A token is shown once, in the answer that creates it.

The audit log names the token of each change. Every gateway refuses a revoked token within a second. The tokens of the
configuration, ``admin`` and ``read`` in the audit log, are not listed: they are changed there.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, create_model

from gateway.admin.catalog.changes import CatalogChange
from gateway.admin.catalog.merging import View
from gateway.admin.catalog.records import TokenRecord
from gateway.admin.catalog.roles import TokenRole
from gateway.admin.catalog.withdrawals import TOKEN, Withdrawal
from gateway.admin.http.parts import AdminParts, etag_of
from gateway.admin.http.resources import Resource
from gateway.admin.http.tokens import CONFIGURED
from gateway.edge.documents import ResponseModel
from gateway.edge.problems import refused_field


class TokenState(ResponseModel):
    """A token, without its secret."""

    etag: str = Field(description="for If-Match", examples=['"17"'])


class NamedTokens(Resource[TokenRecord]):
    """Tokens of the catalog."""

    kind, state = TokenRecord, TokenState
    removal = "revoke"
    taken = "choose another name, or revoke the existing token."
    filed = "edit it there."
    about: Mapping[str, str] = {
        "list": "Named tokens, without their secrets. Those of the configuration are not among them.",
        "create": "Create a token. The token is in this answer only; if it is lost, revoke it and create another.",
        "show": "One token, without its secret.",
        "change": "Change the given fields; the others stay. In force everywhere within a second.",
        "revoke": "Refuse a token everywhere within a second, and remove its record.",
    }

    def describe(self, record: TokenRecord, view: View) -> ResponseModel:
        """A token of the catalog."""
        return self.answer(**record.shown(), etag=etag_of(record.revision))

    def describe_filed(self, name: str, view: View) -> ResponseModel:
        """Never called: tokens of the file have no records."""
        raise self.unknown(name)

    def created_answer(self) -> type[ResponseModel]:
        """A token with its secret."""
        secret = (str, Field(examples=["larder-vQ0GgT5yZ1uK8nWcE2rXbA7dJ4hLfM9sPoRiNt3qVb8"]))
        return create_model(
            "NewTokenSecret", __doc__="A token: shown in this answer only.", __base__=self.answer, token=secret
        )

    def answer_created(self, record: TokenRecord, view: View) -> ResponseModel:
        """The token with its secret."""
        return self.created(**self.describe(record, view).model_dump(), token=record.token.get_secret_value())

    def check_new(self, record: TokenRecord, view: View, now: float) -> None:
        """Refuse the names of the configuration's tokens, and a token that has expired."""
        if record.name in CONFIGURED:
            raise refused_field(
                "name", f"The token {record.name!r} is in the configuration file; choose another name.", "Conflict"
            )
        if record.ended(now):
            raise refused_field("expires", f"The field expires must be in the future; {record.expires} is in the past.")

    async def withdraw(
        self, before: TokenRecord, after: TokenRecord | None, change: CatalogChange, parts: AdminParts, view: View
    ) -> None:
        """Withdraw a token that is removed, loses rights, or gets another expiry."""
        kept = after is not None and after.expires == before.expires
        if after is None or not kept or not TokenRole(after.role).allows(TokenRole(before.role)):
            change.withdrawn.append(Withdrawal(TOKEN, before.name, change.revision, parts.catalog.now()))


TOKENS = NamedTokens()
