"""Failures, with the S3 code of each. gateway/api/s3/errors.py renders them.

The codes are those of the "Error responses" page of the Amazon S3 API reference; only codes in the table can be
raised. The sentences are those that S3 sends, which differ from the page in places: clients match them (s3fs looks for "At least
one of the pre-conditions you specified did not hold").
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from types import MappingProxyType

S3_CODES: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "AccessDenied": (403, "Access Denied"),
        "AuthorizationHeaderMalformed": (400, "The authorization header that you provided is not valid."),
        "AuthorizationQueryParametersError": (
            400,
            "The authorization query parameters that you provided are not valid.",
        ),
        "BadDigest": (400, "The Content-MD5 you specified did not match what we received."),
        "EntityTooLarge": (400, "Your proposed upload exceeds the maximum allowed size"),
        "EntityTooSmall": (400, "Your proposed upload is smaller than the minimum allowed size"),
        "ExpiredToken": (400, "The provided token has expired."),
        "IncompleteBody": (400, "You did not provide the number of bytes specified by the Content-Length HTTP header"),
        "IncorrectNumberOfFilesInPostRequest": (400, "POST requires exactly one file upload per request."),
        "InternalError": (500, "We encountered an internal error. Please try again."),
        "InvalidAccessKeyId": (403, "The AWS Access Key Id you provided does not exist in our records."),
        "InvalidArgument": (400, "Invalid Argument"),
        "InvalidBucketName": (400, "The specified bucket is not valid."),
        "InvalidChunkSizeError": (400, "The chunk size is not valid."),
        "InvalidDigest": (400, "The Content-MD5 you specified was invalid."),
        "InvalidPolicyDocument": (
            400,
            "The content of the form does not meet the conditions specified in the policy document.",
        ),
        "InvalidRange": (416, "The requested range is not satisfiable"),
        "InvalidRequest": (400, "Invalid Request"),
        "InvalidToken": (400, "The provided token is malformed or otherwise invalid."),
        "InvalidURI": (400, "Couldn't parse the specified URI."),
        "KeyTooLongError": (400, "Your key is too long"),
        "MalformedPOSTRequest": (400, "The body of your POST request is not well-formed multipart/form-data."),
        "MalformedTrailerError": (
            400,
            "The request contained trailing data that was not well-formed or did not conform to our published schema.",
        ),
        "MalformedXML": (
            400,
            "The XML you provided was not well-formed or did not validate against our published schema",
        ),
        "MaxMessageLengthExceeded": (400, "Your request was too big."),
        "MaxPostPreDataLengthExceededError": (
            400,
            "Your POST request fields preceding the upload file were too large.",
        ),
        "MetadataTooLarge": (400, "Your metadata headers exceed the maximum allowed metadata size"),
        "MethodNotAllowed": (405, "The specified method is not allowed against this resource."),
        "MissingContentLength": (411, "You must provide the Content-Length HTTP header."),
        "MissingSecurityHeader": (400, "Your request was missing a required header"),
        "NoSuchBucket": (404, "The specified bucket does not exist"),
        "NoSuchKey": (404, "The specified key does not exist."),
        "NotImplemented": (501, "A header you provided implies functionality that is not implemented"),
        "PreconditionFailed": (412, "At least one of the pre-conditions you specified did not hold"),
        "RequestHeaderSectionTooLarge": (
            400,
            "Your request header section exceeds the maximum allowed request header section size.",
        ),
        "RequestTimeTooSkewed": (403, "The difference between the request time and the current time is too large."),
        "RequestTimeout": (
            400,
            "Your socket connection to the server was not read from or written to within the timeout period. "
            "Idle connections will be closed.",
        ),
        "ServiceUnavailable": (503, "Service is unable to handle request."),
        "SignatureDoesNotMatch": (
            403,
            "The request signature we calculated does not match the signature you provided. Check your key and signing method.",
        ),
        "SlowDown": (503, "Please reduce your request rate."),
        "XAmzContentSHA256Mismatch": (
            400,
            "The provided 'x-amz-content-sha256' header does not match what was computed.",
        ),
        "XAmzContentChecksumMismatch": (400, "The provided 'x-amz-checksum' header does not match what was computed."),
    }
)


def sentence(code: str, explain: str = "") -> str:
    """S3's sentence for a code, followed by an explanation if there is one."""
    standard = S3_CODES[code][1]
    return f"{standard.removesuffix('.')}. {explain}" if explain else standard


class LarderError(Exception):
    """Base of all failures that Larder raises deliberately."""


class S3Error(LarderError):
    """A request is refused.

    Args:
        code: a key of ``S3_CODES``.
        message: S3's own sentence for this case; empty: the standard sentence of the code.
        explain: an additional sentence, for causes that S3 does not have.
        extra: further XML elements of the error document (``ArgumentName``, ``ActualObjectSize``, ...).
        headers: further response headers (``Retry-After``, ``Content-Range``, ...).
        detail: for the log only, never for the client.
    """

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        explain: str = "",
        extra: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        detail: str = "",
    ) -> None:
        self.status = S3_CODES[code][0]
        self.code = code
        self.message = message or sentence(code, explain)
        self.extra = dict(extra or {})
        self.headers = dict(headers or {})
        super().__init__(f"{code}: {self.message} {detail}".rstrip())


class RateLimited(S3Error):
    """A tenant exceeds its limits; it may try again after ``seconds``."""

    def __init__(self, seconds: float) -> None:
        # Not longer than a minute, because limits change.
        after = str(min(60, max(1, ceil(seconds))))
        explain = "The tenant has reached its limit of requests or bytes per second."
        super().__init__("SlowDown", explain=explain, headers={"Retry-After": after})


class OriginUnavailable(LarderError):
    """The origin could not be reached, or broke off before its answer was complete.

    ``told`` is the text for readers and operators, without the origin's address, which the message may have.
    """

    told = "the origin cannot be reached, or broke off"


class OriginBusy(OriginUnavailable):
    """No connection to the origin became free in time."""

    told = (
        "all connections to the origin are in use; try again later, or raise origins.max_connections if it bears more"
    )


class OutOfResources(OriginUnavailable):
    """This gateway lacks descriptors or memory to ask the origin; that says nothing about the origin."""

    told = "the gateway is out of descriptors or memory; see /-/readyz"


class IdentityGone(OriginUnavailable):
    """The origin, or the keys to sign with, are no longer in the configuration."""

    told = "the origin of the access key is no longer configured"


class GatewayRefused(OriginUnavailable):
    """The origin refuses the gateway: its keys, its clock, its region or its address. No reader can change that.

    Args:
        message: for the log.
        document: the part of the origin's answer that was read.
        own: the keys are a credential's own keys for the origin, not the configured keys of the origin.
        revokes: the keys were withdrawn from their tenant, so grants under them are void.
    """

    told = "the origin refuses the gateway's own requests; the problems of the gateway name the setting"

    def __init__(self, message: str, document: bytes = b"", *, own: bool = False, revokes: bool = False) -> None:
        super().__init__(message)
        self.document, self.own, self.revokes = document, own, revokes


class CatalogUnavailable(LarderError):
    """The catalog cannot be read or written at the moment; the message has the reason, without secrets."""


class CatalogUnusable(CatalogUnavailable):
    """The database answers, but has no usable catalog: tables are missing, of another version, or inaccessible to this user."""


class DiskUnavailable(LarderError):
    """The cache disk cannot be read or written now; ``reason`` is ``disk`` or ``no-space``."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        super().__init__(f"{reason}: {detail}" if detail else reason)


class BlobGone(LarderError):
    """The bytes of a blob are gone, or were corrupt (and have been dropped)."""


class BrokenBody(LarderError):
    """An answer that has begun cannot be completed; the connection is broken, so that no client takes the answer for complete."""


class ClientGone(LarderError, ConnectionError):
    """The client closed its connection before the answer was complete."""


class ConfigError(LarderError):
    """The configuration is invalid; the message names the field and the remedy."""
