-- Webhooks: their part of the data model, and the functions that scripts share. Stands after common.lua in each script.
--
-- penstock:tenant:T:endpoints            hash   endpoint -> its entry (JSON, without secrets); the object store has the
--                                               endpoint itself. A deleted entry stays for a while, marked
-- penstock:endpoints:changing            zset   T/ENDPOINT/NONCE by the time at which a change of it began
-- penstock:tenant:T:delivery:ID          hash   one delivery: id tenant job event url endpoint attempt (of a start)
--                                               created_us until_us body tries state log leased_us (end of the try under
--                                               way)
-- penstock:tenant:T:endpoint:E:deliveries zset  ids of an endpoint's deliveries by the time of their event
-- penstock:tenant:T:deliveries:dead      zset   ids of deliveries that failed for good, by the time at which they did
-- penstock:tenant:T:answered             set    ids of deliveries that were answered before Redis was lost; expires
-- penstock:outbox                        zset   T/DELIVERY by the time at which it is due
-- penstock:outbox:tenants                zset   tenants with due deliveries by the time they were last served
-- penstock:tenant:T:receivers            zset   receivers with due deliveries by the time from which they may be called
-- penstock:tenant:T:receiver:R:due       zset   ids of due deliveries by the time at which they became due
-- penstock:tenant:T:receiver:R:busy      zset   ID:TRY of tries under way by the end of their lease
-- penstock:tenant:T:receiver:R:health    hash   failures in a row, opened (how often), open_us. Expires; a success deletes it
-- penstock:tenant:T:sending              zset   ID:TRY of all tries under way of a tenant by the end of their lease
-- penstock:unannounced                   zset   T/JOB/EVENT of events while an emptied Redis knew no endpoints
--
-- A receiver is an endpoint's id, or scheme, host and port of a job's own webhook.

-- Failures in a row after which a receiver rests, and the time of the first rest, which doubles each time.
local BREAKS_AT, REST_US, LONGEST_REST_US = 5, 30000000, 300000000
local HEALTH_S = 86400
-- Time between two progress deliveries of a job.
local PROGRESS_US = 10000000
-- Entries of a delivery's log; older entries are dropped.
local MAX_LOG = 30

local function rowkey(tenant, id) return tkey(tenant, 'delivery:' .. id) end
local function receiver_key(tenant, receiver, rest) return tkey(tenant, 'receiver:' .. receiver .. ':' .. rest) end
local function receiver_of(row) return row.endpoint or string.match(row.url, '^%a+://[^/?#]*') or row.url end

-- Return true for an event that is only tried once, because its loss does no harm.
local function passing(event) return event == 'job.progress' or event == 'webhook.test' end

-- Return the latest entry of an endpoint; nil for an unknown endpoint.
local function endpoint_of(tenant, id)
  local found = redis.call('HGET', tkey(tenant, 'endpoints'), id)
  return found and cjson.decode(found)
end

local function has(list, wanted)
  for _, name in ipairs(list) do
    if name == wanted then return true end
  end
  return false
end

-- Store a delivery; return true if it is to be sent, false if it was answered before Redis was lost.
local function keep(row, at)
  local is_new = redis.call('SISMEMBER', tkey(row.tenant, 'answered'), row.id) == 0
  if not is_new then row.state = 'delivered' end
  redis.call('HSET', rowkey(row.tenant, row.id), unpack(flatten(row)))
  if is_new then redis.call('ZADD', P .. 'outbox', int(at), row.tenant .. '/' .. row.id) end
  if row.job ~= '' then redis.call('RPUSH', jobkey(row.tenant, row.job) .. ':deliveries', row.id) end
  if row.endpoint then
    redis.call('ZADD', tkey(row.tenant, 'endpoint:' .. row.endpoint .. ':deliveries'), row.created_us, row.id)
  end
  return is_new
end

local function forget_delivery(row)
  redis.call('ZREM', P .. 'outbox', row.tenant .. '/' .. row.id)
  redis.call('ZREM', receiver_key(row.tenant, receiver_of(row), 'due'), row.id)
  redis.call('ZREM', tkey(row.tenant, 'deliveries:dead'), row.id)
  if row.endpoint then redis.call('ZREM', tkey(row.tenant, 'endpoint:' .. row.endpoint .. ':deliveries'), row.id) end
  if row.job ~= '' then redis.call('LREM', jobkey(row.tenant, row.job) .. ':deliveries', 0, row.id) end
  redis.call('DEL', rowkey(row.tenant, row.id))
end

-- Return the receivers of an event of a job: {url, endpoint or nil} each.
local function receivers(job, event, at)
  local found = {}
  if (job.webhook or '') ~= '' then
    local hook = cjson.decode(job.webhook)
    if has(hook.events, event) then found[1] = { url = (hook.urls or {})[event] or hook.url } end
  end
  for _, text in ipairs(redis.call('HVALS', tkey(job.tenant, 'endpoints'))) do
    local endpoint = cjson.decode(text)
    if endpoint.enabled and not endpoint.deleted and endpoint.since_us <= at and has(endpoint.events, event)
      and (#endpoint.models == 0 or has(endpoint.models, job.model)) then
      found[#found + 1] = { url = endpoint.url, endpoint = endpoint.id }
    end
  end
  return found
end

-- Return the part of a delivery's id that tells an event from others of its kind: a start has its fence, which also differs
-- after a loss of Redis, when attempts are counted from 1 again.
local function number_of(job, event) return event == 'job.started' and '.' .. job.fence or '' end

-- Make the delivery of an event to a receiver, once: its id names the event, and all that its body depends on, and receiver.
-- Return the id, and false if the delivery was answered before Redis was lost.
local function add_delivery(job, event, to, number, at)
  local id = 'msg_' .. job.id .. '_' .. event .. number .. (to.endpoint and '_' .. to.endpoint or '')
  if redis.call('EXISTS', rowkey(job.tenant, id)) == 1 then return id, true end
  return id, keep({ id = id, tenant = job.tenant, job = job.id, event = event, url = to.url, endpoint = to.endpoint,
    attempt = event == 'job.started' and job.attempt or nil, created_us = int(at), tries = '0', state = 'pending',
    log = '[]' }, at)
end

-- Write the state of all deliveries of a job together. Passing events do not count.
local function sum_up(job)
  local all = 'delivered'
  for _, id in ipairs(redis.call('LRANGE', jobkey(job.tenant, job.id) .. ':deliveries', 0, -1)) do
    local row = redis.call('HMGET', rowkey(job.tenant, id), 'state', 'event')
    if row[1] and not passing(row[2]) and (row[1] == 'failed' or (row[1] == 'pending' and all ~= 'failed')) then
      all = row[1]
    end
  end
  if job.delivery ~= all then write(job, { delivery = all }) end
end

-- Make the deliveries of an event. A `silent` job is created again long after the event. While Redis does not know all
-- endpoints again, the event is kept for `announce_again`.
function announce(job, event, at)
  if job.silent then return end
  if redis.call('EXISTS', P .. 'alive') == 0 then redis.call('ZADD', P .. 'unannounced', int(at), job.name .. '/' .. event) end
  local found = receivers(job, event, tonumber(at))
  local is_pending = false
  for _, to in ipairs(found) do
    local _, is_new = add_delivery(job, event, to, number_of(job, event), at)
    is_pending = is_pending or is_new
  end
  if is_pending then write(job, { delivery = 'pending' }) elseif #found > 0 then sum_up(job) end
end

-- Make the deliveries of a job's progress: not too often, and not while the previous one to this receiver is pending. Only
-- the latest is kept.
local function announce_progress(job, now)
  if now - tonumber(job.progress_told_us or '0') < PROGRESS_US then return end
  local found, fields = receivers(job, 'job.progress', now), { progress_told_us = int(now) }
  for _, to in ipairs(found) do
    local field = 'progress_told:' .. (to.endpoint or '')
    local last = table_of(redis.call('HGETALL', rowkey(job.tenant, job[field] or '')))
    if last.state ~= 'pending' then
      if last.id then forget_delivery(last) end
      fields[field] = (add_delivery(job, 'job.progress', to, '.' .. job.fence .. '.' .. int(now), now))
    end
  end
  if #found > 0 then write(job, fields) end
end

function undelivered(job)
  local rows = {}
  for _, id in ipairs(redis.call('LRANGE', jobkey(job.tenant, job.id) .. ':deliveries', 0, -1)) do
    local row = table_of(redis.call('HGETALL', rowkey(job.tenant, id)))
    if row.state == 'pending' and not passing(row.event) then rows[#rows + 1] = row end
  end
  return rows
end

-- Return a delivery as users see it: with due_us, the time of its next try, unless a try is under way.
local function delivery(tenant, id, now)
  local flat = redis.call('HGETALL', rowkey(tenant, id))
  local row = table_of(flat)
  if row.state == 'pending' and tonumber(row.leased_us or '0') <= now then
    local due = tonumber(redis.call('ZSCORE', P .. 'outbox', tenant .. '/' .. id) or now)
    local open = tonumber(redis.call('HGET', receiver_key(tenant, receiver_of(row), 'health'), 'open_us') or '0')
    flat[#flat + 1] = 'due_us'
    flat[#flat + 1] = int(math.max(due == 0 and now or due, open))
  end
  return flat
end

-- Write the state of a delivery: `note` is an entry of its log (JSON). `lost`: a user may redeliver it.
local function conclude(row, state, note, lost, now)
  local log = row.log == '[]' and '[' .. note .. ']' or string.sub(row.log, 1, -2) .. ',\n' .. note .. ']'
  local _, breaks = string.gsub(log, '\n', '')
  if breaks >= MAX_LOG then log = '[' .. string.sub(log, string.find(log, '\n', 1, true) + 1) end
  row.log, row.state = log, state
  redis.call('HSET', rowkey(row.tenant, row.id), 'log', log, 'state', state)
  redis.call('HDEL', rowkey(row.tenant, row.id), 'leased_us')
  if state ~= 'pending' then redis.call('ZREM', P .. 'outbox', row.tenant .. '/' .. row.id) end
  if state == 'failed' and lost and not passing(row.event) then
    redis.call('ZADD', tkey(row.tenant, 'deliveries:dead'), int(now), row.id)
  else
    redis.call('ZREM', tkey(row.tenant, 'deliveries:dead'), row.id)
  end
  redis.call('PUBLISH', P .. 'changes', row.tenant .. '/' .. row.id)
  local job = load(row.tenant, row.job)
  if job and not passing(row.event) then
    sum_up(job)
    emit(job, 'delivery.' .. state, note)
  end
end

-- Return the reason why a delivery is not tried: nil, a word for its log, or 'unknown' for an endpoint not known yet.
local function stopped(row, endpoint)
  if not row.endpoint then return nil end
  if not endpoint then return 'unknown' end
  if endpoint.deleted then return 'endpoint_deleted' end
  return not endpoint.enabled and 'endpoint_disabled' or nil
end

-- End a delivery without a try.
local function give_up(row, why, now)
  local note = string.format('{"number":%d,"at_s":%.6f,"status":null,"note":"%s"}', row.tries, now / 1000000, why)
  conclude(row, 'failed', note, why ~= 'endpoint_deleted', now)
end

-- Update a receiver's health after a try, and the time from which it may be called again.
local function heed(tenant, receiver, healthy, now)
  local key, at = receiver_key(tenant, receiver, 'health'), now
  if healthy then
    redis.call('DEL', key)
  else
    local failures = redis.call('HINCRBY', key, 'failures', 1)
    local open = tonumber(redis.call('HGET', key, 'open_us') or '0')
    if failures >= BREAKS_AT and open <= now then
      local opened = redis.call('HINCRBY', key, 'opened', 1)
      open = now + math.min(LONGEST_REST_US, REST_US * 2 ^ (opened - 1))
      redis.call('HSET', key, 'open_us', int(open))
    end
    redis.call('EXPIRE', key, HEALTH_S)
    at = math.max(now, open)
  end
  if redis.call('EXISTS', receiver_key(tenant, receiver, 'due')) == 1 then
    redis.call('ZADD', tkey(tenant, 'receivers'), int(at), receiver)
  end
end

-- Have a delivery tried next, whatever the health of its receiver, because a user requested it.
local function hasten(row, now)
  local receiver = receiver_of(row)
  redis.call('HDEL', receiver_key(row.tenant, receiver, 'health'), 'open_us')
  redis.call('ZREM', receiver_key(row.tenant, receiver, 'due'), row.id)
  redis.call('ZADD', P .. 'outbox', 0, row.tenant .. '/' .. row.id)
  if redis.call('ZSCORE', tkey(row.tenant, 'receivers'), receiver) then
    redis.call('ZADD', tkey(row.tenant, 'receivers'), int(now), receiver)
  end
end

-- Delete all that Redis has of an ended job, but leave a marker of it for `gone_s`: the API answers 410.
local function purge_record(job)
  local key = jobkey(job.tenant, job.id)
  for _, delivery_id in ipairs(redis.call('LRANGE', key .. ':deliveries', 0, -1)) do
    local row = table_of(redis.call('HGETALL', rowkey(job.tenant, delivery_id)))
    if row.id then forget_delivery(row) end
  end
  if job.state == 'succeeded' then count_kept(job.tenant, -(tonumber(job.bytes_out or '') or 0)) end
  redis.call('SET', tkey(job.tenant, 'gone:' .. job.id), '1', 'EX', args.gone_s)
  unlist(job)
  forget_follower(job)
  redis.call('ZREM', P .. 'finished', job.name)
  redis.call('ZREM', qkey(job.queue, 'dead'), job.name)
  redis.call('PUBLISH', P .. 'changes', job.name)
  redis.call('DEL', key, key .. ':events', key .. ':logs', key .. ':deliveries', key .. ':streamed',
    key .. ':followers')
end
