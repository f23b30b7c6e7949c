#!lua flags=no-writes
-- Small reads: `args.op` names one. They also run while Redis is out of memory.
local ops = {}

function ops.ping() return redis.status_reply('PONG') end

-- -> now_us: the only clock of jobs and batches
function ops.clock() return int(now_us()) end

-- -> 1 unless Redis was emptied since the end of the last recovery
function ops.alive() return redis.call('EXISTS', P .. 'alive') end

-- reads -> {1 as `alive`, 1 where the jobs were compared with the object store in this run of the server by a keeper that
-- reads this format, the run}
function ops.witness()
  local run = run_id()
  local reads = string.match(redis.call('GET', P .. 'run:reads') or '', '^' .. run .. ' (%d+)$') or '1'
  local compared = redis.call('GET', P .. 'run') == run and tonumber(reads) >= tonumber(args.reads)
  return { ops.alive(), compared and 1 or 0, run }
end

-- names {{job|batch, tenant, id, true if its end is stored}...} -> {0|1...}: 1 for one without a record, one whose record is a
-- reservation, and one whose record has not ended although its end is stored; 0 for any other, and for one that was deleted
function ops.stale()
  local found = {}
  for n, name in ipairs(args.names) do
    local kind, tenant, id, ended = unpack(name)
    local key, field, gone = jobkey(tenant, id), 'state', 'gone:'
    if kind == 'batch' then key, field, gone = bkey(tenant, id), 'end', 'batchgone:' end
    local value, completed_us = unpack(redis.call('HMGET', key, field, 'completed_us'))
    local over = value and (kind == 'batch' or has_ended({ state = value, completed_us = completed_us or nil }))
    local current = redis.call('EXISTS', key) == 1 and (over or not (ended or value == 'reserved'))
    found[n] = (current or redis.call('EXISTS', tkey(tenant, gone .. id)) == 1) and 0 or 1
  end
  return found
end

-- -> {queue, mode, ...} of the queues that are not open | 0 where they have not got their stored modes in this run
function ops.queue_modes()
  if redis.call('GET', P .. 'run:modes') ~= run_id() then return 0 end
  local found = {}
  for _, queue in ipairs(redis.call('SMEMBERS', P .. 'queues')) do
    local mode = redis.call('GET', qkey(queue, 'mode'))
    if mode then found[#found + 1] = queue; found[#found + 1] = mode end
  end
  return found
end

-- -> {id of the store or false, active keeper or false}
function ops.identity() return { redis.call('GET', P .. 'alive'), redis.call('GET', P .. 'keeper') } end

-- tenant id -> view | 0 unknown | 1 gone
function ops.job()
  local job, missing = find(args.tenant, args.id)
  if not job then return missing end
  local found = view(job)
  found[#found + 1] = redis.call('ZRANGE', followers_key(args.tenant, args.id), 0, -1)
  return found
end

-- tenant id after count -> {entries of the job's event stream after an id} | 0 unknown | 1 gone
function ops.events()
  local job, missing = find(args.tenant, args.id)
  if not job then return missing end
  local stream = jobkey(args.tenant, args.id) .. ':events'
  return { redis.call('XRANGE', stream, '(' .. args.after, '+', 'COUNT', args.count) }
end

-- tenant id -> {{part of its lines (add.lua)...}} | 0 unknown | 1 gone
function ops.logs()
  local job, missing = find(args.tenant, args.id)
  if not job then return missing end
  return { redis.call('LRANGE', jobkey(args.tenant, args.id) .. ':logs', 0, -1) }
end

-- worker -> its latest log lines (JSON) or false
function ops.worker_lines() return redis.call('GET', P .. 'workers:lines:' .. args.worker) end

-- tenant id -> {{delivery...}} | 0 unknown | 1 gone
function ops.deliveries()
  local job, missing = find(args.tenant, args.id)
  if not job then return missing end
  local rows, now = {}, now_us()
  for _, id in ipairs(redis.call('LRANGE', jobkey(args.tenant, args.id) .. ':deliveries', 0, -1)) do
    rows[#rows + 1] = delivery(args.tenant, id, now)
  end
  return { rows }
end

-- tenant delivery -> {{delivery}} | 2 unknown
function ops.delivery()
  if redis.call('EXISTS', rowkey(args.tenant, args.delivery)) == 0 then return 2 end
  return { { delivery(args.tenant, args.delivery, now_us()) } }
end

-- limit -> {T/ID...} of terminal jobs whose retention is over
function ops.retired_jobs()
  return redis.call('ZRANGEBYSCORE', P .. 'finished', '-inf', int(now_us()), 'LIMIT', 0, args.limit)
end

-- -> 1 where leftovers were deleted lately
function ops.tidied() return redis.call('EXISTS', P .. 'tidied') end

-- tenant id -> characters of a job's text that its client has
function ops.streamed() return redis.call('GET', jobkey(args.tenant, args.id) .. ':streamed') or '0' end

-- age_us limit -> {T/ID...} of reservations that are older and not confirmed
function ops.reservations()
  return redis.call('ZRANGEBYSCORE', P .. 'reserved', '-inf', int(now_us() - args.age_us), 'LIMIT', 0, args.limit)
end

-- tenant digest -> id of the latest job with this result, or false
function ops.result() return redis.call('GET', tkey(args.tenant, 'result:' .. args.digest)) end

-- -> every queue that ever had a job or a worker
function ops.queues() return redis.call('SMEMBERS', P .. 'queues') end

-- -> {queue, waiting, ...} of the queues that have waiting jobs
function ops.backlog()
  local rows = {}
  for _, queue in ipairs(redis.call('SMEMBERS', P .. 'queues')) do
    local waiting = redis.call('ZCARD', qkey(queue, 'waiting'))
    if waiting > 0 then rows[#rows + 1] = queue; rows[#rows + 1] = waiting end
  end
  return rows
end

-- -> every queue of which a driver starts workers
function ops.pools()
  local found = {}
  for _, queue in ipairs(redis.call('SMEMBERS', P .. 'queues')) do
    if redis.call('EXISTS', qkey(queue, 'pool')) == 1 then found[#found + 1] = queue end
  end
  return found
end

-- queue -> {living workers, workers that hold a job, jobs that wait, 1 where a driver starts workers}
function ops.capacity()
  local queue, held, busy = args.queue, {}, 0
  for _, name in ipairs(redis.call('SMEMBERS', qkey(queue, 'running'))) do
    local worker = redis.call('HGET', jobkey(split(name)), 'worker')
    if worker and not held[worker] then held[worker], busy = true, busy + 1 end
  end
  return { redis.call('ZCOUNT', qkey(queue, 'seen'), int(now_us()), '+inf'), busy, redis.call('ZCARD', qkey(queue, 'waiting')),
    redis.call('EXISTS', qkey(queue, 'pool')) }
end

-- queue tenant model -> {jobs of a tenant and model that wait, that run, workers that hold one of them, living workers}
function ops.own_jobs()
  local running, held, busy = 0, {}, 0
  for _, id in ipairs(redis.call('SMEMBERS', tkey(args.tenant, 'running'))) do
    local job = redis.call('HMGET', jobkey(args.tenant, id), 'queue', 'model', 'worker', 'parent')
    if job[1] == args.queue and job[2] == args.model then
      if (job[4] or '') == '' then running = running + 1 end
      if job[3] and not held[job[3]] then held[job[3]], busy = true, busy + 1 end
    end
  end
  return { redis.call('ZCARD', qkey(args.queue, 'lane:' .. args.model .. '/' .. args.tenant)), running, busy,
    redis.call('ZCOUNT', qkey(args.queue, 'seen'), int(now_us()), '+inf') }
end

-- version limit -> {jobs, highest version} of waiting jobs above a format or in unknown states, of the first of each queue
function ops.newer()
  local jobs, highest = 0, 0
  for _, queue in ipairs(redis.call('SMEMBERS', P .. 'queues')) do
    for _, name in ipairs(redis.call('ZRANGE', qkey(queue, 'waiting'), 0, args.limit - 1)) do
      local row = redis.call('HMGET', jobkey(split(name)), 'version', 'state')
      local version = tonumber(row[1] or '1')
      if version > tonumber(args.version) or (row[2] and not is_known(row[2])) then
        jobs, highest = jobs + 1, math.max(highest, version)
      end
    end
  end
  return { jobs, highest }
end

-- -> {name, entry(JSON), state, note or false, failed loads (JSON) or false, ...}: 3 published by living workers none of which has checked it, 2 ready,
-- 1 published by a living worker that has checked it, 0 published by none. Without
-- penstock:catalogue:living, which older releases do not write, every model of a living worker's catalogue counts as living.
function ops.catalogue()
  local ranks, all = table_of(redis.call('HGETALL', P .. 'catalogue:ranks')), {}
  local any = redis.call('ZCOUNT', P .. 'publishers', '(' .. int(now_us()), '+inf') > 0
  local living = table_of(redis.call('HGETALL', P .. 'catalogue:living'))
  local is_listed = next(living) ~= nil
  local flat = redis.call('HGETALL', P .. 'catalogue')
  for i = 1, #flat, 2 do
    local name, state = flat[i], 0
    if any and living[name] == '1' then
      state = 3
    elseif any and string.sub(ranks[name] or '', 1, 1) == '4' then
      state = 2
    elseif any and (living[name] or not is_listed) then
      state = 1
    end
    -- An older worker that publishes the model ready leaves the note of an earlier one.
    local note = state ~= 2 and redis.call('HGET', P .. 'catalogue:notes', name)
    local failing = state ~= 2 and redis.call('HGET', P .. 'loads', name)
    for _, each in ipairs({ name, flat[i + 1], state, note, failing }) do all[#all + 1] = each end
  end
  return all
end

-- queues -> {name, entry(JSON), ...} of the models in the catalogue for which jobs wait in one of the queues
function ops.awaited()
  local found, seen = {}, {}
  for _, queue in ipairs(args.queues) do
    for name in pairs(backlog_of(queue)) do
      name = plain(name)
      local entry = not seen[name] and redis.call('HGET', P .. 'catalogue', name)
      seen[name] = true
      if entry then found[#found + 1] = name; found[#found + 1] = entry end
    end
  end
  return found
end

-- -> {now_us, model, machine, failure (JSON), ...}: the failed loads
function ops.load_failures()
  local found = { int(now_us()) }
  for _, model in ipairs(redis.call('HKEYS', P .. 'loads')) do
    for machine, row in pairs(table_of(redis.call('HGETALL', P .. 'load:' .. model))) do
      for _, each in ipairs({ model, machine, row }) do found[#found + 1] = each end
    end
  end
  return found
end

-- model class -> the mark of its load that ended well on a machine of the class, or false
function ops.load_passed() return redis.call('HGET', P .. 'loads:passed', args.model .. ' ' .. args.class) end

-- -> {name...} of models that left the catalogue
function ops.left() return redis.call('HKEYS', P .. 'catalogue:left') end

-- tenant id -> view | 0 unknown | 1 gone
function ops.batch()
  local found, missing = batch_view(args.tenant, args.id)
  return found or missing
end

-- limit -> {T/ID...} of batches that are not over, oldest first
function ops.open_batches() return redis.call('ZRANGE', P .. 'batches', 0, args.limit - 1) end

-- limit -> {T/ID...} of batches that are deleted or whose retention is over
function ops.retired_batches()
  return redis.call('ZRANGEBYSCORE', P .. 'batches:finished', '-inf', int(now_us()), 'LIMIT', 0, args.limit)
end

-- tenant id limit -> {job id...} of the oldest members that have a record
function ops.batch_members()
  return redis.call('ZRANGE', bkey(args.tenant, args.id, 'jobs'), 0, args.limit - 1)
end

-- tenant id cursor limit -> {cursor, {job id...}} of members that are not terminal; cursor 0 ends the scan
function ops.live_members()
  return redis.call('SSCAN', bkey(args.tenant, args.id, 'live'), args.cursor, 'COUNT', args.limit)
end

-- age_us limit -> {T/ENDPOINT/NONCE...} of changes that are older and have not ended
function ops.endpoint_changes()
  local before = int(now_us() - args.age_us)
  return redis.call('ZRANGEBYSCORE', P .. 'endpoints:changing', '-inf', before, 'LIMIT', 0, args.limit)
end

-- -> {flat hash that `note_pass` wrote, now_us, events that wait}
function ops.drop_passes()
  return { redis.call('HGETALL', P .. 'drops:passes'), int(now_us()), redis.call('ZCARD', P .. 'drops:events') }
end

-- tenant(optional) from to limit -> {T/DAY...} of the days with sums, at most `limit`
function ops.usage_days()
  if not args.tenant then return redis.call('ZRANGEBYSCORE', P .. 'usage:days', args.from, args.to, 'LIMIT', 0, args.limit) end
  local found = {}
  for day = tonumber(args.from), tonumber(args.to) do
    if redis.call('EXISTS', tkey(args.tenant, 'usage:' .. int(day))) == 1 then
      found[#found + 1] = args.tenant .. '/' .. int(day)
    end
  end
  return found
end

-- days(T/DAY...) -> {flat hash of sums...}
function ops.usage()
  local found = {}
  for n, name in ipairs(args.days) do
    local tenant, day = split(name)
    found[n] = redis.call('HGETALL', tkey(tenant, 'usage:' .. day))
  end
  return found
end

-- jobs(T/ID...) -> {{model, state, completed_us, durable, a value for each of USED} or false...}; false where no job has ended
function ops.job_usage()
  local found = {}
  for n, name in ipairs(args.jobs) do
    local tenant, id = split(name)
    local row = redis.call('HMGET', jobkey(tenant, id), 'model', 'state', 'completed_us', 'durable', unpack(USED))
    found[n] = TERMINAL[row[2]] and row or false
  end
  return found
end

-- tenant -> {device time of today in us, us until the day's end, bytes kept}
function ops.quotas()
  local used, left = used_today(args.tenant, now_us())
  return { int(used), int(left), int(kept_bytes(args.tenant)) }
end

-- cursor -> {cursor, {tenant...}}: tenants of which Redis knows the bytes that they keep
function ops.tenants_that_keep()
  local page, found = redis.call('SCAN', args.cursor, 'MATCH', P .. 'tenant:*:kept', 'COUNT', 1000), {}
  for _, key in ipairs(page[2]) do
    found[#found + 1] = string.match(key, '^penstock:tenant:([^:]+):kept$')
  end
  return { page[1], found }
end

return ops[args.op]()
