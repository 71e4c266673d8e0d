"""A changed configuration is taken over between two turns of the event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gateway.api.s3.auth import Authenticator
from gateway.base.config import Credential, Origin, Rule, Settings, TracingSettings
from gateway.wiring.config_file import ConfigFile
from gateway.wiring.live import Changing, Live


def settings(access_key_id: str) -> Settings:
    """A configuration with this one credential."""
    origin = Origin(endpoint="http://127.0.0.1:1")
    return Settings(
        origins=(origin,), credentials=(Credential(access_key_id=access_key_id, secret_access_key="secret" * 4),)
    )


async def test_no_request_meets_half_of_a_new_configuration(tmp_path: Path) -> None:
    """Else a request verified with the old one would be sent with keys that the new one lacks, and fail with 500."""
    authenticator = Authenticator(settings("OLD"))
    closing = asyncio.get_running_loop().create_future()

    class Closing:
        async def replace(self, *_: object) -> None:
            """Idle connections take a while to close."""
            await asyncio.sleep(0)
            closing.set_result(authenticator.find("NEW") is not None and authenticator.find("OLD") is None)
            await asyncio.Event().wait()

    file = ConfigFile(tmp_path / "larder.toml", lambda: settings("NEW"))
    (tmp_path / "larder.toml").write_text("a file that was not there before")
    services = SimpleNamespace(rules=None)

    async def settle(_endpoints: dict[str, str]) -> None:
        """Not reached: the replacement never ends."""

    live = Live(settings("OLD"), Changing(authenticator, services, Closing(), settle, lambda _: None))  # type: ignore[arg-type]
    watching = asyncio.create_task(live.follow_file(file))
    assert await asyncio.wait_for(closing, 30)
    assert services.rules is not None
    watching.cancel()


async def test_a_change_that_needs_a_restart_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rule: the log names every section that changed and is not adopted."""
    before = settings("ANY")
    after = before.model_copy(update={"tracing": TracingSettings(enabled=True), "rules": (Rule(match="b/**"),)})
    file = ConfigFile(tmp_path / "larder.toml", lambda: after)
    (tmp_path / "larder.toml").write_text("a file that was not there before")

    async def adopt(*_: object) -> None:
        """Nothing depends on it here."""

    parts = SimpleNamespace(authenticator=Authenticator(before), services=SimpleNamespace(), limit=lambda _: None)
    parts.origin, parts.settle = SimpleNamespace(replace=adopt), adopt
    live = Live(before, cast(Changing, parts))
    await live._reload(file)
    await live.close()
    assert caplog.messages[-1] == "changes of tracing need a restart"


def test_a_change_while_the_file_is_read_is_not_overlooked(tmp_path: Path) -> None:
    """Rule: a worker that starts while the file is changed reads it again, and not only after the next change."""
    path = tmp_path / "larder.toml"
    path.write_text("old")

    def read() -> Settings:
        """Read the file; it is overwritten right after the first read."""
        if path.read_text() == "old":
            path.write_text("newer")
        return settings("ANY")

    file = ConfigFile(path, read)
    file.load()
    assert file.changed
    file.load()
    assert not file.changed


def test_a_file_that_is_gone_has_changed(tmp_path: Path) -> None:
    """Rule: a deleted file counts as changed once, so that the reload reports it once."""
    path = tmp_path / "larder.toml"
    path.write_text("text")
    file = ConfigFile(path, lambda: settings("ANY"))
    file.load()
    path.unlink()
    assert file.changed
    file.load()
    assert not file.changed
