"""Listings of prefixes that a rule or a dataset's registration calls immutable, answered from recorded pages
(``engine/objects/listings.py``).

All other listings are forwarded. The allow-list was checked before; the store decides who may list.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from gateway.api.s3.answer import Answer
from gateway.api.s3.call import S3Call, parameter
from gateway.api.s3.classify import lists_objects
from gateway.api.s3.forward import Forwarder
from gateway.api.s3.objects import is_forced
from gateway.engine.engine import Engine
from gateway.engine.objects.listings import LONGEST, AskedPage, WantedPage
from gateway.model.outcomes import Outcome, Reason
from gateway.model.s3.conditions import cache_directives
from gateway.model.s3.request_headers import FOR_THE_GATEWAY, PAYER, REQUESTER
from gateway.origin.headers import entity_headers

_AMZ = b"x-amz-"
_CHARGED = "x-amz-request-charged"
_END = b"</ListBucketResult>"


class ListingReads:
    """Listings that may be recorded.

    Args:
        forwarder: asks the origin.
        engine: has the rules, the folders of datasets, and the recorded pages.
    """

    def __init__(self, forwarder: Forwarder, engine: Engine) -> None:
        self._forwarder = forwarder
        self._services = engine.services
        self._listings = engine.listings

    def concerns(self, call: S3Call) -> bool:
        """Whether a request is a plain listing of objects, which may be recorded."""
        return (
            lists_objects(call)
            and "versions" not in call.names
            and all(_is_plain(*pair) for pair in call.request.fields.items())
        )

    async def read(self, call: S3Call, body: Callable[[], AsyncIterator[bytes]]) -> Answer:
        """Answer a listing.

        Raises:
            OriginUnavailable: the origin is needed and cannot be reached.
        """
        page = await self._page(call)
        if page is None:
            return await self._forwarder.forward(call, body(), Outcome.BYPASS, Reason.NOT_A_READ)
        identity, asked = call.auth.principal.identity, self._listings.begin(page)
        if not is_forced(call):
            recorded = await self._listings.recall(asked, identity)
            if recorded is not None:
                headers, document = recorded
                raw = [
                    (name.lower().encode("latin-1"), value.encode("latin-1"))
                    for name, value in headers
                    if identity.pays or name.lower() != _CHARGED
                ]
                raw.append((b"content-length", b"%d" % len(document)))
                return Answer(200, raw, document, Outcome.HIT, length=len(document))
        answer = await self._forwarder.forward(call, body(), Outcome.MISS, Reason.COLD)
        if answer.status == 200 and isinstance(answer.content, AsyncGenerator):
            answer.content = self._recorded(call, asked, answer, answer.content)
        return answer

    async def _recorded(
        self, call: S3Call, asked: AskedPage, answer: Answer, content: AsyncGenerator[bytes]
    ) -> AsyncGenerator[bytes]:
        """A page, unchanged; its end is held back until the page is recorded, so that the next reader gets the recorded page."""
        document, held = bytearray(), b""
        async with aclosing(content):
            async for chunk in content:
                if len(document) <= LONGEST:
                    document += chunk
                if held:
                    yield held
                held = chunk
        if len(document) <= LONGEST and document.rstrip().endswith(_END):
            fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers]
            headers = entity_headers(fields).headers
            await self._listings.keep(asked, call.auth.principal.identity, headers, bytes(document))
        if held:
            yield held

    async def _page(self, call: S3Call) -> WantedPage | None:
        """The page that a request asks for; ``None`` if it is not recorded. A rule comes before registrations."""
        principal, rules = call.auth.principal, self._services.rules
        prefix = f"{call.bucket}/{parameter(call.query, 'prefix').decode('utf-8', 'replace')}"
        query = "&".join(sorted(piece for piece in call.query.split("&") if not piece.startswith("x-id=")))
        rule = rules.listing(prefix)
        if rule is not None:
            return WantedPage(principal.identity.origin, call.bucket, query, rule.match, rule.grant)
        scope = await self._services.folders.scope(principal.tenant, prefix)
        grant = None if scope is None else rules.grant_below(prefix)
        if scope is None or grant is None:
            return None
        return WantedPage(principal.identity.origin, call.bucket, query, scope.name, grant, scope.number)


def _is_plain(name: bytes, value: bytes) -> bool:
    """Whether a header does not affect a listing."""
    if name == PAYER:
        return value.strip() == REQUESTER
    if name == b"cache-control":
        return "no-store" not in cache_directives(value.decode("latin-1"))
    return name != b"origin" and (not name.startswith(_AMZ) or name in FOR_THE_GATEWAY)
