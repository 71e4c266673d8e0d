"""Gateways are stopped and started again, one after the other, behind a load balancer that polls /-/readyz."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rig.clients import Client, get
from rig.gateways import Running, Settings, finish, gateway, start
from rig.v1 import ask
from rig.world import SOON, Origin, eventually
from tests.scenarios.balancer import Balancer
from tests.scenarios.fleets import Reading, reading


def through(endpoint: str, path: str, body: bytes) -> Reading:
    """A client that reads an object, over a new connection each time."""

    def read(_number: int) -> None:
        with Client(endpoint) as client:
            got = client.get(path)
        assert (got.status, got.whole, got.body) == (200, True, body), got.status

    return read


@pytest.mark.parametrize("workers", [1, 2])
def test_no_connection_is_refused(tmp_path: Path, origin: Origin, workers: int) -> None:
    """Rule: after SIGTERM /-/readyz answers 503 while connections are still taken; so a balancer that polls it loses no request.
    A second SIGTERM ends the notice."""
    body = origin.put("/rolling/object", b"body" * 1000)
    homes = [tmp_path / name for name in ("one", "two")]
    server = {"drain_notice": "10m"}
    settings = [Settings(origin.endpoint, home / "cache", workers=workers, server=server) for home in homes]
    running = [start(*each) for each in zip(settings, homes, strict=True)]
    try:
        with Balancer([each.port for each in running]) as balancer:
            eventually(lambda: set(balancer.ready.values()), lambda seen: seen == {200}, "two that are ready")
            with reading({str(n): through(balancer.endpoint, "/rolling/object", body) for n in range(3)}) as load:
                for number in range(2):
                    load.await_more(5)
                    old = running[number]
                    old.process.send_signal(signal.SIGTERM)
                    eventually(lambda old=old: balancer.left(old), bool, "the balancer to have left it")
                    assert get(old, "/rolling/object").body == body
                    assert ask(old, "GET", "/readyz", key=None).json["state"] == "draining"
                    old.process.send_signal(signal.SIGTERM)
                    assert old.process.wait(SOON) == 0
                    finish(old)
                    again = Settings(
                        origin.endpoint, homes[number] / "cache", workers=workers, server={**server, "port": old.port}
                    )
                    running[number] = start(again, homes[number])
                    eventually(lambda old=old: balancer.ready[old.port], lambda status: status == 200, "its return")
                load.await_more(5)
            assert balancer.refused == 0
    finally:
        for each in running:
            stop_at_once(each)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_notice_ends_by_itself(tmp_path: Path, origin: Origin, workers: int) -> None:
    """Rule: a stopping gateway exits after server.drain_notice."""
    settings = Settings(origin.endpoint, tmp_path / "cache", workers=workers, server={"drain_notice": "300ms"})
    with gateway(settings, tmp_path / "home") as running:
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(SOON) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_person_is_not_kept_waiting(tmp_path: Path, origin: Origin, workers: int) -> None:
    """Rule: SIGINT stops without notice."""
    settings = Settings(origin.endpoint, tmp_path / "cache", workers=workers, server={"drain_notice": "10m"})
    running = start(settings, tmp_path / "home")
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(SOON) == 0
    finish(running)


def stop_at_once(running: Running) -> None:
    """End a gateway, without notice."""
    if running.process.poll() is None:
        running.process.send_signal(signal.SIGINT)
    finish(running)
