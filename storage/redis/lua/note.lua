#!lua flags=allow-oom
-- Small writes that must succeed even while Redis is out of memory: `args.op` names one.
local ops = {}

-- who lease_ms -> 1 if `who` is the active keeper until the lease ends
function ops.lead()
  local holder = redis.call('GET', P .. 'keeper')
  if holder and holder ~= args.who then return 0 end
  redis.call('SET', P .. 'keeper', args.who, 'PX', args.lease_ms)
  return 1
end

-- who -> 1 if `who` was the active keeper and no longer is
function ops.step_down()
  if redis.call('GET', P .. 'keeper') ~= args.who then return 0 end
  return redis.call('DEL', P .. 'keeper')
end

-- who -> 1. A recovery begins. The entry expires if its keeper dies.
function ops.begin_recovery()
  redis.call('SET', P .. 'recovering', args.who, 'PX', 86400000)
  return 1
end

-- who -> 1 | 0 if Redis was emptied meanwhile, or another recovery has begun
function ops.end_recovery()
  if redis.call('GET', P .. 'recovering') ~= args.who then return 0 end
  redis.call('DEL', P .. 'recovering', P .. 'unannounced')
  redis.call('SET', P .. 'alive', args.who)
  return 1
end

-- run reads -> 1 | 0 in another run of the server. The jobs were compared with the object store, up to a format.
function ops.compared()
  if args.run ~= run_id() then return 0 end
  redis.call('SET', P .. 'run', args.run)
  redis.call('SET', P .. 'run:reads', args.run .. ' ' .. args.reads)
  return 1
end

-- for_ms -> 1. Leftovers were deleted.
function ops.tidied()
  redis.call('SET', P .. 'tidied', '1', 'PX', args.for_ms)
  return 1
end

-- tenant id chars for_ms -> 1. Characters of a job's text that its client has, for clients that ask in turns.
function ops.streamed()
  redis.call('SET', jobkey(args.tenant, args.id) .. ':streamed', args.chars, 'PX', args.for_ms)
  return 1
end

-- queue tenant id -> 1 if the job was among the queue's dead letters and no longer is
function ops.remove_dead_letter()
  return redis.call('ZREM', qkey(args.queue, 'dead'), args.tenant .. '/' .. args.id)
end

-- tenant ids keep_s -> 1. Deliveries that were answered before Redis was lost (answered.py).
function ops.answered()
  local key = tkey(args.tenant, 'answered')
  redis.call('SADD', key, unpack(args.ids))
  redis.call('EXPIRE', key, args.keep_s)
  return 1
end

-- queue mode(open|paused|draining) -> ok
function ops.queue_mode()
  if args.mode == 'open' then
    redis.call('DEL', qkey(args.queue, 'mode'))
  else
    redis.call('SET', qkey(args.queue, 'mode'), args.mode)
    redis.call('SADD', P .. 'queues', args.queue)
  end
  return 'ok'
end

-- modes(optional) {Q: mode} -> 1 | 0 where the queues have got them in this run of the server. The stored modes of all queues
-- that are not open. Without `modes`, none are stored, and the queues keep theirs. Leaves a mode that is not known here.
function ops.restore_modes()
  local run = run_id()
  if redis.call('GET', P .. 'run:modes') == run then return 0 end
  if args.modes then
    for _, queue in ipairs(redis.call('SMEMBERS', P .. 'queues')) do
      if not args.modes[queue] then redis.call('DEL', qkey(queue, 'mode')) end
    end
    for queue, mode in pairs(args.modes) do
      if mode == 'paused' or mode == 'draining' then
        redis.call('SET', qkey(queue, 'mode'), mode)
        redis.call('SADD', P .. 'queues', queue)
      end
    end
  end
  redis.call('SET', P .. 'run:modes', run)
  return 1
end

-- queue worker -> ok. The worker claims nothing more.
function ops.leave()
  redis.call('ZREM', qkey(args.queue, 'seen'), args.worker)
  redis.call('HDEL', qkey(args.queue, 'workers'), args.worker)
  redis.call('ZREM', P .. 'publishers', args.worker)
  redis.call('DEL', P .. 'published:' .. args.worker)
  return 'ok'
end

-- Stores in words what is known of a model's loads, for those who watch its jobs.
local function tell_loads(model, how)
  local machines = redis.call('HLEN', P .. 'load:' .. model)
  if machines == 0 then
    redis.call('HDEL', P .. 'loads', model)
  else
    how = how or cjson.decode(redis.call('HVALS', P .. 'load:' .. model)[1]).how
    how = 'its load ' .. how .. (machines > 1 and ' on ' .. machines .. ' machines' or '')
    redis.call('HSET', P .. 'loads', model, cjson.encode({ how = how, machines = machines }))
  end
  redis.call('PUBLISH', P .. 'changes', 'model:' .. model)
end

-- model machine record how lines(JSON) first_us most_us keep_us many -> us until the machine may try again. A load ended its
-- process. The wait doubles with each failure in a row, up to `most_us`. Failures of another record are forgotten, and those
-- older than `keep_us` unless `many` machines have failed.
function ops.load_failed()
  local key, now, count = P .. 'load:' .. args.model, now_us(), 1
  local rows = table_of(redis.call('HGETALL', key))
  local fewer = redis.call('HLEN', key) < tonumber(args.many)
  for machine, text in pairs(rows) do
    local row = cjson.decode(text)
    if row.record ~= args.record or (fewer and tonumber(row.at_us) < now - args.keep_us) then
      redis.call('HDEL', key, machine)
    elseif machine == args.machine then
      count = row.count + 1
    end
  end
  local wait = math.min(tonumber(args.most_us), args.first_us * 2 ^ math.min(count - 1, 30))
  redis.call('HSET', key, args.machine, cjson.encode({
    record = args.record, count = count, at_us = int(now), until_us = int(now + wait), how = args.how, lines = args.lines,
  }))
  tell_loads(args.model, args.how)
  return int(wait)
end

-- model machine -> 1 where its latest load there had failed. It succeeded.
function ops.load_succeeded()
  local known = redis.call('HDEL', P .. 'load:' .. args.model, args.machine)
  if known == 1 then tell_loads(args.model) end
  return known
end

-- model class mark -> 1. A load ended well in a process of its own.
function ops.load_passed()
  redis.call('HSET', P .. 'loads:passed', args.model .. ' ' .. args.class, args.mark)
  return 1
end

-- model -> number of machines whose failures were forgotten. Every machine tries the model again.
function ops.load_retry()
  local machines = redis.call('HLEN', P .. 'load:' .. args.model)
  redis.call('DEL', P .. 'load:' .. args.model)
  for _, name in ipairs(redis.call('HKEYS', P .. 'loads:passed')) do
    if string.match(name, '^%S+') == args.model then redis.call('HDEL', P .. 'loads:passed', name) end
  end
  tell_loads(args.model)
  return machines
end

-- queues [Q...] worker -> ok. A worker of these queues that was to start no longer does.
function ops.forget_start()
  for _, queue in ipairs(args.queues) do redis.call('ZREM', qkey(queue, 'starting'), args.worker) end
  return 'ok'
end

-- queues [Q...] alive_ms -> ok. A driver starts workers of these queues when jobs want them.
function ops.pool()
  for _, queue in ipairs(args.queues) do redis.call('SET', qkey(queue, 'pool'), '1', 'PX', args.alive_ms) end
  return 'ok'
end

-- tenant delivery body -> the body that every try sends, which is the first one noted | false for an unknown delivery
function ops.delivery_body()
  local key = rowkey(args.tenant, args.delivery)
  if redis.call('EXISTS', key) == 0 then return false end
  redis.call('HSETNX', key, 'body', args.body)
  return redis.call('HGET', key, 'body')
end

-- tenant endpoint -> ok. Forgets a deleted endpoint, even that it was deleted.
function ops.forget_endpoint()
  local known = endpoint_of(args.tenant, args.endpoint)
  if known and known.deleted then redis.call('HDEL', tkey(args.tenant, 'endpoints'), args.endpoint) end
  return 'ok'
end

-- jobs(T/ID...) look_us -> {T/ID...} of those that are kept for live followers. They are looked at again later.
function ops.followed()
  local found, at = {}, int(now_us() + args.look_us)
  for _, name in ipairs(args.jobs) do
    if is_followed(split(name)) then
      found[#found + 1] = name
      if redis.call('ZSCORE', P .. 'finished', name) then redis.call('ZADD', P .. 'finished', at, name) end
    end
  end
  return found
end

-- counts {"SOURCE OUTCOME": n} -> ok
function ops.count_drops()
  for name, n in pairs(args.counts) do redis.call('HINCRBY', P .. 'counts:drops', name, n) end
  return 'ok'
end

-- name(rule or "queue ADDRESS") pass(JSON) -> 1. The latest listing of a rule, or the problem of an SQS queue.
function ops.note_pass()
  redis.call('HSET', P .. 'drops:passes', args.name, args.pass, args.name .. ' at_us', int(now_us()))
  return 1
end

-- tenant name replaces jobs{{id, model, state, completed_us, ...}...} sums{DAY: {"MODEL MEASURE": n}} gone_s -> 1 | 0 if the
-- sums here include it. Adds a stored sum of purged jobs (usage_ledger.py), without the jobs that Redis knows: those are
-- counted, or were. Sums by day do not name their jobs: only an emptied Redis adds them, one with older data has a part.
-- A record of a purged job is one of older data, such as a copy of the log, or is about to be purged. A live one ends as the
-- job did, without a word to its receivers, so that it does not run again. An ended one is purged with its objects.
local function bury(record, job)
  if has_ended(record) then
    return redis.call('ZADD', P .. 'finished', '0', record.name)
  end
  local fields = { error = '', cancel = '' }
  for _, name in ipairs(USED) do fields[name] = job[name] or '' end
  record.silent, record.buried = true, true
  terminate(record, job.state, fields, job.completed_us)
  purge_record(record)
end

function ops.fold_usage()
  local tenant, folded = args.tenant, tkey(args.tenant, 'usage:folded')
  local known = redis.call('SISMEMBER', folded, args.name) == 1
  for _, name in ipairs(args.replaces) do known = known or redis.call('SISMEMBER', folded, name) == 1 end
  redis.call('SADD', folded, args.name)
  if known then return 0 end
  for _, job in ipairs(args.jobs) do
    local gone, record = tkey(tenant, 'gone:' .. job.id), load(tenant, job.id)
    if record and not is_newer(record) and tonumber(record.created_us) <= tonumber(job.completed_us) then
      bury(record, job)
    elseif redis.call('EXISTS', jobkey(tenant, job.id), gone) == 0 then
      count_usage(tenant, job.model, job.state, job.completed_us, job)
      redis.call('SET', gone, '1', 'EX', args.gone_s)
    end
  end
  if redis.call('EXISTS', P .. 'alive') == 1 then return 1 end
  for day, sums in pairs(args.sums) do
    for name, n in pairs(sums) do redis.call('HINCRBY', tkey(tenant, 'usage:' .. day), name, n) end
    redis.call('ZADD', P .. 'usage:days', day, tenant .. '/' .. day)
  end
  return 1
end

-- tenant names -> 1. These stored sums are deleted: others replace them.
function ops.unfold_usage()
  for _, name in ipairs(args.names) do redis.call('SREM', tkey(args.tenant, 'usage:folded'), name) end
  return 1
end

-- before limit -> number of days whose sums were deleted: those before a day
function ops.trim_usage()
  local names = redis.call('ZRANGEBYSCORE', P .. 'usage:days', '-inf', '(' .. args.before, 'LIMIT', 0, args.limit)
  for _, name in ipairs(names) do
    local tenant, day = split(name)
    redis.call('DEL', tkey(tenant, 'usage:' .. day))
    redis.call('ZREM', P .. 'usage:days', name)
  end
  return #names
end

-- tenant bytes -> 1. The tenant's objects were listed.
function ops.kept()
  redis.call('DEL', tkey(args.tenant, 'kept'), tkey(args.tenant, 'kept:uploads'))
  redis.call('HSET', tkey(args.tenant, 'kept'), 'bytes', args.bytes)
  expire_kept(tkey(args.tenant, 'kept'))
  return 1
end

-- tenant upload bytes max_bytes -> {1} | {0, bytes kept} where there is no room. Counts an upload, once.
function ops.keep_upload()
  local uploads, kept = tkey(args.tenant, 'kept:uploads'), kept_bytes(args.tenant)
  if redis.call('SISMEMBER', uploads, args.upload) == 1 then return { 1 } end
  if kept + args.bytes > tonumber(args.max_bytes) then return { 0, int(kept) } end
  redis.call('SADD', uploads, args.upload)
  expire_kept(uploads)
  count_kept(args.tenant, tonumber(args.bytes))
  return { 1 }
end

return ops[args.op]()
