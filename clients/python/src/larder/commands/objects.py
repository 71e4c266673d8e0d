"""``larder ls`` and ``larder cp``: objects by their addresses, one at a time."""

from __future__ import annotations

import mimetypes
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from larder.commands import output
from larder.http.credentials import CredentialSource, endpoint_of
from larder.http.s3 import S3
from larder.http.stream import PIECE, Part, stream

_SCHEME = "s3://"


def listing(arguments: Namespace) -> int:
    """``larder ls``."""
    bucket, prefix = _parts(arguments.place) if arguments.place else ("", "")
    with _store(arguments) as s3:
        if not bucket:
            for name in s3.buckets():
                _print(arguments, {"bucket": name}, f"{_SCHEME}{output.printable(name)}")
            return 0
        empty = True
        for entry in s3.list(bucket, prefix) if arguments.recursive else s3.children(bucket, prefix):
            empty = False
            folder = entry.key.endswith("/") and not entry.etag
            size = f"{'' if folder else f'{entry.size:,}':>15}"
            document = {"folder": entry.key} if folder else asdict(entry)
            _print(arguments, {"bucket": bucket, **document}, f"{size}  {output.place(bucket, entry.key)}")
    if empty and prefix:
        output.note(f"larder: no key in {bucket} begins with {output.printable(prefix)!r}")
    return 1 if empty and prefix else 0


def copy(arguments: Namespace) -> int:
    """``larder cp``."""
    source, target = arguments.source, arguments.target
    if source.startswith(_SCHEME) == target.startswith(_SCHEME):
        raise ValueError("one of SOURCE and TARGET must be s3://BUCKET/KEY, and the other a file or -")
    with _store(arguments) as s3:
        if source.startswith(_SCHEME):
            _download(s3, *_object(source), target)
        else:
            _upload(s3, source, target)
    return 0


def _download(s3: S3, bucket: str, key: str, target: str) -> None:
    if target == "-":
        _fetch(s3, bucket, key, sys.stdout.buffer)
        return
    path = Path(target)
    if path.is_dir() or target.endswith("/"):
        path /= _name(key)
    path = path.resolve()
    if path.exists() and not path.is_file():  # a device or a pipe
        with path.open("wb") as file:
            _fetch(s3, bucket, key, file)
        return
    unfinished = path.with_name(path.name + ".writing")
    try:
        with unfinished.open("wb") as file:
            _fetch(s3, bucket, key, file)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _fetch(s3: S3, bucket: str, key: str, file: BinaryIO) -> None:
    """Write an object to a file; a read that breaks off resumes at that place, in the same version."""
    with stream(s3, Part(bucket, key)) as opened:
        while piece := opened.read(PIECE):
            file.write(piece)


def _upload(s3: S3, source: str, target: str) -> None:
    bucket, key = _parts(target)
    if not key or key.endswith("/"):
        if source == "-":
            raise ValueError(f"{target} names a folder, and - has no name: give the whole key")
        key += Path(source).name
    if source != "-":
        with Path(source).open("rb") as file:
            _send(s3, bucket, key, file)
        return
    with tempfile.TemporaryFile() as spooled:
        shutil.copyfileobj(sys.stdin.buffer, spooled, PIECE)
        _send(s3, bucket, key, spooled)


def _send(s3: S3, bucket: str, key: str, file: BinaryIO) -> None:
    kind, _encoding = mimetypes.guess_type(key)
    s3.put(bucket, key, file, **({"content_type": kind} if kind else {}))


def _object(place: str) -> tuple[str, str]:
    bucket, key = _parts(place)
    if not key:
        raise ValueError(f"{place} names no object")
    return bucket, key


def _parts(place: str) -> tuple[str, str]:
    bucket, _, key = place.removeprefix(_SCHEME).partition("/")
    if not bucket or not place.startswith(_SCHEME):
        raise ValueError(f"{place!r} must look like s3://BUCKET/KEY")
    return bucket, key


def _name(key: str) -> str:
    """The file name for a key in a directory."""
    name = key.rpartition("/")[2]
    if name in ("", ".", ".."):
        raise ValueError(f"{output.printable(key)!r} ends in no file name: name the file")
    return name


@contextmanager
def _store(arguments: Namespace) -> Iterator[S3]:
    endpoint = endpoint_of(arguments.endpoint, profile=arguments.profile)
    s3 = S3(endpoint, credentials=CredentialSource(profile=arguments.profile), request_payer=arguments.request_payer)
    try:
        yield s3
    finally:
        s3.close()


def _print(arguments: Namespace, document: object, text: str) -> None:
    if arguments.json:
        output.document(document)
    else:
        output.line(text)
