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
    assert written == {"file": str(archive), "bytes": archive.stat().st_size, "missing": {}}
    assert files["missing.txt"] == b""
    assert json.loads(files["overview.json"])["zone"]
    assert json.loads(files["credentials.json"])
    assert b"larder_requests_total" in files["metrics.txt"]
    assert set(files["log-0-larder.log"].splitlines()) == {b"later"}
    whole = b"".join(files.values())
    assert [each for each in (secret, ADMIN, READER, GWA[1]) if each.encode() in whole] == []
    assert archive.stat().st_mode & 0o777 == 0o600


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
