"""``larder://bucket/key`` for fsspec: zarr, xarray, pandas, pyarrow and dask read through a gateway, many reads at once.

Concurrent reads are sent as one batch (`larder.get_many`): all ranges of ``cat_ranges``, and all files that a program reads
concurrently. Listings and sizes come from S3. The file system is read-only; write through the gateway with any S3 client.

Let fsspec import this module (``fsspec.filesystem("larder")``): it needs fsspec, which Larder does not install.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterable, Sequence
from typing import Any

from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractBufferedFile

from larder.base.errors import ObjectMissing, S3Error
from larder.http.credentials import Credentials
from larder.http.s3 import S3, ListedObject
from larder.reading.many import Entry, ManyOptions, ManyReader

_READ_ONLY = 'larder:// is read-only: write with an S3 client, such as "s3://" of s3fs with the same endpoint'
_FORBIDDEN = frozenset({401, 403})
_UNSATISFIABLE = 416
_BLOCK = 5 * 1024**2
"""Bytes that an open file reads at once, unless its caller says otherwise."""

Info = dict[str, Any]


class LarderFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """Objects of a gateway as files.

    Args:
        endpoint: address of the gateway; when left out, ``LARDER_ENDPOINT`` or ``AWS_ENDPOINT_URL``.
        key: access key of the gateway; when left out, the usual places of AWS's tools are searched.
        secret: the key's secret.
        token: the key's session token.
        options: those of `larder.get_many` (``credentials``, ``timeout``, ``retry``, ``request_payer``), and those of
            `fsspec.asyn.AsyncFileSystem`.
    """

    protocol = "larder"

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        key: str | None = None,
        secret: str | None = None,
        token: str | None = None,
        **options: Any,
    ) -> None:
        reading = ManyOptions()
        for name in ManyOptions.__annotations__.keys() & options.keys():
            reading[name] = options.pop(name)  # type: ignore[literal-required]
        super().__init__(**options)
        if key is not None:
            reading.setdefault("credentials", Credentials(key, secret or "", token))
        self._reader = ManyReader(endpoint, **reading)
        self._store: S3 = self._reader.s3
        self._waiting: list[tuple[Entry, asyncio.Future[bytes]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        entry = await self._entry(path, start, end)
        if entry is None:
            return b""
        coming: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, coming))
        if len(self._waiting) == 1:
            # Reads of tasks that are ready now join the batch.
            asyncio.get_running_loop().call_soon(self._send)
        return await coming

    def _send(self) -> None:
        """Send all reads since the last turn of the event loop, in one batch."""
        waiting, self._waiting = self._waiting, []
        task = asyncio.get_running_loop().create_task(self._read(waiting))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _read(self, waiting: Sequence[tuple[Entry, asyncio.Future[bytes]]]) -> None:
        wanted = [(entry, coming) for entry, coming in waiting if not coming.done()]
        try:
            results: Iterable[bytes | Exception] = await self._results([entry for entry, _ in wanted])
        except Exception as failure:
            results = [failure] * len(wanted)
        for (_, coming), result in zip(wanted, results, strict=True):
            if coming.done():
                continue  # its reader was cancelled
            if isinstance(result, Exception):
                coming.set_exception(result)
            else:
                coming.set_result(result)

    async def _results(self, entries: Sequence[Entry]) -> list[bytes | Exception]:
        results = await asyncio.to_thread(self._reader.get, entries, return_exceptions=True)
        return [_as_os_error(result) if isinstance(result, S3Error) else result for result in results]

    async def _cat_ranges(
        self,
        paths: list[str],
        starts: int | Iterable[int | None] | None,
        ends: int | Iterable[int | None] | None,
        max_gap: int | None = None,
        batch_size: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[bytes | Exception]:
        first = list(starts) if isinstance(starts, Iterable) else [starts] * len(paths)
        last = list(ends) if isinstance(ends, Iterable) else [ends] * len(paths)
        if not len(paths) == len(first) == len(last):
            raise ValueError(f"{len(paths)} paths need as many starts and ends, not {len(first)} and {len(last)}")
        entries = await asyncio.gather(*map(self._entry, paths, first, last), return_exceptions=True)
        asked = [entry for entry in entries if isinstance(entry, Entry)]
        results = iter(await self._results(asked) if asked else ())
        merged = [next(results) if isinstance(entry, Entry) else _unasked(entry) for entry in entries]
        if on_error != "return":
            for result in merged:
                if isinstance(result, Exception):
                    raise result
        return merged

    async def _entry(self, path: str, start: int | None, end: int | None) -> Entry | None:
        """The entry for a file, or for its bytes as in a slice; ``None`` for no bytes."""
        bucket, _, key = self._strip_protocol(path).partition("/")
        if not key:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if ((start or 0) < 0 and end is not None) or (end or 0) < 0:
            size = (await self._info(path))["size"]
            start, end, _step = slice(start, end).indices(size)
        if end is not None and (start or 0) >= end:
            return None
        return Entry(bucket, key, start, end)

    async def _info(self, path: str, **_: Any) -> Info:
        path = self._strip_protocol(path)
        bucket, _slash, key = path.partition("/")
        if key:
            try:
                head = await asyncio.to_thread(self._store.head, bucket, key)
            except ObjectMissing:
                pass
            except S3Error as error:
                raise _as_os_error(error) from error
            else:
                return {"name": path, "size": head.size, "type": "file", "ETag": head.etag}
        if bucket and not await self._listed(bucket, f"{key}/" if key else "", most=1) and key:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return _folder(path)

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Info] | list[str]:
        path = self._strip_protocol(path)
        bucket, _slash, key = path.partition("/")
        if not bucket:
            lines = [_folder(name) for name in await asyncio.to_thread(self._store.buckets)]
        else:
            prefix = f"{key}/" if key else ""
            children = await self._listed(bucket, prefix)
            lines = [_line(bucket, child) for child in children if child.key != prefix]
            if not children and key:
                lines = [await self._info(path)]
        return sorted(lines, key=_name) if detail else sorted(map(_name, lines))

    async def _listed(self, bucket: str, prefix: str, most: int | None = None) -> list[ListedObject]:
        def listed() -> list[ListedObject]:
            children = self._store.children(bucket, prefix, most=most)
            return list(children) if most is None else [child for child, _ in zip(children, range(most), strict=False)]

        try:
            return await asyncio.to_thread(listed)
        except S3Error as error:
            raise _as_os_error(error) from error

    async def _get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        info = await self._info(rpath)
        if info["type"] == "directory":
            os.makedirs(lpath, exist_ok=True)
            return
        with await asyncio.to_thread(open, lpath, "wb") as file:
            for start in range(0, info["size"], _BLOCK):
                data = await self._cat_file(rpath, start, min(start + _BLOCK, info["size"]))
                await asyncio.to_thread(file.write, data)

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        raise OSError(errno.EROFS, _READ_ONLY, path)

    async def _put_file(self, lpath: str, rpath: str, mode: str = "overwrite", **_: Any) -> None:
        raise OSError(errno.EROFS, _READ_ONLY, rpath)

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        raise OSError(errno.EROFS, _READ_ONLY, path2)

    async def _rm_file(self, path: str, **_: Any) -> None:
        raise OSError(errno.EROFS, _READ_ONLY, path)

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **options: Any) -> LarderFile:
        if mode != "rb":
            raise OSError(errno.EROFS, _READ_ONLY, path)
        options.pop("autocommit", None)
        return LarderFile(self, path, mode, block_size or _BLOCK, **options)

    def ukey(self, path: str) -> str:
        """A text that changes with the file: its ETag."""
        return str(self.info(path).get("ETag", path))


class LarderFile(AbstractBufferedFile):  # type: ignore[misc]
    """An open object. Reads do not check its ETag: an object overwritten while it is read yields parts of both versions."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start=start, end=end)
        return data


def _unasked(entry: Entry | BaseException | None) -> bytes | Exception:
    if entry is None:
        return b""
    if isinstance(entry, Exception):
        return entry
    raise entry if isinstance(entry, BaseException) else TypeError(entry)


def _as_os_error(error: S3Error) -> Exception:
    """The error that programs expect from a file system."""
    path = f"{error.bucket}/{error.key}"
    kind: type[OSError] = OSError
    number = errno.EIO
    if error.status == 404:
        kind, number = FileNotFoundError, errno.ENOENT
    elif error.status in _FORBIDDEN:
        kind, number = PermissionError, errno.EACCES
    elif error.status == _UNSATISFIABLE:
        number = errno.EINVAL
    failure = kind(number, str(error), path)
    failure.__cause__ = error
    return failure


def _line(bucket: str, child: ListedObject) -> Info:
    name = f"{bucket}/{child.key}"
    if child.key.endswith("/") and not child.etag:
        return _folder(name.rstrip("/"))
    return {"name": name, "size": child.size, "type": "file", "ETag": child.etag}


def _folder(path: str) -> Info:
    return {"name": path, "size": 0, "type": "directory"}


def _name(line: Info) -> str:
    return str(line["name"])
