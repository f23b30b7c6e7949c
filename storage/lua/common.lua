-- The data model, and what every script shares. Put in front of each script after its first line.
--
-- penstock:tenant:T:job:ID             hash    the record: the truth about a job (fields below)
-- penstock:tenant:T:job:ID:events      stream  what happened to it (SSE, trace), at most about 1000 entries
-- penstock:tenant:T:job:ID:deliveries  list    ids of its webhook deliveries
-- penstock:tenant:T:delivery:ID        hash    one webhook delivery: job, event, url, body, tries, state, log
-- penstock:tenant:T:jobs               zset    job id by creation time (listing)
-- penstock:tenant:T:live               set     ids of jobs that are not terminal (the tenant's limit)
-- penstock:tenant:T:running            set     ids of leased jobs (the tenant's running cap)
-- penstock:tenant:T:gone:ID            string  a purged job (410), expires
-- penstock:queue:Q:waiting             zset    T/ID by rank: depth and position
-- penstock:queue:Q:lane:M/T            zset    the waiting ids of one model and tenant by rank
-- penstock:queue:Q:lanes               zset    M/T by the time it was last served: round robin
-- penstock:queue:Q:speed               hash    model -> moving average of the execution time in us
-- penstock:queue:Q:done:MINUTE         string  jobs that succeeded in that minute, expires
-- penstock:queue:Q:workers             hash    worker -> its slots; penstock:queue:Q:seen zset by last sign of life
-- penstock:queue:Q:reserved            set     T/ID of its reservations
-- penstock:queue:Q:running             set     T/ID of its leased jobs
-- penstock:queue:Q:dead                zset    T/ID of its dead letters (failed as worker_lost) by the time of their end
-- penstock:queue:Q:mode                string  paused (nothing is claimed) or draining (nothing is accepted)
-- penstock:queues                      set     every queue that ever had a job
-- penstock:reserved                    zset    T/ID of jobs without a manifest yet, by the time of their reservation
-- penstock:recovering                  string  who recovers
-- penstock:alive                       string  missing = Redis was emptied: the keeper recovers from the manifests
-- penstock:leases :deadlines :delayed :expiring :finished   zset  T/ID by the time at which the keeper must look
-- penstock:outbox                      zset    T/DELIVERY by the time of the next try
-- penstock:dry:T/ID                   string  the worker that runs dry to take a job on its last chance, expires
-- penstock:claim:SLOT:NONCE            string  a claim's reply, for a client that lost it, expires
--
-- Record: submission (JSON) fingerprint tenant id model queue rank state phase attempt crashes fence revision
--   created_us started_us completed_us due_us lease_us deadline_us ttl_us execution_us retention_us max_attempts
--   max_crashes cancel done total unit message text data artifacts error metrics (JSON) webhook (JSON) delivery retry_of
--   checkpoints (of the attempt) durable
--
-- A job with durable = '1' ends in two steps, because its end is what `outcome.json` in the object store says: a script
-- that would end it returns the proposal of an outcome instead, the caller puts that object if there is none yet, and
-- `commit` makes the record what the stored one says.
--
-- Rank = creation time minus a head start for high priority: priorities age by themselves, and a job that comes back
-- after a crash stands where it stood. All times are Redis TIME in microseconds, exact in a double until 2255.

local P = 'penstock:'
local TERMINAL = { succeeded = true, failed = true, canceled = true, expired = true }

local function now_us()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

local function int(n) return string.format('%.0f', n) end
local function tkey(tenant, rest) return P .. 'tenant:' .. tenant .. ':' .. rest end
local function qkey(queue, rest) return P .. 'queue:' .. queue .. ':' .. rest end
local function jobkey(tenant, id) return tkey(tenant, 'job:' .. id) end

local function load(tenant, id)
  local flat = redis.call('HGETALL', jobkey(tenant, id))
  if #flat == 0 then return nil end
  local job = {}
  for i = 1, #flat, 2 do job[flat[i]] = flat[i + 1] end
  job.name = tenant .. '/' .. id
  return job
end

local function flatten(job)
  local flat = {}
  for k, v in pairs(job) do flat[#flat + 1] = k; flat[#flat + 1] = v end
  return flat
end

local function split(name)
  local slash = string.find(name, '/', 1, true)
  return string.sub(name, 1, slash - 1), string.sub(name, slash + 1)
end

-- How many jobs the queue's living workers run at a time.
local function slots_of(queue, now)
  local slots = 0
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', qkey(queue, 'seen'), int(now - 60000000), '+inf')) do
    slots = slots + tonumber(redis.call('HGET', qkey(queue, 'workers'), worker) or '0')
  end
  return slots
end

-- Write fields of a record (in Redis and in the table) and count the revision up.
local function write(job, fields)
  fields.revision = int((tonumber(job.revision) or 0) + 1)
  local flat = {}
  for k, v in pairs(fields) do job[k] = v; flat[#flat + 1] = k; flat[#flat + 1] = v end
  redis.call('HSET', jobkey(job.tenant, job.id), unpack(flat))
end

-- A list as JSON: cjson takes an empty table for an object.
local function json_list(rows) return #rows == 0 and '[]' or cjson.encode(rows) end

-- Append to the job's event stream and wake whoever waits for a change. What users read is never decoded and encoded
-- again here, because cjson changes it (empty lists, numbers of more than 14 digits): `data` may be JSON text, and an
-- error report (JSON text or '') has a field of its own.
local function emit(job, kind, data, report)
  redis.call('XADD', jobkey(job.tenant, job.id) .. ':events', 'MAXLEN', '~', 1000, '*',
    'type', kind, 'data', type(data) == 'string' and data or cjson.encode(data), 'error', report or '')
  redis.call('PUBLISH', P .. 'changes', job.name)
end

-- When the keeper must look at a waiting job: at the end of its TTL, or at once if somebody asked for its end.
local function expire_at(job, at)
  redis.call('ZADD', P .. 'expiring', job.cancel == '1' and '0' or int(at), job.name)
end

local function enqueue(job)
  local lane = job.model .. '/' .. job.tenant
  redis.call('ZADD', qkey(job.queue, 'waiting'), job.rank, job.name)
  redis.call('ZADD', qkey(job.queue, 'lane:' .. lane), job.rank, job.id)
  redis.call('ZADD', qkey(job.queue, 'lanes'), 'NX', 0, lane)
end

local function dequeue(job)
  local lane = job.model .. '/' .. job.tenant
  redis.call('ZREM', qkey(job.queue, 'waiting'), job.name)
  redis.call('ZREM', qkey(job.queue, 'lane:' .. lane), job.id)
  if redis.call('EXISTS', qkey(job.queue, 'lane:' .. lane)) == 0 then
    redis.call('ZREM', qkey(job.queue, 'lanes'), lane)
  end
end

local function unlease(job)
  redis.call('ZREM', P .. 'leases', job.name)
  redis.call('ZREM', P .. 'deadlines', job.name)
  redis.call('SREM', tkey(job.tenant, 'running'), job.id)
  redis.call('SREM', qkey(job.queue, 'running'), job.name)
end

-- A row in the webhook outbox, if the job's owner asked for this event. One id per event (of an attempt, for its start).
local function announce(job, event, now)
  if (job.webhook or '') == '' then return end
  local hook = cjson.decode(job.webhook)
  local wanted = false
  for _, name in ipairs(hook.events) do wanted = wanted or name == event end
  if not wanted then return end
  local id = 'msg_' .. job.id .. '_' .. event
  if event == 'job.started' then id = id .. '.' .. job.attempt end
  if redis.call('EXISTS', tkey(job.tenant, 'delivery:' .. id)) == 1 then return end
  redis.call('HSET', tkey(job.tenant, 'delivery:' .. id), 'id', id, 'tenant', job.tenant, 'job', job.id,
    'event', event, 'url', hook.url, 'created_us', int(now), 'tries', '0', 'state', 'pending', 'log', '[]')
  redis.call('RPUSH', jobkey(job.tenant, job.id) .. ':deliveries', id)
  redis.call('ZADD', P .. 'outbox', int(now), job.tenant .. '/' .. id)
  write(job, { delivery = 'pending' })
end

-- What queues know of their speed, by the minute in which the job ended.
local function count_success(job, now)
  local speed, took = qkey(job.queue, 'speed'), now - job.started_us
  local before = redis.call('HGET', speed, job.model)
  redis.call('HSET', speed, job.model, int(before and 0.8 * before + 0.2 * took or took))
  local minute = qkey(job.queue, 'done:' .. int(math.floor(now / 60000000)))
  redis.call('INCR', minute)
  redis.call('EXPIRE', minute, 900)
end

-- The one way into a terminal state.
local function terminate(job, state, fields, now)
  fields.state = state
  fields.phase = 'waiting'
  fields.completed_us = int(now)
  write(job, fields)
  unlease(job)
  dequeue(job)
  for _, index in ipairs({ 'delayed', 'expiring', 'reserved' }) do redis.call('ZREM', P .. index, job.name) end
  redis.call('SREM', qkey(job.queue, 'reserved'), job.name)
  redis.call('SREM', tkey(job.tenant, 'live'), job.id)
  redis.call('ZADD', P .. 'finished', int(now + job.retention_us), job.name)
  announce(job, 'job.' .. state, now)
  local data = { status = state, attempt = tonumber(job.attempt) }
  if (job.error or '') ~= '' then
    local code = cjson.decode(job.error).code
    if code == 'worker_lost' then redis.call('ZADD', qkey(job.queue, 'dead'), int(now), job.name) end
  end
  if state == 'succeeded' then count_success(job, now) end
  emit(job, 'job.' .. state, data, job.error)
end

-- The job's deliveries that are still to be made, as they stand.
local function undelivered(job)
  local rows = {}
  for _, id in ipairs(redis.call('LRANGE', jobkey(job.tenant, job.id) .. ':deliveries', 0, -1)) do
    local flat, row = redis.call('HGETALL', tkey(job.tenant, 'delivery:' .. id)), {}
    for i = 1, #flat, 2 do row[flat[i]] = flat[i + 1] end
    if row.state == 'pending' then rows[#rows + 1] = row end
  end
  return rows
end

-- End a job. Returns nil, or for a durable job, which stays as it is, the proposal of its outcome (JSON).
local function finish(job, state, fields, now)
  if job.durable ~= '1' then return terminate(job, state, fields, now) end
  local record = {}
  for k, v in pairs(job) do record[k] = v end
  for k, v in pairs(fields) do record[k] = v end
  record.state, record.phase, record.completed_us, record.name = state, 'waiting', int(now), nil
  return '{"version":1,"record":' .. cjson.encode(record) .. ',"deliveries":' .. json_list(undelivered(job)) .. '}'
end

-- Back to the queue, at the job's old place.
local function requeue(job, fields, event, data, now)
  unlease(job)
  redis.call('ZREM', P .. 'delayed', job.name)
  fields.state = 'queued'
  fields.phase = 'waiting'
  write(job, fields)
  enqueue(job)
  expire_at(job, now + job.ttl_us)
  emit(job, event, data)
end

-- The record of a running attempt, or nil and why not: 'already' where this fence ended the attempt itself.
local function held(tenant, id, fence)
  local job = load(tenant, id)
  if not job then return nil, 'fenced' end
  if job.fence ~= fence then return nil, 'fenced' end
  if job.state ~= 'running' then return nil, job.ended_by == fence and 'already' or 'fenced' end
  return job
end
