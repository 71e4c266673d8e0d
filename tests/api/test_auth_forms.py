"""Refusals of ``authenticate_form`` that tests/s3suite does not cover over the wire."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.api.s3.auth import Authenticator
from gateway.base.config import Credential, Origin, Settings
from gateway.base.config_server import ServerSettings
from gateway.model.errors import S3Error
from tests.s3suite.forms import Policy

KEY = ("GWA", "secret")


def authenticator(server: dict[str, Any] | None = None, **credential: Any) -> Authenticator:
    """One that knows one key."""
    known = Credential(access_key_id=KEY[0], secret_access_key=KEY[1], **credential)
    origin = Origin(endpoint="http://127.0.0.1:1", access_key_id="o", secret_access_key="s")
    return Authenticator(Settings(origins=[origin], credentials=[known], server=ServerSettings(**(server or {}))))


def form(version: int = 4, secret: str = KEY[1]) -> dict[str, str]:
    """The fields of a signed form."""
    return {name.lower(): value for name, value in Policy(signer=(KEY[0], secret), version=version).signed()}


def refusal(verifier: Authenticator, fields: dict[str, str]) -> str:
    """The code that a form is refused with."""
    with pytest.raises(S3Error) as refused:
        verifier.authenticate_form(fields, time.time())
    return refused.value.code


def test_version_2_is_switched_off_for_forms_too() -> None:
    """Rule: ``server.sigv2 = false`` applies to forms too."""
    verifier = authenticator({"sigv2": False})
    assert refusal(verifier, form(2)) == "InvalidRequest"
    assert verifier.authenticate_form(form(), time.time())[0].principal.access_key_id == KEY[0]


@pytest.mark.parametrize("version", [2, 4])
def test_a_rotated_secret_signs_until_its_end(version: int) -> None:
    """Rule: the previous secret is valid until the time that the rotation set."""
    later = datetime.now(UTC) + timedelta(hours=1)
    verifier = authenticator(previous_secret_access_key="before", previous_expires=later.isoformat())
    assert verifier.authenticate_form(form(version, "before"), time.time())[1] is not None
    over = authenticator(previous_secret_access_key="before", previous_expires="2020-01-01T00:00:00Z")
    assert refusal(over, form(version, "before")) == "SignatureDoesNotMatch"


def test_an_expired_key_signs_nothing() -> None:
    """Rule: a policy lives no longer than the key that signed it."""
    assert refusal(authenticator(expires="2020-01-01T00:00:00Z"), form()) == "ExpiredToken"


def test_a_form_without_a_policy_is_anonymous() -> None:
    """Rule: a form without a policy is anonymous; one that names a key without a policy is refused."""
    auth, policy = authenticator().authenticate_form({"key": "x"}, time.time())
    assert (auth.principal.anonymous, policy) == (True, None)
    assert refusal(authenticator(), {"key": "x", "awsaccesskeyid": KEY[0]}) == "InvalidArgument"
