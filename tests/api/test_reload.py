"""A changed configuration is taken over between two turns of the event loop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from gateway.api.s3.auth import Authenticator
from gateway.app import Larder
from gateway.config import Credential, Origin, Settings
from gateway.wiring.fleet import Start


def settings(access_key_id: str) -> Settings:
    """A configuration with this one credential."""
    origin = Origin(endpoint="http://127.0.0.1:1")
    return Settings(
        origins=(origin,), credentials=(Credential(access_key_id=access_key_id, secret_access_key="secret" * 4),)
    )


async def test_no_request_meets_half_of_a_new_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a request verified with the old one would be sent with keys that the new one lacks, and fail with 500."""
    authenticator = Authenticator(settings("OLD"))
    closing = asyncio.get_running_loop().create_future()

    class Closing:
        async def replace(self, *_: object) -> None:
            """Idle connections take a while to close."""
            await asyncio.sleep(0)
            closing.set_result(authenticator.find("NEW") is not None and authenticator.find("OLD") is None)
            await asyncio.Event().wait()

    larder = Larder(settings("OLD"), Start("", "", ""), lambda: settings("NEW"))
    stamps = iter([(1, 0, 0), (2, 0, 0)])
    monkeypatch.setattr(larder, "_stamp", lambda: next(stamps))
    services = SimpleNamespace(rules=None)

    async def settle(_endpoints: dict[str, str]) -> None:
        """Not reached: the replacement never ends."""

    watch = larder._watch(authenticator, Closing(), services, settle)  # type: ignore[arg-type]
    watching = asyncio.create_task(watch)
    assert await asyncio.wait_for(closing, 30)
    assert services.rules is not None
    watching.cancel()
