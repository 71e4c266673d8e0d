"""The folders whose listings are recorded because a dataset's registration says so, as one worker knows them.

Registrations are on disk, and a write must not wait for it. So a change of them bumps ``CHANGED`` before it is made, and each
worker reads the folders again under its new generation. A worker that handles a write while it does not know the present folders
bumps ``MISSED`` instead of the slots of the folders. A page of a folder has the generations of both, that of ``CHANGED`` as its
folder was read under: it ends with a change of any registration that records listings, and with a write that a worker could not
attribute.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress

from gateway.base.tasks import SingleFlight
from gateway.engine.base.services import FolderScope
from gateway.model.errors import LarderError
from gateway.model.keys import ObjectKey
from gateway.store.datasets.listed import ReadFolders
from gateway.store.shared.generations import Generations, slots_of

CHANGED = ObjectKey("", "", "\0registrations changed")
MISSED = ObjectKey("", "", "\0registrations not known")
"""Keys of two slots in the table of generations; no origin has an empty name."""


class RegisteredFolders:
    """The folders.

    Args:
        generations: of the node.
        read: reads the folders, with the generation of ``CHANGED`` from before.
        bring: called with a tenant who lists a folder of no registration here: begins to copy those of other nodes.
    """

    def __init__(
        self,
        generations: Generations,
        read: Callable[[], Awaitable[ReadFolders]],
        bring: Callable[[str], object] = lambda tenant: None,
    ) -> None:
        self._generations = generations
        self._read = read
        self._bring = bring
        self._slots = slots_of(CHANGED)
        self._number = -1
        self._of_tenants: Mapping[str, frozenset[str]] = {}
        self._scopes: tuple[tuple[str, str], ...] = ()
        self._reading: SingleFlight[None, None] = SingleFlight()
        self.close = self._reading.stop

    def none(self) -> bool:
        """Whether no folder is known, and the known ones are the present ones."""
        numbers, (slot, bucket) = self._generations.numbers, self._slots
        return not self._scopes and numbers[slot] + numbers[bucket] == self._number  # hot: ``Generations.at``

    def forget(self, path: str) -> Iterable[str]:
        """The scopes of folders with this ``bucket/key``. While they are not known, ends the pages of all."""
        if self._generations.at(*self._slots) != self._number:
            self._generations.bump(MISSED)
            self._reading.join(None, self._settle).cancel()
        return (scope for folder, scope in self._scopes if path.startswith(folder)) if self._scopes else ()

    async def scope(self, tenant: str, prefix: str) -> FolderScope | None:
        """The scope of the narrowest folder of a tenant that contains ``bucket/prefix``; ``None`` if there is none, or if the
        present folders cannot be read."""
        if self._generations.at(*self._slots) != self._number:
            with suppress(LarderError, OSError):
                await self._reading.result(None, self._settle)
            if self._generations.at(*self._slots) != self._number:
                return None
        containing = [folder for folder in self._of_tenants.get(tenant, ()) if prefix.startswith(folder)]
        if not containing:
            self._bring(tenant)
            return None
        return FolderScope(_scope(tenant, max(containing, key=len)), self._number)

    async def _settle(self) -> None:
        read = await self._read()
        self._number, self._of_tenants = read
        self._scopes = tuple(
            (folder, _scope(tenant, folder)) for tenant, folders in read.of_tenants.items() for folder in folders
        )


def _scope(tenant: str, folder: str) -> str:
    return f"\0{tenant}\0{folder}"
