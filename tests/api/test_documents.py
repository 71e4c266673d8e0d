"""Reading the keys of a batch delete."""

from __future__ import annotations

import pytest

from gateway.api.s3.documents import keys_to_delete
from gateway.model.errors import S3Error

NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


def test_keys_come_in_order_with_or_without_namespace() -> None:
    """SDKs send the namespace, curl users do not."""
    body = (
        "<Object><Key>a</Key></Object><Object><VersionId>1</VersionId><Key>b &amp; ü</Key></Object><Quiet>true</Quiet>"
    )
    assert keys_to_delete(f"<Delete {NAMESPACE}>{body}</Delete>".encode()) == ["a", "b & ü"]
    assert keys_to_delete(f"<Delete>{body}</Delete>".encode()) == ["a", "b & ü"]


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"<Delete>",
        b"<Delete></Delete>",
        b"<Other><Object><Key>a</Key></Object></Other>",
        b"<Delete><Object></Object></Delete>",
        b"<Delete><Object><Key></Key></Object></Delete>",
        b"<Delete><Object><Key>a</Key><Key>b</Key></Object></Delete>",
        b"<Delete><Object><Key>a<b/>c</Key></Object></Delete>",
        b'<!DOCTYPE d [<!ENTITY e "x">]><Delete><Object><Key>&e;</Key></Object></Delete>',
        b'<?xml version="1.0" encoding="nonsense"?><Delete><Object><Key>a</Key></Object></Delete>',
        b"\xff\xfe\x00",
        b"<Delete>" + b"<Object><Key>a</Key></Object>" * 1001 + b"</Delete>",
    ],
)
def test_anything_else_is_malformed(document: bytes) -> None:
    """One code for every way in which a document can be wrong, entities and oversized lists included."""
    with pytest.raises(S3Error) as refused:
        keys_to_delete(document)
    assert refused.value.code == "MalformedXML"
