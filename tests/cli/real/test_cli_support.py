"""``larder-gateway support`` at a real gateway."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from rig.v1 import GWA
from tests.cli.real.reads import ADMIN, READER, served


def opened(archive: Path) -> dict[str, bytes]:
    """The files of an archive by their names."""
    with tarfile.open(archive) as files:
        return {Path(entry.name).name: files.extractfile(entry).read() for entry in files.getmembers()}  # type: ignore[union-attr]


def test_the_archive_has_the_state_and_no_secret(operator, running, tmp_path):
    """Rule: the admin API's documents, the configuration and the log are there; keys and tokens are in none of them."""
    served(running, *GWA)
    configuration, log, archive = tmp_path / "larder.toml", tmp_path / "larder.log", tmp_path / "support.tar.gz"
    secret = "the-secret-of-the-store"
    text = f'[admin]\ntoken = "{ADMIN}"\n[[origins]]\nname = "a"\nendpoint = "http://a:1"\naccess_key_id = "K"\n'
    configuration.write_text(f'{text}secret_access_key = "{secret}"\n')
    log.write_text("first\n" + "later\n" * 1000)
    options = ("--config", str(configuration), "--log", str(log), "--log-size", "1KB", "--out", str(archive))
    written = operator("support", *options, "--json").json
    files = opened(archive)
    assert written == {
        "file": str(archive),
        "bytes": archive.stat().st_size,
        "missing": {},
        "hidden": {"log-0-larder.log": {}},
    }
    assert files["missing.txt"] == b""
    assert json.loads(files["overview.json"])["zone"]
    assert json.loads(files["credentials.json"])
    assert b"larder_requests_total" in files["metrics.txt"]
    assert set(files["log-0-larder.log"].splitlines()) == {b"later"}
    whole = b"".join(files.values())
    assert [each for each in (secret, ADMIN, READER, GWA[1]) if each.encode() in whole] == []
    assert archive.stat().st_mode & 0o777 == 0o600


def test_secrets_of_a_log_are_hidden(operator, tmp_path):
    """Rule: what a first start prints is not in the archive, nor are secrets of the configuration; the command counts them."""
    log, archive = tmp_path / "larder.log", tmp_path / "support.tar.gz"
    configuration, secret = tmp_path / "larder.toml", "the-secret-of-the-store"
    text = '[redis]\nurl = "redis://:the-pass@r:1"\n[[origins]]\nendpoint = "http://a:1"\naccess_key_id = "K"\n'
    configuration.write_text(f'{text}secret_access_key = "{secret}"\n')
    exported = f"export AWS_SECRET_ACCESS_KEY={GWA[1]}\nexport LARDER_ENDPOINT=http://a:1 LARDER_ADMIN_TOKEN={READER}\n"
    log.write_text(
        f"{exported}no route for {secret} with the-pass\nGET /b/k?X-Amz-Signature=abcdef&X-Amz-Date=1\n{ADMIN}\n"
    )
    ran = operator("support", "--config", str(configuration), "--log", str(log), "--out", str(archive))
    written = opened(archive)["log-0-larder.log"].decode()
    assert written.splitlines() == [
        "export AWS_SECRET_ACCESS_KEY=(hidden)",
        "export LARDER_ENDPOINT=http://a:1 LARDER_ADMIN_TOKEN=(hidden)",
        "no route for (hidden) with (hidden)",
        "GET /b/k?X-Amz-Signature=(hidden)&X-Amz-Date=1",
        "(hidden)",
    ]
    assert "hidden in log-0-larder.log: known values 3, signatures 1, named values 2" in ran.out
    assert "hides the secrets of the configuration" in ran.out
    archive.unlink()
    assert "--config hides" in operator("support", "--log", str(log), "--out", str(archive)).out
    archive.unlink()
    assert "has no secrets" in operator("support", "--out", str(archive)).out


def test_a_log_stays_out_if_its_secrets_are_not_known(operator, tmp_path):
    """Rule: with a configuration that cannot be read, no log is added, and both are named as missing."""
    log, archive = tmp_path / "larder.log", tmp_path / "support.tar.gz"
    log.write_text("first\n")
    ran = operator("support", "--config", str(tmp_path / "no.toml"), "--log", str(log), "--out", str(archive))
    assert "without configuration.json: " in ran.err
    assert "without log-0-larder.log: " in ran.err
    assert "log-0-larder.log" not in opened(archive)


def test_what_cannot_be_had_is_named(operator, tmp_path):
    """Rule: a part that is missing is named in the archive and on the terminal; an archive that exists is not overwritten."""
    archive = tmp_path / "support.tar.gz"
    ran = operator("support", "--log", str(tmp_path / "none.log"), "--out", str(archive))
    assert "without log-0-none.log: " in ran.err
    assert b"none.log" in opened(archive)["missing.txt"]
    assert "exists" in operator("support", "--out", str(archive), status=2).err


def test_a_wrong_token_writes_no_archive(operator, tmp_path):
    """Rule: where nothing can be asked there is no archive."""
    archive = tmp_path / "support.tar.gz"
    operator("support", "--token", "wrong", "--out", str(archive), status=2)
    assert not archive.exists()
