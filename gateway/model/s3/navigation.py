"""Requests whose answer a browser shows as a document, and the headers that make such a document harmless.

Objects belong to tenants, and may be HTML, SVG or XML with scripts. A browser that opens it at this gateway's address would run
them as a page of this address. ``Content-Security-Policy: sandbox`` gives the document an origin of its own and no scripts;
``nosniff`` keeps a browser from finding HTML in bytes of another type.

Browsers announce a navigation by ``Sec-Fetch-Mode`` and ``Sec-Fetch-Dest``, over TLS and to their own machine. Over plain HTTP to
another machine, and in older versions, they send ``Upgrade-Insecure-Requests`` or accept ``text/html``. A prefetched page counts
too, as it is shown later. Programs send none of these headers.

Sources: W3C, Fetch Metadata Request Headers; W3C, Upgrade Insecure Requests, section 3.2.1; WHATWG, HTML, "sandboxing".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

RawHeader = tuple[bytes, bytes]

SANDBOX = (b"content-security-policy", b"sandbox")
NO_SNIFFING = (b"x-content-type-options", b"nosniff")

_MODES = frozenset({b"navigate", b"nested-navigate"})
_DOCUMENTS = frozenset({b"document", b"embed", b"fencedframe", b"frame", b"iframe", b"nested-document", b"object"})
_PREFETCHES = frozenset({b"sec-purpose", b"purpose", b"x-moz"})


def accepts_pages(fields: Mapping[bytes, bytes]) -> bool:
    """Whether a request accepts ``text/html`` explicitly, as browsers do when they open a document.

    Java programs do too, but they sign in a header, which a browser that opens an address cannot add.
    """
    accepted = fields.get(b"accept")
    if accepted is None:
        return False
    accepted = accepted.lower()
    return b"application/xhtml+xml" in accepted or (b"text/html" in accepted and b"authorization" not in fields)


def opens_document(fields: Mapping[bytes, bytes]) -> bool:
    """Whether a browser may show the answer as a document, now or later; ``fields``: the headers of the request."""
    mode, destination = fields.get(b"sec-fetch-mode"), fields.get(b"sec-fetch-dest")
    if mode in _MODES or destination in _DOCUMENTS or not _PREFETCHES.isdisjoint(fields):
        return True
    if mode is not None or destination is not None:
        return False
    return b"upgrade-insecure-requests" in fields or (b"accept" in fields and accepts_pages(fields))


def confined(headers: Iterable[RawHeader]) -> list[RawHeader]:
    """The headers of an answer, with those that confine its document. A policy of the origin also applies."""
    kept = [pair for pair in headers if pair[0].lower() != NO_SNIFFING[0]]
    return [*kept, SANDBOX, NO_SNIFFING]
