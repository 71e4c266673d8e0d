"""The module under which programs of earlier versions import ``reading.source``."""

from larder.reading.source import Access, GatewaySource, Item, ItemReader, Source

__all__ = ["Access", "GatewaySource", "Item", "ItemReader", "Source"]
