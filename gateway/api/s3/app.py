"""The S3 edge: a plain ASGI application that verifies, routes, answers and accounts for every request."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count

from gateway.api.s3 import permissions
from gateway.api.s3.about_bucket import BucketReads
from gateway.api.s3.accounting import METHODS, Accounting, Trace
from gateway.api.s3.answer import SERVER, Answer, RemoteHit, begin_sending, cache_status, complete, date_header
from gateway.api.s3.asked_loads import AskedLoads, asks_for_load
from gateway.api.s3.auth import Authenticated, Authenticator, split_address
from gateway.api.s3.call import S3Call, check_bucket, decode_key, resource_of
from gateway.api.s3.classify import not_cacheable
from gateway.api.s3.compiled import CompiledHits
from gateway.api.s3.direct import DirectReads
from gateway.api.s3.errors import as_s3_error, outcome_of, render
from gateway.api.s3.form import Form
from gateway.api.s3.forward import Forwarder, relay_read
from gateway.api.s3.hot import Hit, HotReads, Unresolved
from gateway.api.s3.listings import ListingReads
from gateway.api.s3.objects import ObjectReads
from gateway.api.s3.post_object import PostObjects, check_form_request, is_form_upload, key_of
from gateway.api.s3.presented import PresentedReads
from gateway.api.s3.relayed import RelayedReads
from gateway.api.s3.repeated import Repeats
from gateway.api.s3.signer import LoggedSigner, form_signer
from gateway.base import tracing
from gateway.base.config_server import ServerSettings
from gateway.edge.asgi import Edge
from gateway.edge.problems import encoded, note_refusal
from gateway.engine.objects.body import Body
from gateway.engine.objects.found import Forward, Relay
from gateway.model.errors import BrokenBody, LarderError, S3Error
from gateway.model.holders import HOLDER
from gateway.model.keys import ObjectKey
from gateway.model.outcomes import Outcome, Reason
from gateway.model.s3.navigation import confined, opens_document
from gateway.model.s3.redaction import redact_path
from gateway.model.s3.sigv4 import WireRequest
from gateway.server.asgi_types import Begin, Message, RawHeaders, Receive, Scope, Send, SendFiles
from gateway.server.callers import AUTHENTICATED, authenticated
from gateway.server.cycle import DIRECT, FILES, REPEATS, Cycle
from gateway.server.place import PLACE, RequestPlace
from gateway.server.received import request_body
from gateway.server.refusals import HOST_ID
from gateway.store.shared.accesses import Note

log = logging.getLogger("larder.s3")
_TRACE = "larder.trace"
"""The scope key of a request's ``Trace``."""


@dataclass(frozen=True, slots=True)
class ReadPaths:
    """The ways to read an object: the short one for repeated hits, the one on this node, and the general one, through its home.

    ``direct`` goes through the home too, for repeated hits. ``of_buckets`` is for headers about the bucket, ``presented`` for
    reads that change the form of the answer, ``listings`` for listings that may be recorded. ``asked_loads`` loads objects in the
    background at their readers' request. ``note`` records every answered read, see ``ObservedReads.note``.
    """

    hot: HotReads
    local: ObjectReads
    relayed: RelayedReads
    direct: DirectReads
    of_buckets: BucketReads
    presented: PresentedReads
    listings: ListingReads
    asked_loads: AskedLoads
    note: Note


class S3App(Edge):
    """Answers every request outside ``/-/``, which no bucket name can begin.

    Args:
        authenticator: verifies requests.
        reads: the ways to read an object.
        forwarder: sends requests on to the origin.
        accounting: counts and logs answers.
        settings: of the server.
        elsewhere: begins to answer requests below ``/-/``.
    """

    breaks_off = True

    def __init__(
        self,
        authenticator: Authenticator,
        reads: ReadPaths,
        forwarder: Forwarder,
        accounting: Accounting,
        settings: ServerSettings,
        elsewhere: Begin,
    ) -> None:
        super().__init__(log, settings.max_in_flight)
        self._authenticator = authenticator
        self._forwarder = forwarder
        self._accounting = accounting
        self._hot = reads.hot
        self._note = reads.note
        self._local = reads.local
        self._relayed = reads.relayed
        self._direct = reads.direct
        self._of_buckets = reads.of_buckets
        self._presented = reads.presented
        self._listings = reads.listings
        self._asked_loads = reads.asked_loads
        self._posts = PostObjects(authenticator, forwarder)
        self._domain = settings.domain
        self._elsewhere = elsewhere
        self._ids = count(int.from_bytes(os.urandom(6), "big") << 16)
        engine = reads.hot.engine
        self._repeats = Repeats(
            authenticator, reads.hot, accounting, self.places, reads.note, self._ids, self._finish_hit,
            engine.hits, CompiledHits(engine.hits, reads.note, engine.entries_kept),
        )  # fmt: skip
        accounting.drain = self._repeats.compiled.drain

    def begin(self, scope: Scope, receive: Receive, send: Send, send_files: SendFiles) -> Awaitable[None] | None:
        """See ``Edge.begin``: a hit that can be sent at once needs no task."""
        if scope["raw_path"].startswith(b"/-"):
            return self._elsewhere(scope, receive, send, send_files)
        if self.places.used >= self.places.limit:
            return self(scope, receive, send)
        trace = self.look(scope)
        hit = trace.found
        if not isinstance(hit, Hit):
            if hit is Unresolved.PLAIN:
                begun = self._begin_miss(scope, trace)
            else:
                begun = isinstance(hit, RemoteHit) and self._direct.begin(self, scope, trace, hit)
            return None if begun else self(scope, receive, send)
        rest = send_files(hit.status, trace.head(hit.head), hit.files, hit.memory)
        if rest is not None:
            return self._finish_hit(scope, trace, hit, rest)
        self._accounting.note(scope, trace, hit, trace.started)
        if REPEATS in scope:
            trace.client = scope.get("client")
            connection, head = scope[REPEATS]
            connection.repeated = self._repeats.of(connection, head, trace, connection.repeated)
        return None

    async def _finish_hit(self, scope: Scope, trace: Trace, hit: Hit, rest: Awaitable[None]) -> None:
        assert trace.auth is not None
        holder = trace.auth.principal.holder
        self.places.take(holder)
        place = scope[PLACE] = RequestPlace(self.places, holder)
        try:
            await rest
        finally:
            place.leave()
            self._accounting.note(scope, trace, hit, trace.started)

    def _begin_miss(self, scope: Scope, trace: Trace) -> bool:
        """Begin to read an object that may be missing, without a task; returns whether that goes on."""
        auth, membership = trace.auth, self._relayed.membership
        assert auth is not None
        holder = auth.principal.holder
        if not membership.alone or tracing.telemetry is not None:
            return False
        try:
            call = self._open(trace, auth, plain=True)
        except LarderError:
            return False  # ``answer`` refuses it
        if call.key is None or not self.places.claim(holder):
            return False
        cycle: Cycle = scope["extensions"][DIRECT]()
        before = HOLDER.set(holder)  # for the tasks that the read begins
        try:
            cycle.deferred = self._local.begin(call, partial(self._missed, cycle, trace, call))
        finally:
            HOLDER.reset(before)
            if not cycle.deferred:
                self.places.give_back(holder)
        trace.ring = membership.ring
        return cycle.deferred

    def _missed(self, cycle: Cycle, trace: Trace, call: S3Call, answer: Answer | None) -> None:
        """Send the answer to a miss; ``None``: ``answer`` must decide, with ``call.begun``."""
        scope, holder = cycle.scope, call.auth.principal.holder
        if answer is None or trace.ring is None:
            trace.begun, scope[PLACE] = call.begun, RequestPlace(self.places, holder)
            cycle.go_on(self(scope, cycle.receive, cycle.send))
            return
        self._hot.learn(call, trace.ring)
        self._note_read(scope, trace, call, answer)
        self._complete_head(trace, answer)
        turned_around, rest = time.perf_counter(), begin_sending(cycle, answer)
        if rest is None:
            self.places.give_back(holder)
            self._accounting.note(scope, trace, answer, turned_around)
        else:
            scope[PLACE] = RequestPlace(self.places, holder)
            cycle.go_on(self._finish_miss(scope, trace, answer, turned_around, rest))

    async def _finish_miss(
        self, scope: Scope, trace: Trace, answer: Answer, turned_around: float, rest: Awaitable[None]
    ) -> None:
        try:
            await rest
        except LarderError as failure:
            raise BrokenBody(str(failure)) from failure
        finally:
            self._accounting.note(scope, trace, answer, turned_around)
            scope[PLACE].leave()

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. All refusals happen before the first byte."""
        trace: Trace = scope.get(_TRACE) or self.look(scope)
        if trace.refusal is not None:
            raise trace.refusal
        auth, hit = trace.auth, trace.found
        assert auth is not None
        self.admit(scope, auth.principal.holder)
        if isinstance(hit, Hit):
            await self._send_hit(scope, send, trace, hit)
            return
        await self._send(scope, send, trace, await self._resolve(scope, trace, receive))

    async def read(self, scope: Scope, trace: Trace) -> Answer:
        """The answer to a read within another request, after ``look`` found no hit for it; a refusal is an answer."""
        try:
            if trace.refusal is not None:
                raise trace.refusal
            return await self._resolve(scope, trace, _without_body)
        except LarderError as failure:
            return self.refusal(trace, failure)

    async def _resolve(self, scope: Scope, trace: Trace, receive: Receive) -> Answer:
        """The answer to a verified request that is not a hit to send at once. All refusals happen here."""
        auth, hit = trace.auth, trace.found
        assert auth is not None
        call = self._open(trace, auth, plain=hit is not Unresolved.OTHER)
        call.sent, trace.sent = trace.sent, None
        call.begun, trace.begun = trace.begun, None
        answering: Awaitable[Answer | Relay | Forward]
        try:
            if call.begun is not None:
                answering = self._local.read(call)
            elif call.plain:
                answering, trace.home, trace.ring = self._relayed.begin(call)
            else:
                answering = self._route(scope, trace, call, receive)
            found = await answering
        finally:
            if call.sent is not None:  # the home has changed since
                call.sent.abort()
        answer = found if isinstance(found, Answer) else await self._pass_on(call, receive, found)
        if answer.reason is Reason.REFUSED and b"referer" in call.request.fields and not isinstance(found, Forward):
            # A bucket's policy may allow reads from one page only, and the cache reads without naming a page.
            if answer.cleanup is not None:
                await answer.cleanup()
            answer = await self._pass_on(call, receive, Forward(Reason.REFUSED, miss=True))
        if trace.ring is not None and answer is found:
            remote = answer.remote
            # After an answer of its home, the next read of this object takes the short path.
            if trace.home is None or (remote is not None and remote.peer.node is trace.home):
                self._hot.learn(call, trace.ring, None if trace.home is None else remote)
        self._note_read(scope, trace, call, answer)
        return answer

    def _note_read(self, scope: Scope, trace: Trace, call: S3Call, answer: Answer) -> None:
        if answer.span is not None and trace.key is not None:
            served = answer.outcome in (Outcome.HIT, Outcome.STALE)
            waited = time.perf_counter() - trace.started
            who = call.auth.principal.reader
            self._note(trace.key, *answer.span, served, trace.time, who, scope.get("client"), waited)

    def look(self, scope: Scope, verified: Authenticated | None = None, *, free: bool = False) -> Trace:
        """Verify a request, and look for a hit that can be sent at once; notes the hit. The trace keeps a refusal.

        ``verified`` is the caller of a GET within another request, with a scope made for it; ``free``: it does not count as a
        request of the tenant.
        """
        trace = self._trace(scope)
        request, now = trace.request, trace.time
        try:
            if request.method == "OPTIONS":
                trace.auth = auth = self._authenticator.preflight(request)
            else:
                trace.auth = auth = verified or self._authenticator.authenticate(request, now)
                if AUTHENTICATED in scope and not auth.principal.anonymous:
                    authenticated(scope, auth.principal.tenant)
                if self._accounting.rates.limits and not free:
                    self._accounting.rates.admit(auth.principal.tenant)
            if FILES in scope["extensions"]:
                trace.found = hit = self._hot.find(request, auth, now)
                if isinstance(hit, Hit):
                    trace.key, trace.bucket = hit.key, hit.key.bucket
                    start, stop, size = hit.span
                    who = auth.principal.access_key_id
                    self._note(hit.key, start, stop, size, True, now, who, scope.get("client"), 0.0)
        except LarderError as refusal:
            trace.refusal = refusal
        return trace

    async def refuse(self, scope: Scope, send: Send, failure: LarderError) -> None:
        """Answer with an S3 error document."""
        trace = scope.get(_TRACE) or self._trace(scope)
        await self._send(scope, send, trace, self.refusal(trace, failure))

    def _trace(self, scope: Scope) -> Trace:
        request = WireRequest(
            scope["method"], scope["raw_path"], scope["query_string"], scope["headers"], scope["scheme"]
        )
        request_id = f"{next(self._ids) & 0xFFFFFFFFFFFFFFFF:016X}"
        trace = scope[_TRACE] = Trace(time.perf_counter(), time.time(), request_id, request)
        return trace

    async def _send_hit(self, scope: Scope, send: Send, trace: Trace, hit: Hit) -> None:
        """Send a hit through the applications around this one."""
        try:
            head = {"status": hit.status, "head": trace.head(hit.head), "files": hit.files, "memory": hit.memory}
            await send({"type": FILES, **head})
        except LarderError as failure:
            raise BrokenBody(str(failure)) from failure
        finally:
            self._accounting.note(scope, trace, hit, trace.started)

    def _route(self, scope: Scope, trace: Trace, call: S3Call, receive: Receive) -> Awaitable[Answer | Relay | Forward]:
        """Begin to answer a request that is not a plain GET, by the path for its kind."""
        method = call.request.method
        if method == "POST" and is_form_upload(call):
            return self._upload(scope, trace, call, receive)
        if method == "GET" and self._listings.concerns(call):
            return self._listings.read(call, lambda: request_body(receive))
        reason = not_cacheable(call)
        if reason is Reason.SUBRESOURCE and self._presented.concerns(call):
            return self._presented.read(call, lambda: request_body(receive))
        if reason is not None:
            return self._forwarder.forward(call, request_body(receive), Outcome.BYPASS, reason)
        if self._of_buckets.concerns(call):
            return self._of_buckets.read(call, lambda: request_body(receive))
        answering, trace.home, trace.ring = self._relayed.begin(call)
        return self._asked_loads.after(call, answering) if asks_for_load(call) else answering

    async def _pass_on(self, call: S3Call, receive: Receive, found: Relay | Forward) -> Answer:
        """Forward a read that the cache does not answer."""
        if isinstance(found, Relay):
            return relay_read(call, found)
        outcome = Outcome.MISS if found.miss else Outcome.BYPASS
        return await self._forwarder.forward(call, request_body(receive), outcome, found.reason)

    async def _upload(self, scope: Scope, trace: Trace, call: S3Call, receive: Receive) -> Answer:
        """An upload by HTML form: uploader and key are named in the body."""
        trace.signer = LoggedSigner()
        check_form_request(call)
        form = await Form.read(call.request, request_body(receive))
        trace.signer = form_signer(form.fields)
        trace.key = key_of(call, form)
        upload = self._posts.verify(call, form, trace.key, partial(self._admit_form, trace))
        self.admit(scope, upload.put.auth.principal.holder)
        return await self._posts.store(call, form, upload)

    def _admit_form(self, trace: Trace, auth: Authenticated) -> None:
        """Count a form for the tenant whose key signed it, from here to its line in the log."""
        trace.auth = auth
        if self._accounting.rates.limits and not auth.principal.anonymous:
            self._accounting.rates.admit(auth.principal.tenant)

    def _open(self, trace: Trace, auth: Authenticated, *, plain: bool) -> S3Call:
        """Resolve a verified request, and refuse what the gateway itself forbids; ``plain``: see ``Unresolved``."""
        request = trace.request
        if request.method not in METHODS:
            raise S3Error("MethodNotAllowed", headers={"Allow": ", ".join(sorted(METHODS))})
        bucket, raw_key = split_address(request, self._domain)
        trace.bucket = bucket
        key = None
        if bucket:
            check_bucket(bucket)
            if raw_key:
                key = ObjectKey(auth.principal.identity.origin, bucket, decode_key(raw_key))
        elif raw_key:
            raise S3Error("InvalidBucketName")
        trace.key = key
        if plain and key is not None and b"+" not in raw_key:
            return S3Call(request, auth, bucket, raw_key, key, "", frozenset(), plain=True)
        resource = resource_of(request, auth.signature_parameters)
        call = S3Call(resource[0], auth, bucket, raw_key, key, *resource[1:])
        permissions.check(call)
        return call.paying()

    def _note_address(self, trace: Trace) -> None:
        """Note the address of a request that was refused before it was resolved, for the log and the counts of its tenant."""
        trace.bucket, raw_key = split_address(trace.request, self._domain)
        if trace.bucket and raw_key:
            with suppress(S3Error):
                trace.key = ObjectKey("", trace.bucket, decode_key(raw_key))

    def refusal(self, trace: Trace, failure: LarderError) -> Answer:
        """The S3 error document for a failure of a request."""
        error = as_s3_error(failure)
        if not trace.bucket:
            self._note_address(trace)
        resource = redact_path(trace.request.raw_path.decode("ascii", "replace"))
        content = b"" if trace.request.method == "HEAD" else render(error, resource, trace.request_id)
        headers: RawHeaders = [(b"content-type", b"application/xml"), (b"x-amz-id-2", HOST_ID.encode())]
        headers += encoded(error.headers)
        note_refusal(error.status, error.code, error, log, f"{trace.request.method} {resource}", trace.request_id)
        outcome, reason = outcome_of(error)
        if outcome is Outcome.MISS and (trace.key is None or trace.request.method not in ("GET", "HEAD")):
            outcome = Outcome.BYPASS  # the cache was not involved
        headers.append((b"content-length", b"%d" % len(content)))
        return Answer(error.status, headers, content, outcome, reason, error.code, len(content))

    async def _send(self, scope: Scope, send: Send, trace: Trace, answer: Answer) -> None:
        """Send an answer, and account for it."""
        self._complete_head(trace, answer)
        turned_around = time.perf_counter()
        try:
            await complete(scope, send, answer)
        finally:
            self._accounting.note(scope, trace, answer, turned_around)

    def _complete_head(self, trace: Trace, answer: Answer) -> None:
        """Add the headers that every answer has and the origin did not send."""
        headers = answer.headers
        # No header of a plain read is one by which a browser opens a document.
        if trace.found is not Unresolved.PLAIN and opens_document(trace.request.fields):
            headers = answer.headers = confined(headers)
        names = set()
        if answer.blob is None and not isinstance(answer.content, Body):  # objects are stored without these
            for name, _ in headers:
                names.add(name.lower())  # in Python 3.11 a comprehension is a call
        headers.append(cache_status(answer.outcome, answer.reason))
        request_id = trace.request_id.encode()
        headers.append((b"x-larder-request-id", request_id))
        if b"x-amz-request-id" not in names:
            headers.append((b"x-amz-request-id", request_id))
        if b"date" not in names:
            headers.append(date_header(int(time.time())))
        if b"server" not in names:
            headers.append(SERVER)


async def _without_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}
