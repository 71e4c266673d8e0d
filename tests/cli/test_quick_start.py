"""``larder-gateway serve`` in an empty directory, without a configuration."""

from __future__ import annotations

import json
import re
import shlex
import signal
import stat
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gateway.base.config import load_settings
from gateway.local import quick_start
from gateway.local import serving as starts
from gateway.local.quick_start import (
    FILE,
    NamedOrigin,
    exports,
    is_quick,
    origin_of,
    prepare,
    refuse_own_key,
)
from gateway.model.errors import ConfigError
from rig.forked import Forked
from rig.gateways import s3_client
from rig.origin import FakeOrigin, OriginThread
from rig.origin_auth import User
from rig.origin_faults import DieBeforeHeaders
from tests.cli.commands import environment, run_here

OWN = {"AWS_ACCESS_KEY_ID": "OK", "AWS_SECRET_ACCESS_KEY": "origin-secret"}
NONE = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"}
_S3, _REGION = "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION"
IN_IRELAND = "https://s3.eu-west-1.amazonaws.com"


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOrigin]:
    """A store with one object; the working directory is empty, and AWS settings are those that a test makes."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in NONE.items():
        monkeypatch.setenv(name, value)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    with OriginThread([User("OK", "origin-secret")]) as running:
        running.put("b", "k", b"body")
        yield running


def serve(log: Path, *options: str, **variables: str) -> Forked:
    """Start the command on a free port."""
    return Forked(["serve", "--port", "0", *options], environment(**NONE, **variables), log)


@contextmanager
def serving(log: Path, *options: str, **variables: str) -> Iterator[dict[str, str]]:
    """A running gateway; the variables that it says to export."""
    process = serve(log, *options, **variables)
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if "LARDER_ADMIN_TOKEN" in line:
                break
        yield dict(re.findall(r"(\w+)=(\S+)", "".join(line for line in said if line.startswith("export "))))
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        process.stdout.close()


def read(exported: Mapping[str, str]) -> tuple[bytes, str]:
    """Body and cache status of the object, read by a client with these variables."""
    names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    with closing(s3_client(*(exported[name] for name in names))) as client:
        answer = client.get_object(Bucket="b", Key="k")
        return answer["Body"].read(), answer["ResponseMetadata"]["HTTPHeaders"]["x-larder-cache"]


def refused(log: Path, *options: str, **variables: str) -> str:
    """The error of a start that fails."""
    process = serve(log, *options, **variables)
    assert process.wait(60) == 2
    process.stdout.close()
    return log.read_text()


def test_an_origin_is_all_that_a_start_needs(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: the first start makes a key file readable only by its owner and prints the lines to export; a second start has the
    same key, and serves cached objects while the origin is unreachable."""
    with serving(tmp_path / "log", "--origin", origin.endpoint, **OWN) as first:
        assert read(first) == (b"body", "MISS; reason=cold")
    file = Path("larder-cache", FILE)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    origin.inject(DieBeforeHeaders(times=1000))
    with serving(tmp_path / "log", "--origin", origin.endpoint, **OWN) as second:
        assert read(second) == (b"body", "HIT")
    kept = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "LARDER_ADMIN_TOKEN")
    assert [first[name] for name in kept] == [second[name] for name in kept]
    assert first["AWS_DEFAULT_REGION"] == "us-east-1"


def test_a_first_start_is_remembered(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: the file of a first start has its origin, so a second one needs none, and --origin still names another; it is a whole
    configuration, which check-config accepts, and reads the origin with."""
    with serving(tmp_path / "log", "--origin", origin.endpoint, **OWN) as first:
        assert read(first) == (b"body", "MISS; reason=cold")
    with serving(tmp_path / "log", **OWN) as second:
        assert read(second) == (b"body", "HIT")
    kept = str(Path("larder-cache", FILE))
    assert run_here("check-config", kept).json["origins"][0]["endpoint"] == origin.endpoint
    assert run_here("check-config", kept, "--origin", "default", **OWN).json["read"] == "b/k"
    mine = {name: first[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    assert (
        "AWS_ACCESS_KEY_ID: is a key of this gateway"
        in run_here("check-config", kept, "--origin", "default", **mine).err
    )
    assert origin_of("", {}, Path(kept).absolute()).endpoint == origin.endpoint
    for given, environ in (("http://10.0.0.1:9000", {}), ("", {"AWS_ENDPOINT_URL": "http://10.0.0.1:9000"})):
        assert origin_of(given, environ, Path(kept)).endpoint == "http://10.0.0.1:9000"
        assert prepare(given, environ, {}).settings.origins[0].endpoint == "http://10.0.0.1:9000"


def test_a_file_of_an_older_release_has_no_origin(origin: FakeOrigin) -> None:
    """Rule: such a file is used as it is, with the origin that a start names; without one, the error says how to name one."""
    Path("larder-cache").mkdir(mode=0o700)
    Path("larder-cache", FILE).write_text('[[credentials]]\naccess_key_id = "ME"\nsecret_access_key = "secret"\n')
    assert prepare(origin.endpoint, {}, {}).settings.credentials[0].access_key_id == "ME"
    with pytest.raises(ConfigError, match=r"no origin: name the object store with --origin URL"):
        prepare("", {}, {})


def test_a_mistake_in_the_file_of_a_first_start_is_named_there(origin: FakeOrigin) -> None:
    """Rule: the error names the file and the field once."""
    Path("larder-cache").mkdir(mode=0o700)
    file = Path("larder-cache", FILE).absolute()
    file.write_text('[[origins]]\nendpoint = "store"\n')
    with pytest.raises(ConfigError, match=rf"^{file}: origins\.0\.endpoint: must look like"):
        prepare("", {}, {})


def test_an_archive_for_support_has_its_configuration(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: the configuration of such a gateway is in the archive, with the origin that it was started with; its secrets are
    neither there nor in what it printed."""
    archive = tmp_path / "support.tar.gz"
    with serving(tmp_path / "log", "--origin", origin.endpoint, **OWN) as exported:
        printed = tmp_path / "printed.log"
        printed.write_text("".join(f"export {name}={value}\n" for name, value in exported.items()))
        words = ("--config", f"larder-cache/{FILE}", "--log", str(printed), "--out", str(archive))
        asking = {name: value for name, value in exported.items() if name.startswith("LARDER_")}
        assert run_here("support", *words, "--json", **asking).json["missing"] == {}
    with tarfile.open(archive) as files:
        texts = {entry.name: files.extractfile(entry).read().decode() for entry in files}  # type: ignore[union-attr]
    configuration = json.loads(texts["larder-support/configuration.json"])
    assert [place["endpoint"] for place in configuration["origins"]] == [origin.endpoint]
    assert [key["access_key_id"] for key in configuration["credentials"]] == [exported["AWS_ACCESS_KEY_ID"]]
    whole = "".join(texts.values())
    assert exported["AWS_SECRET_ACCESS_KEY"] not in whole
    assert exported["LARDER_ADMIN_TOKEN"] not in whole


def test_the_settings_of_aws_are_enough(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: AWS_ENDPOINT_URL names the origin; without keys the start says that only public buckets can be read."""
    with serving(tmp_path / "log", AWS_ENDPOINT_URL=origin.endpoint) as exported:
        assert exported["AWS_ENDPOINT_URL"] != origin.endpoint
    assert "no AWS credentials were found" in (tmp_path / "log").read_text()


def test_lines_to_export_are_quoted_for_a_shell(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: a secret that a person wrote into the file reaches the shell as it is."""
    Path("larder-cache").mkdir(mode=0o700)
    secret = "a long $random string"
    Path("larder-cache", FILE).write_text(
        f'[[credentials]]\naccess_key_id = "ME"\nsecret_access_key = "{secret}"\n[admin]\ntoken = "so-secret"\n'
    )
    settings = load_settings(Path("larder-cache", FILE), {}, {"origins.0.endpoint": origin.endpoint})
    said = exports(settings, "http://127.0.0.1:9000", "http://127.0.0.1:19000", prepare(origin.endpoint, {}, {}), {})
    (line,) = [each for each in said.splitlines() if "AWS_SECRET_ACCESS_KEY" in each]
    assert shlex.split(line) == ["export", f"AWS_SECRET_ACCESS_KEY={secret}"]


def test_a_start_that_cannot_work_says_why(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: an origin that does not answer or refuses the keys is an error before a key is made, and the error names a remedy."""
    wrong = {"AWS_ACCESS_KEY_ID": "OK", "AWS_SECRET_ACCESS_KEY": "wrong"}
    silent = refused(tmp_path / "1", "--origin", "http://127.0.0.1:9", **OWN)
    assert "--origin: the origin http://127.0.0.1:9 gave no answer" in silent
    assert "check its address, and whether it is running" in silent
    unknown = refused(tmp_path / "2", "--origin", origin.endpoint, **wrong)
    assert "the origin refuses the key OK: SignatureDoesNotMatch" in unknown
    assert "AWS_ACCESS_KEY_ID or AWS_PROFILE chooses another" in unknown
    assert not Path("larder-cache").exists()


@pytest.mark.parametrize(
    ("given", "environ", "found"),
    [
        ("http://10.0.0.1:9000", {"AWS_ENDPOINT_URL": "http://x"}, ("http://10.0.0.1:9000", "us-east-1", "--origin")),
        (IN_IRELAND, {"AWS_REGION": "us-west-2"}, (IN_IRELAND, "eu-west-1", "--origin")),
        ("http://minio:9000", {"AWS_REGION": "home-1"}, ("http://minio:9000", "home-1", "--origin")),
        ("", {_S3: "http://s", "AWS_ENDPOINT_URL": "http://x"}, ("http://s", "us-east-1", _S3)),
        ("", {"AWS_REGION": "eu-west-1"}, (IN_IRELAND, "eu-west-1", "AWS_REGION")),
        ("", {_REGION: "cn-north-1"}, ("https://s3.cn-north-1.amazonaws.com.cn", "cn-north-1", _REGION)),
        ("", OWN, ("https://s3.us-east-1.amazonaws.com", "us-east-1", "AWS_ACCESS_KEY_ID without AWS_REGION")),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("origin")
def test_the_origin_that_is_named(given: str, environ: Mapping[str, str], found: tuple[str, str, str]) -> None:
    """Rule: the command line, then the AWS settings in the order of the SDKs; the region is that of the address if it has one."""
    assert origin_of(given, environ) == NamedOrigin(*found)


@pytest.mark.parametrize(
    ("given", "environ", "named"),
    [
        ("s3://bucket", {}, "--origin: s3://bucket"),
        ("http://minio:9000/bucket", {}, "--origin: http://minio:9000/bucket"),
        ("", {"AWS_ENDPOINT_URL": "minio:9000"}, "AWS_ENDPOINT_URL: minio:9000"),
    ],
)
@pytest.mark.usefixtures("origin")
def test_an_address_that_is_none_is_named_as_it_was_given(given: str, environ: Mapping[str, str], named: str) -> None:
    """Rule: the error names the option or variable, and its value, not a setting of a file that is not there."""
    with pytest.raises(ConfigError, match=rf"{named} must look like .* without a path"):
        prepare(given, environ, {})


@pytest.mark.usefixtures("origin")
def test_a_profile_names_the_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: address and region of the AWS profile count where the variables have neither; a missing profile is an error."""
    (tmp_path / "config").write_text(
        "[default]\nregion = eu-west-1\n[profile store]\nendpoint_url = http://store:9000\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert origin_of("", {}) == NamedOrigin(IN_IRELAND, "eu-west-1", "region of the AWS profile")
    monkeypatch.setenv("AWS_PROFILE", "store")
    assert origin_of("", {}) == NamedOrigin("http://store:9000", "us-east-1", "endpoint_url of the AWS profile")
    monkeypatch.setenv("AWS_PROFILE", "missing")
    with pytest.raises(ConfigError, match=r"AWS_PROFILE: .*missing"):
        origin_of("", {})


@pytest.mark.usefixtures("origin")
def test_without_an_origin_a_start_says_how_to_name_one() -> None:
    """Rule: the error names the option, the variables and the file."""
    with pytest.raises(ConfigError, match=r"--origin URL.*AWS_ENDPOINT_URL.*--config"):
        prepare("", {}, {})


@pytest.mark.usefixtures("origin")
def test_what_a_start_has_printed_is_not_taken_for_the_origin() -> None:
    """Rule: in the shell in which its lines were exported, a gateway neither reads itself nor sends its own key to the origin."""
    with pytest.raises(ConfigError, match=r"AWS_ENDPOINT_URL: .* is this gateway's own address"):
        prepare("", {"AWS_ENDPOINT_URL": "http://localhost:9000"}, {})
    started = prepare(IN_IRELAND, {}, {})
    [own] = started.keep({}).credentials
    with pytest.raises(ConfigError, match="AWS_ACCESS_KEY_ID: is a key of this gateway"):
        refuse_own_key(started.keep({}), {"AWS_ACCESS_KEY_ID": own.access_key_id})


@pytest.mark.usefixtures("origin")
def test_a_file_system_without_room_is_refused_before_a_key_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a first start on a disk that cannot hold the gateway's own files names what is free and the remedy."""
    monkeypatch.setattr(quick_start, "_LEAST_SPACE", 2**62)
    with pytest.raises(ConfigError, match=r"only .* MiB are free on its file system; LARDER_CACHE__DIR names another"):
        prepare(IN_IRELAND, {}, {}).keep({})
    assert not Path("larder-cache", FILE).exists()


def test_a_clients_key_is_not_sent_to_the_origin_of_a_file(origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: a configuration whose origin takes keys from the variables refuses a key there that is one of its clients'."""
    file = tmp_path / "larder.toml"
    keys = '[[credentials]]\naccess_key_id = "OK"\nsecret_access_key = "a long random string"\n'
    file.write_text(f'[[origins]]\nendpoint = "{origin.endpoint}"\n{keys}')
    assert "AWS_ACCESS_KEY_ID: is a key of this gateway" in refused(tmp_path / "log", "--config", str(file), **OWN)


@pytest.mark.usefixtures("origin")
def test_a_file_in_the_place_of_the_cache_is_named_with_a_remedy() -> None:
    """Rule: the error names the file, and the variable that chooses another folder."""
    Path("larder-cache").touch()
    with pytest.raises(
        ConfigError, match=r"larder-cache.*cannot be written: File exists; LARDER_CACHE__DIR names another"
    ):
        prepare(IN_IRELAND, {}, {}).keep({})


def test_a_cache_that_the_locale_cannot_name_is_refused() -> None:
    """Rule: a directory with characters outside the locale's set is an error with a remedy, not a traceback."""
    refusal = r"cache\.dir: has characters that this locale cannot write; set LANG="
    nowhere = Path("/tmp/\ud800")  # a lone surrogate has no encoding in any locale
    with pytest.raises(ConfigError, match=refusal), starts._run_directory(nowhere):
        pass


def test_a_cache_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a directory that this user may not write is a mistake of the configuration, not a failed disk to start without."""
    monkeypatch.setattr("os.access", lambda *_: False)  # tests may run as root, whom nothing forbids
    refusal = rf"cache\.dir: {tmp_path} cannot be written by this user: Permission denied; .*LARDER_CACHE__DIR"
    with pytest.raises(ConfigError, match=refusal), starts._run_directory(tmp_path):
        pass


@pytest.mark.parametrize(
    ("config", "environ", "quick"),
    [
        (None, {"LARDER_CACHE__CAPACITY": "1GB"}, True),
        (Path("larder.toml"), {}, False),
        (None, {"LARDER_ORIGINS__0__ENDPOINT": "http://x"}, False),
        (None, {"LARDER_CREDENTIALS__0__ACCESS_KEY_ID": "k"}, False),
    ],
)
def test_a_configuration_gets_no_key_that_nobody_asked_for(
    config: Path | None, environ: Mapping[str, str], quick: bool
) -> None:
    """Rule: a file, or origins or credentials in the environment, are the whole configuration."""
    assert is_quick(config, environ) == quick
