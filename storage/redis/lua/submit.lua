#!lua
-- tenant id record {name: text} priority_us max_tenant_jobs max_queued max_device_us(optional) max_kept_bytes(optional)
-- max_followers max_chain_depth dry(bool)
-- -> {created|exists, view} | {reserved, created_us, depth} | {mismatch} | {gone} | {tenant|full, jobs, speed_us, slots}
-- | {draining} | {closed} | {device, used_us, left_us} | {kept, bytes} | {upstream|followers, id} | {depth}
-- | {fits, waiting jobs before it, pace, problem or false, device time or false} of a `dry` run, which writes nothing.
-- `record` has the fields that Python writes (record.py). A limit below 0: the job was accepted before, and is not refused.
-- A durable job is only reserved: it counts as waiting, and no worker can claim it before `confirm`.
local tenant, id, record, batch = args.tenant, args.id, args.record, args.record.batch
local model, queue = record.model, record.queue
local existing = load(tenant, id)
if existing then
  if existing.fingerprint ~= record.fingerprint then return { 'mismatch' } end
  if over(existing, now_us()) then return { 'gone' } end
  return { 'exists', view(existing) }
end
if redis.call('EXISTS', tkey(tenant, 'gone:' .. id)) == 1 then return { 'gone' } end
local limited = tonumber(args.max_tenant_jobs) >= 0
-- A closed batch gets no new member. A member that was accepted before is created again all the same.
if limited and batch and redis.call('HGET', bkey(tenant, batch), 'closed') ~= '0' then return { 'closed' } end
if limited and redis.call('GET', qkey(queue, 'mode')) == 'draining' then return { 'draining' } end
local now = now_us()
local function refused(why, jobs)
  return { why, jobs, redis.call('HGET', qkey(queue, 'speed'), model) or false, slots_of(queue, now) }
end
local live = redis.call('SCARD', tkey(tenant, 'live'))
if limited and live >= tonumber(args.max_tenant_jobs) then return refused('tenant', live) end
if limited and args.max_device_us then
  local used, left = used_today(tenant, now)
  if used >= tonumber(args.max_device_us) then return { 'device', int(used), int(left) } end
end
if limited and args.max_kept_bytes then
  local bytes = kept_bytes(tenant)
  if bytes >= tonumber(args.max_kept_bytes) then return { 'kept', int(bytes) } end
end
local waiting = redis.call('ZCARD', qkey(queue, 'waiting')) + redis.call('SCARD', qkey(queue, 'reserved'))
if limited and waiting >= tonumber(args.max_queued) then return refused('full', waiting) end
if limited and record.after then
  local chain = { tenant = tenant, after = record.after }
  local why, depth = check_chain(chain, now, tonumber(args.max_followers), tonumber(args.max_chain_depth))
  if why then return why end
  record.depth = depth
end
if args.dry then
  local media = (tonumber(record.media_bytes or '') or 0) > 0
  return { 'fits', redis.call('ZCOUNT', qkey(queue, 'waiting'), '-inf', int(now - args.priority_us)),
    pace(queue, model, now, has_many_lanes(queue, SUBMIT_LANES)), problem_of(model) or unserved(queue, model, now),
    redis.call('HGET', qkey(queue, 'device'), media and model .. ' media' or model) }
end
local job = { name = tenant .. '/' .. id, tenant = tenant, id = id, revision = '0', batch = batch }
local state = record.durable == '1' and 'reserved' or 'queued'
record.rank, record.state, record.created_us = int(now - args.priority_us), state, int(now)
write(job, record)
enlist(job, int(now))
redis.call('SADD', tkey(tenant, 'live'), id)
if batch then redis.call('SADD', bkey(tenant, batch, 'live'), id) end
note_follower(job, true)
redis.call('SADD', P .. 'queues', queue)
if state == 'reserved' then
  redis.call('ZADD', P .. 'reserved', int(now), job.name)
  redis.call('SADD', qkey(queue, 'reserved'), job.name)
  return { 'reserved', int(now), record.depth or '0' }
end
admit(job, now)
announce(job, 'job.queued', now)
emit(job, 'job.created', { model = model, queue = queue })
return { 'created', view(job, SUBMIT_LANES) }
