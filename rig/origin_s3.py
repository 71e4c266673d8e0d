"""The S3 of the fake origin: objects in memory, conditionals, ranges, lists, copies and multipart uploads."""

from __future__ import annotations

import hashlib
import time
import uuid
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from email.utils import formatdate, parsedate_to_datetime
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from defusedxml.ElementTree import fromstring

from rig.origin_auth import OriginRefusal, OriginRequest

Header = tuple[str, str]

_RIGHTS = frozenset({"policy", "acl", "publicAccessBlock", "ownershipControls", "tagging"})
_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_ENTITY = ("content-type", "content-encoding", "content-disposition", "content-language", "cache-control", "expires")
_OF_304 = ("cache-control", "expires")
_OVERRIDES = ("content-type", "content-language", "expires", "cache-control", "content-disposition", "content-encoding")


@dataclass(frozen=True)
class Stored:
    """One object; ``headers`` are replayed, ``checksums`` are the headers sent only with ``x-amz-checksum-mode``."""

    body: bytes = field(repr=False)
    etag: str
    modified: int
    headers: tuple[Header, ...] = ()
    checksums: tuple[Header, ...] = ()
    parts: tuple[int, ...] = ()
    """Bytes of each part of a multipart upload."""


@dataclass
class _Upload:
    bucket: str
    key: str
    headers: tuple[Header, ...]
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass
class OriginAnswer:
    """An answer; ``length`` is that of the body, even if a HEAD does not send it."""

    status: int
    headers: list[Header]
    body: bytes = b""


def xml(body: str, status: int = 200, headers: Sequence[Header] = ()) -> OriginAnswer:
    """An XML answer."""
    document = f'<?xml version="1.0" encoding="UTF-8"?>\n{body}'.encode()
    return OriginAnswer(status, [("Content-Type", "application/xml"), *headers], document)


def error(status: int, code: str, message: str = "", headers: Sequence[Header] = ()) -> OriginAnswer:
    """An S3 error document."""
    return xml(f"<Error><Code>{code}</Code><Message>{escape(message or code)}</Message></Error>", status, headers)


class Buckets:
    """The objects of the fake origin. A part of a multipart upload may have any size, so tests stay small."""

    def __init__(self) -> None:
        self.page = 1000
        """The most keys and common prefixes of a listing's page."""
        self.objects: dict[str, dict[str, Stored]] = {}
        self.pages: dict[str, str] = {}
        """By bucket, the web origin whose pages its CORS rules allow to read."""
        self._uploads: dict[str, _Upload] = {}

    def put(self, bucket: str, key: str, body: bytes, headers: Sequence[Header] = ()) -> Stored:
        """Store an object as if it had been uploaded; creates a missing bucket."""
        etag = f'"{hashlib.md5(body).hexdigest()}"'
        return self._store(bucket, key, body, etag, headers)

    def answer(self, asked: OriginRequest) -> OriginAnswer:
        """Perform one authenticated request. Raises OriginRefusal."""
        if not asked.bucket:
            return self._list_buckets()
        return self._for_object(asked) if asked.key else self._for_bucket(asked)

    def _store(self, bucket: str, key: str, body: bytes, etag: str, headers: Sequence[Header]) -> Stored:
        kept = [(n, v) for n, v in headers if n.lower() in _ENTITY or n.lower().startswith("x-amz-meta-")]
        if not any(name.lower() == "content-type" for name, _ in kept):
            kept.append(("Content-Type", "binary/octet-stream"))
        sums = tuple(
            (n, v) for n, v in headers if n.lower().startswith("x-amz-checksum-") and n.lower() != "x-amz-checksum-mode"
        )
        if sums:
            sums += (("x-amz-checksum-type", "FULL_OBJECT"),)
        stored = Stored(body, etag, int(time.time()), tuple(kept), sums)
        self.objects.setdefault(bucket, {})[key] = stored
        return stored

    def _for_bucket(self, asked: OriginRequest) -> OriginAnswer:
        method, parameters = asked.method, asked.parameters
        if method == "PUT" and not parameters:
            self.objects.setdefault(asked.bucket, {})
            return OriginAnswer(200, [("Location", f"/{asked.bucket}")])
        objects = self._bucket(asked.bucket)
        if method == "HEAD":
            return OriginAnswer(200, [])
        if method == "DELETE" and not parameters:
            if objects:
                raise OriginRefusal(409, "BucketNotEmpty")
            del self.objects[asked.bucket]
            return OriginAnswer(204, [])
        if method == "POST" and "delete" in parameters:
            return self._delete_many(asked, objects)
        if method == "GET" and "location" in parameters:
            return xml(f"<LocationConstraint {_NAMESPACE}/>")
        if method == "GET" and parameters.get("list-type") == "2":
            return _list(asked.bucket, objects, parameters, self.page)
        if method in ("PUT", "DELETE") and parameters.keys() <= _RIGHTS:
            return OriginAnswer(204, [])  # accepted without effect: tests refuse users by ``FakeOrigin.deny``
        raise OriginRefusal(501, "NotImplemented")

    def _for_object(self, asked: OriginRequest) -> OriginAnswer:
        objects = self._bucket(asked.bucket)
        method, parameters = asked.method, asked.parameters
        meaning = {name for name in parameters if not name.startswith(("X-Amz-", "response-")) and name != "x-id"}
        if parameters.get("versionId") in ("null", ""):
            meaning.discard("versionId")
        if method in ("GET", "HEAD"):
            meaning.discard("partNumber")
        if method in ("GET", "HEAD") and not meaning:
            answer = _read(asked, _existing(objects, asked.key))
            if (page := self.pages.get(asked.bucket)) is not None and asked.header("origin") == page:
                answer.headers += [("Access-Control-Allow-Origin", page), ("Vary", "Origin")]
            return answer
        if method == "PUT" and not meaning:
            return self._put(asked, objects)
        if method == "DELETE" and not meaning:
            objects.pop(asked.key, None)
            return OriginAnswer(204, [])
        if method == "POST" and meaning == {"uploads"}:
            return self._begin(asked)
        if "uploadId" in meaning:
            return self._multipart(asked, parameters)
        raise OriginRefusal(501, "NotImplemented")

    def _bucket(self, name: str) -> dict[str, Stored]:
        if name not in self.objects:
            raise OriginRefusal(404, "NoSuchBucket")
        return self.objects[name]

    def _list_buckets(self) -> OriginAnswer:
        names = "".join(f"<Bucket><Name>{escape(name)}</Name></Bucket>" for name in sorted(self.objects))
        return xml(f"<ListAllMyBucketsResult {_NAMESPACE}><Buckets>{names}</Buckets></ListAllMyBucketsResult>")

    def _put(self, asked: OriginRequest, objects: dict[str, Stored]) -> OriginAnswer:
        if asked.header("if-none-match") == "*" and asked.key in objects:
            raise OriginRefusal(412, "PreconditionFailed")
        wanted = asked.header("if-match")
        if wanted and (asked.key not in objects or objects[asked.key].etag != wanted):
            raise OriginRefusal(412, "PreconditionFailed")
        if asked.header("x-amz-copy-source"):
            source = self._copy_source(asked)
            keep = asked.header("x-amz-metadata-directive").upper() != "REPLACE"
            headers = source.headers if keep else asked.headers
            stored = self._store(asked.bucket, asked.key, source.body, _etag(source.body), headers)
            stored = objects[asked.key] = replace(stored, checksums=source.checksums)
            return xml(_copied("CopyObjectResult", stored.etag, stored.modified))
        _check_md5(asked)
        stored = self._store(asked.bucket, asked.key, asked.body, _etag(asked.body), asked.headers)
        return OriginAnswer(200, [("ETag", stored.etag), *stored.checksums])

    def _copy_source(self, asked: OriginRequest) -> Stored:
        source = unquote(asked.header("x-amz-copy-source")).removeprefix("/").partition("?")[0]
        bucket, _, key = source.partition("/")
        stored = _existing(self._bucket(bucket), key)
        wanted = asked.header("x-amz-copy-source-if-match")
        if wanted and wanted != stored.etag:
            raise OriginRefusal(412, "PreconditionFailed")
        return stored

    def _begin(self, asked: OriginRequest) -> OriginAnswer:
        upload_id = uuid.uuid4().hex
        self._uploads[upload_id] = _Upload(asked.bucket, asked.key, asked.headers)
        return xml(
            f"<InitiateMultipartUploadResult {_NAMESPACE}><Bucket>{escape(asked.bucket)}</Bucket>"
            f"<Key>{escape(asked.key)}</Key><UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>"
        )

    def _multipart(self, asked: OriginRequest, parameters: dict[str, str]) -> OriginAnswer:
        upload = self._uploads.get(parameters["uploadId"])
        if upload is None or (upload.bucket, upload.key) != (asked.bucket, asked.key):
            raise OriginRefusal(404, "NoSuchUpload")
        if asked.method == "PUT":
            return self._put_part(asked, upload, int(parameters["partNumber"]))
        if asked.method == "DELETE":
            del self._uploads[parameters["uploadId"]]
            return OriginAnswer(204, [])
        if asked.method == "POST":
            answer = self._complete(asked, upload)
            del self._uploads[parameters["uploadId"]]
            return answer
        rows = "".join(
            f"<Part><PartNumber>{n}</PartNumber><ETag>{_etag(b)}</ETag><Size>{len(b)}</Size></Part>"
            for n, b in sorted(upload.parts.items())
        )
        return xml(f"<ListPartsResult {_NAMESPACE}>{rows}</ListPartsResult>")

    def _put_part(self, asked: OriginRequest, upload: _Upload, number: int) -> OriginAnswer:
        if not asked.header("x-amz-copy-source"):
            _check_md5(asked)
            upload.parts[number] = asked.body
            return OriginAnswer(200, [("ETag", _etag(asked.body))])
        body = self._copy_source(asked).body
        if span := asked.header("x-amz-copy-source-range"):
            first, _, last = span.removeprefix("bytes=").partition("-")
            body = body[int(first) : int(last) + 1]
        upload.parts[number] = body
        return xml(_copied("CopyPartResult", _etag(body), int(time.time())))

    def _complete(self, asked: OriginRequest, upload: _Upload) -> OriginAnswer:
        bodies: list[bytes] = []
        last = 0
        for part in _elements(asked.body, "Part"):
            number, etag = int(_text(part, "PartNumber")), _text(part, "ETag").strip('"')
            if number not in upload.parts or _etag(upload.parts[number]).strip('"') != etag:
                raise OriginRefusal(400, "InvalidPart")
            if number <= last:
                raise OriginRefusal(400, "InvalidPartOrder")
            last = number
            bodies.append(upload.parts[number])
        if not bodies:
            raise OriginRefusal(400, "MalformedXML")
        digest = hashlib.md5(b"".join(hashlib.md5(body).digest() for body in bodies)).hexdigest()
        stored = self._store(upload.bucket, upload.key, b"".join(bodies), f'"{digest}-{len(bodies)}"', upload.headers)
        self.objects[upload.bucket][upload.key] = replace(stored, parts=tuple(map(len, bodies)))
        return xml(
            f"<CompleteMultipartUploadResult {_NAMESPACE}><Bucket>{escape(upload.bucket)}</Bucket>"
            f"<Key>{escape(upload.key)}</Key><ETag>{stored.etag}</ETag></CompleteMultipartUploadResult>"
        )

    def _delete_many(self, asked: OriginRequest, objects: dict[str, Stored]) -> OriginAnswer:
        keys = [_text(element, "Key") for element in _elements(asked.body, "Object")]
        for key in keys:
            objects.pop(key, None)
        rows = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return xml(f"<DeleteResult {_NAMESPACE}>{rows}</DeleteResult>")


def _existing(objects: dict[str, Stored], key: str) -> Stored:
    if key not in objects:
        raise OriginRefusal(404, "NoSuchKey")
    return objects[key]


def _read(asked: OriginRequest, stored: Stored) -> OriginAnswer:
    headers = [("ETag", stored.etag), ("Last-Modified", formatdate(stored.modified, usegmt=True))]
    status = _condition(asked, stored)
    if status == 304:
        return OriginAnswer(304, headers + [pair for pair in stored.headers if pair[0].lower() in _OF_304])
    if status == 412:
        return error(412, "PreconditionFailed")
    headers += [("Accept-Ranges", "bytes"), *stored.headers]
    for name in _OVERRIDES:
        if value := asked.parameters.get(f"response-{name}"):
            headers = [(n, v) for n, v in headers if n.lower() != name] + [(name.title(), value)]
    ranged = asked.header("if-range") in ("", stored.etag)
    span = _span(asked.header("range"), len(stored.body)) if ranged else None
    if (number := asked.parameters.get("partNumber")) is not None and stored.body:
        return _part(asked, stored, headers, int(number))
    if span is None:
        if asked.header("x-amz-checksum-mode").upper() == "ENABLED":
            headers += stored.checksums
        return OriginAnswer(200, headers, stored.body)
    first, last = span
    if first > last:
        return error(416, "InvalidRange", headers=[("Content-Range", f"bytes */{len(stored.body)}")])
    headers.append(("Content-Range", f"bytes {first}-{last}/{len(stored.body)}"))
    return OriginAnswer(206, headers, stored.body[first : last + 1])


def _part(asked: OriginRequest, stored: Stored, headers: list[Header], number: int) -> OriginAnswer:
    """One part in AWS's form: 206, with a number of parts only after a multipart upload."""
    if asked.header("range"):
        raise OriginRefusal(400, "InvalidRequest", "Cannot specify both Range header and partNumber query parameter")
    sizes = stored.parts or (len(stored.body),)
    if not 1 <= number <= len(sizes):
        raise OriginRefusal(416, "InvalidPartNumber")
    start = sum(sizes[: number - 1])
    body = stored.body[start : start + sizes[number - 1]]
    headers = [*headers, ("Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(stored.body)}")]
    if stored.parts:
        headers.append(("x-amz-mp-parts-count", str(len(sizes))))
    elif asked.header("x-amz-checksum-mode").upper() == "ENABLED":
        headers += stored.checksums
    return OriginAnswer(206, headers, body)


def _condition(asked: OriginRequest, stored: Stored) -> int:
    """The status that RFC 9110, section 13.2.2 gives for the conditionals: 200, 304 or 412."""
    match, none_match = asked.header("if-match"), asked.header("if-none-match")
    since, unmodified = asked.header("if-modified-since"), asked.header("if-unmodified-since")
    if match:
        if match.strip() != "*" and stored.etag not in _tags(match):
            return 412
    elif unmodified and (limit := _date(unmodified)) is not None and stored.modified > limit:
        return 412
    if none_match:
        if none_match.strip() == "*" or stored.etag in {tag.removeprefix("W/") for tag in _tags(none_match)}:
            return 304
    elif since and (limit := _date(since)) is not None and stored.modified <= limit:
        return 304
    return 200


def _tags(value: str) -> set[str]:
    tags = (tag.strip() for tag in value.split(","))
    return {tag if tag.startswith(('"', 'W/"')) else f'"{tag}"' for tag in tags}


def _date(value: str) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp()
    except ValueError:
        return None


def _span(value: str, size: int) -> tuple[int, int] | None:
    """First and last byte; first > last if unsatisfiable; ``None`` without a single, valid byte range."""
    unit, _, spec = value.partition("=")
    first, dash, last = spec.partition("-")
    if unit.lower() != "bytes" or not dash or "," in value or not (first + last).isdigit():
        return None
    if not first:
        wanted = min(int(last), size)
        return size - wanted, size - 1
    if last and int(last) < int(first):
        return None
    return int(first), min(int(last) if last else size - 1, size - 1)


def _list(bucket: str, objects: dict[str, Stored], parameters: dict[str, str], page: int) -> OriginAnswer:
    prefix, delimiter = parameters.get("prefix", ""), parameters.get("delimiter", "")
    limit = min(int(parameters.get("max-keys", "1000")), page)
    after = parameters.get("continuation-token") or parameters.get("start-after", "")
    url = parameters.get("encoding-type") == "url"
    rows: list[str] = []
    seen: set[str] = set()
    token = ""
    for key in sorted(objects, key=str.encode):
        if not key.startswith(prefix) or key.encode() <= after.encode():
            continue
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        group = key[: cut + len(delimiter)] if cut >= 0 else ""
        if group and (group in seen or group == after or (after and after.startswith(group))):
            continue
        if len(rows) == limit:
            token = token or "more"
            break
        rows.append(_row(key, objects[key], group, url))
        seen.add(group)
        last = group or key
    more = bool(token)
    tail = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more and rows else ""
    return xml(
        f"<ListBucketResult {_NAMESPACE}><Name>{escape(bucket)}</Name><Prefix>{_name(prefix, url)}</Prefix>"
        f"{'<EncodingType>url</EncodingType>' if url else ''}<KeyCount>{len(rows)}</KeyCount>"
        f"<MaxKeys>{limit}</MaxKeys><IsTruncated>{str(more and bool(rows)).lower()}"
        f"</IsTruncated>{tail}{''.join(rows)}</ListBucketResult>"
    )


def _row(key: str, stored: Stored, group: str, url: bool) -> str:
    if group:
        return f"<CommonPrefixes><Prefix>{_name(group, url)}</Prefix></CommonPrefixes>"
    when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.modified))
    return (
        f"<Contents><Key>{_name(key, url)}</Key><LastModified>{when}</LastModified><ETag>{escape(stored.etag)}</ETag>"
        f"<Size>{len(stored.body)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def _name(key: str, url: bool) -> str:
    return quote(key, safe="/-_.*") if url else escape(key)


def _copied(element: str, etag: str, modified: int) -> str:
    when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(modified))
    return f"<{element} {_NAMESPACE}><LastModified>{when}</LastModified><ETag>{etag}</ETag></{element}>"


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


def _check_md5(asked: OriginRequest) -> None:
    digest = asked.header("content-md5")
    if digest and b64decode(digest) != hashlib.md5(asked.body).digest():
        raise OriginRefusal(400, "BadDigest")


def _elements(document: bytes, name: str) -> list[object]:
    try:
        return [element for element in fromstring(document).iter() if element.tag.rpartition("}")[2] == name]
    except SyntaxError:
        raise OriginRefusal(400, "MalformedXML") from None


def _text(element: object, name: str) -> str:
    for child in element:  # type: ignore[attr-defined]
        if child.tag.rpartition("}")[2] == name:
            return child.text or ""
    raise OriginRefusal(400, "MalformedXML")
