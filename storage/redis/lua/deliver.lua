#!lua flags=allow-oom
-- n lease_us per_receiver per_tenant give_up_us version -> {{{delivery, record, endpoint or false}...}, more(1 or 0)}
-- Leases due webhook deliveries to the caller, for one try each. Due deliveries first move to the lane of their receiver;
-- then tenants are served in turn, and of each tenant its receivers. A receiver that rests, or has its maximum of tries
-- under way, is skipped, and so is such a tenant: a slow receiver delays no other. `more`: call again, there is more to
-- sort. Deliveries of a job that is not read, and those of a format above `version`, are left for a newer keeper.
local now, n, lease_us = now_us(), tonumber(args.n), tonumber(args.lease_us)
local NEWER_US, SETTLED = 60000000, { delivered = true, failed = true }
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
  elseif found[1] and not SETTLED[found[1]] then
    redis.call('ZADD', P .. 'outbox', int(now + NEWER_US), due[i])  -- in a state that newer keepers know
  end
end

local rows = {}

-- Return true for a delivery that only newer keepers may try.
local function is_for_newer(row, job, endpoint)
  local version = math.max(tonumber(row.version or '1'), endpoint and tonumber(endpoint.version or 1) or 1)
  return version > tonumber(args.version) or (job and tonumber(job.version or '1') > READS)
end

-- Lease the next delivery of a receiver's lane; nil without one.
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
    local too_old = row.id and now >= tonumber(row.until_us or row.created_us + args.give_up_us)
    if row.state ~= 'pending' then
      -- settled meanwhile, or deleted
    elseif row.job ~= '' and not job then
      forget_delivery(row)
    elseif is_for_newer(row, job, endpoint) then
      redis.call('ZADD', P .. 'outbox', int(now + NEWER_US), tenant .. '/' .. id)
    elseif why == 'unknown' and not too_old then
      redis.call('ZADD', P .. 'outbox', int(now + 2000000), tenant .. '/' .. id)
    elseif why and why ~= 'unknown' then
      give_up(row, why, now)
    elseif row.event == 'job.progress' and has_ended(job) then
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

-- Return the time from which a receiver may be called; nil for now.
local function later(tenant, receiver)
  local health = table_of(redis.call('HGETALL', receiver_key(tenant, receiver, 'health')))
  if tonumber(health.open_us or '0') > now then return health.open_us end
  local busy = receiver_key(tenant, receiver, 'busy')
  redis.call('ZREMRANGEBYSCORE', busy, '-inf', int(now))
  local most = tonumber(health.failures or '0') >= BREAKS_AT and 1 or tonumber(args.per_receiver)
  if redis.call('ZCARD', busy) >= most then return redis.call('ZRANGE', busy, 0, 0, 'WITHSCORES')[2] end
end

-- Lease one delivery of a tenant; false where none may be tried now.
local function serve(tenant)
  local sending, lanes = tkey(tenant, 'sending'), tkey(tenant, 'receivers')
  redis.call('ZREMRANGEBYSCORE', sending, '-inf', int(now))
  if redis.call('ZCARD', sending) >= tonumber(args.per_tenant) then return false end
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
