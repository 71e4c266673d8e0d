"""The configuration changes under a running gateway; a gateway drains; a gateway is overloaded."""

from __future__ import annotations

import http.client
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rig.clients import Client, client_of_each_worker, finish, get
from rig.gateways import Running, Settings, gateway
from rig.processes import wait_until
from rig.world import KIB, MIB, SOON, Origin, content, eventually


class Reloaded:
    """A gateway whose configuration file is rewritten."""

    def __init__(self, running: Running, settings: Settings) -> None:
        self.running = running
        self._settings = settings

    def become(self, **changes: Any) -> None:
        """Write the file with these settings instead."""
        self.running.config.write_text(replace(self._settings, **changes).toml())

    def reloads(self, result: str) -> float:
        """The number of changed files that were ``loaded`` or ``refused``."""
        return self.running.metric("larder_config_reloads_total", result=result)

    def spoil(self, text: str) -> None:
        """Write something else, and wait until it is refused."""
        before = self.reloads("refused")
        self.running.config.write_text(text)
        eventually(lambda: self.reloads("refused"), lambda count: count > before, "the refusal")


@pytest.fixture(scope="module")
def gateway_with_file(origin: Origin, tmp_path_factory) -> Iterator[Reloaded]:
    """The gateway whose file changes."""
    settings = Settings(origin.endpoint, tmp_path_factory.mktemp("cache"))
    with gateway(settings, tmp_path_factory.mktemp("home")) as running:
        yield Reloaded(running, settings)


@pytest.fixture
def reloaded(gateway_with_file: Reloaded) -> Iterator[Reloaded]:
    """The same, with its first configuration restored afterwards."""
    yield gateway_with_file
    before = gateway_with_file.reloads("loaded")
    gateway_with_file.become()
    eventually(lambda: gateway_with_file.reloads("loaded"), lambda count: count > before, "the first configuration")


def second(secret: str) -> dict[str, str]:
    """A credential that the first configuration does not have."""
    return {"access_key_id": "GWB", "secret_access_key": secret}


def test_a_rule_stops_caching_what_is_cached_already(reloaded, origin):
    """``cache = false`` for a prefix holds for the next read, also of objects that are in the cache."""
    origin.put("/rules/object", b"old")
    get(reloaded.running, "/rules/object")
    assert get(reloaded.running, "/rules/object").cache == "HIT"
    reloaded.become(rules=({"match": "rules/**", "cache": False},))
    eventually(
        lambda: get(reloaded.running, "/rules/object").cache,
        lambda status: status == "BYPASS; reason=rule",
        "the new rule",
    )
    origin.put("/rules/object", b"changed behind the gateway")
    assert get(reloaded.running, "/rules/object").body == b"changed behind the gateway"


def test_a_rule_shortens_the_freshness_of_what_is_cached(reloaded, origin):
    """A new freshness applies to objects cached under the old one."""
    origin.put("/fresh/object", b"old")
    get(reloaded.running, "/fresh/object")
    origin.put("/fresh/object", b"changed behind the gateway")
    assert get(reloaded.running, "/fresh/object").body == b"old"
    reloaded.become(rules=({"match": "fresh/**", "freshness": "always"},))
    eventually(
        lambda: get(reloaded.running, "/fresh/object").body,
        lambda body: body == b"changed behind the gateway",
        "the new rule",
    )


def test_a_credential_is_added_changed_and_removed(reloaded, origin):
    """Keys work, with their new secret, and stop working without a restart; the others are not disturbed."""
    origin.put("/keys/object", b"body")
    first = reloaded._settings.credentials
    read = lambda secret: get(reloaded.running, "/keys/object", "GWB", secret)  # noqa: E731
    assert read("one").status == 403
    reloaded.become(credentials=(*first, second("one")))
    eventually(lambda: read("one").status, lambda status: status == 200, "the new credential")
    reloaded.become(credentials=(*first, second("two")))
    eventually(lambda: read("two").status, lambda status: status == 200, "the new secret")
    assert read("one").status == 403
    reloaded.become(credentials=first)
    eventually(lambda: read("two").status, lambda status: status == 403, "the end of the credential")
    assert get(reloaded.running, "/keys/object").status == 200


def test_a_connection_that_is_open_does_not_outlive_its_credential(reloaded, origin):
    """Every request is checked against the current credentials, not those from when its connection was opened."""
    origin.put("/keys/object", b"body")
    reloaded.become(credentials=(*reloaded._settings.credentials, second("one")))
    with Client(reloaded.running.endpoint, "GWB", "one") as client:
        eventually(lambda: client.get("/keys/object").status, lambda status: status == 200, "the new credential")
        reloaded.become()
        eventually(lambda: client.get("/keys/object").status, lambda status: status == 403, "its end")


@pytest.mark.parametrize(
    "text",
    ["this is no TOML", "[[rules]]\nmatch = 1\n", '[cache]\ndri = "typo"\n', ""],
    ids=["no-toml", "wrong-type", "typo", "empty"],
)
def test_a_broken_file_keeps_the_last_good_one(reloaded, origin, text):
    """An invalid file is logged and changes nothing; the next valid file is used."""
    origin.put("/broken/object", b"body")
    reloaded.become(credentials=(*reloaded._settings.credentials, second("good")))
    eventually(
        lambda: get(reloaded.running, "/broken/object", "GWB", "good").status,
        lambda status: status == 200,
        "the good file",
    )
    reloaded.spoil(text)
    assert get(reloaded.running, "/broken/object", "GWB", "good").status == 200
    assert "the last valid one stays in force" in reloaded.running.log.read_text()


def test_every_worker_reloads(tmp_path, origin):
    """A new credential works at each worker."""
    settings = Settings(origin.endpoint, tmp_path / "cache", workers=2)
    origin.put("/workers/object", b"body")
    with gateway(settings, tmp_path / "home") as running:
        Reloaded(running, settings).become(credentials=(*settings.credentials, second("one")))
        with client_of_each_worker(running, key="GWB", secret="one") as clients:
            for client in clients.values():
                eventually(
                    lambda client=client: client.get("/workers/object").status,
                    lambda status: status == 200,
                    "the credential",
                )


@pytest.mark.parametrize("workers", [1, 2])
def test_a_download_in_flight_outlives_sigterm(tmp_path, origin, workers):
    """After SIGTERM no new connection is accepted, downloads in progress are finished, and the exit status is 0."""
    body = origin.put("/drain/object", content(4 * MIB, "drain"))
    hang = origin.hang("/drain/object", after=2 * MIB)
    settings = Settings(origin.endpoint, tmp_path / "cache", workers=workers)
    with gateway(settings, tmp_path / "home") as running, Client(running.endpoint) as client:
        client.send("GET", "/drain/object")
        response = client.begin()
        before = response.read(KIB)
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refuses(running), SOON, "the end of listening")
        # A gateway that waits for nothing would have broken it off by now.
        wait_until(lambda: "Waiting for connections to close" in running.log.read_text(), SOON, "the waiting")
        assert running.process.poll() is None
        hang.gate.open()
        got = finish(response, before)
        assert (got.whole, got.body == body) == (True, True)
        assert running.process.wait(SOON) == 0


def test_a_second_ctrl_c_waits_for_no_download(tmp_path, origin):
    """A second SIGINT ends a gateway that waits for a download, and its log has no error of that."""
    origin.put("/drain/endless", content(4 * MIB, "endless"))
    hang = origin.hang("/drain/endless", after=2 * MIB)
    settings = Settings(origin.endpoint, tmp_path / "cache", server={"drain": "10m"})
    with gateway(settings, tmp_path / "home") as running, Client(running.endpoint) as client:
        client.send("GET", "/drain/endless")
        client.begin()
        running.process.send_signal(signal.SIGINT)
        wait_until(lambda: "Waiting for connections to close" in running.log.read_text(), SOON, "the waiting")
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(SOON) == 0
        assert "Traceback" not in running.log.read_text()
    hang.gate.open()


def test_a_download_that_takes_too_long_is_broken_off(tmp_path, origin):
    """``server.drain`` bounds how long SIGTERM waits; a body that is cut then does not look whole."""
    origin.put("/drain/endless", content(4 * MIB, "endless"))
    hang = origin.hang("/drain/endless", after=2 * MIB)
    settings = Settings(origin.endpoint, tmp_path / "cache", server={"drain": "1s"})
    with gateway(settings, tmp_path / "home") as running, Client(running.endpoint) as client:
        client.send("GET", "/drain/endless")
        response = client.begin()
        before = response.read(KIB)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(SOON) == 0
        assert not finish(response, before).whole
    hang.gate.open()
    assert not list((settings.cache / "tmp").iterdir())


def refuses(running: Running) -> bool:
    """True if a new connection gets no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=5)
    try:
        connection.request("GET", "/-/healthz")
        connection.getresponse()
    except (OSError, http.client.HTTPException):
        return True
    finally:
        connection.close()
    return False


def test_overload(tmp_path, origin):
    """Requests above ``server.max_in_flight`` get SlowDown, while health is still answered."""
    settings = Settings(origin.endpoint, tmp_path / "cache", server={"max_in_flight": 3})
    origin.put("/busy/ready", b"ready")
    with gateway(settings, tmp_path / "home") as running:
        get(running, "/busy/ready")
        hangs = []
        busy = [Client(running.endpoint) for _ in range(3)]
        for number, client in enumerate(busy):
            origin.put(f"/busy/{number}", b"busy")
            hangs.append(origin.hang(f"/busy/{number}"))
            client.send("GET", f"/busy/{number}")
            hangs[-1].gate.arrival.result(30)
        got = get(running, "/busy/ready")
        assert (got.status, b"<Code>SlowDown</Code>" in got.body) == (503, True)
        assert int(got.headers["retry-after"]) >= 1
        with Client(running.endpoint) as client:
            assert client.ask("GET", "/-/healthz").status == 200
        assert running.metric("larder_shed_requests_total") == 1
        for hang in hangs:
            hang.gate.open()
        assert [client.answer().body for client in busy] == [b"busy"] * 3
        for client in busy:
            client.close()
        assert get(running, "/busy/ready").cache == "HIT"
