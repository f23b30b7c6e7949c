#!lua flags=allow-oom
-- n lease_us per_receiver per_tenant give_up_us -> {{{delivery, record, endpoint or false}...}, more(1 or 0)}
-- Due webhook deliveries, leased to the caller for a try each. First what is due goes to the lane of its receiver; then
-- tenants are served in turn, and of each tenant its receivers. A receiver that has as many tries under way as it may
-- have, or rests, is passed by, and so is such a tenant: whoever is slow delays nobody else. With `more` there is more to
-- be sorted: call again.
local now, n, lease_us = now_us(), tonumber(ARGV[1]), tonumber(ARGV[2])
local SORTED, LOOKS, TENANTS = 1000, 100, P .. 'outbox:tenants'

local due = redis.call('ZRANGEBYSCORE', P .. 'outbox', '-inf', int(now), 'WITHSCORES', 'LIMIT', 0, SORTED)
for i = 1, #due, 2 do
  local tenant, id = split(due[i])
  local found = redis.call('HMGET', rowkey(tenant, id), 'state', 'url', 'endpoint')
  redis.call('ZREM', P .. 'outbox', due[i])
  if found[1] == 'pending' then
    local receiver = receiver_of({ url = found[2], endpoint = found[3] or nil })
    redis.call('ZADD', receiver_key(tenant, receiver, 'due'), due[i + 1], id)
    redis.call('ZADD', tkey(tenant, 'receivers'), 'NX', int(now), receiver)
    redis.call('ZADD', TENANTS, 'NX', 0, tenant)
  end
end

local rows = {}

-- Lease the next delivery of a receiver's lane that is to be tried; nil when there is none.
local function lease(tenant, receiver)
  for _ = 1, LOOKS do
    local lane = receiver_key(tenant, receiver, 'due')
    local id = redis.call('ZRANGE', lane, 0, 0)[1]
    if not id then return nil end
    redis.call('ZREM', lane, id)
    local row = table_of(redis.call('HGETALL', rowkey(tenant, id)))
    local job = row.job and row.job ~= '' and load(tenant, row.job)
    local endpoint = row.endpoint and endpoint_of(tenant, row.endpoint)
    local why = row.id and stopped(row, endpoint)
    local too_old = row.id and now >= tonumber(row.until_us or row.created_us + ARGV[5])
    if row.state ~= 'pending' then
      -- settled meanwhile, or deleted
    elseif row.job ~= '' and not job then
      forget_delivery(row)
    elseif why == 'unknown' and not too_old then
      redis.call('ZADD', P .. 'outbox', int(now + 2000000), tenant .. '/' .. id)
    elseif why and why ~= 'unknown' then
      give_up(row, why, now)
    elseif row.event == 'job.progress' and TERMINAL[job.state] then
      forget_delivery(row)
    elseif too_old then
      give_up(row, 'gave_up', now)
    else
      return row, job, endpoint
    end
  end
end

local function take(row, job, endpoint, receiver)
  local key, try = rowkey(row.tenant, row.id), row.id .. ':' .. int(row.tries + 1)
  redis.call('HINCRBY', key, 'tries', 1)
  redis.call('HSET', key, 'leased_us', int(now + lease_us), 'url', endpoint and endpoint.url or row.url)
  redis.call('ZADD', P .. 'outbox', int(now + lease_us), row.tenant .. '/' .. row.id)
  for _, busy in ipairs({ receiver_key(row.tenant, receiver, 'busy'), tkey(row.tenant, 'sending') }) do
    redis.call('ZREM', busy, row.id .. ':' .. row.tries)  -- of a keeper that died
    redis.call('ZADD', busy, int(now + lease_us), try)
    redis.call('PEXPIRE', busy, int(lease_us / 1000))
  end
  rows[#rows + 1] = { redis.call('HGETALL', key), job and flatten(job) or {}, endpoint and endpoint.revision or false }
end

-- When a receiver may be asked, if it may not be asked now.
local function later(tenant, receiver)
  local health = table_of(redis.call('HGETALL', receiver_key(tenant, receiver, 'health')))
  if tonumber(health.open_us or '0') > now then return health.open_us end
  local busy = receiver_key(tenant, receiver, 'busy')
  redis.call('ZREMRANGEBYSCORE', busy, '-inf', int(now))
  local most = tonumber(health.failures or '0') >= BREAKS_AT and 1 or tonumber(ARGV[3])
  if redis.call('ZCARD', busy) >= most then return redis.call('ZRANGE', busy, 0, 0, 'WITHSCORES')[2] end
end

-- Take one delivery of a tenant; false when there is none that may be tried now.
local function serve(tenant)
  local sending, lanes = tkey(tenant, 'sending'), tkey(tenant, 'receivers')
  redis.call('ZREMRANGEBYSCORE', sending, '-inf', int(now))
  if redis.call('ZCARD', sending) >= tonumber(ARGV[4]) then return false end
  for _ = 1, LOOKS do
    local receiver = redis.call('ZRANGEBYSCORE', lanes, '-inf', int(now + #rows), 'LIMIT', 0, 1)[1]
    if not receiver then return false end
    local at = later(tenant, receiver)
    if at then
      redis.call('ZADD', lanes, int(math.max(at, now + 1000000)), receiver)
    else
      local row, job, endpoint = lease(tenant, receiver)
      if row then take(row, job, endpoint, receiver) end
      if redis.call('EXISTS', receiver_key(tenant, receiver, 'due')) == 1 then
        redis.call('ZADD', lanes, int(now + #rows), receiver)
      else
        redis.call('ZREM', lanes, receiver)
      end
      if row then return true end
    end
  end
  return false
end

local moved = true
while moved and #rows < n do
  moved = false
  for _, tenant in ipairs(redis.call('ZRANGE', TENANTS, 0, -1)) do
    if #rows < n and serve(tenant) then
      moved = true
      redis.call('ZADD', TENANTS, int(now + #rows), tenant)
    end
    if redis.call('EXISTS', tkey(tenant, 'receivers')) == 0 then redis.call('ZREM', TENANTS, tenant) end
  end
end
return { rows, #due == 2 * SORTED and 1 or 0 }
