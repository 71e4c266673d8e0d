"""The leader lease in Redis, with a fencing token: of two workers that consider themselves leader, only one can write.

A leader takes the lease for ``LEASE`` seconds and renews it with every turn of its loop. Whenever the lease changes hands the
token (the fence) grows, and only the holder of the lease with the newest fence can write the plan and decide on pipelines: the
scripts that write check it (``LEADS``). So a leader that stalled, or was cut off, cannot overwrite its successor's decisions. If
Redis was emptied, the counter is lost: a worker that takes the lease passes the last fence it has seen, and the new one is
larger.
"""

from __future__ import annotations

from redis.asyncio import Redis

LEASE = 3.0
"""Seconds for which a leader stays leader without renewing."""

LEADS = """
local fence = tonumber(ARGV[1])
local lease = redis.call('GET', KEYS[1] .. 'leader')
if not lease or tonumber(string.match(lease, '^%d+')) ~= fence then return 0 end
"""
"""The beginning of a script that only the leader may run, under the fence in its first argument."""
_TAKE = """
local holder = redis.call('GET', KEYS[1] .. 'leader')
local mine = ARGV[1] .. ' ' .. ARGV[2]
if holder == mine and ARGV[1] ~= '0' then
  redis.call('PEXPIRE', KEYS[1] .. 'leader', ARGV[4])
  return {tonumber(ARGV[1])}
end
if holder then return {0, redis.call('GET', KEYS[1] .. 'plan:stamp')} end
local fence = math.max(tonumber(redis.call('GET', KEYS[1] .. 'fence') or '0'), tonumber(ARGV[3])) + 1
redis.call('SET', KEYS[1] .. 'fence', string.format('%.0f', fence))
redis.call('SET', KEYS[1] .. 'leader', string.format('%.0f', fence) .. ' ' .. ARGV[2], 'PX', ARGV[4])
return {fence}
"""
_RESIGN = """
if redis.call('GET', KEYS[1] .. 'leader') == ARGV[1] .. ' ' .. ARGV[2] then redis.call('DEL', KEYS[1] .. 'leader') end
return 1
"""


class Leadership:
    """The candidacy of one worker for a zone's leadership.

    Args:
        redis: for commands.
        prefix: of the zone's keys.
        me: unique id of this worker.
        lease: seconds.

    Attributes:
        fence: the token while this worker believes that it leads; else 0.
        stamp: of the plan in Redis when another worker was last seen to lead; empty if there was none, or nobody led.
    """

    def __init__(self, redis: Redis, prefix: str, me: str, lease: float = LEASE) -> None:
        self.fence = 0
        self.stamp = ""
        self._prefix = prefix
        self._me = me
        self._lease = round(1000 * lease)
        self._take = redis.register_script(_TAKE)
        self._give = redis.register_script(_RESIGN)

    async def lead(self, seen: int) -> bool:
        """Take the lease, or renew it; returns whether this worker leads now.

        Args:
            seen: the highest fence that this worker knows of.

        Raises:
            RedisError, OSError: Redis does not answer; this worker then assumes that it does not lead.
        """
        before, self.fence = self.fence, 0
        fence, *stamps = await self._take(keys=[self._prefix], args=[before, self._me, seen, self._lease])
        self.fence, self.stamp = int(fence), (stamps[0].decode() if stamps and stamps[0] else "")
        return self.fence > 0

    async def resign(self) -> None:
        """Let another worker lead at once.

        Raises:
            RedisError, OSError: Redis does not answer; the lease expires by itself.
        """
        before, self.fence = self.fence, 0
        if before:
            await self._give(keys=[self._prefix], args=[before, self._me])
