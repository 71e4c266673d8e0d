"""POST policies: the uploads that the signer of an HTML form allows.

A policy is a JSON document with an expiration and conditions. Every field of the form must be covered by a condition, except
those of the signature, the file, the policy itself and fields called ``x-ignore-*``. Names are compared without regard to case,
values with it.

Source: "POST Policy" and "Authenticating Requests: Browser-Based Uploads Using POST" in the Amazon S3 API reference; the messages
are those of S3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from gateway.model.errors import S3Error

UNSIGNED_FIELDS = frozenset({"policy", "file", "x-amz-signature", "signature", "awsaccesskeyid"})
IGNORED_PREFIX = "x-ignore-"
SECRET_FIELDS = frozenset({"x-amz-server-side-encryption-customer-key", "x-amz-security-token"})
"""Fields whose values are never repeated in error documents."""

_EXPIRATION = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
_ESCAPED_DOLLAR = re.compile(r"(?<!\\)((?:\\\\)*)\\\$")
_UNBOUNDED = 2**63 - 1


class Condition(NamedTuple):
    """``field`` (lower case) must equal ``value`` or start with it, by ``operator``: ``eq`` or ``starts-with``."""

    operator: str
    field: str
    value: str

    def __str__(self) -> str:
        value = "REDACTED" if self.field in SECRET_FIELDS else self.value
        return json.dumps([self.operator, f"${self.field}", value], ensure_ascii=False)

    def holds(self, actual: str | None) -> bool:
        """Whether a field with this value, ``None`` for an absent one, meets the condition."""
        if actual is None:
            return False
        if self.operator == "eq":
            return actual == self.value
        # S3 treats a Content-Type with commas as a list, every entry of which must match.
        entries = actual.split(",") if self.field == "content-type" else [actual]
        return all(entry.strip().startswith(self.value) or entry.startswith(self.value) for entry in entries)


class PostPolicy(NamedTuple):
    """A policy. ``expires`` in seconds since the epoch; ``least`` and ``most`` bound the file, in bytes."""

    expires: float
    conditions: tuple[Condition, ...]
    least: int = 0
    most: int = _UNBOUNDED

    def check(self, fields: Mapping[str, str], now: float) -> None:
        """Compare a form with the policy.

        Args:
            fields: of the form by lower-case name, with ``${filename}`` replaced in the key, and ``bucket`` from the request.
            now: seconds since the epoch.

        Raises:
            S3Error: AccessDenied.
        """
        if now > self.expires:
            raise S3Error("AccessDenied", "Invalid according to Policy: Policy expired.")
        for condition in self.conditions:
            if not condition.holds(fields.get(condition.field)):
                raise S3Error("AccessDenied", f"Invalid according to Policy: Policy Condition failed: {condition}")
        covered = {condition.field for condition in self.conditions} | UNSIGNED_FIELDS
        extra = [name for name in fields if name not in covered and not name.startswith(IGNORED_PREFIX)]
        if extra:
            raise S3Error("AccessDenied", f"Invalid according to Policy: Extra input fields: {', '.join(extra)}")


def parse_policy(document: bytes) -> PostPolicy:
    """Parse a policy document.

    Raises:
        S3Error: InvalidPolicyDocument.
    """
    try:
        policy = json.loads(_ESCAPED_DOLLAR.sub(r"\1$", document.decode("utf-8")))
    except (ValueError, RecursionError):
        raise _invalid("Invalid JSON.") from None
    if not isinstance(policy, dict):
        raise _invalid("Invalid JSON.")
    if "expiration" not in policy:
        raise _invalid("Policy missing expiration.")
    if "conditions" not in policy:
        raise _invalid("Policy missing conditions.")
    conditions = policy["conditions"]
    if not isinstance(conditions, list):
        raise _invalid("Conditions must be a list.")
    parsed = [_condition(condition) for condition in conditions]
    ranges = [condition for condition in parsed if isinstance(condition, range)]
    return PostPolicy(
        _expiration(policy["expiration"]),
        tuple(condition for condition in parsed if isinstance(condition, Condition)),
        max((limits.start for limits in ranges), default=0),
        min((limits.stop for limits in ranges), default=_UNBOUNDED),
    )


def _expiration(text: Any) -> float:
    try:
        if isinstance(text, str) and _EXPIRATION.fullmatch(text):
            # Python parses at most six digits of a fraction; whole seconds are enough.
            return datetime.fromisoformat(text[:19]).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        pass
    raise _invalid(f"Invalid 'expiration' value: {str(text)[:64]!r}")


def _condition(condition: Any) -> Condition | range:
    if isinstance(condition, dict):
        if len(condition) != 1:
            raise _invalid("Invalid Simple-Condition: Simple-Conditions must have exactly one property specified.")
        ((name, value),) = condition.items()
        if not isinstance(value, str):
            raise _invalid("Invalid Simple-Condition: value must be a string.")
        return Condition("eq", name.lower(), value)
    if not isinstance(condition, list) or len(condition) != 3 or not isinstance(condition[0], str):
        raise _invalid("Invalid Condition: a condition is an object, or a list of three.")
    operator, *arguments = condition
    if operator.lower() == "content-length-range":
        return _length_range(arguments)
    if operator.lower() not in ("eq", "starts-with"):
        raise _invalid(f"Invalid Condition: unknown operation {operator[:64]!r}.")
    name, value = arguments
    if not isinstance(name, str) or not isinstance(value, str) or not name.startswith("$"):
        raise _invalid("Invalid Condition: a field is named with '$', and compared with a string.")
    return Condition(operator.lower(), name[1:].lower(), value)


def _length_range(arguments: Sequence[Any]) -> range:
    bounds = []
    for argument in arguments:
        text = str(argument) if isinstance(argument, int | str) and not isinstance(argument, bool) else ""
        if not (text.isascii() and text.isdigit()) or len(text) > 18:
            raise _invalid("Invalid content-length-range: arguments must be non-negative integers.")
        bounds.append(int(text))
    return range(*bounds)


def _invalid(what: str) -> S3Error:
    return S3Error("InvalidPolicyDocument", f"Invalid Policy: {what}")
