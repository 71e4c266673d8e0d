"""Names on the way between nodes: whatever a key looks like, the other node reads the same one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.outcomes import Outcome, Reason
from gateway.model.peer_objects import OBJECTS, CacheStatus, error_document, object_of, object_path, read_error
from gateway.model.peer_principal import principal_header, read_principal

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(TEXT, TEXT)
def test_an_address_names_one_object(origin: str, name: str) -> None:
    """Rule: what is asked for is what is read, and the address is one segment per part, of characters that nobody rewrites."""
    key = ObjectKey(origin, "bucket.name", name)
    path = object_path(key)
    assert object_of(path.encode()) == key
    assert re.fullmatch(r"/-/peer/v1/objects(/[A-Za-z0-9._~%-]+){3}", path)


@pytest.mark.parametrize(
    "path",
    ["", "o/b", "o/b/", "o/b/k/k", "o/-/k", "o/../k", "o//k", "o/b%2Fc/k", "o/b/%FF", "%FF/b/k"],
)
def test_other_addresses_name_nothing(path: str) -> None:
    """Rule: what is not an address of an object is refused, and never read as another one."""
    with pytest.raises(ValueError):
        object_of(f"{OBJECTS}{path}".encode())


def test_an_address_of_something_else_names_nothing() -> None:
    """Rule: an address begins as all of them do."""
    with pytest.raises(ValueError, match="address"):
        object_of(b"/o/b/k")


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("reason", [None, *Reason])
def test_what_a_cache_did_is_read_as_it_was_told(outcome: Outcome, reason: Reason | None) -> None:
    """Rule: every outcome and reason crosses."""
    assert CacheStatus.read(str(CacheStatus(outcome, reason))) == CacheStatus(outcome, reason)


@pytest.mark.parametrize("text", ["", "YES", "HIT; reason=", "HIT; reason=whim", "HIT;reason=cold", "hit"])
def test_other_words_are_refused(text: str) -> None:
    """Rule: a word that is not known is no answer."""
    with pytest.raises(ValueError, match="not a valid"):
        CacheStatus.read(text)


@given(st.text(), st.text(), st.text())
def test_a_principal_is_read_as_it_was_told(tenant: str, origin: str, key: str) -> None:
    """Rule: any name crosses, in ASCII."""
    name, value = principal_header(tenant, OriginIdentity(origin, key))
    assert name == "x-larder-principal"
    assert value.isascii()
    assert value.isprintable()
    principal = read_principal(value)
    assert (principal.tenant, principal.identity) == (tenant, OriginIdentity(origin, key))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '"a"', '{"tenant":"t","origin":"o"}', '{"tenant":"t","origin":"o","access_key_id":1}',
     '{"tenant":"t","origin":"o","access_key_id":"k","allow":"**"}', "[" * 100_000],
)  # fmt: skip
def test_a_principal_in_another_form_is_refused(text: str) -> None:
    """Rule: all three names, texts, and nothing else."""
    with pytest.raises(ValueError, match="tenant"):
        read_principal(text)


@given(st.dictionaries(st.text(), st.text()))
def test_what_is_told_of_an_error_is_read_as_it_was_told(extra: dict[str, str]) -> None:
    """Rule: names and texts of any kind cross; the answer to a HEAD tells none."""
    assert read_error(error_document(extra)) == extra
    assert read_error(b"") == {}


@pytest.mark.parametrize("document", [b"[]", b"{", b'{"a":1}', b"\xff", b"null", b"[" * 100_000])
def test_an_error_told_in_another_form_is_refused(document: bytes) -> None:
    """Rule: what is no document of an error is no answer."""
    with pytest.raises(ValueError):
        read_error(document)
