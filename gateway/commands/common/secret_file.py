"""Reads secrets from files, because all users of a machine can see each other's command lines."""

from __future__ import annotations

from pathlib import Path

from gateway.model.errors import ConfigError


def secret_of(option: str, file: Path | None) -> str | None:
    """The content of a file, stripped of whitespace; ``None`` without a file.

    Args:
        option: the option that named the file, for messages.
        file: contains only the secret.

    Raises:
        ConfigError: it cannot be read, or is empty.
    """
    if file is None:
        return None
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{option}: {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{option}: {file} cannot be read: it is not text") from None
    if not secret:
        raise ConfigError(f"{option}: {file} is empty")
    return secret
