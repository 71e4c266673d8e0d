"""Messages and exit statuses of ``larder-gateway`` when it cannot reach or use the gateway."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from rig.processes import free_port
from tests.cli.commands import run, run_here
from tests.cli.fake_admin import ILL, TOKEN, problem

CERTIFICATE = Path(__file__).parents[2] / "clients" / "python" / "tests" / "localhost.pem"


def test_no_endpoint():
    """Rule: without an address no request is sent; the message names both ways to give one."""
    ran = run_here("status")
    assert ran.status == 2
    assert ran.out == ""
    assert "--endpoint" in ran.err
    assert "LARDER_ENDPOINT" in ran.err


@pytest.mark.parametrize(
    "endpoint", ["10.0.0.1:9000", "http://host/path", "http://", "ftp://host", "http://user@host", "http://h:70000"]
)
def test_no_address(endpoint):
    """Rule: an invalid address is wrong usage, and the message names the option."""
    ran = run_here("status", "--endpoint", endpoint)
    assert ran.status == 2
    assert "--endpoint" in ran.err
    assert "Traceback" not in ran.err


def test_refused_connection():
    """Rule: an address without a server is a problem, and the message has the address."""
    endpoint = f"http://127.0.0.1:{free_port()}"
    ran = run("status", "--endpoint", endpoint)
    assert ran.status == 1
    assert ran.err == f"larder-gateway: {endpoint} refuses the connection; is the gateway running?\n"


def test_words_of_another_encoding_are_sent(admin, operator):
    """Rule: bytes that are no UTF-8 reach the gateway: in a body as lone surrogates, which it refuses by the field, in a query as
    they are. They ended the command with a traceback."""
    admin.answers["POST tenants"] = lambda _: problem(
        400, "InvalidRequest", "The field name must not contain a lone surrogate."
    )
    admin.answers["GET audit"] = {"items": [], "next": None}
    ran = operator("tenants", "create", "a\udcffb")
    assert (ran.status, "The field name must not" in ran.err) == (1, True)
    assert admin.asked[-1].body == {"name": "a\udcffb"}
    assert operator("audit", "--target", "a\udcffb c").status == 0
    assert admin.asked[-1].query["target"] == "a\ufffdb c"


def test_an_answer_that_was_lost(admin, operator):
    """Rule: an idempotent request is repeated once with the same key: a created secret is not lost with its answer."""
    admin.answers["POST credentials"] = lambda _: (201, {"access_key_id": "K", "secret_access_key": "s"})
    admin.breaks = 1
    assert "AWS_SECRET_ACCESS_KEY=s" in operator("credentials", "create").out
    first, second = admin.asked
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    admin.breaks = 1
    assert operator("status").status == 0


@pytest.mark.parametrize(("stale", "lost"), [("catalog", "its catalog"), ("redis", "Redis")])
def test_an_answer_that_is_old(admin, operator, stale, lost):
    """Rule: an answer from memory is marked as such once, beside the result."""
    admin.answers["GET tenants"] = lambda asked: (200, {"items": [], "next": None if "cursor" in asked.query else "2"})
    admin.stale = stale
    ran = operator("tenants", "list", "--json")
    assert (ran.status, ran.json) == (0, {"items": []})
    assert ran.err == f"{admin.endpoint} cannot reach {lost}: this is its last known state\n"


def test_answers_that_stay_lost(admin, operator):
    """Rule: after two lost answers a query fails; a change is sent once, and the message says that it may have been done."""
    admin.breaks = 2
    lost = operator("status")
    assert lost.status == 1
    assert f"{admin.endpoint} cannot be reached" in lost.err
    assert "audit" not in lost.err
    admin.breaks, admin.asked = 1, []
    unsure = operator("nodes", "drain", "n1")
    assert unsure.status == 1
    assert "larder-gateway audit shows whether the change was made" in unsure.err
    assert len(admin.asked) == 1


def test_a_private_authority(admin):
    """Rule: an unknown authority's certificate is reported with a remedy that works; a wrong name is reported as such."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    admin.socket = context.wrap_socket(admin.socket, server_side=True)
    port, variables = admin.server_address[1], {"LARDER_ADMIN_TOKEN": TOKEN}
    refused = run_here("status", "--endpoint", f"https://127.0.0.1:{port}", **variables)
    assert refused.status == 1
    assert "SSL_CERT_FILE" in refused.err
    variables["SSL_CERT_FILE"] = str(CERTIFICATE)
    assert run_here("status", "--endpoint", f"https://127.0.0.1:{port}", **variables).status == 0
    assert "another name" in run_here("status", "--endpoint", f"https://localhost:{port}", **variables).err


def test_no_token(admin):
    """Rule: a gateway that wants a token is answered with where to put it; the configuration is wrong, not the gateway."""
    ran = run_here("status", "--endpoint", admin.endpoint)
    assert ran.status == 2
    assert "--token-file" in ran.err
    assert "LARDER_ADMIN_TOKEN" in ran.err


def test_a_wrong_token(operator):
    """Rule: a refused token is reported as such and never printed."""
    ran = operator("status", LARDER_ADMIN_TOKEN="something-else")
    assert ran.status == 2
    assert "does not accept the token" in ran.err
    assert "something-else" not in ran.err


def test_the_token_from_a_file(admin, tmp_path):
    """Rule: a file's token is taken without the line's end, before the variable's."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    ran = run_here("status", "--endpoint", admin.endpoint, "--token-file", str(file), LARDER_ADMIN_TOKEN="wrong")
    assert ran.status == 0
    assert admin.asked[0].headers["authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot be read"), ("", "is empty"), ("two words", "printable ASCII")]
)
def test_a_token_file_of_no_use(admin, tmp_path, content, said):
    """Rule: a missing or empty token file is wrong usage; no request is sent."""
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    ran = run_here("status", "--endpoint", admin.endpoint, "--token-file", str(file))
    assert ran.status == 2
    assert said in ran.err
    assert admin.asked == []


def test_closed_admin_endpoints(admin, operator):
    """Rule: 403 AdminDisabled is reported in the gateway's words, which name the setting."""
    admin.answers["GET overview"] = lambda _: problem(403, "AdminDisabled", "Set admin.token in the configuration.")
    ran = operator("status")
    assert ran.status == 2
    assert "Set admin.token in the configuration." in ran.err


@pytest.mark.parametrize("document", [b"<html>nginx</html>", ["a list"], {}])
@pytest.mark.parametrize("status", [200, 404, 302])
def test_something_else_at_the_address(admin, operator, document, status):
    """Rule: an answer that is not Larder's is reported as such, with any status."""
    admin.answers["GET overview"] = lambda _: (status, document)
    ran = operator("status")
    assert ran.status == 2
    assert f"{admin.endpoint} is not a Larder gateway" in ran.err


def test_a_refusal(admin, operator):
    """Rule: a refusal is reported in the gateway's words, with its code; control characters are escaped."""
    admin.answers["POST nodes/n/drain"] = lambda _: problem(409, "Conflict", "The last one\x1b[2J is left.")
    ran = operator("nodes", "drain", "n")
    assert ran.status == 1
    assert ran.err == "larder-gateway: The last one\\x1b[2J is left. (Conflict)\n"


def test_a_problem_of_the_fleet(admin, operator):
    """Rule: status ends with 1 when the fleet has a problem of severity error, with --json too."""
    admin.answers["GET overview"] = ILL
    ran = operator("status")
    assert ran.status == 1
    assert "error (node node-2), since " in ran.out
    assert ": the disk of the cache is down\n" in ran.out
    assert "  look at its mount" in ran.out
    told = operator("status", "--json")
    assert (told.status, told.json) == (1, ILL)


def test_json_is_all_there_is(admin, operator):
    """Rule: with --json standard output is the gateway's document, and standard error is empty."""
    ran = operator("status", "--json")
    assert ran.json == admin.answers["GET overview"]
    assert (ran.status, ran.err) == (0, "")


def test_names_are_parts_of_an_address(admin, operator):
    """Rule: a name with a slash or dots stays a name."""
    ran = operator("nodes", "drain", "../overview?x=1")
    assert ran.status == 1
    assert admin.asked[-1].path == "nodes/..%2Foverview%3Fx%3D1/drain"
