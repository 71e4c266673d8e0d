"""``larder-gateway check-config``."""

from __future__ import annotations

import asyncio
import json
import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from gateway.base.config import Settings, load_settings, sections
from gateway.base.config_environment import lookalikes
from gateway.base.config_secrets import without_secrets
from gateway.commands.common.grammar import describe
from gateway.commands.common.output import note
from gateway.local.quick_start import refuse_own_key
from gateway.model.errors import ConfigError, LarderError
from gateway.origin.examination import examine


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        _check_config,
        "Read a configuration as serve does, environment included, and print the result as JSON, with secrets hidden.\n"
        "Errors name the field; the exit status is 2 then.\n\n"
        "With --origin, one of its origins is asked instead: an object is read in several ways, and the document says what "
        "that store cannot do of S3. Nothing is written there.",
        "larder-gateway check-config larder.toml",
        "larder-gateway check-config larder.toml --origin default --bucket training",
    )
    command.add_argument(
        "file", metavar="FILE", type=Path, nargs="?", help="TOML file; without one: defaults and environment"
    )
    command.add_argument("--origin", metavar="NAME", help="say what this origin of the configuration cannot do")
    command.add_argument(
        "--bucket", default="", help="with --origin: read an object of this bucket; else of the first that has one"
    )
    command.add_argument(
        "--json", action="store_true", help="accepted for consistency: the output is always one JSON document"
    )


def _check_config(options: Namespace) -> int:
    settings = load_settings(options.file, os.environ)
    for warning in lookalikes(os.environ, sections()):
        note(f"warning: {warning}")
    if options.origin is not None:
        print(json.dumps(_examined(settings, options.origin, options.bucket), indent=2))
        return 0
    print(without_secrets(settings).model_dump_json(indent=2))
    return 0


def _examined(settings: Settings, name: str, bucket: str) -> dict[str, Any]:
    """The limitations of an origin, found by reading from it.

    Raises:
        ConfigError: there is no such origin, or it cannot be reached, or it has nothing to read, or its key is this gateway's.
    """
    origins = {origin.name: origin for origin in settings.origins}
    if name not in origins:
        raise ConfigError(f"--origin: there is no origin {name!r}, but {', '.join(origins)}")
    refuse_own_key(settings.model_copy(update={"origins": (origins[name],)}), os.environ)
    try:
        examination = asyncio.run(examine(origins[name], bucket))
    except LarderError as error:
        raise ConfigError(f"the origin {name!r}: {error}") from None
    return {"origin": name, "read": examination.read, "lacks": list(examination.lacks)}
