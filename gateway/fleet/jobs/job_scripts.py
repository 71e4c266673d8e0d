"""The scripts of the job book (``jobs.py``): each runs as one step in Redis.

Each begins with ``COMMON``, which forgets the jobs that have been silent for too long.

``BEAT`` keeps the whole heartbeats of a job of few ranks. Of one with many it keeps each rank's counts and the beginning of its
position, and one whole heartbeat: that of the slowest rank, in a field of its own. A rank that falls behind it, or comes after it
has been silent, takes the place; when the slowest rank overtakes others, the place is theirs with their next heartbeats.
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
local name, rank, json, epoch, left, short = ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[8]
local whole, slowest = tonumber(ARGV[9]), ARGV[10]
local known = redis.call('HGET', K .. 'jobs', name)
local record = record_of(known)
if not record then return false end
if rank < record.ranks then
  local beats, stamp = K .. 'job:' .. name, string.format('%.0f', now) .. ' '
  if record.ranks <= whole then
    redis.call('HSET', beats, rank, stamp .. json)
  else
    redis.call('HSET', beats, rank, stamp .. short)
    local at, said = string.match(redis.call('HGET', beats, slowest) or '', '^(%d+) (.*)$')
    local fine, last = pcall(cjson.decode, said or '')
    fine = fine and type(last) == 'table' and last.e and last.l and last.r
    local own = fine and last.r == rank
    local behind = fine and (epoch < last.e or (epoch == last.e and tonumber(left) > last.l))
    if json ~= short and (not fine or own or behind or tonumber(at) < now - silence) then
      redis.call('HSET', beats, slowest, stamp .. json)
    elseif own then
      redis.call('HDEL', beats, slowest)
    end
  end
  redis.call('ZADD', K .. 'jobs:seen', now, name)
  redis.call('ZADD', K .. 'using:' .. record.dataset, 'XX', now, name)
  local places = K .. 'places:' .. record.dataset
  local opened, _, count = string.match(redis.call('HGET', places, name) or '', '^(%d+) (%d+) (%d+)$')
  if opened and opened ~= ARGV[7] then
    redis.call('HSET', places, name, string.format('%.0f', epoch) .. ' ' .. left .. ' ' .. count)
  end
end
return known
"""
REMOVE = "return drop(ARGV[2])"
NOW = "return string.format('%.0f', now)"
STATE = "return {redis.call('GET', K .. 'registrations:version'), redis.call('HLEN', K .. 'jobs')}"
OPENING = """
local name, epoch = ARGV[2], ARGV[3]
local job = redis.call('HGET', K .. 'jobs', name)
local record = record_of(job)
if not record then return false end
local epochs, using, places = K .. 'job:' .. name .. ':epochs', K .. 'using:' .. record.dataset, K .. 'places:' .. record.dataset
redis.call('ZREMRANGEBYSCORE', using, '-inf', now - silence)
if redis.call('EXISTS', using) == 0 then redis.call('DEL', places) end
redis.call('ZADD', K .. 'jobs:seen', now, name)
local order = redis.call('HGET', epochs, epoch)
if order then
  redis.call('ZADD', using, now, name)
  return {string.format('%.0f', now), job, {epoch, order}, {name}, {name, redis.call('HGET', places, name)}}
end
local sequence = redis.call('HMGET', K .. 'sequence', record.dataset, record.dataset .. ARGV[4])
return {string.format('%.0f', now), job, redis.call('HGETALL', epochs), redis.call('ZRANGE', using, 0, -1),
  redis.call('HGETALL', places), sequence[1], sequence[2]}
"""
