"""Settings that may be shown: without their secrets."""

from __future__ import annotations

import re
from typing import Any

from gateway.base.config import Settings


def without_secrets(settings: Settings) -> Settings:
    """The settings with secrets, and passwords in addresses, replaced by ``(hidden)``."""
    hidden = "(hidden)"

    def hide(section: Any) -> Any:
        secrets = [name for name, field in type(section).model_fields.items() if field.repr is False]
        return section.model_copy(update={name: hidden for name in secrets if getattr(section, name)})

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


def _without_password(url: str) -> str:
    return re.sub(r"(?i)(password=)[^&]*", r"\1(hidden)", re.sub(r"://.*@", "://(hidden)@", url))
