"""Sources of access keys: arguments, the environment, the AWS files, and botocore's chain if botocore is installed.

The order and the names are those of the AWS SDKs ("Configuration and credential file settings" and "Environment variables" in the
AWS SDKs and Tools reference), so a setup that works for boto3 works here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from larder.base.errors import CredentialsMissing

DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key. Its text form hides the secrets.

    Args:
        access_key_id: the public half.
        secret_access_key: the secret half.
        session_token: only with temporary credentials.
        region: region of signatures; gateways and most private stores accept any.
    """

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str = DEFAULT_REGION


class CredentialSource:
    """Provides the credentials for the next request. Safe for threads, to fork and to pickle.

    Credentials are kept until ``forget``, except temporary ones of botocore, which botocore renews.

    Args:
        given: credentials, or a function that returns the current ones; ``None`` searches the usual places at first use.
        profile: of the AWS files; ``AWS_PROFILE`` when left out.
    """

    def __init__(
        self, given: Credentials | Callable[[], Credentials] | None = None, *, profile: str | None = None
    ) -> None:
        self._given = given
        self._profile = profile
        self._cached: tuple[int, Callable[[], Credentials]] | None = None

    def current(self) -> Credentials:
        """The current credentials.

        Raises:
            CredentialsMissing: no access key was found.
        """
        if isinstance(self._given, Credentials):
            return self._given
        if self._given is not None:
            return self._given()
        cached = self._cached
        if cached is None or cached[0] != os.getpid():
            # A child searches again: botocore renews credentials under locks that may be held during a fork.
            cached = self._cached = (os.getpid(), find(profile=self._profile))
        return cached[1]()

    def forget(self) -> bool:
        """Search again at the next use, after the credentials were refused. Returns whether that can help."""
        self._cached = None
        return not isinstance(self._given, Credentials)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_cached": None}


def source_of(credentials: Credentials | Callable[[], Credentials] | CredentialSource | None) -> CredentialSource:
    """The source that a ``credentials`` argument denotes."""
    return credentials if isinstance(credentials, CredentialSource) else CredentialSource(credentials)


def find(*, profile: str | None = None, environment: Mapping[str, str] | None = None) -> Callable[[], Credentials]:
    """A function that returns this machine's credentials; a named profile's take precedence.

    Raises:
        CredentialsMissing: no access key was found.
    """
    env = os.environ if environment is None else environment
    settings = _profile_settings(profile, env)
    region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or settings.get("region") or DEFAULT_REGION
    sources: list[Mapping[str, str]] = [{name.lower(): value for name, value in env.items()}]
    sources.insert(0 if profile else 1, settings)
    for place in sources:
        access_key_id, secret = place.get("aws_access_key_id"), place.get("aws_secret_access_key")
        if access_key_id and secret:
            fixed = Credentials(access_key_id, secret, place.get("aws_session_token") or None, region)
            return lambda: fixed
    source = _botocore(profile, region)
    if source is None:
        raise _missing(profile or env.get("AWS_PROFILE"))
    return source


def endpoint_of(endpoint: str | None, *, profile: str | None = None) -> str:
    """The endpoint: the argument, or LARDER_ENDPOINT, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or the profile's.

    Raises:
        ValueError: none is set.
    """
    env = os.environ
    address = endpoint or env.get("LARDER_ENDPOINT") or env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL")
    address = address or _profile_settings(profile, env).get("endpoint_url")
    if not address:
        raise ValueError("no endpoint: give one, or set LARDER_ENDPOINT or AWS_ENDPOINT_URL")
    return address


def _profile_settings(profile: str | None, env: Mapping[str, str]) -> dict[str, str]:
    """A profile's settings from both files; the credentials file takes precedence."""
    name = profile or env.get("AWS_PROFILE") or "default"
    home = Path(env.get("HOME") or Path.home())
    settings: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        path = Path(env.get(variable) or home / ".aws" / file).expanduser()
        parser = ConfigParser(interpolation=None, strict=False)
        try:
            parser.read_string(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ConfigError):
            continue
        if parser.has_section(section):
            settings.update(parser.items(section))
    return settings


def _botocore(profile: str | None, region: str) -> Callable[[], Credentials] | None:
    """botocore's chain (roles, SSO, credential processes, instance metadata); ``None`` without botocore or credentials."""
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError:
        return None
    try:
        kept: Any = Session(profile=profile).get_credentials()
    except BotoCoreError:
        return None
    if kept is None:
        return None
    lock = threading.Lock()

    def current() -> Credentials:
        with lock:
            frozen = kept.get_frozen_credentials()
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token, region)

    return current


def _missing(profile: str | None) -> CredentialsMissing:
    return CredentialsMissing(
        "no access key: looked at the credentials argument, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, profile "
        f"{profile or 'default'!r} of ~/.aws/credentials and ~/.aws/config (AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE), "
        "and botocore's chain if botocore is installed; give Credentials(access_key_id, secret_access_key), or set one of these"
    )
