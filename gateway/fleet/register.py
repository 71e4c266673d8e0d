"""The register of a zone's nodes in Redis: one hash, and one script that is at once heartbeat, conflict check and list.

Everything about time is counted by Redis: when an entry expires, how long it has left, since when its node is ready. Nodes get
and give durations only, so their clocks may show what they like.

An id belongs to whoever holds it until its entry expires. Three exceptions: a node that has left holds nothing; the workers of a
node share its token; and who listens at the very address, on the very host, at which the holder listened, and was started later,
succeeds it at once, because the holder is gone: two processes cannot listen there.

An operator may drain a node: the hash of drained nodes then names the start that is meant, so a node that is started anew is not
drained any more. Its workers say READY on, and are entered as LEAVING. They remember it for a Redis that forgets.

Nodes with a secret sign what they say of themselves. An entry that is not signed with it is no member's, or whoever may write
to Redis could have clients read from him.

Nodes without a secret have a register of their own, so that none can hold the id of a fleet's node. They look at the fleet's too:
that it has entries shows that a secret is missing, whatever the entries say.

An entry is text: when it expires and since when it is ready (milliseconds of Redis's clock, 0 for not ready), state, token of the
start, place, and the node as JSON.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from gateway.fleet.connection import commands, text_of
from gateway.fleet.node_id import place_of
from gateway.model.fleet import Node, NodeState
from gateway.model.peer_auth import proof

_NOBODY = "-"
_LEAVING = NodeState.LEAVING.value.encode()
_SCRIPT = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local id, boot, place, state, ready_for, expire, document, last =
  ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], ARGV[8] == '1'
local drained, decided = ARGV[9] == '1', redis.call('HGET', KEYS[2], id)
if decided then drained = decided == boot .. ' 1' end
local back, shown_before = ARGV[9] == '1' and not drained, ''
local ms = function(number) return string.format('%.0f', number) end
local conflict, since, alive = '', 0, {}
local entries = redis.call('HGETALL', KEYS[1])
for i = 1, #entries, 2 do
  local name = entries[i]
  local til, ready, its_state, its_boot, its_place, its = string.match(entries[i + 1], '^(%d+) (%d+) (%S+) (%S+) (%S+) (.*)$')
  if not til or tonumber(til) <= now then
    redis.call('HDEL', KEYS[1], name)
  elseif name ~= id then
    alive[#alive + 1] = {name, its, its_state, ms(til - now), ready == '0' and '-1' or ms(now - ready)}
  elseif its_boot == boot then
    shown_before = its_state
    local was_ready = its_state == 'READY' or (its_state == 'LEAVING' and ready ~= '0' and drained)
    if was_ready and state == 'JOINING' then state = 'READY' end
    if last and its_state ~= 'LEAVING' then last, state = false, its_state end
    since = tonumber(ready)
  elseif its_boot ~= '-' and not (its_place == place and its_boot < boot) then
    conflict = its
    alive[#alive + 1] = {name, its, its_state, ms(til - now), ready == '0' and '-1' or ms(now - ready)}
  end
end
if conflict == '' then
  if state == 'READY' then
    -- What others were home of meanwhile is to be had from them, as of one that has just joined.
    if since == 0 or (back and shown_before == 'LEAVING') then since = now end
    if ready_for >= 0 and not back then since = math.min(since, now - ready_for) end
  end
  if drained and not decided then redis.call('HSET', KEYS[2], id, boot .. ' 1') end
  if decided and not string.find(decided, boot .. ' ', 1, true) then redis.call('HDEL', KEYS[2], id) end
  local token = last and '-' or boot
  local shown = drained and state == 'READY' and 'LEAVING' or state
  local entry = {ms(now + expire), ms(since), shown, token, place, document}
  redis.call('HSET', KEYS[1], id, table.concat(entry, ' '))
  redis.call('PEXPIRE', KEYS[1], expire * 10)
  alive[#alive + 1] = {id, document, state, ms(expire), since == 0 and '-1' or ms(now - since)}
end
local others = {}
if KEYS[3] then
  entries = redis.call('HGETALL', KEYS[3])
  for i = 1, #entries, 2 do
    local til, its_state, its = string.match(entries[i + 1], '^(%d+) %d+ (%S+) %S+ %S+ (.*)$')
    if til and tonumber(til) > now then others[#others + 1] = {entries[i], its, its_state} end
  end
end
return {conflict, alive, drained and 1 or 0, others}
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A live node as Redis has it: ``left`` seconds until it expires, ready for ``ready_for`` seconds (-1: it is not)."""

    node: Node
    left: float
    ready_for: float


@dataclass(frozen=True, slots=True)
class Heard:
    """What a heartbeat brought: every live node that could be read; the address of who holds our id, else empty.

    ``unproven`` are the addresses of those that do not prove to know the secret and are not leaving, by id. ``drained`` says
    that an operator wants this node to be home of nothing.
    """

    entries: Sequence[Entry]
    conflict: str = ""
    unproven: Mapping[str, str] = field(default_factory=dict)
    drained: bool = False


class Register:
    """The register that the key ``key`` of the Redis at ``url`` holds.

    Args:
        url: of Redis.
        key: of the hash.
        expire: seconds after its last heartbeat for which an entry lasts.
        timeout: seconds that Redis may take to answer.
        secret: of the fleet; empty for a node that is in none, and believes only what it said itself.
        others: key of another register, whose nodes are ``unproven``; empty for none.
    """

    def __init__(self, url: str, key: str, expire: float, timeout: float, secret: str = "", others: str = "") -> None:
        self._redis: Redis = commands(url, timeout)
        self._key = key
        self._keys = [key, f"{key}:drained", *filter(None, [others])]
        self._expire = expire
        self._secret = secret
        self._script: Any = self._redis.register_script(_SCRIPT)

    async def beat(self, node: Node, ready_for: float = -1.0, *, last: bool = False, drained: bool = False) -> Heard:
        """Say that a node is there, and hear who else is.

        Args:
            node: with the state that it is in, as far as this worker knows: READY stays READY when a sibling says JOINING.
            ready_for: seconds for which it has been ready, as far as is known; -1 for unknown.
            last: the worker stops. If the node is leaving, its id is free from now on; else siblings speak for it.
            drained: whether the worker believes that its node is drained, for a Redis that has forgotten it.

        Raises:
            RedisError, OSError: Redis is down, slow or refuses.
        """
        document = node.to_json()
        del document["state"]
        if self._secret:
            document["proof"] = proof(self._secret, document)
        arguments = (
            node.id,
            node.boot or _NOBODY,
            place_of(node.address),
            node.state.value,
            round(ready_for * 1000) if ready_for >= 0 else -1,
            round(self._expire * 1000),
            json.dumps(document, separators=(",", ":")),
            int(last),
            int(drained),
        )
        conflict, alive, told, others = await self._script(keys=self._keys, args=arguments)
        entries: list[Entry] = []
        unproven = {_name(name): _address(row[0]) for name, *row in others if row[1] != _LEAVING}
        for name, *row in alive:
            if not self._proven(name, row[0], node.id):
                # One that is leaving is nobody's trouble any more.
                if row[1] != _LEAVING:
                    unproven[_name(name)] = _address(row[0])
            elif (entry := _entry(*row)) is not None:
                entries.append(entry)
        return Heard(entries, _address(conflict) if conflict else "", unproven, bool(told))

    async def drain(self, node: Node, drained: bool) -> None:
        """Have a node be home of nothing until it is started anew, or take that back; heard with its next heartbeat.

        Raises:
            RedisError, OSError: Redis is down, slow or refuses.
        """
        await self._redis.hset(f"{self._key}:drained", node.id, f"{node.boot or _NOBODY} {int(drained)}")

    async def drained(self, nodes: Iterable[Node]) -> frozenset[str]:
        """Those of some nodes that are drained, also if they have not heard of it yet.

        Raises:
            RedisError, OSError: Redis is down, slow or refuses.
        """
        decided = await self._redis.hgetall(f"{self._key}:drained")
        known = {text_of(name): text_of(told) for name, told in decided.items()}
        return frozenset(node.id for node in nodes if known.get(node.id) == f"{node.boot or _NOBODY} 1")

    def _proven(self, name: bytes, document: bytes, me: str) -> bool:
        if not self._secret:
            return _name(name) == me
        try:
            told = json.loads(document)
            claimed = str(told.pop("proof"))
            right = told["id"] == name.decode() and hmac.compare_digest(claimed, proof(self._secret, told))
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        return right

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()


def _entry(document: bytes, state: bytes, left: bytes, ready_for: bytes) -> Entry | None:
    try:
        node = Node.from_json({**json.loads(document), "state": state.decode()})
    except (ValueError, KeyError, TypeError):
        # Another version's; it cannot be a member of this fleet.
        return None
    return Entry(node, int(left) / 1000, max(-1.0, int(ready_for) / 1000))


def _name(name: bytes) -> str:
    """An id as text, whatever somebody wrote there."""
    return name.decode("utf-8", "replace")


def _address(document: bytes) -> str:
    try:
        return str(json.loads(document)["address"])
    except (ValueError, KeyError, TypeError):
        return "an unknown address"
