"""Which requests open documents, and the headers that confine these."""

from __future__ import annotations

import pytest

from gateway.model.s3.navigation import confined, opens_document

CHROMIUM = b"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
JAVA = b"text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"


@pytest.mark.parametrize(
    "fields",
    [
        {b"sec-fetch-mode": b"navigate", b"sec-fetch-dest": b"document"},
        {b"sec-fetch-mode": b"navigate"},
        *(
            {b"sec-fetch-mode": b"no-cors", b"sec-fetch-dest": kind}
            for kind in (b"iframe", b"object", b"embed", b"frame")
        ),
        {b"upgrade-insecure-requests": b"1"},
        {b"accept": CHROMIUM},
        {b"accept": b"text/html"},
        {b"accept": CHROMIUM, b"authorization": b"AWS4-HMAC-SHA256 ..."},
        {b"sec-purpose": b"prefetch", b"sec-fetch-mode": b"no-cors", b"sec-fetch-dest": b"empty"},
        {b"purpose": b"prefetch"},
    ],
)
def test_browsers_open_documents(fields: dict[bytes, bytes]) -> None:
    """Rule: navigations of all browsers, over TLS or not, in a tab or in a frame, and what they prefetch for one."""
    assert opens_document(fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {b"accept": b"*/*", b"user-agent": b"aws-cli/2"},
        {b"accept": JAVA, b"authorization": b"AWS4-HMAC-SHA256 ..."},
        *({b"sec-fetch-mode": b"no-cors", b"sec-fetch-dest": kind} for kind in (b"image", b"video", b"script")),
        {b"sec-fetch-mode": b"cors", b"sec-fetch-dest": b"empty", b"accept": CHROMIUM},
    ],
)
def test_programs_and_elements_open_none(fields: dict[bytes, bytes]) -> None:
    """Rule: SDKs, Java's own client, scripts that fetch, and elements for pictures and code read objects as ever."""
    assert not opens_document(fields)


def test_a_policy_of_the_origin_stays() -> None:
    """Rule: ours comes beside it, as browsers obey all; of what forbids sniffing there is one."""
    told = [(b"Content-Security-Policy", b"default-src 'none'"), (b"X-Content-Type-Options", b"sniff"), (b"etag", b"x")]
    assert confined(told) == [
        told[0], told[2], (b"content-security-policy", b"sandbox"), (b"x-content-type-options", b"nosniff"),
    ]  # fmt: skip
