"""The request documents that the gateway parses: the keys of a batch delete, and the tags of a form."""

from __future__ import annotations

from urllib.parse import quote, urlencode
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from gateway.model.errors import S3Error

_MAX_KEYS = 1000


def keys_to_delete(document: bytes) -> list[str]:
    """The keys of a ``<Delete>`` document (Amazon S3 API reference, DeleteObjects), in order.

    Raises:
        S3Error: MalformedXML.
    """
    root = _named(document, "Delete")
    objects = [element for element in root if local_name(element) == "Object"]
    names = [child for item in objects for child in item if local_name(child) == "Key"]
    # XML parsers differ on the text of an element that has children.
    keys = ["" if len(name) else name.text or "" for name in names]
    if not objects or len(keys) != len(objects) or len(objects) > _MAX_KEYS or "" in keys:
        raise S3Error("MalformedXML")
    return keys


def tags_of(document: bytes) -> str:
    """The tags of a ``<Tagging>`` document (Amazon S3 API reference, "Tagging") in the form of an x-amz-tagging header.

    Raises:
        S3Error: MalformedXML.
    """
    sets = [child for child in _named(document, "Tagging") if local_name(child) == "TagSet"]
    tags = [tag for each in sets for tag in each if local_name(tag) == "Tag"]
    pairs = [{local_name(child): child.text or "" for child in tag} for tag in tags]
    if len(sets) != 1 or not all(pair.keys() == {"Key", "Value"} for pair in pairs):
        raise S3Error("MalformedXML")
    return urlencode([(pair["Key"], pair["Value"]) for pair in pairs], quote_via=quote)


def parsed(document: bytes) -> Element:
    """The root of an XML document.

    Raises:
        S3Error: MalformedXML.
    """
    try:
        root: Element = fromstring(document, forbid_dtd=True)
    except (ParseError, DefusedXmlException, ValueError, LookupError):
        raise S3Error("MalformedXML") from None
    return root


def _named(document: bytes, name: str) -> Element:
    root = parsed(document)
    if local_name(root) != name:
        raise S3Error("MalformedXML")
    return root


def local_name(element: Element) -> str:
    """The name of an element without its namespace."""
    return element.tag.rpartition("}")[2]
