"""Hits of one signer over one connection, without parsing: a head that differs from the last one only in path, date and
signature.

``server/template.py`` explains why such a head need not be parsed, ``Repeats.of`` which requests may have a template: those that
the short path (``hot.py``) has just answered with a hit. The general path's conclusions from headers alone are drawn once: the
signature's claim, that everything that must be signed is signed, that no header forbids an answer from the cache. Everything that
may change between two requests is checked in each, by the general path's own objects: the access key and its account, the time
and the signature, the overload and the limits, the address, and all checks of ``Hits.find``. A request that fails a check, or is
special in any way, is left to the general path before anything is counted or sent; only that path refuses.

The object is looked up before the signature is verified, so that a miss is verified once. A signer with a wrong signature learns
nothing from that: the general path answers both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from math import inf, nextafter
from time import monotonic, perf_counter, time
from typing import Any, Protocol

from gateway.api.s3.accounting import Accounting, Trace
from gateway.api.s3.accounts import Account
from gateway.api.s3.answer import date_lines
from gateway.api.s3.auth import MAX_SKEW, Authenticator
from gateway.api.s3.compiled import AVAILABLE, FILES, LARGEST, CompiledHits, CompiledReads, Second, numbered
from gateway.api.s3.hot import Hit, HotReads, KnownAddress, SentBlocks, SentObject, wants_checksum
from gateway.engine.objects.hits import Hits
from gateway.model.guards import Guard
from gateway.model.s3 import sigv4
from gateway.model.s3.ranges import ByteRange, parse_range
from gateway.model.s3.sigv4 import WireRequest
from gateway.model.s3.sigv4_claims import LONGEST_CACHED_CLAIM, dated_claim
from gateway.policies.shares import Shares
from gateway.server.asgi_types import Scope
from gateway.server.channel import Channel
from gateway.server.cycle import Cycle
from gateway.server.files import FileSpan
from gateway.server.head import STATUS_LINES
from gateway.server.template import DATE, RANGE, SIGNATURE, Patience, Template
from gateway.store.shared.accesses import Note

_TOKEN = re.compile(rb"\0([a-z0-9-]+)\0")
_SERIAL = 0xFFFFFFFFFFFFFFFF
_PATH = b"path"
_DATE_TOKEN = b"\0%b\0" % DATE


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
        """Make a request that was not parsed the active one."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """The shared parts of a worker's repeated reads. ``ids`` numbers requests."""

    authenticator: Authenticator
    hot: HotReads
    accounting: Accounting
    places: Shares
    note: Note
    ids: Iterator[int]
    finish: Finish
    hits: Hits
    compiled: CompiledHits

    def of(
        self, connection: AdoptingConnection, head: bytes, trace: Trace, known: RepeatedReads | None
    ) -> RepeatedReads | None:
        """The repeated reads that a request begins.

        Args:
            connection: that the request came over.
            head: its bytes, which the parser accepted as a plain head.
            trace: the request, just answered with a hit.
            known: the connection's present repeated reads.

        Returns:
            ``known`` if it stays valid, or if the request gets no template.
        """
        self.compiled.drain()  # ``patience`` counts the answers
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
    """The account of a request whose repetitions may be verified here; ``None``: it is signed in an unusual way."""
    auth = trace.auth
    if auth is None or auth.presigned or auth.chunk_signer is not None or auth.principal.anonymous:
        return None
    account = authenticator.find(auth.principal.access_key_id)
    # During a rotation there are two secrets, which the general path handles.
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
        self._form = self._form_of_date = self._date = b""
        self.order: tuple[int, ...] = ()
        """The slots of the canonical request, except for date and path."""
        self._first = b""
        self._since = self._until = 0.0
        """The span of time, in seconds since the epoch, in which ``_date`` is accepted."""
        self._key = self._text = b""
        self._inner = self._begun = self._outer = sha256()

    @classmethod
    def of(cls, authenticator: Authenticator, account: Account, template: Template, trace: Trace) -> _Signature | None:
        """The signatures of a verified request's signer; ``None`` if the request is signed in an unusual way."""
        fields = trace.request.fields
        head, date = fields[SIGNATURE][:-64], fields[DATE]
        if len(head) > LONGEST_CACHED_CLAIM:
            return None
        made = cls(authenticator, account, head, template)
        claim, _, signed_at = dated_claim(head, date)
        if signed_at is None or claim.access_key_id != made.access_key_id:
            return None
        made._key = sigv4.signing_key(account.secret_access_key, claim.date, claim.region)
        made._inner, made._outer = sigv4.pads(made._key)
        marked = {**fields, **{name: b"\0%b\0" % name for name in template.names if name != SIGNATURE}}
        content = fields[b"x-amz-content-sha256"]
        text = sigv4.canonical_request(b"GET", b"\0%b\0" % _PATH, b"", marked, claim.names, content)
        # The date stays a placeholder: ``_begin`` fills it in, as all requests within one second share it.
        made._text, made._form = text, text.replace(b"%", b"%%")
        made.order = tuple(made._names.index(name) for name in _TOKEN.findall(text)[1:] if name != DATE)
        path, values = trace.request.raw_path, tuple(_value(name, fields) for name in template.names)
        return made if made.matches(path, values, trace.time) else None

    def matches(self, path: bytes, values: tuple[bytes, ...], now: float) -> bool:
        """Whether the signature among the values of the slots is right, by the account's present secret, and within its time."""
        authenticator = self._authenticator
        if authenticator.accounts.get(self.access_key_id) is not self.account and not self._renew():
            return False
        date = values[self._date_at]
        if date != self._date and not self._begin(date):
            return False
        if not self._since <= now < self._until or authenticator.closed:
            return False
        order = self.order
        canonical = self._form_of_date % ((path, *map(values.__getitem__, order)) if order else path)
        inner, outer = self._begun.copy(), self._outer.copy()
        inner.update(sha256(canonical).hexdigest().encode())
        outer.update(inner.digest())
        return compare_digest(outer.hexdigest().encode(), values[self._signature_at])

    @property
    def current(self) -> bool:
        """Whether the access key still belongs to an equal account, so that its secret still signs."""
        return self._authenticator.find(self.access_key_id) == self.account

    def _renew(self) -> bool:
        """Adopt an equal account: of the catalog, or of a new configuration."""
        account = self._authenticator.find(self.access_key_id)
        if account is not self.account:
            if account is None or account != self.account:
                return False
            self.account, self._date = account, b""
        return True

    def _begin(self, date: bytes) -> bool:
        """Prepare what all requests within one second share: the first lines of the string to sign, hashed, and the canonical
        request without path and ids; ``False`` if the date is invalid."""
        claim, _, signed_at = dated_claim(self._claim_head, date)
        if signed_at is None:
            return False
        self._first = b"%b\n%b\n%b\n" % (sigv4.ALGORITHM, date, claim.scope)
        self._begun = self._inner.copy()
        self._begun.update(self._first)
        self._form_of_date = _TOKEN.sub(b"%b", self._form.replace(_DATE_TOKEN, date))
        self._date, self._since = date, signed_at - MAX_SKEW
        self._until = min(nextafter(signed_at + MAX_SKEW, inf), self.account.expires_at)
        return True

    def second_of(self, date: bytes) -> Second | None:
        """What all requests within one second share, for compiled code; ``None`` if the date is invalid."""
        if not self._begin(date):
            return None
        pieces = _TOKEN.split(self._text.replace(_DATE_TOKEN, date))[::2]
        inner, outer = sigv4.padded(self._key)
        return inner + self._first, outer, tuple(pieces), self._since, self._until

    def guards(self) -> tuple[Guard, ...]:
        """The guards that hold while this account's secret still signs; empty if no guard can ensure that."""
        authenticator = self._authenticator
        if authenticator.accounts.get(self.access_key_id) is not self.account:
            return ()
        return (
            ("is", authenticator, "accounts", authenticator.accounts),
            ("is", authenticator, "closed", authenticator.closed),
        )


def _value(name: bytes, fields: dict[bytes, bytes]) -> bytes:
    return fields[SIGNATURE][-64:] if name == SIGNATURE else fields[name]


class RepeatedReads:
    """The repeated reads of one connection.

    ``answer`` takes bytes that arrived, and returns whether it has answered them: compiled code, or else ``decide``.

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
        self._channel = connection.channel
        self._repeats = repeats
        self._signature = signature
        self._auth = trace.auth
        self._principal = trace.auth.principal
        self._identity = trace.auth.principal.identity
        self._tenant = trace.auth.principal.tenant
        self.reader = trace.auth.principal.access_key_id
        self._scheme = trace.request.scheme
        self._host = fields.get(b"host", b"")
        self._checked = wants_checksum(fields)
        self._ranged = template.names[-1] == RANGE
        self._recorded = repeats.accounting.recorded
        self.client: tuple[str, int] | None = trace.client
        self.patience = Patience()
        self.answer: Callable[[bytes], bool] = self.decide
        self._compiled = self._compile() if AVAILABLE and not self._recorded else None

    def is_of(self, head: bytes) -> bool:
        """Whether a head has this shape, and the signer of this shape is unchanged."""
        return self.template.match(head) is not None and self._signature.current

    def decide(self, head: bytes) -> bool:
        """Answer bytes that are one whole head of this shape, if a hit can be sent at once; otherwise do nothing."""
        match = self.template.match(head)
        if match is None:
            return False
        at, now = monotonic(), time()
        (path, values), repeats, channel = match, self._repeats, self._channel
        accounting, places = repeats.accounting, repeats.places
        if channel.paused or channel.lost or places.used >= places.limit or self._tenant in accounting.rates.limits:
            return False
        try:
            known = repeats.hot.known(self._identity.origin, self._host, path)
            if known is None or not self._signature.matches(path, values, now):
                return False
            sent = known.sent
            if (
                sent is None
                or sent.principal is not self._principal
                or sent.checked is not self._checked
                or self._ranged
                or self._recorded
                or accounting.live.followers
                or (body := repeats.hits.again(sent.ready, now, at)) is None
            ):
                return self._answer(known, path, values, now, at)
        except Exception:
            return False  # the general path fails, too, and answers
        # hot: the work of ``_answer`` for a hit from memory that is only counted
        size = sent.size
        repeats.note(known.key, 0, size, size, True, now, self.reader, self.client, 0.0)
        self.patience.answered += 1
        answer = b"%b%016X\r\n%b" % (sent.head, next(repeats.ids) & _SERIAL, date_lines(int(now)))
        channel.write_now((answer, body))
        sent.count(size, monotonic() - at)
        if self._compiled is not None:
            self._hand_over(self._compiled, path, sent)
        return True

    def _compile(self) -> CompiledReads | None:
        """Have compiled code answer what it can; ``None`` if it takes no heads of this shape."""
        repeats, hits = self._repeats, self._repeats.compiled
        reads = CompiledReads(
            hits.objects(self._principal, self._host, self._checked, self._ranged), hits.answered, hits.drain, self._channel,
            repeats.ids, self._signature.second_of, self.decide, self,
        )  # fmt: skip
        answer = reads.answer_of(self.template, self._signature.order)
        if answer is None:
            return None
        self.answer = answer
        return reads

    def _hand_over(self, compiled: CompiledReads, path: bytes, sent: SentObject | SentBlocks) -> None:
        """Let compiled code send an object or ranges again, while all that this request has compared stays as it is."""
        accounting, channel, places = self._repeats.accounting, self._channel, self._repeats.places
        of_account = self._signature.guards()
        if not of_account:
            return
        compiled.guards = numbered(
            (
                *of_account,
                ("is", channel, "paused", False),
                ("is", channel, "lost", False),
                ("most", places, "used", nextafter(places.limit, 0)),
                ("is", accounting.rates, "limits", accounting.rates.limits),
                ("is", accounting.live, "followers", accounting.live.followers),
            )
        )
        self._repeats.compiled.remember(compiled.objects, path, sent, self._repeats.hot.ring_guard())

    def _answer(self, known: KnownAddress, path: bytes, values: tuple[bytes, ...], now: float, at: float) -> bool:
        """Answer a verified request, if a hit can be sent at once. Raises only before anything has happened."""
        repeats = self._repeats
        wanted: ByteRange | None = None
        if self._ranged and (wanted := parse_range(values[-1].decode())) is None:
            return False
        hit = repeats.hot.render(known, self._identity, now, wanted, self._checked and wanted is None)
        if hit is None:
            return False
        if not self._send(path, values, hit, (at, now, next(repeats.ids) & _SERIAL)):
            return True
        if hit.memory is not None and wanted is None:
            self._remember(known, path, hit)
        elif hit.memory is None and FILES and self._compiled is not None:
            self._remember_block(self._compiled, known, path, hit)
        return True

    def _send(
        self, path: bytes, values: tuple[bytes, ...], hit: Hit, numbers: tuple[float, float, int], taken: int = 0
    ) -> bool:
        """Send an answer without its first ``taken`` bytes, and account for it; whether it is sent, and was only counted."""
        repeats, channel, (at, now, serial) = self._repeats, self._channel, numbers
        start, stop, size = hit.span
        repeats.note(hit.key, start, stop, size, True, now, self.reader, self.client, 0.0)
        repeats.accounting.repeated.inc()
        self.patience.answered += 1
        answer = b"%b%016X\r\n%b" % (_head_of(hit), serial, date_lines(int(now)))
        try:
            if hit.memory is not None:
                channel.write_now((answer, hit.memory))
            elif not channel.send_now(answer[taken:], _left(hit.files, taken - len(answer)) if taken else hit.files):
                self._go_on(path, values, hit, numbers)
                return False
        except Exception as error:
            self._go_on(path, values, hit, numbers, error)
            return False
        if self._recorded or repeats.accounting.live.followers:
            self._account_for(path, values, hit, numbers)
            return False
        repeats.accounting.count("GET", hit, self._tenant, hit.key.bucket, hit.length, monotonic() - at)
        return True

    def go_on(self, head: bytes, taken: int, serial: int, now: float, at: float, /) -> None:
        """Finish an answer that compiled code has begun; see ``CountedReads``."""
        match, hot = self.template.match(head), self._repeats.hot
        known = None if match is None else hot.known(self._identity.origin, self._host, match[0])
        if taken >= 0 and match is not None and known is not None:
            path, values = match
            wanted = parse_range(values[-1].decode()) if self._ranged else None
            hit = hot.render(known, self._identity, now, wanted, self._checked and wanted is None)
            if hit is not None and hit.memory is None:
                self._send(path, values, hit, (at, now, serial), taken)
                return
        self._channel.break_off()  # the peer has left, or the file has gone

    def _remember(self, known: KnownAddress, path: bytes, hit: Hit) -> None:
        """After a whole object was sent from memory, keep what is needed to send it again."""
        ready = self._repeats.hits.ready(hit.key, self._identity)
        if ready is not None:
            counted = self._repeats.accounting.hits(self._tenant, hit.key.bucket)
            known.sent = sent = SentObject(
                self._principal, self._checked, _head_of(hit), hit.length, ready, counted.add
            )
            if self._compiled is not None:
                self._hand_over(self._compiled, path, sent)

    def _remember_block(self, compiled: CompiledReads, known: KnownAddress, path: bytes, hit: Hit) -> None:
        """After an object of one block, or a range, was sent from a file, let compiled code send it or ranges of that block."""
        repeats, (start, stop, size) = self._repeats, hit.span
        ready = repeats.hits.ready_blocks(hit.key, self._identity)
        if ready is None or stop - start > LARGEST or len(hit.files) > 1:
            return
        number = start // ready.record.block_size
        file = repeats.hits.block_file(ready, number)
        if file is None:
            return
        sent = compiled.objects[path][0] if path in compiled.objects else None
        same = isinstance(sent, SentBlocks) and sent.ready.entry is ready.entry and sent.ready.record is ready.record
        blocks = sent.blocks if same and isinstance(sent, SentBlocks) else {}
        counted = repeats.accounting.hits(self._tenant, hit.key.bucket)
        head = b"%b%b" % (STATUS_LINES[206], known.heads[None]) if self._ranged else _head_of(hit)
        sent = SentBlocks(head, size, ready, counted.add, blocks)
        repeats.compiled.remember_block(sent, number, file)
        self._hand_over(compiled, path, sent)

    def _trace(self, path: bytes, values: tuple[bytes, ...], hit: Hit, numbers: tuple[float, float, int]) -> Trace:
        """The request as the general path describes it."""
        at, now, serial = numbers
        started = perf_counter() - (monotonic() - at)
        request = WireRequest("GET", path, b"", self.template.headers(values), self._scheme)
        trace = Trace(started, now, f"{serial:016X}", request, self._auth)
        trace.key, trace.bucket, trace.found = hit.key, hit.key.bucket, hit
        return trace

    def _account_for(self, path: bytes, values: tuple[bytes, ...], hit: Hit, numbers: tuple[float, float, int]) -> None:
        """Account for an answer that must be more than counted."""
        trace = self._trace(path, values, hit, numbers)
        self._repeats.accounting.note({"client": self.client}, trace, hit, trace.started)

    def _go_on(
        self,
        path: bytes,
        values: tuple[bytes, ...],
        hit: Hit,
        numbers: tuple[float, float, int],
        error: Exception | None = None,
    ) -> None:
        """Send the rest in a task, or end the answer that could not be sent."""
        trace = self._trace(path, values, hit, numbers)
        cycle = self._connection.adopt(path, trace.request.headers)
        cycle.go_on(_failed(error) if error else self._repeats.finish(cycle.scope, trace, hit, cycle.rest()))


def _head_of(hit: Hit) -> bytes:
    """The answer up to the request's number."""
    return b"%b%bx-amz-request-id: " % (STATUS_LINES[hit.status], hit.head)


def _left(files: Sequence[FileSpan], taken: int) -> Sequence[FileSpan]:
    """The only span of a file without its first ``taken`` bytes, if that is more than 0."""
    ((fd, offset, count, inode),) = files
    taken = max(0, taken)
    return ((fd, offset + taken, count - taken, inode),)


async def _failed(error: Exception) -> None:
    raise error
