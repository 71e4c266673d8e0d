"""Hits of one signer over one connection, without parsing: a head that differs from the last one in path, date and signature.

``server/template.py`` says why such a head need not be parsed, ``Repeats.of`` which requests may have a template: those that the
short path (``hot.py``) has just answered with a hit. What the general path concludes from headers alone is concluded once: the
claim of the signature, that all that must be signed is signed, that no header forbids an answer from the cache. Whatever may
change between two requests is checked in each, by the same objects as there: the access key and its account, the time and the
signature, the overload and the limits, the address, and all that ``Hits.find`` checks. A request that fails a check, or about
which anything is special, is left to the general path before anything is counted or sent; it alone refuses.

The object is looked up before the signature is verified, so that a miss is verified once. That tells a signer with a wrong
signature nothing: the general path answers both.
"""

from __future__ import annotations

import re
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Protocol

from gateway.api.s3.accounting import Accounting, Trace
from gateway.api.s3.accounts import Account
from gateway.api.s3.answer import date_header
from gateway.api.s3.auth import MAX_SKEW, Authenticator
from gateway.api.s3.hot import Hit, HotReads, wants_checksum
from gateway.base import metrics
from gateway.model.s3 import sigv4
from gateway.model.s3.ranges import ByteRange, parse_range
from gateway.model.s3.sigv4 import WireRequest
from gateway.model.s3.sigv4_claims import LONGEST_CACHED_CLAIM, dated_claim
from gateway.policies.shares import Shares
from gateway.server.asgi_types import Scope
from gateway.server.channel import Channel
from gateway.server.cycle import Cycle
from gateway.server.head import STATUS_LINES
from gateway.server.template import DATE, RANGE, SIGNATURE, Patience, Template
from gateway.store.shared.accesses import Note

_TOKEN = re.compile(rb"\0([a-z0-9-]+)\0")
_SERIAL = 0xFFFFFFFFFFFFFFFF
_PATH = b"path"


class Finish(Protocol):
    """Sends the rest of a hit; see ``S3App``."""

    def __call__(
        self, scope: Scope, trace: Trace, hit: Hit, rest: Coroutine[Any, Any, None], /
    ) -> Coroutine[Any, Any, None]:
        """Counts the request in progress until ``rest`` is done."""


class AdoptingConnection(Protocol):
    """A connection whose requests may be answered without parsing."""

    channel: Channel

    def adopt(self, path: bytes, headers: list[tuple[bytes, bytes]]) -> Cycle:
        """Make a request that was not parsed the one that is being answered."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """What all repeated reads of a worker share. ``ids`` numbers requests."""

    authenticator: Authenticator
    hot: HotReads
    accounting: Accounting
    places: Shares
    note: Note
    ids: Iterator[int]
    finish: Finish
    counted: metrics.LoopSum = field(default_factory=lambda: metrics.LoopSum(metrics.REPEATED))

    def of(
        self, connection: AdoptingConnection, head: bytes, trace: Trace, known: RepeatedReads | None
    ) -> RepeatedReads | None:
        """The repeated reads of which a request is the first.

        Args:
            connection: that the request came over.
            head: its bytes, which the parser accepted as a plain head.
            trace: the request, just answered with a hit.
            known: the connection's last ones.

        Returns:
            ``known`` if it stays, or if the request is not to have a template.
        """
        account = _account_of(self.authenticator, trace)
        if account is None or (known is not None and (known.is_of(head) or not known.patience.gives_way())):
            return known
        template, signature = Template.of(head), None
        if template is not None and template.match(head) is not None:
            signature = _Signature.of(self.authenticator, account, template, trace)
        if template is None or signature is None:
            return known
        made = RepeatedReads(self, connection, template, signature, trace)
        if known is not None:
            made.patience = known.patience
        return made


def _account_of(authenticator: Authenticator, trace: Trace) -> Account | None:
    """The account of a request whose like may be verified here; ``None``: it is signed in an unusual way."""
    auth = trace.auth
    if auth is None or auth.presigned or auth.chunk_signer is not None or auth.principal.anonymous:
        return None
    account = authenticator.find(auth.principal.access_key_id)
    # Two secrets, for the time of a rotation, are the general path's.
    usual = account is not None and account.previous is None and account.principal == auth.principal
    return account if usual else None


class _Signature:
    """A signer's signatures over heads of one shape."""

    def __init__(self, authenticator: Authenticator, account: Account, claim_head: bytes, template: Template) -> None:
        self.access_key_id = account.principal.access_key_id
        self.account = account
        self._authenticator = authenticator
        self._claim_head = claim_head
        self._names = template.names
        self._date_at, self._signature_at = self._names.index(DATE), self._names.index(SIGNATURE)
        self._form = b""
        self._order: tuple[int, ...] = ()
        self._dated = (b"", 0.0)
        self._inner = self._begun = self._outer = sha256()

    @classmethod
    def of(cls, authenticator: Authenticator, account: Account, template: Template, trace: Trace) -> _Signature | None:
        """The signatures of which a verified request has one; ``None`` if it is signed in an unusual way."""
        fields = trace.request.fields
        head, date = fields[SIGNATURE][:-64], fields[DATE]
        if len(head) > LONGEST_CACHED_CLAIM:
            return None
        made = cls(authenticator, account, head, template)
        claim, _, signed_at = dated_claim(head, date)
        if signed_at is None or claim.access_key_id != made.access_key_id:
            return None
        made._inner, made._outer = sigv4.pads(sigv4.signing_key(account.secret_access_key, claim.date, claim.region))
        marked = {**fields, **{name: b"\0%b\0" % name for name in template.names if name != SIGNATURE}}
        content = fields[b"x-amz-content-sha256"]
        text = sigv4.canonical_request(b"GET", b"\0%b\0" % _PATH, b"", marked, claim.names, content)
        made._form = _TOKEN.sub(b"%b", text.replace(b"%", b"%%"))
        made._order = tuple(made._names.index(name) for name in _TOKEN.findall(text)[1:])
        path, values = trace.request.raw_path, tuple(_value(name, fields) for name in template.names)
        return made if made.matches(path, values, trace.time) else None

    def matches(self, path: bytes, values: tuple[bytes, ...], now: float) -> bool:
        """Whether the signature among the values of the slots is right, by the account as it is now, and of this time."""
        authenticator = self._authenticator
        account = authenticator.find(self.access_key_id)
        if account is not self.account:
            if account != self.account:
                return False
            self.account = account
        if now >= account.expires_at or authenticator.closed:
            return False
        date = values[self._date_at]
        if date != self._dated[0] and not self._begin(date):
            return False
        if not -MAX_SKEW <= now - self._dated[1] <= MAX_SKEW:
            return False
        canonical = self._form % (path, *map(values.__getitem__, self._order))
        inner, outer = self._begun.copy(), self._outer.copy()
        inner.update(sha256(canonical).hexdigest().encode())
        outer.update(inner.digest())
        return compare_digest(outer.hexdigest().encode(), values[self._signature_at])

    @property
    def current(self) -> bool:
        """Whether the account is still the one whose secret signs."""
        return self._authenticator.find(self.access_key_id) == self.account

    def _begin(self, date: bytes) -> bool:
        """Hash the first lines of the string to sign, which all requests of a second share; ``False`` if the date is invalid."""
        claim, _, signed_at = dated_claim(self._claim_head, date)
        if signed_at is None:
            return False
        self._begun = self._inner.copy()
        self._begun.update(b"%b\n%b\n%b\n" % (sigv4.ALGORITHM, date, claim.scope))
        self._dated = date, signed_at
        return True


def _value(name: bytes, fields: dict[bytes, bytes]) -> bytes:
    return fields[SIGNATURE][-64:] if name == SIGNATURE else fields[name]


class RepeatedReads:
    """The repeated reads of one connection; called with bytes that arrived, it returns whether it has answered them.

    Args:
        repeats: of the worker.
        connection: where they arrive.
        template: the shape of their heads.
        signature: of their signer.
        trace: the first one.
    """

    def __init__(
        self, repeats: Repeats, connection: AdoptingConnection, template: Template, signature: _Signature, trace: Trace
    ) -> None:
        assert trace.auth is not None
        fields = trace.request.fields
        self.template = template
        self._connection = connection
        self._repeats = repeats
        self._signature = signature
        self._auth = trace.auth
        self._scheme = trace.request.scheme
        self._host = fields.get(b"host", b"")
        self._checked = wants_checksum(fields)
        self._ranged = template.names[-1] == RANGE
        self._client: tuple[str, int] | None = trace.client
        self.patience = Patience()

    def is_of(self, head: bytes) -> bool:
        """Whether a head has this shape, and the signer of this shape is unchanged."""
        return self.template.match(head) is not None and self._signature.current

    def __call__(self, head: bytes) -> bool:
        """Answer bytes that are one whole head of this shape, if a hit can be sent at once; else nothing has happened."""
        match = self.template.match(head)
        if match is None:
            return False
        started, now = time.perf_counter(), time.time()
        (path, values), repeats, principal = match, self._repeats, self._auth.principal
        channel = self._connection.channel
        try:
            hit = self._find(path, values, now)
        except Exception:
            return False  # the general path fails, too, and answers
        if hit is None:
            return False
        start, stop, size = hit.span
        repeats.note(hit.key, start, stop, size, True, now, principal.access_key_id, self._client, 0.0)
        repeats.counted.inc()
        self.patience.answered += 1
        serial = next(repeats.ids) & _SERIAL
        answer = b"%b%bx-amz-request-id: %016X\r\ndate: %b\r\n\r\n" % (
            STATUS_LINES[hit.status], hit.head, serial, date_header(int(now))[1],
        )  # fmt: skip
        try:
            if hit.memory is not None:
                channel.write_now((answer, hit.memory))
            elif not channel.send_now(answer, hit.files):
                self._go_on(path, values, hit, (started, now, serial))
                return True
        except Exception as error:
            self._go_on(path, values, hit, (started, now, serial), error)
            return True
        if repeats.accounting.watched:
            self._account_for(path, values, hit, (started, now, serial))
        else:
            repeats.accounting.count(
                "GET", hit, principal.tenant, hit.key.bucket, hit.length, time.perf_counter() - started
            )
        return True

    def _find(self, path: bytes, values: tuple[bytes, ...], now: float) -> Hit | None:
        """The hit of a verified request that can be sent at once; ``None``: the general path must decide."""
        repeats, principal = self._repeats, self._auth.principal
        channel, places = self._connection.channel, repeats.places
        if (
            channel.paused
            or channel.lost
            or channel.transport.is_closing()
            or places.used >= places.limit
            or path[1:2] == b"-"
            or principal.tenant in repeats.accounting.rates.limits
        ):
            return None
        wanted: ByteRange | None = None
        if self._ranged and (wanted := parse_range(values[-1].decode())) is None:
            return None
        known = repeats.hot.known(principal.identity.origin, self._host, path)
        if known is None or not self._signature.matches(path, values, now):
            return None
        return repeats.hot.render(known, principal.identity, now, wanted, self._checked and wanted is None)

    def _trace(self, path: bytes, values: tuple[bytes, ...], hit: Hit, numbers: tuple[float, float, int]) -> Trace:
        """The request as the general path knows it."""
        started, now, serial = numbers
        request = WireRequest("GET", path, b"", self.template.headers(values), self._scheme)
        trace = Trace(started, now, f"{serial:016X}", request, self._auth)
        trace.key, trace.bucket, trace.found = hit.key, hit.key.bucket, hit
        return trace

    def _account_for(self, path: bytes, values: tuple[bytes, ...], hit: Hit, numbers: tuple[float, float, int]) -> None:
        """Account for an answer of which somebody wants to know more than a count."""
        trace = self._trace(path, values, hit, numbers)
        self._repeats.accounting.note({"client": self._client}, trace, hit, trace.started)

    def _go_on(
        self,
        path: bytes,
        values: tuple[bytes, ...],
        hit: Hit,
        numbers: tuple[float, float, int],
        error: Exception | None = None,
    ) -> None:
        """Send in a task what is left to send, or end the answer that could not be sent."""
        trace = self._trace(path, values, hit, numbers)
        cycle = self._connection.adopt(path, trace.request.headers)
        cycle.go_on(_failed(error) if error else self._repeats.finish(cycle.scope, trace, hit, cycle.rest()))


async def _failed(error: Exception) -> None:
    raise error
