"""The access log: S3's fields, escaping, no secrets."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.api.s3.access_log import AccessLine, AccessLog

LINE = AccessLine(
    bucket="b", key='a "quoted" ключ', remote="127.0.0.1", requester="AK", request_id="00AB", method="GET",
    target="/b/k?X-Amz-Credential=AK%2F2026&X-Amz-Signature=abcdef&Signature=zzz&X-Amz-Security-Token=tok&prefix=1",
    status=200, code="", size=110_000, seconds=0.0123, turn_around=0.004, referer="http://r/?Signature=leak",
    agent='Boto3 "x"\n', signature="SigV4", auth_type="QueryString", host="gw:9000", tls=False, cache="MISS; reason=cold",
)  # fmt: skip


def test_a_line_has_the_fields_of_s3_in_their_order() -> None:
    """Tools for S3's format read it; the cache status is one field more."""
    line = LINE.render(0.0)
    assert line.startswith("- b [01/Jan/1970:00:00:00 +0000] 127.0.0.1 AK 00AB REST.GET.OBJECT a%20%22quoted%22%20")
    assert ' 200 - 110000 - 12 4 "' in line
    assert line.endswith('SigV4 - QueryString gw:9000 - - - "MISS; reason=cold"')


def test_signatures_and_tokens_never_appear() -> None:
    """Signatures and tokens are removed from the request line and from the referer."""
    line = LINE.render(0.0)
    for secret in ("abcdef", "zzz", "tok&", "leak", "2026&"):
        assert secret not in line
    assert "prefix=1" in line


@pytest.mark.parametrize("name", ["bucket", "key", "requester", "host", "agent", "referer", "target"])
def test_no_field_can_forge_a_line(name: str) -> None:
    """Rule: a request's values stay in their own fields of its own line."""
    line = replace(LINE, **{name: "a b\n- c"}).render(0.0)
    assert "\n" not in line
    assert "a b" not in line.replace('"a b%0A- c"', "").replace("GET a b%0A- c HTTP", "")


def test_a_new_log_is_for_its_owner(tmp_path: Path) -> None:
    """Rule: a new log is readable by its owner only; a file made for a group beforehand keeps its mode."""
    made = tmp_path / "made.log"
    made.touch()
    made.chmod(0o640)
    for path, mode in ((tmp_path / "new.log", 0o600), (made, 0o640)):
        AccessLog(str(path)).close()
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_line_is_one_line() -> None:
    """A user agent cannot forge a second entry."""
    assert "\n" not in LINE.render(0.0)


def test_lines_are_appended(tmp_path: Path) -> None:
    """Opening an existing log appends to it."""
    target = tmp_path / "logs" / "access.log"
    for _ in range(2):
        log = AccessLog(str(target))
        log.write(LINE)
        log.close()
    assert len(target.read_text().splitlines()) == 2
