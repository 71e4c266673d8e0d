"""A client, an operation, and the state of the cache: on a miss, on a hit, and with the origin stopped."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from tests.s3compat.clients.base import Client
from tests.s3compat.operations import Operation, Place
from tests.s3compat.world import Line, World

_READS = ("GET", "HEAD")


def on_a_miss(client: Client, operation: Operation, world: World) -> None:
    """With no object cached, the operation works, and a read asks the origin."""
    place = _place(world)
    world.seed(operation.before(place, replace=False))
    mark = world.mark()
    operation.act(client, place)
    _check_state(operation, place, world)
    if operation.reads:
        assert _reads(world, mark, place)[0].cache == "MISS"


def on_a_hit(client: Client, operation: Operation, world: World) -> None:
    """The objects are in the cache: a read is answered from it, a write is seen by the next read."""
    place = _place(world)
    before = operation.before(place, replace=True)
    world.seed(before)
    world.warm(before)
    mark = world.mark()
    operation.act(client, place)
    if operation.reads:
        assert {line.cache for line in _reads(world, mark, place)} == {"HIT"}
    _check_state(operation, place, world)


def with_the_origin_stopped(client: Client, operation: Operation, world: World) -> None:
    """Cached objects can be read; operations that need the origin fail with 503 and change nothing."""
    place = _place(world)
    before = operation.before(place, replace=True)
    world.seed(before)
    world.warm(before)
    mark = world.mark()
    world.road.close()
    try:
        if operation.reads:
            operation.act(client, place)
            assert {line.cache for line in _reads(world, mark, place)} == {"HIT"}
        else:
            _must_be_refused(lambda: operation.act(client, place), world, mark)
    finally:
        world.road.open()
    assert {key: world.read(key) for key in before} == before


def cold_with_the_origin_stopped(client: Client, operation: Operation, world: World) -> None:
    """A read of an uncached object fails with 503."""
    place = _place(world)
    world.seed(operation.before(place, replace=False))
    mark = world.mark()
    world.road.close()
    try:
        _must_be_refused(lambda: operation.act(client, place), world, mark)
    finally:
        world.road.open()


STATES = {"miss": on_a_miss, "hit": on_a_hit, "origin stopped": with_the_origin_stopped}


def _place(world: World) -> Place:
    return Place(world.bucket, f"d{uuid.uuid4().hex[:12]}")


def _check_state(operation: Operation, place: Place, world: World) -> None:
    left = operation.left(place)
    assert {key: world.read_origin(key) for key in left} == left
    assert {key: world.read(key) for key in left} == left


def _reads(world: World, mark: int, place: Place) -> list[Line]:
    """The operation's reads of the objects; s3cmd also reads their ACL, which is never cached."""

    def read(line: Line) -> bool:
        return (
            line.method in _READS
            and line.key.startswith(place.stem)
            and line.status < 300
            and "?acl" not in line.request
        )

    return [line for line in world.wait_for(mark, read, "a read in the access log") if read(line)]


def _must_be_refused(act: Callable[[], None], world: World, mark: int) -> None:
    """Assert that the client raises, and that all failed answers are 503 ServiceUnavailable."""
    try:
        act()
    except Exception:
        pass  # each client has errors of its own; the answers are checked below
    else:
        raise AssertionError("the client takes it for a success")
    lines = world.wait_for(mark, lambda line: line.status >= 400, "a refusal in the access log")
    assert {(line.status, line.code) for line in lines if line.status >= 400} == {(503, "ServiceUnavailable")}, lines
