"""The AWS credential chain: environment, files, IMDS, SSO, STS, by aiobotocore.

``client.py`` imports this module only when an origin has no keys in the configuration, because importing aiobotocore takes a
quarter of a start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, ClientError

from gateway.base.tasks import SingleFlight
from gateway.model.errors import ConfigError, OriginUnavailable
from gateway.origin.credentials import Keys

_TRUSTED_FOR = 60.0
"""Seconds for which the chain's keys are used without asking it."""
_USABLE_FOR = 300.0
"""Seconds for which keys are used while the chain renews them."""


_FAILURES = (BotoCoreError, ClientError, RuntimeError, OSError, LookupError, ValueError)
"""The errors that links of the chain raise. botocore raises a bare ``RuntimeError`` for keys that are still expired after
renewal, and a parser's own error for a malformed answer or file.
"""


class CredentialChain:
    """The keys of one worker, from the AWS credential chain.

    aiobotocore renews temporary keys 15 minutes before they expire; from 10 minutes before, it blocks until they are renewed. So
    keys are used for a minute without asking it, and are renewed in the background for four more; after that, requests wait. The
    chain is set up at the first use. A chain without keys is not asked again.
    """

    def __init__(self, now: Callable[[], float], session: Callable[[], Any] = AioSession) -> None:
        self._now = now
        self._session = session
        self._source: Any = None
        self._keys: Keys | None = None
        self._asked_at = float("-inf")
        self._asking: SingleFlight[None, None] = SingleFlight()
        self._problem = ""

    async def current(self) -> Keys | None:
        """Keys that are valid now, or ``None`` if the chain has none.

        Raises:
            OriginUnavailable: the chain has keys but could not renew them.
        """
        age = self._now() - self._asked_at
        if age < _TRUSTED_FOR:
            return self._keys
        asking = self._asking.join(None, self._ask)
        if age >= _USABLE_FOR:
            await asking
            if self._problem:
                raise OriginUnavailable(f"the AWS credential chain failed: {self._problem}")
        return self._keys

    async def _ask(self) -> None:
        try:
            self._keys = await self._look_up()
        except _FAILURES as error:
            self._problem = str(error) or type(error).__name__
            return
        self._problem = ""
        self._asked_at = self._now() if self._keys else float("inf")

    async def _look_up(self) -> Keys | None:
        if self._source is None:
            self._source = await self._session().get_credentials()
        if self._source is None:
            return None
        frozen = await self._source.get_frozen_credentials()
        return Keys(frozen.access_key, frozen.secret_key, frozen.token or "")


def profile() -> tuple[str, str]:
    """Address and region of the AWS profile named by AWS_PROFILE, or of the default; each is empty if the profile lacks it.

    Raises:
        ConfigError: there is no such profile, or the files cannot be read.
    """
    try:
        settings = AioSession().get_scoped_config()
    except BotoCoreError as error:
        raise ConfigError(f"AWS_PROFILE: {error}") from None
    return settings.get("endpoint_url", ""), settings.get("region", "")
