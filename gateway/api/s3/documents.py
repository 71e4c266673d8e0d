"""The one request document that the gateway must understand: which keys a batch delete names."""

from __future__ import annotations

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
    try:
        root = fromstring(document, forbid_dtd=True)
    except (ParseError, DefusedXmlException, ValueError, LookupError):
        raise S3Error("MalformedXML") from None
    if _local(root) != "Delete":
        raise S3Error("MalformedXML")
    objects = [element for element in root if _local(element) == "Object"]
    names = [child for item in objects for child in item if _local(child) == "Key"]
    # Readers of XML differ in what the text of an element with children is.
    keys = ["" if len(name) else name.text or "" for name in names]
    if not objects or len(keys) != len(objects) or len(objects) > _MAX_KEYS or "" in keys:
        raise S3Error("MalformedXML")
    return keys


def _local(element: Element) -> str:
    return element.tag.rpartition("}")[2]
