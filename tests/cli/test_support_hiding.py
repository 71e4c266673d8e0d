"""Secrets in logs of an archive for support: which texts are hidden, and which stay."""

from __future__ import annotations

import json
import re
import shlex
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.base.config import Settings
from gateway.base.config_secrets import secrets_of, without_secrets
from gateway.operate.support.hiding import Hidden, hide

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCY"
WRITTEN = [
    f"export AWS_SECRET_ACCESS_KEY={SECRET}",
    f"export LARDER_ENDPOINT=http://127.0.0.1:9000 LARDER_ADMIN_TOKEN={SECRET}",
    f"LARDER_REDIS_PASSWORD=it's {SECRET}",
    f"export DB_PASS='it'\"'\"'s {SECRET}'",
    f"LARDER_DATABASE__ENCRYPTION_KEY={SECRET}",
    f'secret_access_key = "{SECRET}"',
    f'{{"message": "x", "sessionToken": "{SECRET}", "level": "info"}}',
    f'{{"message": "{{\\"token\\": \\"{SECRET}\\"}}", "level": "info"}}',
    f"token: {SECRET}",
    f"'tokens': ['{SECRET}', '{SECRET}']",
    f"larder-gateway status --token {SECRET}",
    f"redis://:{SECRET.replace('/', '%2F')}@10.0.0.5:6379",
    f"postgresql://larder:p@{SECRET.replace('/', '-')}@db/larder",
    f"GET /b/k?X-Amz-Signature={SECRET}&X-Amz-Date=20300101T000000Z HTTP/1.1",
    f"GET /b/k?AWSAccessKeyId=K&Signature={quote(SECRET)}&Expires=1 HTTP/1.1",
    f"GET /b/k?X-Amz-Security-Token={quote(SECRET, safe='')}&X-Amz-Date=1 HTTP/1.1",
    f"Authorization: AWS4-HMAC-SHA256 Credential=K/s3, SignedHeaders=host, Signature={SECRET}",
    f"(b'authorization', b'Bearer {SECRET}')",
    f'"cookie": "session={SECRET}"',
    f"sent Bearer {SECRET}",
    f"x-larder-signature: {SECRET}",
    f"x-amz-server-side-encryption-customer-key: {SECRET}",
    f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n{SECRET}\n-----END PRIVATE KEY-----",
    f"{SECRET}\n{SECRET}\n-----END EC PRIVATE KEY-----",
]
STAYS = [
    "larder-gateway status --token-file /etc/larder/admin-token --endpoint http://127.0.0.1:9000",
    "GET /b?list-type=2&continuation-token=abc HTTP/1.1",
    '{"level": "info", "message": "filled", "key": "train/00.jpg", "bytes": 10000}',
    "export AWS_ACCESS_KEY_ID=GWA AWS_ENDPOINT_URL=http://127.0.0.1:9000",
    "origins.0: http://10.0.0.5:9000/bucket/a@b answers",
    'authorization = "object"',
    "SignatureDoesNotMatch: the signature is another",
]


@pytest.mark.parametrize("text", WRITTEN)
def test_what_is_named_like_a_secret_is_hidden(text: str) -> None:
    """Rule: no part of a value that a name, a header or an address makes a secret stays, and it is counted."""
    hidden = hide(f"{text}\nnext\n".encode())
    pieces = [piece.encode() for piece in re.split(r"\W|%2[BF]", SECRET) if len(piece) > 2]
    assert [piece for piece in pieces if piece in hidden.text] == []
    assert b"(hidden)" in hidden.text
    assert hidden.text.endswith(b"\nnext\n")
    assert sum(hidden.replaced.values()) >= 1
    assert hide(hidden.text) == Hidden(hidden.text, {})


@pytest.mark.parametrize("text", STAYS)
def test_what_is_no_secret_stays(text: str) -> None:
    """Rule: names of files, access keys, addresses and messages are needed to diagnose, and stay."""
    assert hide(text.encode()) == Hidden(text.encode(), {})


def test_the_rest_of_a_line_stays() -> None:
    """Rule: only the value is replaced, in a JSON line and in an address."""
    assert hide(b'{"a": "token=abc", "level": "info"}').text == b'{"a": "token=(hidden)", "level": "info"}'
    assert hide(b"/k?X-Amz-Signature=abc&X-Amz-Date=1 200").text == b"/k?X-Amz-Signature=(hidden)&X-Amz-Date=1 200"
    assert hide(b"redis://u:p@h:1/0").text == b"redis://(hidden)@h:1/0"
    assert hide(b"\xff token=a \xfe").text == b"\xff token=(hidden) \xfe"


@given(st.text(min_size=8), st.sampled_from([str, json.dumps, repr, shlex.quote, quote]))
def test_a_known_value_is_hidden_in_any_spelling(value: str, spelled) -> None:
    """Rule: a secret of the configuration is hidden without a name beside it, however it is spelled."""
    text = spelled(value)
    hidden = hide(f"before {text} after".encode(errors="surrogatepass"), [value])
    assert hidden.replaced["known values"] >= 1
    assert hidden.text in (b"before (hidden) after", b'before "(hidden)" after', b"before '(hidden)' after")


def test_a_short_known_value_stands_alone() -> None:
    """Rule: a short secret is hidden where it is a word, and other words keep its letters."""
    assert hide(b"user cat concatenates", ["cat"]).text == b"user (hidden) concatenates"


def test_a_value_with_a_known_part_is_hidden_as_a_whole() -> None:
    """Rule: where a known value is a part of another secret, the rest of that secret does not stay."""
    assert hide(b"a token=cat-and-more x", ["cat"]).text == b"a token=(hidden) x"


def test_all_secrets_of_a_configuration_are_known() -> None:
    """Rule: what is hidden in a configuration that is shown is known as a secret, passwords of addresses too."""
    settings = Settings.model_validate(
        {
            "redis": {"url": "redis://larder:redis%2Fpass@a:1"},
            "database": {"url": "postgresql://u@db/larder?password=data-pass", "encryption_key": "k" * 43 + "="},
            "fleet": {"secret": "the-secret-of-the-fleet", "advertise": "http://a:1"},
            "admin": {"token": "the-token", "read_token": "the-reader"},
            "origins": [{"endpoint": "http://a:1", "access_key_id": "K", "secret_access_key": "of-the-origin"}],
            "credentials": [{"access_key_id": "C", "secret_access_key": "of-the-client"}],
        }
    )
    wanted = {"redis%2Fpass", "redis/pass", "data-pass", "k" * 43 + "=", "the-secret-of-the-fleet"}
    assert secrets_of(settings) == wanted | {"the-token", "the-reader", "of-the-origin", "of-the-client"}
    shown = without_secrets(settings).model_dump_json()
    assert [secret for secret in secrets_of(settings) if secret in shown] == []
