"""Items in memory whose reader answers announcements as a test says."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from larder.testing import MemoryReader, MemorySource


@dataclass
class AnnouncedSource(MemorySource):
    """A source whose announcements are answered by ``announced``, which gets their indices."""

    announced: Callable[[Any], dict[str, int]] = dict

    def reader(self, info, stats):
        """Reads the items."""
        return _AnnouncedReader(self, stats)


class _AnnouncedReader(MemoryReader):
    def prefetch(self, indices, *, epoch=None):
        return self._source.announced(indices)
