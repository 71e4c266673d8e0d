"""The access log in the format of Amazon S3 server access logs, without secrets (``gateway/model/s3/redaction.py``).

The fields and their order are those of the "Amazon S3 server access log format" page; fields unknown to a gateway are "-".
"""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO
from urllib.parse import quote

from gateway.model.errors import ConfigError
from gateway.model.s3.redaction import redact_address, redact_path

_UNSAFE = re.compile(r"[^\x20\x21\x23-\x7e]")


@dataclass(frozen=True, slots=True)
class AccessLine:
    """One line of the log. Times are in seconds; ``size`` is the length of the body sent.

    For a request that was refused before verification, ``bucket``, ``key``, ``requester`` and ``signature`` are unverified
    claims.
    """

    bucket: str
    key: str | None
    remote: str
    requester: str
    request_id: str
    method: str
    target: str
    status: int
    code: str
    size: int
    seconds: float
    turn_around: float
    referer: str
    agent: str
    signature: str
    auth_type: str
    host: str
    tls: bool
    cache: str

    def render(self, now: float) -> str:
        """Render the line without a newline. Two fields follow S3's: the cache status, as ``HIT`` or ``MISS; reason=cold``."""
        moment = time.strftime("[%d/%b/%Y:%H:%M:%S +0000]", time.gmtime(now))
        kind = "SERVICE" if not self.bucket else "BUCKET" if self.key is None else "OBJECT"
        return " ".join(
            (
                "-", _word(redact_path(self.bucket)), moment, self.remote or "-", _word(self.requester), self.request_id,
                f"REST.{self.method}.{kind}", quote(redact_path(self.key), safe="/-_.~") if self.key else "-",
                _quoted(f"{self.method} {redact_address(self.target)} HTTP/1.1"), str(self.status), self.code or "-",
                str(self.size) if self.size else "-", "-", str(round(self.seconds * 1000)),
                str(round(self.turn_around * 1000)), _quoted(redact_address(self.referer)), _quoted(self.agent), "-", "-",
                self.signature or "-", "-", self.auth_type or "-", _word(self.host), "TLSv1.3" if self.tls else "-", "-", "-",
                _quoted(self.cache),
            )
        )  # fmt: skip


class AccessLog:
    """Writes lines to a file or to standard output; a failure to write never fails a request.

    A new file is readable by its owner only (0600); an existing file keeps its mode, so that a group can be given access.
    A file that was renamed or removed, as logrotate does, is noticed within a second, and a new one is opened. When a line
    cannot be written, as on a full disk, the file is opened again a second later; lines in between are lost.

    Raises:
        ConfigError: the file cannot be opened.
    """

    look_every = 1.0
    """Seconds between two checks of the file's name."""

    def __init__(self, target: str) -> None:
        self._path = Path(target) if target not in ("", "-") else None
        self._stream: TextIO | None = sys.stdout if target == "-" else None
        self.enabled = bool(target)
        """Whether the log is enabled."""
        self._looked = time.monotonic()
        if self._path is not None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._stream = _appending(self._path)
            except OSError as error:
                raise ConfigError(f"log.access: {target} cannot be written: {error.strerror}") from None

    def write(self, line: AccessLine) -> None:
        """Append one line."""
        try:
            if self._path is not None and time.monotonic() - self._looked >= self.look_every:
                self._looked = time.monotonic()
                self._follow(self._path)
            if self._stream is not None:
                self._stream.write(line.render(time.time()) + "\n")
        except (OSError, ValueError):
            self.close()

    def close(self) -> None:
        """Close the file."""
        stream, self._stream = self._stream, None
        if stream is not None and stream is not sys.stdout:
            # Closing flushes the unwritten rest once more, and fails again.
            with suppress(OSError):
                stream.close()

    def _follow(self, path: Path) -> None:
        """Reopen the log if another file has its name now."""
        if self._stream is not None and _is_at(self._stream, path):
            return
        new = _appending(path)
        self.close()
        self._stream = new


def _appending(path: Path) -> TextIO:
    # Each line is one write to a file opened for appending, so several workers may share it.
    return open(path, "a", buffering=1, encoding="utf-8", opener=_for_owner)


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _is_at(stream: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _quoted(text: str) -> str:
    return '"' + _UNSAFE.sub(lambda match: quote(match[0]), text) + '"' if text else '"-"'


def _word(text: str) -> str:
    return quote(text, safe=":-_.~[]@/") if text else "-"
