"""A worker's configuration file, and the environment variables that name it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.base.config import Settings
from gateway.fleet.nodes.node_id import new_boot

LAUNCH = "_LARDER_LAUNCH"
"""The environment variable with the data shared by the workers of one start, as JSON."""

_Stamp = tuple[int, int, int]


class ConfigFile:
    """Detects changes of the configuration file.

    Args:
        path: of the file.
        read: parses it.
    """

    def __init__(self, path: Path, read: Callable[[], Settings]) -> None:
        self._path = path
        self._read = read
        self._seen: _Stamp = (0, 0, 0)

    @property
    def changed(self) -> bool:
        """Whether the file has changed since the last ``load``."""
        return self._stamp() != self._seen

    def load(self) -> Settings:
        """Read the file.

        Raises:
            ConfigError: the file is invalid; it still counts as read.
        """
        # Stamp before reading, so that a change during the read is not missed.
        self._seen = self._stamp()
        return self._read()

    def _stamp(self) -> _Stamp:
        try:
            status = os.stat(self._path)
        except OSError:
            return (0, 0, 0)
        return (status.st_mtime_ns, status.st_size, status.st_ino)


def launch_environment(config: Path | None, flags: dict[str, Any], redis_url: str) -> dict[str, str]:
    """The variables from which each worker builds the same application."""
    launch = {"config": str(config) if config else "", "flags": flags, "redis": redis_url, "boot": new_boot()}
    return {LAUNCH: json.dumps(launch)}
