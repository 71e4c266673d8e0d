-- How gateways before this version decided on the order of an epoch: for tests of a mixed fleet.
local K, silence = KEYS[1], tonumber(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
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
    if redis.call('HINCRBY', K .. 'jobs:tenants', record.tenant, -1) <= 0 then
      redis.call('HDEL', K .. 'jobs:tenants', record.tenant)
    end
  end
  redis.call('DEL', K .. 'job:' .. name, K .. 'job:' .. name .. ':epochs')
  redis.call('ZREM', K .. 'jobs:seen', name)
  return redis.call('HDEL', K .. 'jobs', name)
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', K .. 'jobs:seen', '-inf', now - silence)) do drop(name) end
local name, epoch, proposal, active, kept, leads = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7] == '1'
local record = record_of(redis.call('HGET', K .. 'jobs', name))
if not record then return false end
local epochs, using = K .. 'job:' .. name .. ':epochs', K .. 'using:' .. record.dataset
local places, sequence = K .. 'places:' .. record.dataset, K .. 'sequence'
redis.call('ZREMRANGEBYSCORE', using, '-inf', now - silence)
if redis.call('EXISTS', using) == 0 then redis.call('DEL', places) end
local proposed = cjson.decode(proposal)
local count = #proposed
-- 'middle': some other job is in the middle of an epoch; else 'begun': some have just begun theirs; else nil.
local function others()
  local found = nil
  for _, other in ipairs(redis.call('ZRANGE', using, 0, -1)) do
    local left, of = string.match(redis.call('HGET', places, other) or '', '^%d+ (%d+) (%d+)$')
    if other ~= name and (not of or tonumber(of) == count) then
      if not of then return 'middle' end
      if tonumber(left) == count then found = 'begun' elseif tonumber(left) > 2 then return 'middle' end
    end
  end
  return found
end
local function just_used(last)
  local used, found = cjson.decode(last or '[]'), {}
  for place = math.max(1, #used - 1), #used do found[used[place]] = true end
  return found
end
local function followed(there, where)
  if #there ~= count then return nil end
  local wanted, start = {}, 1
  for _, chunk in ipairs(proposed) do wanted[chunk] = true end
  for place, chunk in ipairs(there) do
    if not wanted[chunk] then return nil end
    if chunk == tonumber(active) and (where == 'middle' or place == 2) then start = place end
  end
  if where == 'middle' and count > 2 then
    local used = just_used(redis.call('HGET', epochs, string.format('%.0f', tonumber(epoch) - 1)))
    while used[there[start]] do start = start % count + 1 end
  end
  local turned = {}
  for place = 0, count - 1 do turned[place + 1] = there[(start - 1 + place) % count + 1] end
  return cjson.encode(turned)
end
local order = redis.call('HGET', epochs, epoch)
local opens = not order
if opens then
  local known = active ~= '' and redis.call('HGET', sequence, record.dataset)
  local where = known and others()
  local theirs = where and followed(cjson.decode(known), where)
  order = theirs or proposal
  if theirs or leads then redis.call('HSET', sequence, record.dataset, order) end
  local fields = redis.call('HKEYS', epochs)
  table.sort(fields, function(a, b) return tonumber(a) < tonumber(b) end)
  if #fields >= kept then
    if tonumber(epoch) < tonumber(fields[1]) then redis.call('DEL', epochs) else redis.call('HDEL', epochs, fields[1]) end
  end
  redis.call('HSET', epochs, epoch, order)
end
if opens or string.match(redis.call('HGET', places, name) or '', '^%d+') ~= epoch then
  redis.call('HSET', places, name, epoch .. ' ' .. count .. ' ' .. count)
end
redis.call('ZADD', K .. 'jobs:seen', now, name)
redis.call('ZADD', using, now, name)
return order
