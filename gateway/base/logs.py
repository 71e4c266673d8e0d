"""Logging: one JSON object a line, or text for people. Every field that may appear is named here.

A call names its facts once, ``log.info("node %(node)s left", {"node": name})``. People read them in the message, programs in
fields with the same names.

Lines are redacted: OS errors name files, and the name of a blob's file is its digest.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Literal

from gateway.base.tracing import trace_id
from gateway.model.s3.redaction import redact_text

FIELDS = (
    "request_id", "request", "status", "code", "error", "state", "node", "zone", "address", "origin", "dataset", "stream",
    "chunk", "warmup", "path", "place", "task", "pid", "actor", "action", "target", "kind", "version", "fence", "settings",
    "cursor", "report", "items", "home", "held", "done", "total", "failed", "closed", "limit", "share", "access_key_id",
)  # fmt: skip
"""Names of facts. Times are in seconds, amounts in bytes unless they count something."""


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC), level, logger, message; trace, facts and traceback if there are any.

    A fact that makes up the whole message gets no field of its own.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (trace := trace_id()) is not None:
            line["trace_id"] = trace
        if isinstance(record.args, Mapping):
            facts = {name: record.args[name] for name in FIELDS if record.args.get(name) not in (None, "")}
            line.update({name: value for name, value in facts.items() if str(value) != line["message"]})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return redact_text(json.dumps(line, ensure_ascii=False, default=str))


class TextFormatter(logging.Formatter):
    """One line of text per record, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        return redact_text(super().format(record))


def set_up(level: str, form: Literal["json", "text"]) -> None:
    """Send every logger's lines to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if form == "json" else TextFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns about every malformed form
    for noisy in ("aiosqlite", "alembic", "botocore", "aiobotocore", "asyncio", "urllib3"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
