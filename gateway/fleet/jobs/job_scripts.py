"""The scripts of the job book (``jobs.py``): each runs as one step in Redis.

Each begins with ``COMMON``, which forgets the jobs that have been silent for too long.

``drop`` removes a job with its reports and the decisions on its pipeline, and what earlier versions stored for it: its place in
its dataset, and the orders of its epochs.
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
  local job = K .. 'job:' .. name
  redis.call('DEL', job, job .. ':epochs', job .. ':reports', job .. ':pipeline', job .. ':workers')
  redis.call('ZREM', K .. 'reported', name)
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
local name, rank, owner, json, profile, batches = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local known = redis.call('HGET', K .. 'jobs', name)
local record = record_of(known)
if not record then return false end
if rank >= record.ranks or (owner ~= '' and record.owner ~= owner) then return {known, false, false} end
local job, at = K .. 'job:' .. name, string.format('%.0f', now) .. ' '
redis.call('HSET', job, rank, at .. json)
redis.call('ZADD', K .. 'jobs:seen', now, name)
if profile ~= '' then
  redis.call('HSET', job .. ':pipeline', 'rank:' .. rank, at .. profile)
  redis.call('PEXPIRE', job .. ':pipeline', silence)
  redis.call('HSET', job .. ':reports', 'profile:' .. rank, at)
end
if batches ~= '' then redis.call('HSET', job .. ':reports', 'batches:' .. rank, at .. batches) end
if profile ~= '' or batches ~= '' then
  redis.call('PEXPIRE', job .. ':reports', silence)
  redis.call('ZADD', K .. 'reported', 'NX', time[1] * 1000000 + time[2], name)
end
return {known, redis.call('HGET', job .. ':pipeline', 'decision'), redis.call('HGET', job .. ':workers', rank)}
"""
"""Stores what a rank says, and returns its job's registration and the decisions on its pipeline."""
REMOVE = "return drop(ARGV[2])"
NOW = "return {string.format('%.0f', now), redis.call('HLEN', K .. 'jobs')}"
STATE = "return {redis.call('GET', K .. 'registrations:version'), redis.call('HLEN', K .. 'jobs')}"
