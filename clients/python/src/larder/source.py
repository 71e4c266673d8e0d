"""Where items come from, as programs of earlier versions import it; ``reading.source`` has it."""

from larder.reading.source import Access, GatewaySource, Item, ItemReader, Source

__all__ = ["Access", "GatewaySource", "Item", "ItemReader", "Source"]
