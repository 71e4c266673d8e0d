"""Registrations of other nodes, fetched through a fake table and fake nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.engine.base.homes import Node, PeerNodes
from gateway.engine.items.registrations import Registrations, Shared
from gateway.fleet.jobs.datasets import DatasetTable, ListedRegistration, Name, State
from gateway.fleet.nodes.peers import PeerUnavailable
from gateway.model.datasets import ApiError
from gateway.model.fleet import NodeState
from gateway.model.objects import Header
from gateway.store.datasets.registry import Registry

OTHER = Node("other", "http://other", 1, "default", NodeState.READY)
NAME: Name = ("t", "photos")


class NotFound:
    """The answer of a node that does not have what it was asked for."""

    status = 404

    def release(self) -> None:
        """Nothing is held."""


class Elsewhere:
    """A fleet whose table says that ``other`` has a dataset, which it takes ``long`` to fail to send.

    Nodes in ``forgetful`` answer that they have none.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.long = 0.0
        self.asked = 0
        self.forgetful: set[str] = set()
        self.version = 1
        self.me = "me"
        self.nodes = {"other": OTHER}

    async def look(self) -> State:
        """The table's state."""
        return State("epoch", self.version)

    async def all(self) -> tuple[State, dict[Name, ListedRegistration]]:
        """The table."""
        return await self.look(), {NAME: ListedRegistration("1" * 64, f"stamp-{self.version}", "other")}

    async def request(
        self,
        node: Node,
        method: str,
        path: str,
        headers: Sequence[Header] = (),
        *,
        query: str = "",
        body: bytes = b"",
    ) -> Any:
        """Fail, after a while."""
        self.asked += 1
        self.now += self.long
        await asyncio.sleep(0)
        if node.id in self.forgetful:
            return NotFound()
        raise PeerUnavailable("it broke off")


@pytest.fixture
def elsewhere() -> Elsewhere:
    """Such a fleet."""
    return Elsewhere()


@pytest.fixture
def registrations(tmp_path: Path, elsewhere: Elsewhere) -> Registrations:
    """Returns the registrations of a node without any of its own."""
    fleet = PeerNodes(cast("Any", elsewhere), elsewhere)
    return Registrations(
        Registry(tmp_path / "datasets", 1), Shared(fleet, cast("DatasetTable", elsewhere)), lambda: elsewhere.now
    )


async def refused(registrations: Registrations) -> str:
    """The code of the refusal of a request for the dataset."""
    with pytest.raises(ApiError) as refusal:
        await registrations.find(*NAME)
    return refusal.value.code


async def test_a_dataset_that_could_not_be_copied_is_not_called_unknown(
    registrations: Registrations, elsewhere: Elsewhere
) -> None:
    """Rule: while the fleet has a registration, a node that could not copy it says so, and clients try again; it is unknown only
    when every node has forgotten it, or the table has."""
    third = replace(OTHER, id="third")
    elsewhere.nodes = {"other": OTHER, "third": third}
    elsewhere.forgetful = {"third"}
    assert await refused(registrations) == "ServiceUnavailable"
    elsewhere.forgetful = {"other", "third"}
    assert await registrations.find(*NAME) is None


async def test_a_copy_needs_no_table_that_stays(
    registrations: Registrations, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a registration that was listed when it was asked for is copied, though an older answer of Redis comes in later."""
    table = elsewhere.all

    async def overtaken() -> tuple[State, dict[Name, ListedRegistration]]:
        asyncio.get_running_loop().call_soon(setattr, registrations, "_listed", {})
        return await table()

    monkeypatch.setattr(elsewhere, "all", overtaken)
    assert await refused(registrations) == "ServiceUnavailable"
    assert elsewhere.asked == 1


async def test_what_took_long_and_failed_is_left_alone_for_a_while(
    registrations: Registrations, elsewhere: Elsewhere
) -> None:
    """Rule: a node that cannot take a large registration does not have it sent again with every batch."""
    elsewhere.long = 3.0
    for _ in range(5):
        assert await refused(registrations) == "ServiceUnavailable"
    assert elsewhere.asked == 1
    elsewhere.now += 30.0
    assert await refused(registrations)
    assert elsewhere.asked == 2


async def test_another_registration_of_the_name_is_tried_at_once(
    registrations: Registrations, elsewhere: Elsewhere
) -> None:
    """Rule: a failed registration does not block the one that has replaced it."""
    elsewhere.long = 3.0
    assert await refused(registrations)
    elsewhere.version += 1
    assert await refused(registrations)
    assert elsewhere.asked == 2


async def test_what_failed_at_once_is_tried_again_at_once(registrations: Registrations, elsewhere: Elsewhere) -> None:
    """Rule: a node that was away for a moment costs no dataset."""
    for _ in range(3):
        assert await refused(registrations)
    assert elsewhere.asked == 3


@pytest.mark.parametrize(("node", "told"), [("me", [NAME]), ("other", [])])
async def test_what_has_expired_leaves_the_table(
    registrations: Registrations, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, node: str, told: list[Name]
) -> None:
    """Rule: the node that registered a dataset takes it off the table when it has expired there, so that the table does not grow;
    a copy that another node let go says nothing."""
    removed: list[Name] = []

    async def listed() -> tuple[State, dict[Name, ListedRegistration]]:
        return await elsewhere.look(), {NAME: ListedRegistration("1" * 64, "stamp", node)}

    async def remove(name: Name) -> bool:
        removed.append(name)
        return True

    monkeypatch.setattr(elsewhere, "all", listed)
    monkeypatch.setattr(elsewhere, "remove", remove, raising=False)
    shared = registrations._shared
    assert shared is not None
    await registrations.settle(shared)
    registrations.registry.expired.add(NAME)
    await registrations._follow(shared)
    assert removed == told
    assert registrations.registry.expired == set()
