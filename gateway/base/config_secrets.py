"""Settings that may be shown: without their secrets. And the secrets, to hide them elsewhere."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from gateway.base.config import Settings

HIDDEN = "(hidden)"
_LOGIN = re.compile(r"(?<=://).*(?=@)")
"""User and password of an address."""
_PARAMETER = re.compile(r"(?i)(?<=password=)[^&]*")


def without_secrets(settings: Settings) -> Settings:
    """The settings with secrets, and passwords in addresses, replaced by ``(hidden)``."""

    def hide(section: Any) -> Any:
        return section.model_copy(update=dict.fromkeys(_secrets(section), HIDDEN))

    return settings.model_copy(
        update={
            "redis": settings.redis.model_copy(update={"url": _without_password(settings.redis.url)}),
            "database": hide(settings.database).model_copy(update={"url": _without_password(settings.database.url)}),
            "fleet": hide(settings.fleet),
            "admin": hide(settings.admin),
            "origins": tuple(hide(origin) for origin in settings.origins),
            "credentials": tuple(hide(credential) for credential in settings.credentials),
        }
    )


def secrets_of(settings: Settings) -> frozenset[str]:
    """The values that ``without_secrets`` hides; passwords of addresses as written there, and decoded."""
    sections = (settings.database, settings.fleet, settings.admin, *settings.origins, *settings.credentials)
    values = {value for section in sections for value in _secrets(section).values()}
    for url in (settings.redis.url, settings.database.url):
        passwords = [login.partition(":")[2] for login in _LOGIN.findall(url)] + _PARAMETER.findall(url)
        values.update(passwords, map(unquote, passwords))
    return frozenset(values - {""})


def _secrets(section: Any) -> dict[str, str]:
    """The secret fields that are set, with their values."""
    names = [name for name, field in type(section).model_fields.items() if field.repr is False]
    return {name: value for name in names if (value := getattr(section, name))}


def _without_password(url: str) -> str:
    return _PARAMETER.sub(HIDDEN, _LOGIN.sub(HIDDEN, url))
