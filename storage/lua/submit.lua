#!lua
-- tenant id submission fingerprint model queue rank_offset_us ttl_us execution_us retention_us max_attempts max_crashes
-- webhook retry_of max_tenant_jobs max_queued durable(1 or '') metadata(JSON, or '') batch(id or '') drop(the object, or '')
-- -> {created|exists, view} | {mismatch} | {gone} | {tenant|full, jobs, speed_us, slots} | {draining} | {closed}
-- Limits below 0: the job was accepted before, nothing is refused. A durable job is only reserved: it counts, but nobody claims it until `confirm` says that its manifest is stored.
local tenant, id, model, queue, durable = ARGV[1], ARGV[2], ARGV[5], ARGV[6], ARGV[17]
local existing = load(tenant, id)
if existing then
  if existing.fingerprint ~= ARGV[4] then return { 'mismatch' } end
  if over(existing, now_us()) then return { 'gone' } end
  return { 'exists', view(existing) }
end
if redis.call('EXISTS', tkey(tenant, 'gone:' .. id)) == 1 then return { 'gone' } end
local limited = tonumber(ARGV[15]) >= 0
-- A batch that ends, or is over, gets no new member; one that was accepted before is made anew all the same.
local batch = ARGV[19]
if limited and batch ~= '' and redis.call('HGET', bkey(tenant, batch), 'closed') ~= '0' then return { 'closed' } end
if limited and redis.call('GET', qkey(queue, 'mode')) == 'draining' then return { 'draining' } end
local now = now_us()
local function refused(why, jobs)
  return { why, jobs, redis.call('HGET', qkey(queue, 'speed'), model) or false, slots_of(queue, now) }
end
local live = redis.call('SCARD', tkey(tenant, 'live'))
if limited and live >= tonumber(ARGV[15]) then return refused('tenant', live) end
local waiting = redis.call('ZCARD', qkey(queue, 'waiting')) + redis.call('SCARD', qkey(queue, 'reserved'))
if limited and waiting >= tonumber(ARGV[16]) then return refused('full', waiting) end
local job = { name = tenant .. '/' .. id, tenant = tenant, id = id, model = model, queue = queue, revision = '0', batch = batch }
write(job, {
  submission = ARGV[3], fingerprint = ARGV[4], tenant = tenant, id = id, model = model, queue = queue,
  rank = int(now - ARGV[7]), state = 'queued', phase = 'waiting', attempt = '0', crashes = '0', fence = '0',
  created_us = int(now), ttl_us = ARGV[8], execution_us = ARGV[9], retention_us = ARGV[10],
  max_attempts = ARGV[11], max_crashes = ARGV[12], webhook = ARGV[13], retry_of = ARGV[14], delivery = 'none',
  durable = durable, metadata = ARGV[18] ~= '' and ARGV[18] or nil, batch = batch,
  drop = ARGV[20] ~= '' and ARGV[20] or nil,
})
enlist(job, int(now))
redis.call('SADD', tkey(tenant, 'live'), id)
if batch ~= '' then redis.call('SADD', bkey(tenant, batch, 'live'), id) end
redis.call('SADD', P .. 'queues', queue)
if durable == '1' then
  write(job, { state = 'reserved' })
  redis.call('ZADD', P .. 'reserved', int(now), job.name)
  redis.call('SADD', qkey(queue, 'reserved'), job.name)
  return { 'created', view(job) }
end
expire_at(job, now + ARGV[8])
enqueue(job)
announce(job, 'job.queued', now)
emit(job, 'job.created', { model = model, queue = queue })
return { 'created', view(job) }
