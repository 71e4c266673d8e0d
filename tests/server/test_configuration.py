"""An error in a configuration names its field, with status 2, without a traceback and without a secret."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.base.config import load_settings, sections
from gateway.base.config_environment import lookalikes
from gateway.cli import main
from gateway.model.errors import ConfigError
from rig.gateways import Running, Settings, gateway
from rig.origin import ALICE, OriginThread
from rig.processes import wait_until

ORIGIN = '[[origins]]\nendpoint = "http://127.0.0.1:9"\n'
CREDENTIAL = '[[credentials]]\naccess_key_id = "a"\nsecret_access_key = "hunter2"\n'


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LARDER_")]:
        monkeypatch.delenv(name)


def refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | bytes) -> str:
    """The message of check-config for a file that it refuses with status 2."""
    path = tmp_path / "larder.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert main(["check-config", str(path)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" not in told.err
    assert "hunter2" not in told.err
    return told.err


WRONG = {
    "server.port": ["[server]\nport = 70000", '[server]\nport = "http"', "[server]\nport = -1", "[server]\nport = 1.5"],
    "server.prot": ["[server]\nprot = 1"],
    "server.workers": ["[server]\nworkers = 0"],
    "server.host": ["[server]\nhost = 5", '[server]\nhost = ""', '[server]\nhost = "a\\u0000b"'],
    "server.drain": ["[server]\ndrain = nan", "[server]\ndrain = -1", '[server]\ndrain = "soon"'],
    "server.keep_alive": ["[server]\nkeep_alive = inf"],
    "server.tls_cert": ['[server]\ntls_cert = "x"'],
    "cache.dir": ['[cache]\ndir = ""', '[cache]\ndir = "a\\u0000b"', "[cache]\ndir = []"],
    "cache.capacity": [
        '[cache]\ncapacity = "much"', "[cache]\ncapacity = inf", "[cache]\ncapacity = 0", "[cache]\ncapacity = true",
        '[cache]\ncapacity = "9999999999TB"',
    ],
    "cache.block_size": ["[cache]\nblock_size = 1"],
    "redis.url": [
        '[redis]\nurl = "localhost:6379"', '[redis]\nurl = "redis://:hunter2@h:abc"', '[redis]\nurl = "redis://:hunter2@[h"',
        '[redis]\nurl = "redis://:hunter2@h?wat=1"', '[redis]\nurl = "http://h"',
    ],
    "fleet.secret": [
        '[fleet]\nsecret = "hunter2"', '[fleet]\nsecret = 5', '[fleet]\nsecret = "hunter2hunter2hunter2"',
    ],
    'redis.url is "embedded"': ['[fleet]\nsecret = "hunter2hunter2hunter2"'],
    "fleet.node": ['[fleet]\nnode = "a b"', f'[fleet]\nnode = "{"x" * 65}"'],
    "fleet.zone": ['[fleet]\nzone = ""', '[fleet]\nzone = "rack:1"'],
    "fleet.advertise": [
        '[fleet]\nadvertise = "10.0.0.7:9000"', '[fleet]\nadvertise = "http://h/path"', '[fleet]\nadvertise = "http://h:0"',
        '[fleet]\nsecret = "hunter2hunter2hunter2"\n[redis]\nurl = "redis://h"\n[server]\nhost = "0.0.0.0"',
    ],
    "fleet.heartbeat": ["[fleet]\nheartbeat = 0"],
    "fleet: expire": ['[fleet]\nexpire = "1500ms"'],
    "log.level": ['[log]\nlevel = "loud"'],
    "log.format": ['[log]\nformat = "xml"'],
    "rules.0.match": ["[[rules]]"],
    "rules.0.freshness": ['[[rules]]\nmatch = "a"\nfreshness = "sometimes"', '[[rules]]\nmatch = "a"\nfreshness = -5'],
    "rules.0.cache": ['[[rules]]\nmatch = "a"\ncache = "perhaps"'],
    "credentials.0.expires": [CREDENTIAL + 'expires = "tomorrow"'],
    "credentials.0.origin": [CREDENTIAL + 'origin = "elsewhere"'],
    "credentials.0.secret_access_key": ['[[credentials]]\naccess_key_id = "a"\nsecret_access_key = ["hunter2"]'],
    "credentials.0.secret_acces_key": [CREDENTIAL + 'secret_acces_key = "hunter2"'],
    "origin_access_key_id": [CREDENTIAL + 'origin_access_key_id = "x"'],
    "access_key_id": [CREDENTIAL * 2],
    "serve": ["[serve]\nport = 1"],
}  # fmt: skip


@pytest.mark.parametrize(("field", "text"), [(field, text) for field, texts in WRONG.items() for text in texts])
def test_a_wrong_value_is_told_by_its_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, text: str
) -> None:
    """Rule: wrong types, values out of bounds, typos and contradictions name the file and the field."""
    told = refusal(tmp_path, capsys, f"{ORIGIN}{text}\n")
    assert f"{tmp_path / 'larder.toml'}: " in told
    assert field in told


def test_what_is_negative_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: a negative size or time is reported as negative, not as unreadable."""
    for text in ('[manager]\npreload_bandwidth = "-5MB"', '[fleet]\nheartbeat = "-1s"'):
        told = refusal(tmp_path, capsys, f"{ORIGIN}{text}\n")
        assert "is negative" in told
        assert "is invalid" not in told


@pytest.mark.parametrize(
    "endpoint",
    [
        "", "127.0.0.1:9000", "ftp://h", "http://", "http://h/path", "http://h?x=1", "http://h#x", "http://h:99999", "http://h:abc",
        "http://h:0", "http://a b", "http://u:hunter2@h", "http://[::1", "http://a\\nb", "http://h:-1", "http://h:٣",
    ],
)  # fmt: skip
def test_an_endpoint_that_is_none_is_told_before_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], endpoint: str
) -> None:
    """Rule: an origin's address that could not be used is refused here, with an example of a good one."""
    told = refusal(tmp_path, capsys, f'[[origins]]\nendpoint = "{endpoint}"\n')
    assert "origins.0.endpoint: " in told


@pytest.mark.parametrize(
    "endpoint", ["http://h", "https://s3.eu-west-1.amazonaws.com/", "http://[::1]:9000", "HTTP://a_b.c:1"]
)
def test_endpoints_that_are_accepted(tmp_path: Path, endpoint: str) -> None:
    """Rule: names, IPv6 in brackets, ports and a slash at the end are addresses."""
    path = tmp_path / "larder.toml"
    path.write_text(f'[[origins]]\nendpoint = "{endpoint}"\n')
    assert main(["check-config", str(path)]) == 0


@pytest.mark.parametrize(
    "text", [b"a = ", b"[server\n", b'x = "\xff"', b"\xff\xfe", b"a = 1\na = 2\n", b"a = " + b"[" * 20_000, b"\0"]
)
def test_what_is_no_toml_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes) -> None:
    """Rule: syntax errors name the file, however strange it is."""
    assert "is not valid TOML" in refusal(tmp_path, capsys, text)


def test_a_file_that_cannot_be_read_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: the message for a missing file or a directory includes the system's reason."""
    for path in (tmp_path / "missing.toml", tmp_path):
        assert main(["check-config", str(path)]) == 2
        assert f"{path}: cannot be read: " in capsys.readouterr().err


def _configured(tmp_path: Path, endpoint: str) -> str:
    """A configuration with one origin, and ALICE's keys for it."""
    path = tmp_path / "larder.toml"
    keys = f'access_key_id = "{ALICE.access_key_id}"\nsecret_access_key = "{ALICE.secret_access_key}"\n'
    path.write_text(f'[[origins]]\nname = "here"\nendpoint = "{endpoint}"\n{keys}')
    return str(path)


def test_an_origin_says_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: with --origin, the document names the object that was read and what the store lacks; nothing is written there."""
    with OriginThread() as origin:
        origin.put("b", "k", b"body")
        assert main(["check-config", _configured(tmp_path, origin.endpoint), "--origin", "here"]) == 0
        outcome = json.loads(capsys.readouterr().out)
        assert (outcome["origin"], outcome["read"]) == ("here", "b/k")
        assert [lack for lack in outcome["lacks"] if "If-" in lack or lack.startswith("ranges")] == []
        assert {seen.method for seen in origin.seen} == {"GET", "HEAD"}


@pytest.mark.parametrize(("name", "told"), [("there", "no origin 'there', but here"), ("here", "shows an object")])
def test_an_origin_that_cannot_be_examined_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, told: str
) -> None:
    """Rule: a name that is not configured, and a store without objects, are errors that say what to do."""
    with OriginThread() as origin:
        assert main(["check-config", _configured(tmp_path, origin.endpoint), "--origin", name]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("LARDER_SERVER__PROT", "server.prot"), ("LARDER_SERVER__PORT", "server.port"),
        ("LARDER_SERVER__PORT__X", "LARDER_SERVER__PORT__X"), ("LARDER_NOTHING__X", "nothing"),
        ("LARDER_ORIGINS__5__NAME", "LARDER_ORIGINS__5__NAME"),
        ("LARDER_ORIGINS__X__NAME", "LARDER_ORIGINS__X__NAME"), ("LARDER_ORIGINS__²__NAME", "LARDER_ORIGINS__²__NAME"),
        ("LARDER_ORIGINS__0__ENDPOINT", "origins.0.endpoint"),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, field: str
) -> None:
    """Rule: mistakes in environment variables are reported like mistakes in the file."""
    monkeypatch.setenv(name, "hunter2")
    assert field in refusal(tmp_path, capsys, f"[server]\nport = 1\n{ORIGIN}")


KUBERNETES = {
    "LARDER_PORT": "tcp://10.0.0.1:9000", "LARDER_SERVICE_HOST": "10.0.0.1", "LARDER_SERVICE_PORT": "9000",
    "LARDER_SERVICE_PORT_HTTP": "9000", "LARDER_PORT_9000_TCP": "tcp://10.0.0.1:9000",
    "LARDER_PORT_9000_TCP_PROTO": "tcp", "LARDER_PORT_9000_TCP_PORT": "9000", "LARDER_PORT_9000_TCP_ADDR": "10.0.0.1",
    "LARDER_SERVER_PORT": "tcp://10.0.0.2:9000", "LARDER_SERVER_SERVICE_PORT": "9000",
    "LARDER_CACHE__DIR_SERVICE_HOST": "10.0.0.3", "LARDER_A__B_PORT": "tcp://10.0.0.4:1",
    "LARDER_A__B_PORT_1_TCP_ADDR": "10.0.0.4",
}  # fmt: skip
"""Environment of a pod beside Services named larder, larder-server, larder-cache--dir and larder-a--b."""


def test_variables_of_others_are_no_settings() -> None:
    """Rule: variables of Kubernetes services, of the client and of users have no effect."""
    own = {"LARDER_ENDPOINT": "http://h", "LARDER_ADMIN_TOKEN": "x", "LARDER_HOME": "/srv", "LARDERER_CACHE_DIR": "x"}
    environment = {**KUBERNETES, **own}
    settings = load_settings(environ={"LARDER_ORIGINS__0__ENDPOINT": "http://h", **environment})
    assert settings == load_settings(environ={"LARDER_ORIGINS__0__ENDPOINT": "http://h"})
    assert lookalikes(environment, sections()) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LARDER_SERVER_PORT", "LARDER_SERVER__PORT"), ("LARDER_CACHE_DIR", "LARDER_CACHE__DIR"),
        ("LARDER_FLEET_SECRT", "LARDER_FLEET__SECRET"), ("LARDER_ORIGINS_1_ENDPOINT", "LARDER_ORIGINS__0__ENDPOINT"),
        ("LARDER_CACHE_WHATEVER", "two underscores"),
    ],
)  # fmt: skip
def test_what_resembles_a_setting_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    """Rule: a variable that misses an underscore is ignored, with a warning that names the setting and not the value."""
    monkeypatch.setenv(name, "hunter2")
    (tmp_path / "larder.toml").write_text(ORIGIN)
    assert main(["check-config", str(tmp_path / "larder.toml")]) == 0
    told = capsys.readouterr().err
    assert f"warning: {name} is not a setting" in told
    assert meant in told
    assert "hunter2" not in told


def test_a_section_that_does_not_exist_is_refused_by_the_nearest() -> None:
    """Rule: a variable with two underscores counts as a setting, so an unknown section is refused with the nearest name."""
    with pytest.raises(ConfigError, match="servr: unknown setting; did you mean 'server'"):
        load_settings(environ={"LARDER_SERVR__PORT": "1", "LARDER_ORIGINS__0__ENDPOINT": "http://h"})


def test_a_mistake_is_told_with_its_source(tmp_path: Path) -> None:
    """Rule: a wrong value of a variable is told by the variable's name, and not as one of the file, which has none."""
    file = tmp_path / "larder.toml"
    file.write_text(f"{ORIGIN}\n[cache]\ncapcity = 1\n")
    with pytest.raises(ConfigError) as raised:
        load_settings(file, {"LARDER_SERVER__PORT": "x", "LARDER_FLET__NODE": "y"}, {"server.workers": 0})
    said = str(raised.value)
    assert f"{file}: cache.capcity: unknown setting; did you mean 'capacity'?" in said
    assert "LARDER_SERVER__PORT: server.port: " in said
    assert "LARDER_FLET__NODE: flet: unknown setting; did you mean 'fleet'?" in said
    assert f"{file}: " not in said.partition("server.workers: ")[0].rpartition("; ")[2]


def test_the_environment_has_no_order() -> None:
    """Rule: items of a list may come in any order, tens after ones."""
    names = [f"LARDER_ORIGINS__{number}__NAME" for number in (10, 2, 11, 9, 1, 8, 3, 7, 4, 6, 5, 0)]
    environment = {name: name.split("__")[1] for name in names}
    environment |= {name.replace("NAME", "ENDPOINT"): "http://h" for name in names}
    settings = load_settings(environ=environment)
    assert [origin.name for origin in settings.origins] == [str(number) for number in range(12)]


def test_globs_in_the_environment_are_separated_by_commas() -> None:
    """Rule: no other value is read as a list, so that no slip opens or closes a key."""
    environment = {
        "LARDER_ORIGINS__0__ENDPOINT": "http://h", "LARDER_CREDENTIALS__0__ACCESS_KEY_ID": "a",
        "LARDER_CREDENTIALS__0__SECRET_ACCESS_KEY": "b",
    }  # fmt: skip
    allow = "LARDER_CREDENTIALS__0__ALLOW"
    settings = load_settings(environ=environment | {allow: "one/**, two/x/*"})
    assert settings.credentials[0].allow == ("one/**", "two/x/*")
    for slip in ("", "one/**,", '["one/**"]'):
        with pytest.raises(ConfigError, match=r"credentials\.0\.allow"):
            load_settings(environ=environment | {allow: slip})


def test_check_config_prints_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: keys, tokens, and passwords within addresses are hidden; the rest is shown."""
    path = tmp_path / "larder.toml"
    path.write_text(
        ORIGIN + 'access_key_id = "shown"\nsecret_access_key = "hunter2"\nsession_token = "hunter2"\n' + CREDENTIAL
        + 'session_token = "hunter2"\norigin_access_key_id = "x"\norigin_secret_access_key = "hunter2"\n'
        + '[redis]\nurl = "redis://me:hunter2@redis.example:6379/0?password=hunter2"\n[admin]\ntoken = "hunter2"\n'
        + '[fleet]\nsecret = "hunter2hunter2hunter2"\n'
        + '[database]\nurl = "postgresql+asyncpg://me:hunter2@db.example/x"\n'
        + f'encryption_key = "{"hunter2" * 6}A="\n'
    )  # fmt: skip
    assert main(["check-config", str(path)]) == 0
    told = capsys.readouterr().out
    assert "hunter2" not in told
    for shown in ("shown", "redis.example", "db.example"):
        assert shown in told


def serve(config: Path) -> subprocess.CompletedProcess[str]:
    """``serve`` with a configuration that ends it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")}
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


@pytest.mark.parametrize("story", ["port", "tls", "access", "expires"])
def test_serve_refuses_what_it_cannot_serve_with(tmp_path: Path, story: str) -> None:
    """Rule: a port in use, invalid TLS files, a log that cannot be opened: status 2, the field, no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (tmp_path / "file").write_text("hunter2")
        text = {
            "port": f"[server]\nport = {taken.getsockname()[1]}",
            "tls": f'[server]\nport = 0\ntls_cert = "{tmp_path}/file"\ntls_key = "{tmp_path}/file"',
            "access": f'[server]\nport = 0\n[log]\naccess = "{tmp_path}/file/access.log"',
            "expires": '[server]\nport = 0\n[[credentials]]\naccess_key_id = "a"\nsecret_access_key = "hunter2"\nexpires = "x"',
        }[story]
        config = tmp_path / "larder.toml"
        config.write_text(f'{ORIGIN}[cache]\ndir = "{tmp_path}/cache"\n{text}\n')
        ended = serve(config)
    assert ended.returncode == 2, ended.stderr
    field = {
        "port": "server.port",
        "tls": "server.tls_cert",
        "access": "log.access",
        "expires": "credentials.0.expires",
    }[story]
    assert field in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "hunter2" not in ended.stderr + ended.stdout


def _await_reloads(running: Running, result: str, count: int) -> None:
    wait_until(lambda: running.metric("larder_config_reloads_total", result=result) == count, 30, f"reload {count}")


def test_reloading_survives_every_bad_file(tmp_path: Path) -> None:
    """Rule: after files that cannot be used, each refused and counted, a good one is loaded again."""
    with OriginThread() as origin, gateway(Settings(origin.endpoint, tmp_path / "cache"), tmp_path) as running:
        good = running.config.read_text()
        bad = [
            "not TOML",
            good.replace(origin.endpoint, "http://h:99999"),
            good.replace('"GWA"', '"GWA"\nexpires = "x"'),
            "",
        ]
        for number, text in enumerate(bad, 1):
            running.config.write_text(text)
            _await_reloads(running, "refused", number)
        running.config.write_text(good.replace('"GWA"', '"ANOTHER"'))
        _await_reloads(running, "loaded", 1)
        running.client("ANOTHER").list_buckets()
        assert "gateway-secret-a" not in running.log.read_text()


@pytest.mark.parametrize("where", ["file/below", "/proc/larder-cache"])
def test_a_cache_directory_that_cannot_be_is_no_reason_not_to_serve(tmp_path: Path, where: str) -> None:
    """Rule: without a disk everything is read from the origin, and readiness names the disk."""
    (tmp_path / "file").write_text("a file")
    with OriginThread() as origin:
        origin.put("bucket", "key", b"bytes")
        with gateway(Settings(origin.endpoint, tmp_path / where), tmp_path / "home") as running:
            for _ in range(2):
                assert running.client().get_object(Bucket="bucket", Key="key")["Body"].read() == b"bytes"
            assert origin.count("GET", "/bucket/key") == 2
