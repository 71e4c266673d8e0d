"""``larder-gateway check-config``."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from gateway.commands.common.grammar import describe
from gateway.commands.common.output import note
from gateway.config import Settings, load_settings, sections
from gateway.config_environment import lookalikes


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        _check_config,
        "Read a configuration as serve does, environment included, and print the result as JSON, with secrets hidden.\n"
        "Errors name the field; the exit status is 2 then.",
        "larder-gateway check-config larder.toml",
    )
    command.add_argument(
        "file", metavar="FILE", type=Path, nargs="?", help="TOML file; without one: defaults and environment"
    )
    command.add_argument(
        "--json", action="store_true", help="accepted for consistency: the output is always one JSON document"
    )


def _check_config(options: Namespace) -> int:
    settings = load_settings(options.file, os.environ)
    for warning in lookalikes(os.environ, sections()):
        note(f"warning: {warning}")
    print(_without_secrets(settings).model_dump_json(indent=2))
    return 0


def _without_secrets(settings: Settings) -> Settings:
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
