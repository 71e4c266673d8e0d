"""How stores answer what S3 leaves open, or leave out: the rows of the table "stores" of docs/s3-compatibility.md.

Each row asks a real server. ``python -m tests.differential.store_table`` (``make stores``) writes the table anew.
"""

from __future__ import annotations

import re
import tempfile
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from rig.moto import moto_server
from rig.radosgw import shared_radosgw, stop_radosgw
from rig.stores import NAMES, store, version_of
from tests.differential.asks import Ask, Door, Reply
from tests.differential.sides import origin_door

PAGE = Path(__file__).resolve().parents[2] / "docs/s3-compatibility.md"
_TABLE = re.compile(r"(<!-- measured: stores -->\n).*?(<!-- end -->)", re.DOTALL)
BODY = bytes(range(256)) * 8
_PART = 5 * 2**20
_OTHER = '"00000000000000000000000000000000"'
_KEYS = ("a-b", "a/b", "a.b", "a0")


class Shop:
    """A new bucket of one store, with an object ``k`` and an empty one ``e``."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._bucket = f"rows-{uuid.uuid4().hex[:8]}"
        self._uploaded: tuple[str, str, str] | None = None
        assert self.ask("PUT").status == 200
        self.ask("PUT", "k", body=BODY)
        self.ask("PUT", "e")
        self.head = self.ask("HEAD", "k").headers

    def ask(self, method: str, key: str = "", query: str = "", body: bytes = b"", **headers: str) -> Reply:
        """Ask the store; underscores in the names of headers are hyphens."""
        named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
        return self._door.send(Ask(method, self._bucket, key, query, named, body=body))

    def source(self, key: str) -> str:
        """The value of x-amz-copy-source."""
        return f"/{self._bucket}/{key}"

    def uploaded(self) -> tuple[str, str, str]:
        """Upload ``m`` in two parts, twice: the ETag of the first completion, that of a read, and the second one's status, which
        has If-None-Match: *."""
        if self._uploaded is None:
            first = _etag(self._completed())
            read = self.ask("HEAD", "m").headers.get("etag", "").strip('"')
            second = self._completed(If_None_Match="*")
            self._uploaded = first, read, "412" if second.status == 412 else _kept(second, "completed")
        return self._uploaded

    def _completed(self, **headers: str) -> Reply:
        upload = _text(self.ask("POST", "m", "uploads"), "UploadId")
        parts = ""
        for number, body in enumerate((bytes(_PART), b"end"), 1):
            etag = self.ask("PUT", "m", f"partNumber={number}&uploadId={upload}", body).headers["etag"]
            parts += f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
        document = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        return self.ask("POST", "m", f"uploadId={upload}", document, **headers)


def _text(reply: Reply, name: str) -> str:
    found = re.search(rf"<{name}>([^<]*)<".encode(), reply.body)
    assert found is not None, f"{reply.status} {reply.body[:300]!r}"
    return found[1].decode()


def _etag(reply: Reply) -> str:
    return _text(reply, "ETag").replace("&quot;", "").replace("&#34;", "").strip('"')


def _kept(reply: Reply, otherwise: str) -> str:
    return otherwise if reply.status == 200 else str(reply.status)


def _part(reply: Reply) -> str:
    """What came of a request for bytes."""
    span = reply.headers.get("content-range")
    if reply.status >= 400:
        return str(reply.status)
    whole = ", the whole" if len(reply.body) == len(BODY) and span is None else ""
    odd = f", `{span}`" if span and "--" in span else ""
    return f"{reply.status}{whole}{odd}{', Content-Range' if reply.status == 200 and span else ''}"


def _range(shop: Shop) -> str:
    reply = shop.ask("GET", "k", Range="bytes=3-9")
    assert reply.body in (BODY[3:10], BODY)
    return _part(reply)


def _several(shop: Shop) -> str:
    reply = shop.ask("GET", "k", Range="bytes=0-0,5-9")
    if reply.status == 206 and reply.body == BODY[:1]:
        return "206, the first"
    return "206, all" if "multipart" in reply.headers.get("content-type", "") else _part(reply)


def _long_suffix(shop: Shop) -> str:
    return _part(shop.ask("GET", "k", Range=f"bytes=-{len(BODY) + 1}"))


def _no_suffix(shop: Shop) -> str:
    return _part(shop.ask("GET", "k", Range="bytes=-0"))


def _of_empty(shop: Shop) -> str:
    first, last = (_part(shop.ask("GET", "e", Range=value)) for value in ("bytes=0-9", "bytes=-9"))
    return first if first == last else f"{first}; of its end: {last}"


def _head_range(shop: Shop) -> str:
    reply = shop.ask("HEAD", "k", Range="bytes=3-9")
    return f"{reply.status}, {reply.headers.get('content-length')} bytes"


def _condition(name: str, value: Callable[[Shop], str], status: int) -> Callable[[Shop], str]:
    def row(shop: Shop) -> str:
        reply = shop.ask("GET", "k", **{name: value(shop)})
        return str(status) if reply.status == status else _kept(reply, "ignored")

    return row


def _guarded(name: str, value: str) -> Callable[[Shop], str]:
    def row(shop: Shop) -> str:
        shop.ask("PUT", "w", body=b"first")
        reply = shop.ask("PUT", "w", body=b"second", **{name: value})
        return str(reply.status) if shop.ask("GET", "w").body == b"first" else "ignored"

    return row


def _guarded_upload(shop: Shop) -> str:
    return shop.uploaded()[2].replace("completed", "ignored")


def _upload_etag(shop: Shop) -> str:
    first, read, _ = shop.uploaded()
    told, kind = ('"-2"' if etag.endswith("-2") else "MD5" if etag else "none" for etag in (first, read))
    return kind if first == read else f"{kind}; Complete says {told}"


def _copy_etag(shop: Shop) -> str:
    shop.uploaded()
    shop.ask("PUT", "copy", x_amz_copy_source=shop.source("m"))
    return '"-2"' if "-2" in shop.ask("HEAD", "copy").headers.get("etag", "") else "MD5"


def _wrong_checksum(shop: Shop) -> str:
    reply = shop.ask("PUT", "c", body=b"body", x_amz_checksum_crc32=b64encode(bytes(4)).decode())
    if reply.status != 200:
        return str(reply.status)
    told = shop.ask("GET", "c", x_amz_checksum_mode="ENABLED").headers.get("x-amz-checksum-crc32")
    return "stored, and shown" if told else "stored"


def _checksum(shop: Shop) -> str:
    shop.ask("PUT", "d", body=b"hello", x_amz_checksum_crc32="NhCmhg==")
    told = shop.ask("GET", "d", x_amz_checksum_mode="ENABLED").headers.get("x-amz-checksum-crc32")
    return "shown" if told == "NhCmhg==" else "none"


def _metadata(shop: Shop) -> str:
    shop.ask("PUT", "u", body=b"u", x_amz_meta_a="1", Content_Type="x/y", Cache_Control="max-age=9")
    headers = shop.ask("HEAD", "u").headers
    wanted = {"x-amz-meta-a": "1", "content-type": "x/y", "cache-control": "max-age=9"}
    lost = [name for name, value in wanted.items() if headers.get(name) != value]
    return f"without {', '.join(lost)}" if lost else "kept"


def _attributes(shop: Shop) -> str:
    reply = shop.ask("GET", "k", "attributes", x_amz_object_attributes="ETag,ObjectSize")
    return "the object's bytes" if reply.body == BODY else _kept(reply, "yes")


def _part_number(shop: Shop) -> str:
    shop.uploaded()
    reply = shop.ask("GET", "m", "partNumber=1")
    return "the part" if len(reply.body) == _PART else f"{reply.status}, the whole"


def _order(shop: Shop) -> str:
    for key in _KEYS:
        shop.ask("PUT", key, body=b"1")
    keys = re.findall(rb"<Key>(a[^<]*)</Key>", shop.ask("GET", query="list-type=2&prefix=a").body)
    assert sorted(keys) == sorted(key.encode() for key in _KEYS)
    return "bytes" if keys == sorted(keys) else ", ".join(f"`{key.decode()}`" for key in keys)


def _times(shop: Shop) -> str:
    listed = _text(shop.ask("GET", query="list-type=2&prefix=k"), "LastModified")
    read = parsedate_to_datetime(shop.head["last-modified"])
    return "equal" if abs((datetime.fromisoformat(listed) - read).total_seconds()) <= 1 else "differ"


def _versions(shop: Shop) -> str:
    """The last row: the bucket has versions from then on."""
    document = b'<VersioningConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Status>Enabled</Status>'
    reply = shop.ask("PUT", query="versioning", body=document + b"</VersioningConfiguration>")
    if reply.status != 200:
        return str(reply.status)
    shop.ask("PUT", "v", body=b"1")
    shop.ask("DELETE", "v")
    head, get = shop.ask("HEAD", "v").status, shop.ask("GET", "v").status
    return f"yes; a delete marker: {get}" + (f", to HEAD {head}" if head != get else "")


ROWS: dict[str, tuple[str, Callable[[Shop], str]]] = {
    "a range": ("206", _range),
    "several ranges": ("not supported", _several),
    "the last bytes, more than there are": ("-", _long_suffix),
    "the last no bytes (`bytes=-0`)": ("-", _no_suffix),
    "a range of an empty object": ("-", _of_empty),
    "HEAD with a range": ("206", _head_range),
    "GET, If-Match": ("412", _condition("If-Match", lambda _: _OTHER, 412)),
    "GET, If-None-Match": ("304", _condition("If-None-Match", lambda shop: shop.head.get("etag", _OTHER), 304)),
    "GET, If-Modified-Since": ("304", _condition("If-Modified-Since", lambda shop: shop.head["last-modified"], 304)),
    "GET, If-Unmodified-Since": (
        "412",
        _condition("If-Unmodified-Since", lambda _: "Thu, 01 Jan 2015 00:00:00 GMT", 412),
    ),
    "PUT, If-None-Match: *": ("412", _guarded("If-None-Match", "*")),
    "PUT, If-Match": ("412", _guarded("If-Match", _OTHER)),
    "Complete, If-None-Match: *": ("412", _guarded_upload),
    "ETag of an upload in parts": ('"-2"', _upload_etag),
    "ETag of its copy": ("MD5", _copy_etag),
    "a wrong checksum": ("400", _wrong_checksum),
    "a checksum": ("shown", _checksum),
    "metadata, type, Cache-Control": ("kept", _metadata),
    "GetObjectAttributes": ("yes", _attributes),
    "partNumber=1": ("the part", _part_number),
    "order of listings": ("bytes", _order),
    "times in listings and reads": ("-", _times),
    "versions": ("yes; a delete marker: 404", _versions),
}
"""By name: what the documentation of AWS says ("-": nothing), and the question."""


def cells(endpoint: str) -> dict[str, str]:
    """The answers of a store, by row."""
    with closing(origin_door(endpoint)) as door:
        shop = Shop(door)
        return {row: ask(shop) for row, (_, ask) in ROWS.items()}


def shown() -> dict[str, dict[str, str]]:
    """The table of the page: by the first word of a column, its cells by row."""
    section = _TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert section is not None
    lines = [line.strip("| ").split(" | ") for line in section[0].splitlines() if line.startswith("|")]
    names = [title.split()[0].lower() for title in lines[0]]
    return {name: {line[0]: line[number] for line in lines[2:]} for number, name in enumerate(names) if number}


@contextmanager
def _measured(home: Path) -> Iterator[dict[str, dict[str, str]]]:
    columns = {"AWS, documented": {row: documented for row, (documented, _) in ROWS.items()}}
    with moto_server() as endpoint:
        columns[f"moto {version_of('moto')}"] = cells(endpoint)
    radosgw = shared_radosgw(home, int(Path("/proc/self").resolve().name))
    try:
        columns[f"radosgw {version_of('radosgw')}"] = cells(radosgw.endpoint)
    finally:
        stop_radosgw(radosgw)
    for name in NAMES:
        with store(name, home) as endpoint:
            columns[f"{name} {version_of(name)}"] = cells(endpoint)
    yield columns


def main() -> None:
    """Write the table."""
    with tempfile.TemporaryDirectory(prefix="stores-") as home, _measured(Path(home)) as columns:
        lines = [f"| request or answer | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        lines += [f"| {row} | {' | '.join(column[row] for column in columns.values())} |" for row in ROWS]
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(
        _TABLE.sub(lambda found: f"{found[1]}\n" + "\n".join(lines) + f"\n\n{found[2]}", text), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
