"""Encryption of secrets at rest, with a key that is not in the database.

A sealed text is a JSON document that names its owner, so a secret that is moved to another row does not open there. Fernet is
AES-128 in CBC mode with HMAC-SHA256 (https://github.com/fernet/spec): a modified text does not open.

For SQLite the key is a file beside the database, created at the first start and readable by its owner only. It protects copies of
the database, not the machine. For PostgreSQL it is ``database.encryption_key``, the same on all gateways.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken
from pydantic_core import from_json, to_json

from gateway.model.errors import ConfigError

_CHECK = "larder catalog"
Secrets = Mapping[str, str]


class Vault:
    """Seals and opens.

    Args:
        key: 32 bytes in URL-safe base64.
    """

    def __init__(self, key: str) -> None:
        self._fernet = Fernet(key)

    def seal(self, owner: str, secrets: Secrets) -> str:
        """Encrypt secrets; ``owner`` names their record, such as ``credentials/vision``."""
        return self._fernet.encrypt(to_json({"owner": owner, "secrets": dict(secrets)})).decode()

    def open(self, owner: str, sealed: str) -> Secrets:
        """The secrets of ``owner``.

        Raises:
            ConfigError: they were sealed with another key or for another owner, or were modified.
        """
        try:
            opened = from_json(self._fernet.decrypt(sealed.encode()))
        except (InvalidToken, ValueError):
            raise ConfigError(
                f"database.encryption_key: cannot decrypt the secrets of {owner} in the catalog"
            ) from None
        if opened["owner"] != owner:
            raise ConfigError(
                f"the secrets at {owner} in the catalog belong to {opened['owner']}; restore it from a backup"
            )
        secrets: Secrets = opened["secrets"]
        return secrets

    def check(self) -> str:
        """A text that identifies this key to ``fits``."""
        return self.seal(_CHECK, {})

    def fits(self, check: str) -> bool:
        """Whether this key made the ``check``."""
        try:
            self.open(_CHECK, check)
        except ConfigError:
            return False
        return True


def vault_of(key: str) -> Vault:
    """The vault for a configured key.

    Raises:
        ConfigError: the key is malformed.
    """
    try:
        return Vault(key)
    except ValueError:
        raise ConfigError(
            "database.encryption_key: must be 32 bytes in URL-safe base64; generate one with: openssl rand -base64 32 | tr +/ -_"
        ) from None


def file_vault(path: Path, *, make: bool) -> Vault:
    """The vault whose key is in a file.

    Args:
        path: of the file.
        make: whether to create a missing one; otherwise that is an error, because the catalog was sealed with it.

    Raises:
        ConfigError: the file is missing or malformed.
        OSError: it cannot be read or written.
    """
    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        if not make:
            raise ConfigError(
                f"{path}: is missing; the catalog's secrets are sealed with its key; restore it from the backup"
            ) from None
        _write_new(path, Fernet.generate_key())
        text = path.read_text(encoding="ascii")
    try:
        return Vault(text.strip())
    except ValueError:
        raise ConfigError(f"{path}: is not a key; restore it from the backup of the catalog") from None


def _write_new(path: Path, content: bytes) -> None:
    """Create a file atomically, unless it exists."""
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=f".{path.name}-") as new:  # mode 0600
        new.write(content)
        new.flush()
        os.fsync(new.fileno())
        with suppress(FileExistsError):
            os.link(new.name, path)
