"""Redaction of addresses in logs: no secret, under any name and spelling."""

from __future__ import annotations

import json
import logging

import pytest

from gateway.base.logs import JsonFormatter, TextFormatter
from gateway.model.s3.redaction import redact_address, redact_path, redact_text

DIGEST = "ab" * 32


@pytest.mark.parametrize(
    "path",
    [
        f"/-/v1/blobs/{DIGEST}",
        f"//-/v1/blobs/{DIGEST}",
        f"///-//v1///blobs//{DIGEST}",
        f"/%2d/v1/blobs/{DIGEST}",
        f"/%2D%2Fv1%2Fblobs%2F{DIGEST}",
        f"/-/v1/%62lobs/{DIGEST}",
        f"/%252d/v1/blobs/{DIGEST}",
        f"/-/./v1/blobs/{DIGEST}",
        f"/x/../-/v1/blobs/{DIGEST}",
        f"/-/v1/BLOBS/{DIGEST.upper()}",
        f"/-/v1/blobs/{DIGEST}/more",
        f"/v1/blobs/{DIGEST}",
        "/-/v1/blobs/" + "".join(f"%{ord(digit):x}" for digit in DIGEST),
    ],
)
def test_no_path_shows_a_digest(path: str) -> None:
    """Rule: a digest grants reading, so no spelling of its address is logged."""
    shown = redact_path(path)
    assert "abab" not in shown.lower()
    assert "6162" not in shown
    assert shown.lower().endswith("blobs/redacted")


@pytest.mark.parametrize(
    "path", ["/bucket/date=2026-01-01/blobs/part-0", "/bucket/a%20b", f"/bucket/{DIGEST}", "/-/v1/datasets", "/", ""]
)
def test_other_paths_are_shown_as_they_came(path: str) -> None:
    """Rule: keys are logged unchanged; equals signs in them do not count as parameters."""
    assert redact_address(path) == path


@pytest.mark.parametrize(
    "name",
    [
        "X-Amz-Signature", "X-Amz-%53ignature", "%58-Amz-Security-Token", "Signature", "AWSAccessKeyId", "X-Amz-Credential",
        "x-amz-server-side-encryption-customer-key", "X-Amz-Copy-Source-Server-Side-Encryption-Customer-Key",
        "x-amz-content-sha256", "x-amz-checksum-sha256", "token", "password", "never-heard-of",
    ],
)  # fmt: skip
def test_a_value_is_shown_only_if_its_name_is_known_to_be_harmless(name: str) -> None:
    """Rule: the list has the names that may be shown, so a new secret is redacted by default."""
    assert redact_address(f"/b/k?acl&{name}=tell&versionId=3") == f"/b/k?acl&{name}=REDACTED&versionId=3"


def test_words_without_a_value_are_redacted_too() -> None:
    """Rule: a parameter without "=" is shown only if it is known; any other may itself be a secret."""
    assert redact_address("/b?uploads&tell") == "/b?uploads&REDACTED"


def test_a_url_keeps_neither_user_nor_fragment() -> None:
    """Rule: a Referer is a foreign address, which may have secrets anywhere."""
    told = redact_address("https://user:tell@host/page?code=tell#access_token=tell")
    assert told == "https://REDACTED@host/page?code=REDACTED#REDACTED"


@pytest.mark.parametrize("unit", ["a", "=", "&", "?", "%", "/", "-/", "blobs/", "-/blobs//", "Signature="])
def test_redaction_takes_time_in_proportion_to_its_text(unit: str) -> None:
    """Rule: ten times the text takes no hundred times the time: targets of 64 KiB come from strangers."""
    assert redact_address(unit * 50_000)
    assert redact_text(unit * 50_000)


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_no_log_line_names_the_file_of_a_blob(formatter: logging.Formatter) -> None:
    """Rule: the operating system's errors name files, and the file of a blob is called by its digest."""
    name = f"/cache/blobs/{DIGEST[:2]}/{DIGEST[2:]}"
    try:
        raise FileNotFoundError(2, "No such file or directory", name)
    except FileNotFoundError as error:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "%s", (error,), (type(error), error, None))
    line = formatter.format(record)
    assert "abab" not in line
    assert "blobs/REDACTED" in line
    if isinstance(formatter, JsonFormatter):
        assert json.loads(line)["level"] == "error"
