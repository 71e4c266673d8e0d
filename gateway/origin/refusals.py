"""Refusals that concern the gateway's own key at an origin, not a reader's rights.

A client whose signature the gateway has verified gets the origin's answer, such as ``SignatureDoesNotMatch``, and looks for a
mistake in its own key. So the gateway says that its key is wrong: in its log, and in its list of problems, until the origin
accepts the key or has not refused it for a while. The list can be read without a key, so it names none.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from html import unescape

ABOUT_KEYS = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
    }
)
"""Refusals of every request with a key ("Error responses", Amazon S3 API reference); others may concern one object."""
_REMEDIES = {
    "AuthorizationHeaderMalformed": "the region of the origin is another",
    "RequestTimeTooSkewed": "set the clock of this machine",
}
_REMEMBERED = 300.0
"""Seconds for which a refusal is a problem, unless the key is refused again."""
log = logging.getLogger("larder.origin")


def refusal_of_key(body: bytes, remedy: str = "") -> str:
    """The code, the origin's sentence and a remedy, if an error document refuses the key itself; else empty. ``remedy`` is for
    what is no matter of clock or region."""
    if (code := _element(body, "Code")) not in ABOUT_KEYS:
        return ""
    return "; ".join(filter(None, [code, _element(body, "Message"), _REMEDIES.get(code, remedy)]))


class RefusedKeys:
    """The gateway's keys that origins refuse now.

    Args:
        now: a clock in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.current: dict[tuple[str, str], tuple[float, str]] = {}
        """By origin and key: until when it is a problem, and what the origin said."""

    def refused(self, origin: str, access_key_id: str, body: bytes) -> None:
        """Note the beginning of a refusal's document, and log a key that was not refused before."""
        if said := refusal_of_key(body):
            if (origin, access_key_id) not in self.current:
                log.warning(
                    "the origin %(origin)r refuses the gateway's key %(access_key_id)s: %(error)s",
                    {"origin": origin, "access_key_id": access_key_id, "error": said},
                )
            self.current[origin, access_key_id] = self._now() + _REMEMBERED, said

    def accepted(self, origin: str, access_key_id: str) -> None:
        """Note that the origin has answered a request with this key."""
        self.current.pop((origin, access_key_id), None)

    @property
    def problem(self) -> str:
        """The origins and their codes, in words; empty if no key is refused."""
        now = self._now()
        self.current = {name: each for name, each in self.current.items() if each[0] > now}
        found = {(origin, said.partition(";")[0]) for (origin, _), (_, said) in self.current.items()}
        told = [f"the origin {origin!r} refuses a key of the gateway: {code}" for origin, code in sorted(found)]
        return "; ".join([*told, "the log names it"]) if told else ""


def _element(body: bytes, name: str) -> str:
    """The text of an element of an error document; empty without one."""
    found = re.search(rf"<{name}>([^<]*)</{name}>".encode(), body)
    return unescape(found[1].decode("utf-8", "replace")).rstrip(". ") if found else ""
