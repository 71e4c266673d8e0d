"""The client's ping and server_info: a gateway that answers, does not answer, or is something else."""

import multiprocessing
import pickle
import socket

import pytest

import larder

AT_ONCE = larder.Retry(attempts=3, base=0)
READY = {"/-/readyz": (200, {"redis": "ok"}), "/-/healthz": (200, {"version": "0.1.0"})}


def test_ping_returns_what_a_ready_gateway_says(gateway):
    """A ready gateway gives ready=True and the state of its parts."""
    client = larder.Client(gateway(READY).endpoint)
    assert client.ping() == {"ready": True, "redis": "ok"}


def test_ping_returns_not_ready_instead_of_raising(gateway):
    """503 of the readiness address is an answer: it is returned at once and not retried."""
    server = gateway({"/-/readyz": (503, {"redis": "down"})})
    client = larder.Client(server.endpoint, retry=AT_ONCE)
    assert client.ping() == {"ready": False, "redis": "down"}
    assert server.requests == 1


def test_server_info_is_what_health_says(gateway):
    """The health address describes the process."""
    client = larder.Client(gateway(READY).endpoint)
    assert client.server_info() == {"version": "0.1.0"}


def test_a_broken_connection_is_tried_again(gateway):
    """Attempts that break off are repeated, up to the number that Retry allows."""
    server = gateway(READY, breaks=2)
    client = larder.Client(server.endpoint, retry=AT_ONCE)
    assert client.ping()["ready"] is True
    assert server.requests == 3


def test_a_gateway_that_keeps_breaking_off_is_unavailable(gateway):
    """After the last attempt the error names the address and how often it was tried."""
    server = gateway(READY, breaks=99)
    client = larder.Client(server.endpoint, retry=AT_ONCE)
    with pytest.raises(larder.GatewayUnavailable) as caught:
        client.ping()
    assert server.requests == 3
    assert server.endpoint in str(caught.value)
    assert "3 times" in str(caught.value)


def test_nobody_listening_is_unavailable():
    """A refused connection gives GatewayUnavailable, never a bare OSError."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = larder.Client(f"http://127.0.0.1:{port}", retry=larder.Retry(attempts=1))
    with pytest.raises(larder.GatewayUnavailable, match="tried once"):
        client.ping()


def test_a_silent_gateway_is_unavailable_after_the_timeout():
    """A server that accepts and says nothing counts as failed after ``timeout``."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        client = larder.Client(
            f"http://127.0.0.1:{mute.getsockname()[1]}", timeout=0.05, retry=larder.Retry(attempts=1)
        )
        with pytest.raises(larder.GatewayUnavailable, match="timed out"):
            client.ping()


def test_digests_have_32_bytes():
    """Hexadecimal digits are refused before anything is sent."""
    with pytest.raises(ValueError, match="32 bytes each"):
        larder.Client("http://127.0.0.1:9").resident(["0" * 64])


@pytest.mark.parametrize("answer", [(404, b"<Error><Code>NoSuchBucket</Code></Error>"), (200, b"hello"), (200, b"[1]")])
def test_another_server_is_told_apart(gateway, answer):
    """An answer that no gateway gives raises UnexpectedAnswer rather than passing for readiness."""
    client = larder.Client(gateway({"/-/readyz": answer}).endpoint)
    with pytest.raises(larder.UnexpectedAnswer):
        client.ping()


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "ftp://127.0.0.1", "http://", "http://host/bucket", ""])
def test_an_endpoint_that_is_no_address_is_refused(endpoint):
    """A wrong address fails where it was written, and the message shows a right one."""
    with pytest.raises(ValueError, match=r'"http://127\.0\.0\.1:9000"'):
        larder.Client(endpoint)


def _ping(client: larder.Client) -> None:
    assert client.ping()["ready"]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_child_process_can_use_its_parents_client(gateway, method):
    """A client that has been used can be handed to another process; both use it afterwards."""
    server = gateway(READY)
    client = larder.Client(server.endpoint)
    client.ping()
    child = multiprocessing.get_context(method).Process(target=_ping, args=(client,))
    child.start()
    child.join()
    client.ping()
    assert child.exitcode == 0
    assert server.requests == 3


def test_pickling_keeps_the_settings():
    """A pickled client asks the same gateway, as patiently."""
    client = pickle.loads(pickle.dumps(larder.Client("http://127.0.0.1:9000", timeout=3, retry=AT_ONCE)))
    assert (client.endpoint, client.timeout, client.retry) == ("http://127.0.0.1:9000", 3, AT_ONCE)
