"""The scripts of the job book (``jobs.py``): each runs as one step in Redis.

Each begins with ``COMMON``, which forgets the jobs that have been silent for too long.

``drop`` also removes what earlier versions kept of a job: its place in its dataset, and the orders of its epochs.
"""

from __future__ import annotations

COMMON = """
local K, silence = KEYS[1], tonumber(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function changed() redis.call('SET', K .. 'registrations:version', time[1] .. '.' .. time[2]) end
local function record_of(value)
  local fine, record = pcall(cjson.decode, value and string.match(value, '^%d+ (.*)$') or '')
  if fine and type(record) == 'table' and record.dataset and record.tenant and record.ranks then return record end
  return nil
end
local function drop(name)
  local record = record_of(redis.call('HGET', K .. 'jobs', name))
  if record then
    redis.call('ZREM', K .. 'using:' .. record.dataset, name)
    redis.call('HDEL', K .. 'places:' .. record.dataset, name)
    redis.call('HINCRBY', K .. 'jobs:ranks', record.tenant, -record.ranks)
    if redis.call('HINCRBY', K .. 'jobs:tenants', record.tenant, -1) <= 0 then
      redis.call('HDEL', K .. 'jobs:tenants', record.tenant)
      redis.call('HDEL', K .. 'jobs:ranks', record.tenant)
    end
  end
  redis.call('DEL', K .. 'job:' .. name, K .. 'job:' .. name .. ':epochs')
  redis.call('ZREM', K .. 'jobs:seen', name)
  changed()
  return redis.call('HDEL', K .. 'jobs', name)
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', K .. 'jobs:seen', '-inf', now - silence)) do drop(name) end
"""
REGISTERING = """
return {string.format('%.0f', now), time[1] .. '.' .. time[2], redis.call('HGET', K .. 'jobs', ARGV[2]),
  redis.call('HLEN', K .. 'jobs'), redis.call('HGET', K .. 'jobs:tenants', ARGV[3]) or 0,
  redis.call('HGET', K .. 'jobs:ranks', ARGV[3]) or 0}
"""
BEAT = """
local name, rank, json = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local known = redis.call('HGET', K .. 'jobs', name)
local record = record_of(known)
if not record then return false end
if rank < record.ranks then
  redis.call('HSET', K .. 'job:' .. name, rank, string.format('%.0f', now) .. ' ' .. json)
  redis.call('ZADD', K .. 'jobs:seen', now, name)
end
return known
"""
REMOVE = "return drop(ARGV[2])"
NOW = "return string.format('%.0f', now)"
STATE = "return {redis.call('GET', K .. 'registrations:version'), redis.call('HLEN', K .. 'jobs')}"
