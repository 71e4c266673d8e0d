"""Any request signed by botocore is accepted, and any change to the signed parts is refused."""

from __future__ import annotations

import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.s3.auth import Authenticator
from gateway.base.config import Credential, Origin, Settings
from gateway.model.errors import S3Error
from gateway.model.s3.sigv4 import WireRequest
from rig.signed_requests import ClientSigner

AUTHENTICATOR = Authenticator(
    Settings(
        origins=(Origin(endpoint="http://127.0.0.1:5000"),),
        credentials=(Credential(access_key_id="AK", secret_access_key="secret"),),
    )
)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
KEYS = TEXT.filter(bool)
PARAMETERS = st.dictionaries(
    st.sampled_from(["prefix", "marker", "versionId", "response-content-type", "uploadId", "delimiter"]),
    TEXT,
    max_size=4,
)
METADATA = st.dictionaries(
    st.text("abcdefgh-", min_size=1, max_size=8).map(lambda name: f"x-amz-meta-{name}"),
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20),
    max_size=4,
)


def signed(way: str, key: str, parameters: dict[str, str], metadata: dict[str, str]) -> WireRequest:
    """A PUT of a key, signed in one of the ways botocore knows."""
    query = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in parameters.items())
    url = f"http://127.0.0.1:9000/bucket/{quote(key, safe='/~')}" + (f"?{query}" if query else "")
    signer = ClientSigner()
    if way == "header":
        return signer.header("PUT", url, metadata)
    return signer.presigned("PUT", url, metadata) if way == "sigv4" else signer.presigned_v2("PUT", url)


@pytest.mark.parametrize("way", ["header", "sigv4", "sigv2"])
@given(KEYS, PARAMETERS, METADATA)
def test_whatever_botocore_signs_is_accepted(
    way: str, key: str, parameters: dict[str, str], metadata: dict[str, str]
) -> None:
    """Keys, parameters and header values of any kind."""
    request = signed(way, key, parameters, metadata)
    assert AUTHENTICATOR.authenticate(request, time.time()).principal.access_key_id == "AK"


@pytest.mark.parametrize("way", ["header", "sigv4", "sigv2"])
@given(KEYS, KEYS, PARAMETERS)
def test_another_key_is_refused(way: str, key: str, other: str, parameters: dict[str, str]) -> None:
    """A signature for one key is invalid for another."""
    request = signed(way, key, parameters, {})
    if key != other:
        request.raw_path = b"/bucket/" + quote(other, safe="/~").encode()
        with pytest.raises(S3Error, match="SignatureDoesNotMatch"):
            AUTHENTICATOR.authenticate(request, time.time())


@pytest.mark.parametrize("way", ["header", "sigv4"])
@given(PARAMETERS, PARAMETERS)
def test_other_parameters_are_refused(way: str, parameters: dict[str, str], others: dict[str, str]) -> None:
    """A signature for one query is invalid for another; the order of parameters does not matter."""
    request = signed(way, "k", parameters, {})
    foreign = signed(way, "k", others, {})
    request.query, changed = foreign.query, parameters != others
    if way == "sigv4":
        signature = signed(way, "k", parameters, {}).query.rpartition(b"X-Amz-Signature=")[2]
        request.query = foreign.query.rpartition(b"X-Amz-Signature=")[0] + b"X-Amz-Signature=" + signature
    if changed:
        with pytest.raises(S3Error, match="SignatureDoesNotMatch"):
            AUTHENTICATOR.authenticate(request, time.time())


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_garbage_is_refused_and_nothing_worse(authorization: bytes, query: bytes) -> None:
    """No Authorization header and no query, however odd, raises anything but an S3 error or is taken for a signer."""
    prefixes = (b"", b"AWS4-HMAC-SHA256 ", b"AWS4-HMAC-SHA256 Credential=AK/20130524/r/s3/aws4_request,")
    for prefix in prefixes:
        request = WireRequest("GET", b"/b/k", query, [(b"host", b"h"), (b"authorization", prefix + authorization)])
        with pytest.raises(S3Error):
            AUTHENTICATOR.authenticate(request, time.time())
    for names in (b"X-Amz-Algorithm=AWS4-HMAC-SHA256&", b"AWSAccessKeyId=AK&", b"X-Amz-Credential="):
        request = WireRequest("GET", b"/b/k", names + query, [(b"host", b"h")])
        with pytest.raises(S3Error):
            AUTHENTICATOR.authenticate(request, time.time())
