"""Connections: kept, replaced when stale, one for each thread and process, and never left open."""

import gc
import os
import pickle
import socket
import ssl
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from fake_gateway import FakeBatchGateway, Store, serving

from larder.http.connection import Connection, check_endpoint
from larder.http.credentials import Credentials

KEY = Credentials("key", "secret")
CERTIFICATE = Path(__file__).parent / "localhost.pem"


@pytest.fixture
def server():
    """A server that answers every request with "hello"."""
    with serving(FakeBatchGateway(Store({}))) as server:
        server.other = lambda handler, asked: handler.send(200, b"hello")
        yield server


def _get(connection, path="/x"):
    with connection.exchange("GET", path) as response:
        return response.read()


def _ports(server):
    return [asked.connection for asked in server.asked]


def test_a_connection_is_kept(server):
    """Requests one after the other use one connection."""
    connection = Connection(server.endpoint, credentials=KEY)
    assert [_get(connection) for _ in range(3)] == [b"hello"] * 3
    assert len(set(_ports(server))) == 1


def test_an_answer_that_is_not_read_closes_its_connection(server):
    """An answer that was not read to its end closes its connection, so its rest cannot be taken for the next answer."""
    connection = Connection(server.endpoint, credentials=KEY)
    with connection.exchange("GET", "/x") as response:
        assert response.status == 200
    with suppress(RuntimeError), connection.exchange("GET", "/x") as response:
        response.read(2)
        raise RuntimeError
    _get(connection)
    assert len(set(_ports(server))) == 3


def test_a_stale_connection_is_replaced_once(server):
    """A connection that the server closed while it was idle is opened again, without an error."""

    def answer_and_close(handler, asked):
        handler.send(200, b"hello")
        handler.close_connection = True

    server.faults = [answer_and_close] * 2
    connection = Connection(server.endpoint, credentials=KEY)
    assert [_get(connection) for _ in range(3)] == [b"hello"] * 3
    assert len(set(_ports(server))) == 3


def test_a_new_connection_that_breaks_off_is_an_error(server):
    """Only an idle connection may be stale; a new one that breaks off fails at once."""
    server.faults = [lambda handler, asked: handler.reset()] * 2
    connection = Connection(server.endpoint, credentials=KEY)
    with pytest.raises(ConnectionResetError):
        _get(connection)
    assert len(server.asked) == 1


def test_threads_have_connections_of_their_own(server):
    """Requests at the same time do not wait for one another, and their connections are kept for later."""
    inside = threading.Barrier(3)

    def wait(handler, asked):
        inside.wait()
        handler.send(200, asked.path.encode())

    server.faults = [wait] * 3
    connection = Connection(server.endpoint, credentials=KEY)
    answers = {}
    threads = [
        threading.Thread(target=lambda at=at: answers.update({at: _get(connection, f"/{at}")})) for at in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {at: b"/%d" % at for at in range(3)}
    _get(connection)
    assert len(set(_ports(server))) == 3


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_opens_its_own(server):
    """The child does not write into its parent's connection, and does not close it either."""
    connection = Connection(server.endpoint, credentials=KEY)
    _get(connection)
    child = os.fork()
    if child == 0:
        os._exit(0 if _get(connection) == b"hello" and _get(connection) == b"hello" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    _get(connection)
    first, second, third, last = _ports(server)
    assert first == last
    assert second == third != first


def test_pickling_leaves_connections_behind(server):
    """A pickled connection has settings and nothing else."""
    connection = Connection(server.endpoint, credentials=KEY, timeout=5)
    _get(connection)
    copy = pickle.loads(pickle.dumps(connection))
    assert (copy.endpoint, copy.timeout, copy.credentials.current()) == (server.endpoint, 5, KEY)
    assert _get(copy) == b"hello"


def test_nothing_is_left_open(server):
    """Dropping a connection closes its sockets; Python has no reason to warn."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        connection = Connection(server.endpoint, credentials=KEY)
        _get(connection)
        thread = threading.Thread(target=_get, args=(connection,))
        thread.start()
        thread.join()
        (kept,) = [entry[0].sock for entry in connection._idle]
        del connection, thread
        gc.collect()
    assert kept.fileno() == -1
    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []


def test_closing_is_not_the_end(server):
    """After ``close`` the next request opens a new connection."""
    connection = Connection(server.endpoint, credentials=KEY)
    _get(connection)
    connection.close()
    assert _get(connection) == b"hello"
    assert len(set(_ports(server))) == 2


def test_a_refused_upload_is_answered(server, tmp_path):
    """A server that answers before an upload has ended is understood, though it no longer reads."""
    file = tmp_path / "large"
    file.write_bytes(bytes(8 << 20))
    with socket.create_server(("127.0.0.1", 0)) as impatient:

        def refuse():
            peer, _ = impatient.accept()
            with peer:
                peer.recv(100)
                peer.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\nfull")
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(1 << 20):
                    pass

        thread = threading.Thread(target=refuse)
        thread.start()
        connection = Connection(f"http://127.0.0.1:{impatient.getsockname()[1]}", credentials=KEY)
        with file.open("rb") as body:
            headers = {"Content-Length": str(8 << 20)}
            with connection.exchange("PUT", "/x", headers=headers, body=body, payload_hash="00") as response:
                assert (response.status, response.read()) == (413, b"full")
        connection.close()
        thread.join()


def test_keys_are_sent_as_they_are(server):
    """A path is sent unchanged, without normalisation."""
    connection = Connection(server.endpoint, credentials=KEY)
    _get(connection, "/b/../a//%2F%0A/.")
    assert server.asked[0].path == "/b/../a//%2F%0A/."


def test_unsigned_requests_need_no_key(server):
    """A request that is not signed works where no key is set up."""
    connection = Connection(server.endpoint, credentials=lambda: pytest.fail("nobody needs a key"))
    with connection.exchange("GET", "/x", signed=False) as response:
        response.read()
    assert "Authorization" not in server.asked[0].headers


@pytest.fixture
def tls_server(server):
    """The same server behind TLS, with a self-signed certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    with serving(FakeBatchGateway(Store({}))) as secure:
        secure.socket = context.wrap_socket(secure.socket, server_side=True)
        secure.other = server.other
        secure.handle_error = lambda request, address: None
        yield secure


def test_https_with_ones_own_authority(tls_server, monkeypatch):
    """AWS_CA_BUNDLE names the authority that is trusted; the connection is kept as without TLS."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(CERTIFICATE))
    connection = Connection(tls_server.endpoint.replace("http:", "https:"), credentials=KEY)
    assert [_get(connection) for _ in range(2)] == [b"hello"] * 2
    assert len(set(_ports(tls_server))) == 1
    connection.close()


def test_https_of_an_unknown_authority(tls_server, monkeypatch):
    """A certificate of an unknown authority is refused."""
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    connection = Connection(tls_server.endpoint.replace("http:", "https:"), credentials=KEY)
    with pytest.raises(ssl.SSLCertVerificationError):
        _get(connection)


def test_a_bundle_that_is_not_there(monkeypatch):
    """The error names the variable and the file."""
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere/ca.pem")
    with pytest.raises(ValueError, match=r"AWS_CA_BUNDLE names '/nowhere/ca\.pem'"):
        _get(Connection("https://127.0.0.1:1", credentials=KEY))


@pytest.mark.parametrize(
    "wrong",
    [
        "127.0.0.1:9000",
        "ftp://x",
        "http://",
        "http://h/bucket",
        "http://h:port",
        "http://h:0",
        "http://u:p@h",
        "http://h?q",
    ],
)
def test_addresses_that_are_none(wrong):
    """Only scheme, host and port make an endpoint; the message shows one."""
    with pytest.raises(ValueError, match=r'"http://127\.0\.0\.1:9000"'):
        check_endpoint(wrong)


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [("http://h:80", "h"), ("http://h:81", "h:81"), ("https://h:443/", "h"), ("http://[::1]:9", "[::1]:9")],
)
def test_the_host_header(endpoint, host, monkeypatch):
    """The Host header has the port unless it is the scheme's default, as verifiers of the signature expect."""
    connection = Connection(endpoint, credentials=KEY)
    seen = {}

    def send(method, target, headers, body):
        seen.update(headers)
        raise ConnectionRefusedError

    monkeypatch.setattr(connection, "_send", send)
    with pytest.raises(ConnectionRefusedError):
        _get(connection)
    assert seen["Host"] == host


def test_a_connection_that_is_reset_while_it_is_opened(monkeypatch):
    """Rule: a connection that is reset while it is opened fails like any other, and may be tried again."""

    def connect(self):
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr("http.client.HTTPConnection.connect", connect)
    opened = Connection("http://127.0.0.1:9", credentials=KEY)
    with pytest.raises(ConnectionResetError), opened.exchange("GET", "/"):
        pass


def test_a_trace_goes_on_at_the_gateway(server, monkeypatch):
    """A program that has loaded OpenTelemetry passes its current trace on; the client never loads it."""

    class Propagate:
        inject = staticmethod(lambda carrier: carrier.update(traceparent="00-1-2-01"))

    connection = Connection(server.endpoint, credentials=KEY)
    _get(connection)
    monkeypatch.setitem(sys.modules, "opentelemetry.propagate", Propagate)
    _get(connection)
    assert [asked.headers.get("traceparent") for asked in server.asked] == [None, "00-1-2-01"]
