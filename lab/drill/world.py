"""The setting of a drill: an origin, gateways with breakable links to it, and clients that read and write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.drill.load import HEALTH_EVERY, Load, batches, health, reads, running, writes
from rig.batches import Stock, bytes_of, stock
from rig.gateways import Running, Settings, finish, fleet_node, start, wait_for_fleet
from rig.proxy import Proxy
from rig.redis_server import RedisServer
from rig.world import KIB, Origin

WARM, COLD, SIZE = 60, 1500, 24 * KIB
"""Numbers of warm and of cold objects, and the bytes of a warm one."""
COLD_SIZE = 40 * KIB


@dataclass
class World:
    """The target of a fault.

    Attributes:
        home: a directory of this drill.
        origin: the store.
        gateways: the running gateways; several form a fleet.
        origin_links: each gateway's link to the origin.
        redis_links: each gateway's link to Redis; empty without a fleet.
        redis: the fleet's Redis; ``None`` without a fleet.
        warm: cached objects, also registered as a dataset.
        cold: objects that were never read.
        load: the clients.
        settings: the gateways' settings.
    """

    home: Path
    origin: Origin
    stack: ExitStack
    gateways: list[Running] = field(default_factory=list)
    origin_links: list[Proxy] = field(default_factory=list)
    redis_links: list[Proxy] = field(default_factory=list)
    redis: RedisServer | None = None
    settings: list[Settings] = field(default_factory=list)
    load: Load = field(default_factory=Load)
    warm: Stock = field(init=False)
    cold: Stock = field(init=False)

    @property
    def cache(self) -> Path:
        """The first gateway's cache directory."""
        return self.settings[0].cache

    def finish(self, number: int) -> None:
        """End the gateway with this number."""
        finish(self.gateways[number])

    def restart(self, number: int) -> None:
        """Restart a gateway that has ended."""
        home = self.home / f"again-{number}"
        self.gateways[number] = start(self.settings[number], home)
        self.stack.callback(finish, self.gateways[number])


@contextmanager
def world(home: Path, nodes: int = 1, cache: Path | None = None, files: int = 0, **settings: Any) -> Iterator[World]:
    """Gateways with a warm cache, without clients.

    Args:
        home: an empty directory.
        nodes: the number of gateways; two or more form a fleet with its own Redis.
        cache: the cache directory of a single gateway, if not in ``home``.
        files: limit of descriptors of each gateway process; 0 leaves it unchanged.
        settings: further ones of ``Settings``.
    """
    with ExitStack() as stack:
        origin = stack.enter_context(Origin())
        made = World(home, origin, stack)
        made.warm = stock(origin.s3, home, "warm", bytes_of(WARM, SIZE, "warm"))
        made.cold = stock(origin.s3, home, "cold", bytes_of(COLD, COLD_SIZE, "cold"))
        if nodes > 1:
            made.redis = stack.enter_context(RedisServer())
        for number in range(nodes):
            link = stack.enter_context(Proxy(origin.s3.port))
            made.origin_links.append(link)
            made.settings.append(_settings(made, number, link, cache, settings))
            made.gateways.append(start(made.settings[-1], home / f"gateway-{number}", files=files))
            stack.callback(made.finish, number)
        if nodes > 1:
            wait_for_fleet(made.gateways, {f"node-{number}": "READY" for number in range(nodes)})
        made.warm.register(made.gateways[0])
        made.cold.register(made.gateways[0])
        for gateway in made.gateways:
            warm_up = reads([gateway], made.warm)
            for number in range(WARM):
                assert not (said := warm_up(number)), said
            batches([gateway], made.warm, WARM)(0)
        with running() as made.load:
            yield made


def _settings(made: World, number: int, link: Proxy, cache: Path | None, more: dict[str, Any]) -> Settings:
    if made.redis is None:
        return Settings(link.url, cache or made.home / "cache", **more)
    way = made.stack.enter_context(Proxy(made.redis.port))
    made.redis_links.append(way)
    fleet = {"heartbeat": "200ms", "expire": "2s"} | more.get("fleet", {})
    return fleet_node(link.url, f"redis://127.0.0.1:{way.port}", number, made.home, **{**more, "fleet": fleet})


def usual_clients(made: World) -> None:
    """Add readers of warm and cold objects and of batches, a writer, and health checks of each gateway."""
    made.load.add("warm", reads(made.gateways, made.warm))
    made.load.add("cold", reads(made.gateways, made.cold))
    made.load.add("batch", batches(made.gateways, made.warm))
    made.load.add("write", writes(made.gateways[0], made.gateways[:1], "written"))
    for gateway in made.gateways:
        made.load.add("health", health(gateway), HEALTH_EVERY)
